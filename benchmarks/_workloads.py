"""The workloads, and the common source data that every peer packs into its own format.

    exact     JPEG tiles of about 500x375: random resized crop to 224 and flip, uint8      batch 256
              with the pixels of torchvision on Pillow: antialiased, chroma interpolated
    fast      the same, with whatever pixels the peer's fastest settings give
    tensors   uint16 arrays [16, 256, 256], 2 MiB each, as they are                        batch 16
    records   3,072 bytes each, as they are                                                batch 512
    fashion   Fashion-MNIST's 60,000 images of 28x28: flip, normalised to float32 CHW      batch 512
    cifar     50,000 images of 32x32 in colour, cut from the photos: the same              batch 512

All in random order. The first four bytes of an array are its number, so that a run can check which samples it
delivered. This module and the peers' own (`bench_*.py`) run in each peer's environment: at the top they import NumPy
and nothing else.
"""

import gzip
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Batch: TypeAlias = tuple[Any, Any]
"""What a peer's `epoch` yields: `[B, ...]`, and the labels `[B]` of photos (None for the others)."""

PASSES = 64
"""Over the data in one go, for peers that can be told to. The epochs here are short, and to begin one costs some of
them more than it would with a large data set; so they go on where the last epoch ended."""

IMAGE_SIZE = 224
FASHION = Path("/usr/share/datasets/fashion-mnist")  # Debian's dataset-fashion-mnist
SEED = 0
CHUNK = 64 << 20  # bytes of random numbers generated at a time


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload as one peer runs it.

    Attributes:
        name: `exact`, `fast`, `tensors`, `records`, `fashion` or `cifar`.
        count: samples.
        batch_size: samples per batch.
        shape: of one delivered sample; photos may also come as (channels, height, width).
        dtype: of what is delivered.
        threads: threads or worker processes.
        variant: one of the peer's variants; "" if it has only one.
    """

    name: str
    count: int
    batch_size: int
    shape: tuple[int, ...]
    dtype: str = "uint8"
    threads: int = 2
    variant: str = ""

    @property
    def data(self) -> str:
        """The source data: `photos`, `tensors`, `records` or `small`."""
        return {"exact": "photos", "fast": "photos", "fashion": "small", "cifar": "small"}.get(self.name, self.name)

    @property
    def labelled(self) -> bool:
        """Whether a batch has labels."""
        return self.data in ("photos", "small")

    @property
    def loader(self) -> dict[str, Any]:
        """The options of a DataLoader, and of the peers' that have its arguments."""
        workers = {"num_workers": self.threads, "persistent_workers": True, "prefetch_factor": 2}
        return {"batch_size": self.batch_size, "drop_last": True, **workers}

    def pairs(self, batches: Iterable[Any]) -> Iterator[Batch]:
        """Yield batches as pairs: those of photos are pairs, the others are arrays alone."""
        for batch in batches:
            yield (batch[0], batch[1]) if self.data == "photos" else (batch, None)

    @property
    def sample_bytes(self) -> int:
        """The size of one delivered sample in bytes."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


WORKLOADS = {
    "exact": Workload("exact", 4000, 256, (IMAGE_SIZE, IMAGE_SIZE, 3)),
    "fast": Workload("fast", 4000, 256, (IMAGE_SIZE, IMAGE_SIZE, 3)),
    "tensors": Workload("tensors", 512, 16, (16, 256, 256), "uint16"),
    "records": Workload("records", 200_000, 512, (3072,)),
    "fashion": Workload("fashion", 60_000, 512, (1, 28, 28), "float32"),
    "cifar": Workload("cifar", 50_000, 512, (3, 32, 32), "float32"),
}


class Items:
    """A map-style dataset: what a function makes of each of some items."""

    def __init__(self, make: Callable[[Any], Any], items: Sequence[Any] | NDArray[Any]) -> None:
        self._make, self._items = make, items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._make(self._items[index])


def photos(source: Path, count: int) -> list[tuple[Path, int]]:
    """`count` JPEG files below `source`, spread over all of its folders, with the folder's number as the label.

    The order is random but fixed, because formats for sequential reading should be written shuffled.
    """
    found = sorted(source.rglob("*.jpg"))
    if len(found) < count:
        raise FileNotFoundError(
            f"{source}: {count} photos are needed, {len(found)} are there; see benchmarks/photos.py"
        )
    chosen = [found[i * len(found) // count] for i in range(count)]
    folders = {folder: number for number, folder in enumerate(sorted({path.parent for path in found}))}
    random.Random(SEED).shuffle(chosen)
    return [(path, folders[path.parent]) for path in chosen]


def encoded(source: Path, count: int) -> Iterator[tuple[bytes, int]]:
    """The files of `photos` as bytes, with their labels."""
    return ((path.read_bytes(), label) for path, label in photos(source, count))


def arrays(workload: Workload, source: Path) -> NDArray[Any]:
    """The samples of `tensors` or `records`, `[count, *shape]`, memory-mapped from the file `make_arrays` wrote."""
    stored: NDArray[Any] = np.load(source, mmap_mode="r")
    return stored[: workload.count]


def make_arrays(workload: Workload, path: Path) -> None:
    """Writes the samples of `tensors` or `records` to `path`, if it is not there; the same bytes every time."""
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    target = np.lib.format.open_memmap(
        part, mode="w+", dtype=np.dtype(workload.dtype), shape=(workload.count, *workload.shape)
    )
    generator = np.random.default_rng(SEED)
    step = max(1, CHUNK // workload.sample_bytes)
    for start in range(0, workload.count, step):
        rows = np.arange(start, min(start + step, workload.count), dtype="<u4")
        noise = (
            np.frombuffer(generator.bytes(len(rows) * workload.sample_bytes), np.uint8).reshape(len(rows), -1).copy()
        )
        noise[:, :4] = rows.view(np.uint8).reshape(-1, 4)
        target[rows[0] : rows[-1] + 1] = noise.view(workload.dtype).reshape(len(rows), *workload.shape)
    target.flush()
    part.rename(path)


MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.3, 0.2)
"""For `fashion` and `cifar`."""


def small_images(workload: Workload, source: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The images of `fashion` or `cifar`, uint8 [count, H, W, C], and labels."""
    images: NDArray[np.uint8] = np.load(source, mmap_mode="r")[: workload.count]
    return images, np.arange(len(images)) % 10


def make_small_images(workload: Workload, path: Path, photos: Path) -> None:
    """Writes the source of `fashion` or `cifar` to `path`, if it is not there."""
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    channels, height, width = workload.shape
    if workload.name == "fashion":
        packed = gzip.decompress((FASHION / "train-images-idx3-ubyte.gz").read_bytes())
        made = np.frombuffer(packed, np.uint8, offset=16).reshape(-1, height, width, channels)
    else:
        made = _cut_small(workload, photos)
    np.save(path, made)


def _cut_small(workload: Workload, source: Path) -> NDArray[np.uint8]:
    """Squares of random places and sizes of the photos, made small."""
    import cv2

    files, random_, (_, height, width) = sorted(source.rglob("*.jpg")), random.Random(SEED), workload.shape
    made = np.empty((workload.count, height, width, 3), np.uint8)
    each = -(-workload.count // len(files))
    for number, row in enumerate(made):
        if number % each == 0:
            photo: Any = cv2.imread(str(files[number // each]), cv2.IMREAD_COLOR_RGB)
        side = random_.randint(height, min(photo.shape[:2]))
        top, left = (random_.randint(0, length - side) for length in photo.shape[:2])
        row[:] = cv2.resize(photo[top : top + side, left : left + side], (width, height), interpolation=cv2.INTER_AREA)
    return made


def numbers(batch: NDArray[Any]) -> NDArray[np.uint32]:
    """The numbers in the first four bytes of each array of a batch."""
    flat = np.ascontiguousarray(batch.reshape(len(batch), -1)[:, : 4 // batch.itemsize])
    return flat.view("<u4")[:, 0]
