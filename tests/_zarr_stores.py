"""Zarr stores of a few arrays, what is read of them, and chunks that change."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray


def write_group(path: Path, arrays: Mapping[str, tuple[Any, Any, str]], form: Any = 3, **options: Any) -> Any:
    """Write arrays, each by its numbers, chunks and the names of its axes, to a group; return that."""
    group = zarr.open_group(path, mode="a", zarr_format=form)
    for name, (data, chunks, axes) in arrays.items():
        named: dict[str, Any] = {"dimension_names": axes.split()}
        if form == 2:
            named = {"attributes": {"_ARRAY_DIMENSIONS": axes.split()}, "fill_value": None}
        group.create_array(name, shape=data.shape, chunks=chunks, dtype=data.dtype, **named, **options)[...] = data
    return group


def grouped(path: Path, form: int = 3, rows: int = 24, **options: Any) -> Path:
    """A group of `x` [rows, 6, 8] with dimensions, `t` [rows] and `lat` [6]."""
    x = np.arange(rows * 48, dtype="f4").reshape(rows, 6, 8)
    arrays = {"x": (x, (4, 3, 8), "time lat lon"), "t": (np.arange(rows), (10,), "time")}
    write_group(path, {**arrays, "lat": (np.arange(6.0), (6,), "lat")}, form, **options)
    return path


def column(dataset: Any, rows: Any, name: str = "array") -> NDArray[Any]:
    """The values of a field in some rows."""
    found: NDArray[Any] = dataset.selection(np.asarray(rows, np.int64)).column(name)
    return found


def lose(chunk: Path) -> None:
    """Remove a chunk."""
    chunk.unlink()


def rewrite(chunk: Path) -> None:
    """Write the same bytes at another time."""
    os.utime(chunk, ns=(1, 1))
