"""HDF5 files whose damage holds libhdf5 for ever."""

import struct
from pathlib import Path

import h5py

TEXTS = [f"{number:03d}" * 8000 for number in range(6)]
"""Texts so long that they fill several collections of libhdf5's heap."""


def hold(path: Path, name: str = "x") -> list[int]:
    """Damage the heap collection that holds row 0 of a dataset of strings; return the rows that it holds.

    Its first object becomes one of no bytes, which libhdf5 steps over for ever.
    """
    with h5py.File(path) as file:
        offset, count = file[name].id.get_offset(), len(file[name])
    data = bytearray(path.read_bytes())
    collections = [struct.unpack_from("<IQI", data, offset + 16 * row)[1] for row in range(count)]
    hold_at(path, collections[0])
    return [row for row in range(count) if collections[row] == collections[0]]


def hold_at(path: Path, collection: int) -> None:
    """Damage the heap collection at a byte of a file."""
    data = bytearray(path.read_bytes())
    assert data[collection : collection + 4] == b"GCOL"
    data[collection + 16 : collection + 32] = bytes(16)
    path.write_bytes(data)
