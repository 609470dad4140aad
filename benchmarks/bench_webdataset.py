"""Peer: the webdataset library on tar shards."""

from collections.abc import Iterator
from functools import cache
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._crops import DECODER_NOTES, DECODERS
from benchmarks._workloads import PASSES, Batch, Workload, arrays, encoded

WORKLOADS = {"exact": ("pillow",), "fast": ("opencv",), "tensors": ("",), "records": ("",)}
REQUIREMENTS = (
    "torch==2.13.0",
    "numpy==2.4.6",
    "webdataset==1.0.2",
    "pillow==13.0.0",
    "opencv-python-headless==5.0.0.93",
)
VERSIONS = ("webdataset", "torch", "pillow", "opencv-python-headless")
SHARDS = 16
BUFFERS = {"photos": 1000, "tensors": 64, "records": 5000}  # size of the shuffle buffer of each worker


def label(workload: Workload) -> str:
    """Describe what runs."""
    order = f"WebLoader, worker processes, shards shuffled, then a shuffle buffer of {BUFFERS[workload.data]}"
    return f"{order}; {DECODER_NOTES[workload.variant]}" if workload.data == "photos" else order


def prepare(workload: Workload, source: Path, out: Path) -> None:
    """Write tar shards with jpg and cls for photos, else bin."""
    import webdataset as wds

    out.mkdir(parents=True)
    if workload.data == "photos":
        samples: Iterator[dict[str, Any]] = ({"jpg": d, "cls": label} for d, label in encoded(source, workload.count))
    else:
        samples = ({"bin": array.tobytes()} for array in arrays(workload, source))
    per_shard = -(-workload.count // SHARDS)
    with wds.ShardWriter(str(out / "shard-%06d.tar"), maxcount=per_shard, maxsize=1 << 40, verbose=0) as writer:
        for number, sample in enumerate(samples):
            writer.write({"__key__": f"{number:012d}"} | sample)


def epoch(workload: Workload, prepared: Path) -> Iterator[Batch]:
    """The next batches of one loop over many epochs."""
    for data, labels in islice(_batches(workload, prepared), workload.count // workload.batch_size):
        yield data, labels if workload.data == "photos" else None


@cache
def _batches(workload: Workload, prepared: Path) -> Iterator[Any]:
    import webdataset as wds
    from torch.utils.data import default_collate

    shards = sorted(str(path) for path in prepared.glob("*.tar"))
    data = wds.WebDataset(shards, shardshuffle=len(shards)).shuffle(BUFFERS[workload.data])
    data = data.map(_Sample(workload)).batched(workload.batch_size, partial=False, collation_fn=default_collate)
    workers = {"num_workers": workload.threads, "persistent_workers": True, "prefetch_factor": 2}
    return chain.from_iterable(repeat(wds.WebLoader(data.repeat(PASSES), batch_size=None, **workers)))


class _Sample:
    """A stored sample as (tensor, label), of which batches are stacked directly in shared memory."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def __call__(self, sample: dict[str, Any]) -> tuple[Any, int]:
        import torch

        if self._workload.data == "photos":
            return torch.from_numpy(DECODERS[self._workload.variant](sample["jpg"])), int(sample["cls"])
        array = np.frombuffer(sample["bin"], self._workload.dtype)
        return torch.from_numpy(array.reshape(self._workload.shape)), 0
