"""Peer: FFCV on its own .beton file."""

from collections.abc import Iterator
from functools import cache
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._workloads import IMAGE_SIZE, PASSES, Batch, Workload, arrays, photos

WORKLOADS = {"photos": ("",), "tensors": ("",), "records": ("",)}
REQUIREMENTS = ("torch==2.13.0", "ffcv==1.0.2", "pillow==13.0.0")
VERSIONS = ("ffcv", "torch", "numba")
DEBIAN = ("libopencv-dev", "libturbojpeg0-dev", "pkg-config", "g++")


def label(workload: Workload) -> str:
    """Describe what runs."""
    order = "OrderOption.RANDOM with the system's cache; a batch's memory is overwritten later"
    if workload.name == "photos":
        return f"JPEG mode (the original files' bytes), the whole image is decoded, fast DCT; {order}"
    return order


def prepare(workload: Workload, source: Path, out: Path) -> None:
    """Write a .beton file of the original JPEG files, which FFCV would re-encode, so that all peers decode the same."""
    from ffcv.fields import IntField, NDArrayField
    from ffcv.writer import DatasetWriter

    out.mkdir(parents=True)
    path = str(out / "data.beton")
    if workload.name == "photos":
        fields = {"image": _stored_field(), "label": IntField()}
        DatasetWriter(path, fields, num_workers=1).from_indexed_dataset(_Photos(photos(source, workload.count)))
    else:
        dtype = np.dtype(_signed(workload.dtype))
        fields = {"array": NDArrayField(dtype=dtype, shape=workload.shape)}
        DatasetWriter(path, fields, num_workers=1).from_indexed_dataset(_Arrays(arrays(workload, source).view(dtype)))


def epoch(workload: Workload, prepared: Path) -> Iterator[Batch]:
    """The next batches of one loop over many epochs."""
    for batch in islice(_batches(workload, prepared), workload.count // workload.batch_size):
        yield (batch[0], batch[1]) if workload.name == "photos" else (batch[0], None)


@cache
def _batches(workload: Workload, prepared: Path) -> Iterator[Any]:
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.ndarray import NDArrayDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor

    if workload.name == "photos":
        decode = RandomResizedCropRGBImageDecoder((IMAGE_SIZE, IMAGE_SIZE))
        pipelines = {
            "image": [decode, RandomHorizontalFlip(), ToTensor()],
            "label": [IntDecoder(), ToTensor(), Squeeze()],
        }
    else:
        pipelines = {"array": [NDArrayDecoder(), ToTensor()]}
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


class _Passes:
    """The order of many epochs in a row, because FFCV allocates all batch memory anew at the start of each loop."""

    def __init__(self, order: Any) -> None:
        self._order = order

    def sample_order(self, epoch: int) -> Any:
        """Sample numbers, each once per epoch."""
        return np.concatenate([self._order.sample_order(epoch * PASSES + i) for i in range(PASSES)])


def _signed(dtype: str) -> str:
    return "int16" if dtype == "uint16" else dtype  # FFCV's manual: torch has no uint16, so store int16


class _Photos:
    """A dataset of (JPEG bytes as an array with the image's size, label)."""

    def __init__(self, files: list[tuple[Path, int]]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        path, of_class = self._files[index]
        return path.read_bytes(), of_class


class _Arrays:
    """A dataset of arrays in tuples of one."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> tuple[Any]:
        return (np.ascontiguousarray(self._data[index]),)


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
