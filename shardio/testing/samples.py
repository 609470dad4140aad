"""Samples with every kind of field for the container contract, and helpers that write and read them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..containers.base import Container, Reader
from ..format.fields import CHECKSUM, Field, as_fields, length_column, shape_column, with_hidden
from ..system.types import Buffer

FIELDS: Mapping[str, Field] = as_fields(
    {
        "image": "image",
        "tensor": ("float32", (3, 5)),
        "wide": ("int16", (4, 700)),  # more than a page, which containers may read in another way
        "points": Field("array", dtype="float64"),
        "track": ("float32", (None, 3)),
        "tokens": ("uint16", (None,)),
        "label": "int64",
        "weight": "float32",
        "good": "bool",
        "caption": "text",
        "blob": "bytes",
        "meta": "json",
        "thumb": Field("pixels", shape=(4, 6), channels=3),
    }
)
"""A field of every kind."""

FIRST = 1000
COUNT = 23
_CAPTIONS = ("", "plain", "ünïcödé ✓", "two\nlines")


def sample(index: int) -> dict[str, Any]:
    """Return the values of one sample; any two samples differ in every field that has enough possible values."""
    chance = np.random.default_rng(index)
    return {
        "image": b"\xff\xd8\xff" + chance.bytes(index % 7 * 100) + b"\xff\xd9",
        "tensor": chance.random((3, 5), np.float32),
        "wide": chance.integers(-30000, 30000, (4, 700), np.int16),
        "points": chance.random((index % 4, 2)),
        "track": chance.random((index * 7 % 5, 3), np.float32),
        "tokens": chance.integers(0, 2**16, (0, 1, 5, 3000)[index % 4], np.uint16),
        "label": index - 5,
        "weight": float(np.float32(index / 3)),
        "good": index % 2 == 0,
        "caption": _CAPTIONS[index % len(_CAPTIONS)] + (str(index) if index % 4 else ""),
        "blob": b"" if index % 5 == 0 else chance.bytes(index),
        "meta": {"index": index, "tags": ["a", None, 1.5]},
        "thumb": chance.integers(0, 256, (4, 6, 3), np.uint8),
    }


def stored(index: int, fields: Mapping[str, Field] = FIELDS) -> dict[str, Buffer]:
    """Return one sample as a shard stores it, with hidden columns."""
    values = sample(index)
    hidden = {
        CHECKSUM: np.uint64(2**64 - 1 - index).tobytes(),
        shape_column("image"): np.array([index, index + 1], "<i4").tobytes(),
        **{length_column(n): len(values[n]).to_bytes(8, "little") for n, field in fields.items() if field.ragged},
    }
    return {**{name: fields[name].encode(values[name]) for name in fields}, **hidden}


def write(container: Container, path: Path, count: int = COUNT) -> Path:
    """Write a shard of `count` samples; return its path."""
    writer = container.writer(path, with_hidden(FIELDS), FIRST)
    for i in range(count):
        writer.append(stored(i))
    writer.close()
    return path


def raw_of(reader: Reader, rows: list[int], name: str) -> list[bytes]:
    """Read one field of the rows as stored bytes."""
    column = reader.read(np.array(rows, np.int64), name)
    return [value if isinstance(value, bytes) else value.tobytes() for value in column]


def values_of(reader: Reader, rows: list[int], name: str) -> list[Any]:
    """Read one field of the rows as Python and NumPy values."""
    return [with_hidden(FIELDS)[name].decode(raw) for raw in raw_of(reader, rows, name)]
