"""Peer: shardio's Loader on its three containers."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._workloads import IMAGE_SIZE, Batch, Workload, arrays, encoded

if TYPE_CHECKING:
    from shardio import Loader
    from shardio.transforms import Transform

WORKLOADS = {
    "photos": ("tar", "hdf5", "lmdb", "float"),
    "tensors": ("hdf5", "tar", "lmdb"),
    "records": ("hdf5", "tar", "lmdb"),
}
REQUIREMENTS = ("-e .[cpu]",)
VERSIONS = ("shardio-data", "torch", "nvidia-nvimgcodec-cu12", "opencv-python-headless")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def label(workload: Workload) -> str:
    """Describe what runs."""
    if workload.variant == "float":
        return "tar; also normalised to float32 NCHW, which no other row is"
    return f"{workload.variant}; exact global shuffle"


def prepare(workload: Workload, source: Path, out: Path) -> None:
    """Write a dataset in the variant's container."""
    import shardio

    container = "tar" if workload.variant == "float" else workload.variant
    if workload.name == "photos":
        with shardio.create(out, container=container, fields={"image": "image", "label": "int64"}) as writer:
            for data, number in encoded(source, workload.count):
                writer.append({"image": data, "label": number})
        return
    with shardio.create(out, container=container, fields={"array": (workload.dtype, workload.shape)}) as writer:
        for array in arrays(workload, source):
            writer.append({"array": array})


def epoch(workload: Workload, prepared: Path) -> Iterator[Batch]:
    """Loop once over the loader."""
    if workload.name == "photos":
        return ((batch["image"], batch["label"]) for batch in _loader(workload, prepared))
    return ((batch["array"], None) for batch in _loader(workload, prepared))


@cache
def _loader(workload: Workload, prepared: Path) -> "Loader":
    import shardio

    transforms: list[Transform] = []
    if workload.name == "photos":
        transforms += [shardio.RandomResizedCrop(IMAGE_SIZE), shardio.RandomHorizontalFlip()]
    if workload.variant == "float":
        transforms.append(shardio.Normalize(MEAN, STD))
    return shardio.Loader(
        prepared,
        workload.batch_size,
        transforms=transforms or None,
        threads=workload.threads,
        world=shardio.World(),
    )
