"""HDF5 files as other programs write them, and where their chunks are."""

from pathlib import Path
from typing import Any

import h5py


def write_hdf5(path: Path, mode: str = "w", /, **datasets: Any) -> Path:
    """Write one dataset per name, `__` for a slash; a dict holds arguments of create_dataset. Mode "a" adds them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, mode) as file:
        for name, value in datasets.items():
            file.create_dataset(name.replace("__", "/"), **(value if isinstance(value, dict) else {"data": value}))
    return path


def chunk_of(path: Path, name: str, chunk: int | tuple[int, ...]) -> Any:
    """Where a chunk of a dataset is, by its number or its first element: `byte_offset` and `size`."""
    with h5py.File(path) as file:
        stored = file[name].id
        return stored.get_chunk_info(chunk) if isinstance(chunk, int) else stored.get_chunk_info_by_coord(chunk)
