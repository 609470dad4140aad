"""Peer: SPDL's pipeline of threads, decoding with FFmpeg."""

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks._crops import random_box
from benchmarks._workloads import IMAGE_SIZE, Batch, Workload, encoded

WORKLOADS = {"fast": ("",)}  # SPDL loads media and has no format for arrays
REQUIREMENTS = ("spdl==0.8.0", "numpy==2.4.6")
VERSIONS = ("spdl", "spdl-io")
DEBIAN = ("libavdevice59", "libavfilter8")


def label(workload: Workload) -> str:
    """Describe what runs."""
    return "threads, FFmpeg decodes the whole image and filters it, one file per image"


def prepare(workload: Workload, source: Path, out: Path) -> None:
    """Write a file per photo."""
    out.mkdir(parents=True)
    for number, (data, of_class) in enumerate(encoded(source, workload.count)):
        (out / f"{number:08d}-{of_class}.jpg").write_bytes(data)


def epoch(workload: Workload, prepared: Path) -> Iterator[Batch]:
    """Run one pipeline from shuffled file names to batches."""
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    files = list(_files(prepared))
    random.shuffle(files)
    builder = PipelineBuilder().add_source(files)
    builder = builder.pipe(_decode, concurrency=workload.threads, output_order="completion")
    builder = builder.aggregate(workload.batch_size, drop_last=True).pipe(_batch).add_sink(2)
    pipeline = builder.build(num_threads=workload.threads)
    with pipeline.auto_stop():
        for buffer, labels in pipeline:
            yield spdl.io.to_numpy(buffer), labels


@cache
def _files(prepared: Path) -> tuple[tuple[str, int], ...]:
    return tuple((str(path), int(path.stem.split("-")[1])) for path in sorted(prepared.iterdir()))


def _decode(file: tuple[str, int]) -> tuple[Any, int]:
    import spdl.io

    packets = spdl.io.demux_image(file[0])
    left, top, width, height = random_box(packets.width, packets.height)
    parts = [
        f"crop={width}:{height}:{left}:{top}",
        f"scale={IMAGE_SIZE}:{IMAGE_SIZE}:flags=fast_bilinear",
        *(["hflip"] if random.random() < 0.5 else []),
        "format=pix_fmts=rgb24",
    ]
    return spdl.io.decode_packets(packets, filter_desc=",".join(parts)), file[1]


def _batch(decoded: list[tuple[Any, int]]) -> tuple[Any, list[int]]:
    import spdl.io

    return spdl.io.convert_frames([frames for frames, _ in decoded]), [label for _, label in decoded]
