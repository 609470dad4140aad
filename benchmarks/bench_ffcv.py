"""Peer: FFCV on its own .beton file."""

import atexit
import os
from collections.abc import Iterator
from functools import cache
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._workloads import IMAGE_SIZE, MEAN, PASSES, STD, Batch, Items, Workload, arrays, photos, small_images

WORKLOADS = {"fast": ("",), "tensors": ("",), "records": ("",), "fashion": ("",), "cifar": ("",)}
REQUIREMENTS = ("torch==2.13.0", "ffcv==1.0.2", "pillow==13.0.0")
VERSIONS = ("ffcv", "torch", "numba")
DEBIAN = ("libopencv-dev", "libturbojpeg0-dev", "pkg-config", "g++")


def label(workload: Workload) -> str:
    """Describe what runs."""
    order = "OrderOption.RANDOM with the system's cache; a batch's memory is overwritten later"
    if workload.data == "photos":
        return f"JPEG mode (the original files' bytes), the whole image is decoded, fast DCT; {order}"
    if workload.name == "cifar":
        return f"raw RGB images, NormalizeImage, channels last in memory; {order}"
    if workload.name == "fashion":
        return f"arrays, flipped by FFCV and normalised by torch, as NormalizeImage takes RGB only; {order}"
    return order


def prepare(workload: Workload, source: Path, out: Path) -> None:
    """Write a .beton file of the original JPEG files, which FFCV would re-encode, so that all peers decode the same."""
    from ffcv.fields import IntField, NDArrayField
    from ffcv.writer import DatasetWriter

    out.mkdir(parents=True)
    path = str(out / "data.beton")
    if workload.data == "photos":
        fields = {"image": _stored_field(), "label": IntField()}
        DatasetWriter(path, fields, num_workers=1).from_indexed_dataset(Items(_photo, photos(source, workload.count)))
    elif workload.data == "small":
        _prepare_small(workload, source, path)
    else:
        dtype = np.dtype(_signed(workload.dtype))
        fields = {"array": NDArrayField(dtype=dtype, shape=workload.shape)}
        data = Items(_array, arrays(workload, source).view(dtype))
        DatasetWriter(path, fields, num_workers=1).from_indexed_dataset(data)


def _prepare_small(workload: Workload, source: Path, path: str) -> None:
    from ffcv.fields import IntField, NDArrayField, RGBImageField
    from ffcv.writer import DatasetWriter

    images, labels = small_images(workload, source)
    image = RGBImageField(write_mode="raw")
    if workload.name == "fashion":
        image = NDArrayField(dtype=np.dtype(np.uint8), shape=images.shape[1:])
    fields = {"image": image, "label": IntField()}
    DatasetWriter(path, fields, num_workers=1).from_indexed_dataset(_Pairs(images, labels))


def epoch(workload: Workload, prepared: Path) -> Iterator[Batch]:
    """The next batches of one loop over many epochs."""
    for batch in islice(_batches(workload, prepared), workload.count // workload.batch_size):
        yield (batch[0], batch[1]) if workload.labelled else (batch[0], None)


@cache
def _batches(workload: Workload, prepared: Path) -> Iterator[Any]:
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.ndarray import NDArrayDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor

    if workload.data == "photos":
        decode = RandomResizedCropRGBImageDecoder((IMAGE_SIZE, IMAGE_SIZE))
        pipelines = {
            "image": [decode, RandomHorizontalFlip(), ToTensor()],
            "label": [IntDecoder(), ToTensor(), Squeeze()],
        }
    elif workload.data == "small":
        pipelines = {"image": _small_pipeline(workload), "label": [IntDecoder(), ToTensor(), Squeeze()]}
    else:
        pipelines = {"array": [NDArrayDecoder(), ToTensor()]}
    atexit.register(os._exit, 0)  # the interpreter's end would sometimes abort: FFCV's threads still run
    loader = Loader(
        str(prepared / "data.beton"),
        batch_size=workload.batch_size,
        num_workers=workload.threads,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines=pipelines,
        seed=0,
    )
    loader.traversal_order = _Passes(loader.traversal_order)
    loader.first_traversal_order = loader.next_traversal_order()  # its length is that of the loader
    return chain.from_iterable(repeat(loader))


def _small_pipeline(workload: Workload) -> list[Any]:
    import torch
    from ffcv.fields.ndarray import NDArrayDecoder
    from ffcv.fields.rgb_image import SimpleRGBImageDecoder
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage

    mean, std = (255 * np.array(numbers[: workload.shape[0]]) for numbers in (MEAN, STD))
    if workload.name == "cifar":
        normalise = NormalizeImage(mean, std, np.float32)
        return [SimpleRGBImageDecoder(), RandomHorizontalFlip(), normalise, ToTensor(), ToTorchImage()]

    class Normalise(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.permute(0, 3, 1, 2).float().sub_(float(mean[0])).div_(float(std[0]))

    return [NDArrayDecoder(), RandomHorizontalFlip(), ToTensor(), Normalise()]


class _Passes:
    """The order of many epochs in a row, because FFCV allocates all batch memory anew at the start of each loop."""

    def __init__(self, order: Any) -> None:
        self._order = order

    def sample_order(self, epoch: int) -> Any:
        """Sample numbers, each once per epoch."""
        return np.concatenate([self._order.sample_order(epoch * PASSES + i) for i in range(PASSES)])


def _signed(dtype: str) -> str:
    return "int16" if dtype == "uint16" else dtype  # FFCV's manual: torch has no uint16, so store int16


class _Pairs:
    """A dataset of images and labels."""

    def __init__(self, images: Any, labels: Any) -> None:
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return np.array(self._images[index]), int(self._labels[index])


def _photo(item: tuple[Path, int]) -> tuple[bytes, int]:
    return item[0].read_bytes(), item[1]


def _array(array: Any) -> tuple[Any]:
    return (np.ascontiguousarray(array),)


def _stored_field() -> Any:
    import io

    from ffcv.fields import RGBImageField
    from PIL import Image

    class Stored(RGBImageField):  # type: ignore[misc]
        """An RGBImageField that stores given JPEG files unchanged."""

        def encode(self, destination: Any, image: bytes, malloc: Any) -> None:
            """Write one file."""
            destination["mode"] = 0  # JPEG, in ffcv.fields.rgb_image.IMAGE_MODES
            destination["width"], destination["height"] = Image.open(io.BytesIO(image)).size
            destination["data_ptr"], storage = malloc(len(image))
            storage[:] = np.frombuffer(image, np.uint8)

    from ffcv import types, writer

    for table in (types.TYPE_ID_HANDLER, writer.TYPE_ID_HANDLER):
        for number, handler in list(table.items()):
            if handler is RGBImageField:
                table[number] = Stored  # the writer looks up the field's type by its exact class
    return Stored(write_mode="jpg")
