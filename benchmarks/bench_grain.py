"""Peer: Grain on ArrayRecord files."""

import struct
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._crops import DECODER_NOTES, DECODERS
from benchmarks._workloads import SEED, Batch, Workload, arrays, encoded

WORKLOADS = {"exact": ("pillow",), "fast": ("opencv",), "tensors": ("",), "records": ("",)}
REQUIREMENTS = (
    "grain==0.2.18",
    "array-record==0.8.6",
    "numpy==2.4.6",
    "pillow==13.0.0",
    "opencv-python-headless==5.0.0.93",
)
VERSIONS = ("grain", "array-record", "pillow", "opencv-python-headless")
SHARDS = 4
HOW = {"photos": "processes", "tensors": "threads", "records": "processes"}  # the faster choice


def label(workload: Workload) -> str:
    """Describe what runs."""
    how = f"ArrayRecord with group size 1, global shuffle, {HOW[workload.data]}"
    return f"{how}; {DECODER_NOTES[workload.variant]}" if workload.data == "photos" else how


def prepare(workload: Workload, source: Path, out: Path) -> None:
    """Write ArrayRecord files for fast random access: uncompressed, one record per group."""
    from array_record.python.array_record_module import ArrayRecordWriter

    out.mkdir(parents=True)
    if workload.data == "photos":
        records: Iterator[bytes] = (
            struct.pack("<q", number) + data for data, number in encoded(source, workload.count)
        )
    else:
        records = (array.tobytes() for array in arrays(workload, source))
    writers = [
        ArrayRecordWriter(str(out / f"shard-{shard:04d}.array_record"), "group_size:1,uncompressed")
        for shard in range(SHARDS)
    ]
    for number, record in enumerate(records):
        writers[number % SHARDS].write(record)
    for writer in writers:
        writer.close()


def epoch(workload: Workload, prepared: Path) -> Iterator[Batch]:
    """The next `count` samples of one endless iterator, less the last incomplete batch."""
    return workload.pairs(islice(_batches(workload, prepared), workload.count // workload.batch_size))


@cache
def _batches(workload: Workload, prepared: Path) -> Any:
    import grain

    data = grain.MapDataset.source(_source(prepared)).seed(SEED).shuffle().repeat().map(_Decode(workload))
    if HOW[workload.data] == "threads":
        options = grain.ReadOptions(num_threads=workload.threads, prefetch_buffer_size=32 * workload.threads)
        return iter(data.to_iter_dataset(options).batch(workload.batch_size, drop_remainder=True))
    single = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    workers = grain.MultiprocessingOptions(num_workers=workload.threads, per_worker_buffer_size=2)
    batched = data.batch(workload.batch_size, drop_remainder=True)
    return iter(batched.to_iter_dataset(single).mp_prefetch(workers))


@cache
def _source(prepared: Path) -> Any:
    import grain

    return grain.sources.ArrayRecordDataSource(sorted(str(path) for path in prepared.iterdir()))


class _Decode:
    """Decode a record to an image and its label, or to an array."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def __call__(self, record: bytes) -> Any:
        if self._workload.data == "photos":
            return DECODERS[self._workload.variant](record[8:]), struct.unpack_from("<q", record)[0]
        return np.frombuffer(record, self._workload.dtype).reshape(self._workload.shape)
