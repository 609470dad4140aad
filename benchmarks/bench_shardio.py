"""Peer: shardio's Loader on its three containers."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._workloads import IMAGE_SIZE, MEAN, STD, Batch, Workload, arrays, encoded, small_images

if TYPE_CHECKING:
    from shardio import Loader
    from shardio.transforms import Transform

WORKLOADS = {
    "exact": ("tar", "hdf5", "lmdb", "float"),
    "fast": ("tar",),
    "tensors": ("hdf5", "tar", "lmdb"),
    "records": ("hdf5", "tar", "lmdb"),
    "fashion": ("hdf5", "tar", "lmdb", "png"),
    "cifar": ("hdf5", "tar", "lmdb", "png"),
}
REQUIREMENTS = ("-e .",)
VERSIONS = ("shardio-data", "torch", "pillow", "opencv-python-headless")
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def label(workload: Workload) -> str:
    """Describe what runs."""
    if workload.variant == "float":
        return "tar; exact pixels, also normalised to float32 NCHW, which no other row is"
    if workload.data == "small":
        stored = "PNG files in hdf5" if workload.variant == "png" else f"pixels in {workload.variant}"
        return f"{stored}; exact global shuffle"
    pixels = {"exact": "exact pixels; ", "fast": "chroma repeated, no antialias; "}.get(workload.name, "")
    return f"{workload.variant}; {pixels}exact global shuffle"


def prepare(workload: Workload, source: Path, out: Path) -> None:
    """Write a dataset in the variant's container."""
    import shardio

    container = {"float": "tar", "png": "hdf5"}.get(workload.variant, workload.variant)
    if workload.data == "photos":
        with shardio.create(out, container=container, fields={"image": "image", "label": "int64"}) as writer:
            for data, number in encoded(source, workload.count):
                writer.append({"image": data, "label": number})
        return
    if workload.data == "small":
        _prepare_small(workload, source, out, container)
        return
    with shardio.create(out, container=container, fields={"array": (workload.dtype, workload.shape)}) as writer:
        for array in arrays(workload, source):
            writer.append({"array": array})


def _prepare_small(workload: Workload, source: Path, out: Path, container: str) -> None:
    """Write images as pixels, or as PNG files."""
    import shardio
    from shardio.source import encode_png

    channels, height, width = workload.shape
    as_png = workload.variant == "png"
    image = shardio.Field("image" if as_png else "pixels", shape=(height, width), channels=1 if channels == 1 else 3)
    with shardio.create(out, container=container, fields={"image": image, "label": "int64"}) as writer:
        for pixels, number in zip(*small_images(workload, source), strict=True):
            squeezed = pixels[:, :, 0] if channels == 1 else pixels
            writer.append({"image": encode_png(squeezed, number) if as_png else pixels, "label": int(number)})


def epoch(workload: Workload, prepared: Path) -> Iterator[Batch]:
    """Loop once over the loader."""
    if workload.labelled:
        return ((batch["image"], batch["label"]) for batch in _loader(workload, prepared))
    return ((batch["array"], None) for batch in _loader(workload, prepared))


@cache
def _loader(workload: Workload, prepared: Path) -> "Loader":
    import shardio

    transforms: list[Transform] = []
    if workload.data == "photos":
        crop = shardio.RandomResizedCrop(IMAGE_SIZE, antialias=workload.name == "exact")
        transforms += [crop, shardio.RandomHorizontalFlip()]
    if workload.variant == "float":
        transforms.append(shardio.Normalize(IMAGENET_MEAN, IMAGENET_STD))
    if workload.data == "small":
        channels = workload.shape[0]
        transforms += [shardio.RandomHorizontalFlip(), shardio.Normalize(MEAN[:channels], STD[:channels])]
    return shardio.Loader(
        prepared,
        workload.batch_size,
        transforms=transforms or None,
        decode="fast" if workload.name == "fast" else "exact",
        threads=workload.threads,
        world=shardio.World(),
    )
