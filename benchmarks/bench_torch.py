"""Peer: PyTorch's own DataLoader, over image files or over an HDF5 file."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from benchmarks._crops import DECODER_NOTES, DECODERS
from benchmarks._workloads import PASSES, Batch, Items, Workload, arrays, encoded

WORKLOADS = {"exact": ("pillow",), "fast": ("opencv",), "tensors": ("h5py",), "records": ("h5py",)}
REQUIREMENTS = ("torch==2.13.0", "numpy==2.4.6", "pillow==13.0.0", "opencv-python-headless==5.0.0.93", "h5py==3.16.0")
VERSIONS = ("torch", "pillow", "opencv-python-headless", "h5py")


def label(workload: Workload) -> str:
    """Describe what runs."""
    if workload.data == "photos":
        return f"DataLoader, worker processes, one file per image; {DECODER_NOTES[workload.variant]}"
    return "DataLoader, worker processes, h5py one sample at a time"


def prepare(workload: Workload, source: Path, out: Path) -> None:
    """Write a folder of files per class for photos, else one contiguous HDF5 dataset."""
    out.mkdir(parents=True)
    if workload.data == "photos":
        for number, (data, of_class) in enumerate(encoded(source, workload.count)):
            folder = out / f"{of_class:05d}"
            folder.mkdir(exist_ok=True)
            (folder / f"{number:08d}.jpg").write_bytes(data)
        return
    import h5py

    with h5py.File(out / "data.h5", "w") as file:
        file.create_dataset("array", data=arrays(workload, source))


def epoch(workload: Workload, prepared: Path) -> Iterator[Batch]:
    """The next batches of one loop over many epochs."""
    return workload.pairs(islice(_batches(workload, prepared), workload.count // workload.batch_size))


@cache
def _batches(workload: Workload, prepared: Path) -> Iterator[Any]:
    from torch.utils.data import DataLoader, RandomSampler

    if workload.data == "photos":
        data: Any = Items(partial(_decoded, DECODERS[workload.variant]), sorted(prepared.rglob("*.jpg")))
    else:
        data = _Rows(prepared / "data.h5", workload.count)
    sampler = RandomSampler(data, num_samples=PASSES * workload.count)  # a new permutation for each epoch
    loader: DataLoader[Any] = DataLoader(data, sampler=sampler, **workload.loader)
    return chain.from_iterable(repeat(loader))


def _decoded(decode: Callable[[bytes], Any], path: Path) -> tuple[Any, int]:
    import torch

    return torch.from_numpy(decode(path.read_bytes())), int(path.parent.name)


class _Rows:
    """A map-style dataset over the rows of an HDF5 dataset; each worker opens the file itself."""

    def __init__(self, path: Path, count: int) -> None:
        self._path = path
        self._count = count
        self._rows: Any = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        import h5py
        import torch

        if self._rows is None:
            self._rows = h5py.File(self._path, "r")["array"]
        return torch.from_numpy(self._rows[index])
