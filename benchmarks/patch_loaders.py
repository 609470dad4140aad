"""The loaders of benchmarks/patches.py: each is a function of a `Place` that returns batches, epoch by epoch.

A batch is (patches, places): float32 [B, 64, 64] as a tensor, and int64 [B, 3], the row, latitude and longitude at
which each patch begins, or [B, 1], the row alone. A loader runs in a process of its library's environment; the
functions import what they need.
"""

import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._run_peer import Epochs, cpu_seconds, versions

REQUIREMENTS = (
    "torch==2.13.0",
    "numpy==2.4.6",
    "h5py==3.16.0",
    "hdf5plugin==7.1.0",
    "h5netcdf==1.8.1",
    "xarray==2026.9.0",
    "xbatcher==0.4.0",
    "zarr==3.1.6",
    "tensorstore==0.1.86",
    "boto3",
    "lightning-utilities",
    "obstore",
    "requests",
    "tifffile",
)
WITHOUT_DEPENDENCIES = ("litdata==0.2.76",)
VERSIONS = ("torch", "numpy", "h5py", "hdf5plugin", "xarray", "h5netcdf", "xbatcher", "zarr", "tensorstore", "litdata")
ENVIRONMENT: Mapping[str, str] = MappingProxyType({"DISABLE_VERSION_CHECK": "1"})

PATCH, BATCH, REPEATS, THREADS = 64, 64, 32, 2  # REPEATS: patches of each row in an epoch
WARM_UP, MOST_WARM_UP = 12, 3.0  # batches, more than any loader makes ahead; seconds, as slow ones make none ahead
NAME = "t2m"

Batch = tuple[Any, NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a loader runs.

    Attributes:
        folder: the data.
        layout: a key of LAYOUTS.
        workers: worker processes, where the loader has such.
    """

    folder: Path
    layout: str
    workers: int = THREADS

    @property
    def file(self) -> Path:
        """The file or store of the layout."""
        return self.folder / LAYOUTS[self.layout].file

    @property
    def shape(self) -> tuple[int, int, int]:
        """The array's shape: rows, latitudes, longitudes."""
        rows, height, width = json.loads((self.folder / "shape.json").read_text())
        return rows, height, width


def shardio_loader(place: Place) -> Iterable[Batch]:
    """A crop of the dataset as it was indexed, on threads; a view has each row several times."""
    import shardio

    data = shardio.open(place.folder / "indexed" / place.layout)
    view = data.select(np.repeat(np.arange(len(data)), REPEATS))
    crop = shardio.RandomSpatialCrop((PATCH, PATCH))
    loader = shardio.Loader(view, BATCH, transforms={NAME: [crop]}, threads=THREADS)
    return Epochs(lambda: ((batch[NAME], batch["index"].numpy()[:, None] // REPEATS) for batch in loader))


class Patches:
    """A map-style dataset: sample i is a random patch of row i // REPEATS. Each process opens the array for itself."""

    def __init__(self, place: Place, open_array: Callable[[Path], Any]) -> None:
        self._file, self._shape, self._open = place.file, place.shape, open_array
        self._array: Any = None

    def __len__(self) -> int:
        return self._shape[0] * REPEATS

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        import torch

        if self._array is None:
            self._array = self._open(self._file)
            self._random = np.random.default_rng(int(torch.initial_seed()) % (1 << 32))
        row, (top, left) = index // REPEATS, (int(self._random.integers(n - PATCH + 1)) for n in self._shape[1:])
        patch = self._array[(row, *_patch(top, left))]
        return torch.from_numpy(patch), torch.tensor((row, top, left))


def _open_hdf5(path: Path) -> Any:
    import h5py
    import hdf5plugin  # noqa: F401  # registers its filters

    return h5py.File(path)[NAME]


def _open_zarr(path: Path) -> Any:
    import zarr

    return zarr.open_group(path, mode="r")[NAME]


def _torch_loader(place: Place, dataset: Any) -> Iterable[Batch]:
    """A DataLoader with the worker processes of `place`, which stay, and the default collation."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    loader = DataLoader(
        dataset, BATCH, shuffle=True, num_workers=place.workers, persistent_workers=place.workers > 0, drop_last=True
    )
    return Epochs(lambda: ((patches, places.numpy()) for patches, places in loader))


def h5py_loader(place: Place) -> Iterable[Batch]:
    """A DataLoader over slices of an h5py dataset."""
    return _torch_loader(place, Patches(place, _open_hdf5))


def zarr_loader(place: Place) -> Iterable[Batch]:
    """A DataLoader over slices of a zarr array."""
    return _torch_loader(place, Patches(place, _open_zarr))


class _Numbered:
    """xbatcher's map-style dataset, each sample with the place of its patch on xbatcher's grid."""

    def __init__(self, dataset: Any, grid: tuple[int, ...]) -> None:
        self._dataset, self._grid = dataset, grid

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        import torch

        row, down, across = np.unravel_index(index, self._grid)
        return self._dataset[index][0], torch.tensor((row, PATCH * down, PATCH * across))


def xbatcher_loader(place: Place) -> Iterable[Batch]:
    """A DataLoader over xbatcher's MapDataset of xarray, lazily opened; its patches lie on a grid."""
    import hdf5plugin  # noqa: F401  # registers its filters
    import xarray
    import xbatcher
    from xbatcher.loaders.torch import MapDataset

    engine = "zarr" if place.file.suffix == ".zarr" else "h5netcdf"
    data = xarray.open_dataset(place.file, engine=engine, chunks=None)[NAME]
    rows, height, width = place.shape
    generator = xbatcher.BatchGenerator(data, {"time": 1, "lat": PATCH, "lon": PATCH}, preload_batch=False)
    return _torch_loader(place, _Numbered(MapDataset(generator), (rows, height // PATCH, width // PATCH)))


def tensorstore_loader(place: Place) -> Iterable[Batch]:
    """Slices by tensorstore alone, on two threads: all reads of a batch, and of the next, are under way at once."""
    import tensorstore
    import torch

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{place.file}/{NAME}/"}}
    limits = {name: {"limit": THREADS} for name in ("data_copy_concurrency", "file_io_concurrency")}
    array = tensorstore.open(spec, context=tensorstore.Context(limits), read=True).result()
    rows, height, width = place.shape
    random = np.random.default_rng(0)

    def begin(order: NDArray[np.int64]) -> tuple[list[Any], NDArray[np.int64]]:
        places = np.stack((order // REPEATS, *(random.integers(n - PATCH + 1, size=BATCH) for n in (height, width))), 1)
        return [array[(r, *_patch(t, m))].read() for r, t, m in places.tolist()], places

    def epoch() -> Iterator[Batch]:
        order = random.permutation(rows * REPEATS)
        batches = [order[at : at + BATCH] for at in range(0, len(order) - BATCH + 1, BATCH)]
        ahead = [begin(batches[0])]
        for batch in [*batches[1:], None]:
            if batch is not None:
                ahead.append(begin(batch))
            reads, places = ahead.pop(0)
            yield torch.from_numpy(np.stack([read.result() for read in reads])), places

    return Epochs(epoch)


class _LitDataPatches:
    """LitData's dataset of whole rows, of which each sample keeps a random patch."""

    @staticmethod
    def of(folder: Path) -> Any:
        """Made here, as the base class is LitData's."""
        from litdata import StreamingDataset

        class Cut(StreamingDataset):  # type: ignore[misc]  # litdata has no types, so its class is Any
            def __getitem__(self, index: Any) -> tuple[Any, Any]:
                import torch

                sample = super().__getitem__(index)
                image = sample["x"]
                top, left = (int(torch.randint(n - PATCH + 1, ())) for n in image.shape)
                patch = image[_patch(top, left)].clone()
                return patch, torch.tensor((sample["row"], top, left))

        return Cut(str(folder), shuffle=True, drop_last=True)


def litdata_loader(place: Place) -> Iterable[Batch]:
    """LitData's StreamingDataLoader over its own copy, of which it reads whole rows."""
    from litdata import StreamingDataLoader

    options = {"num_workers": place.workers, "drop_last": True, "persistent_workers": place.workers > 0}
    data = StreamingDataLoader(_LitDataPatches.of(place.folder / "peers" / "litdata"), batch_size=BATCH, **options)
    return Epochs(lambda: ((patches, places.numpy()) for patches, places in data))


def litdata_copy(folder: Path, out: Path) -> None:
    """Write all rows in LitData's format."""
    import litdata

    place = Place(folder, "contiguous")
    litdata.optimize(
        partial(_litdata_row, place.file),
        list(range(place.shape[0])),
        output_dir=str(out),
        chunk_bytes="64MB",
        num_workers=1,
        start_method="fork",
    )


def _litdata_row(file: Path, row: int) -> dict[str, Any]:
    import torch

    return {"x": torch.from_numpy(_open_hdf5(file)[row]), "row": row}


@dataclass(frozen=True, slots=True)
class Layout:
    """How the array lies.

    Attributes:
        file: its file or store.
        chunks: the shape of its chunks, or None.
        loaders: those that read it, by name; shardio's first.
        workers: for each that has worker processes, the numbers to try.
    """

    file: str
    chunks: tuple[int, int, int] | None
    loaders: Mapping[str, Callable[[Place], Iterable[Batch]]]
    workers: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))


_HDF5 = {"shardio": shardio_loader, "h5py DataLoader": h5py_loader, "xbatcher DataLoader": xbatcher_loader}
_ZARR = {"shardio": shardio_loader, "zarr DataLoader": zarr_loader, "xbatcher DataLoader": xbatcher_loader}
_TRIED = MappingProxyType(dict.fromkeys(("h5py DataLoader", "zarr DataLoader", "xbatcher DataLoader"), (0, 2, 4)))

LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "contiguous": Layout("contiguous.h5", None, MappingProxyType({**_HDF5, "LitData": litdata_loader}), _TRIED),
        "rows gzip": Layout("rows-gzip.h5", (1, 721, 1440), MappingProxyType(_HDF5), _TRIED),
        "tiles zstd": Layout("tiles-zstd.h5", (1, 90, 180), MappingProxyType(_HDF5), _TRIED),
        "zarr zstd": Layout(
            "tiles.zarr", (1, 90, 180), MappingProxyType({**_ZARR, "tensorstore": tensorstore_loader}), _TRIED
        ),
    }
)


def check(batches: Iterable[Batch], place: Place, most: int = 4) -> int:
    """Compare the patches of some batches with the array, element for element; return how many there were."""
    array = _open_hdf5(place.folder / LAYOUTS["contiguous"].file)
    compared = []
    for patches, places in islice(batches, most):
        if tuple(patches.shape) != (BATCH, PATCH, PATCH) or len(places) != BATCH:
            raise ValueError(f"a batch of {tuple(patches.shape)} with places {places.shape}")
        for patch, (row, *offset) in zip(patches.numpy(), places.tolist(), strict=True):
            field = array[row]
            offsets = [offset] if offset else np.argwhere(field == patch[0, 0]).tolist()
            found = (one for one in offsets if np.array_equal(patch, field[_patch(*one)]))
            if (first := next(found, None)) is None:
                raise ValueError(f"a patch of row {row} is not there, at {offset or 'any place'}")
            compared.append((row, *first))
    if len(set(compared)) < 0.9 * len(compared):
        raise ValueError("patches are repeated")
    return len(compared)


def _patch(top: int, left: int) -> tuple[slice, slice]:
    return np.s_[top : top + PATCH, left : left + PATCH]


def rate(batches: Iterable[Batch], seconds: float, warm_up: int = WARM_UP) -> dict[str, float]:
    """The samples and bytes that arrive, the seconds, and what this process and its workers spend and read meanwhile.

    `cpu` is processor time in seconds. The bytes read are those of read calls, from the page cache too; not of memory
    maps.
    """
    arriving = chain.from_iterable(repeat(batches))
    warm = time.perf_counter() + MOST_WARM_UP
    for _ in range(warm_up):
        if time.perf_counter() < warm:
            next(arriving)
    read, used, begun = _bytes_read(), cpu_seconds(os.getpid()), time.perf_counter()
    samples = delivered = 0
    while time.perf_counter() < begun + seconds:
        patches, _ = next(arriving)
        samples += len(patches)
        delivered += patches.nbytes
    took = time.perf_counter() - begun
    used = cpu_seconds(os.getpid()) - used
    return {"samples": samples, "seconds": took, "cpu": used, "delivered": delivered, "read": _bytes_read() - read}


def _bytes_read() -> int:
    """The bytes of all read calls of this process and its children, by the kernel's count."""
    children = chain.from_iterable(
        (task / "children").read_text().split() for task in Path("/proc/self/task").iterdir()
    )
    total = 0
    for process in ("self", *children):
        lines = Path("/proc", process, "io").read_text().splitlines()
        total += int(lines[0].removeprefix("rchar: "))
    return total


def main(order: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out an order of patches.py."""
    warnings.simplefilter("ignore")
    place = Place(Path(order["folder"]), order.get("layout", "contiguous"), order.get("workers", THREADS))
    if order["do"] == "prepare":
        litdata_copy(place.folder, Path(order["out"]) / "litdata")
        return versions(VERSIONS)
    batches = LAYOUTS[place.layout].loaders[order["loader"]](place)
    if order["do"] == "check":
        return {"compared": check(batches, place)}
    return rate(batches, order["seconds"])
