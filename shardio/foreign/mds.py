"""MDS, the shards of MosaicML Streaming: where each sample is, and what its columns hold, without the library.

Source: https://docs.mosaicml.com/projects/streaming/en/stable/preparing_datasets/dataset_format.html. A directory holds
`index.json`, which lists the shards. A shard is the number of samples, the offset of each and of the end (all uint32,
little-endian), a header that nothing needs, and the samples: the sizes of the columns that vary, then all values.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample, SourceError
from . import json_text
from .files import File, open_file
from .locations import Spans
from .names import printable

INDEX = "index.json"
_DTYPES = {
    **dict(zip((8, 16, 32, 64), ("uint8", "uint16", "uint32", "uint64"), strict=True)),
    **dict(zip((9, 17, 33, 65), ("int8", "int16", "int32", "int64"), strict=True)),
    **dict(zip((18, 34, 66), ("float16", "float32", "float64"), strict=True)),
}
"""The dtypes of arrays, and their numbers in arrays of any dtype."""
NUMBERS = {"int": "int64", **{name: name for name in _DTYPES.values()}}
"""The encodings of single numbers, and their dtypes."""

_COMPRESSIONS = {"gz": "gzip", "bz2": "bzip2", "zstd": "zstd"}


@final
@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, how its values are encoded, and the bytes of each value if that is always the same."""

    name: str
    encoding: str
    size: int | None


@final
@dataclass(frozen=True, slots=True)
class Shard:
    """A shard: its file, which is compressed if only that is there, and the number of its samples."""

    path: Path
    samples: int


def read_index(folder: Path) -> tuple[tuple[Column, ...], list[Shard]]:
    """Return the columns and the shards of a directory.

    Raises SourceError if it holds no MDS, if a shard is missing or has other columns, or is compressed by Brotli or
    Snappy.
    """
    place = printable(folder / INDEX)
    try:
        index = json_text.parse(json_text.read_bytes(folder / INDEX))
    except (OSError, ValueError) as error:
        raise SourceError(f"{place} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    shards: list[Shard] = []
    columns: tuple[Column, ...] = ()
    try:
        if index["version"] != 2 or not isinstance(index["shards"], list):
            raise SourceError(f"{place}: the version must be 2, got {index['version']!r}")
        for number, one in enumerate(index["shards"]):
            found = _columns(one)
            columns = columns or found
            if found != columns:
                raise SourceError(f"{place}: shards must have the same columns, shard {number} has others than shard 0")
            shards.append(_shard(folder, one))
    except (LookupError, TypeError, ValueError) as error:
        raise SourceError(f"{place}: not an index of MDS: {type(error).__name__}: {error}") from error
    if not columns:
        raise SourceError(f"{place} lists no shards")
    return columns, shards


def _columns(shard: Mapping[str, Any]) -> tuple[Column, ...]:
    if shard["format"] != "mds":
        raise ValueError(f"format {shard['format']!r}")
    found = []
    for parts in zip(shard["column_names"], shard["column_encodings"], shard["column_sizes"], strict=True):
        name, encoding, size = parts
        if not (isinstance(name, str) and isinstance(encoding, str) and (size is None or type(size) is int)):
            raise TypeError(f"a column {parts!r}")
        found.append(Column(name, encoding, size or None))  # Streaming takes 0 as varying, too
    return tuple(found)


def _shard(folder: Path, shard: Mapping[str, Any]) -> Shard:
    raw = folder / _plain(shard["raw_data"]["basename"])
    count = shard["samples"]
    if type(count) is not int or not 0 <= count < 1 << 32:
        raise ValueError(f"{count!r} samples")
    if raw.exists() or not shard["zip_data"]:
        return Shard(raw, count)
    packed = folder / _plain(shard["zip_data"]["basename"])
    compression = str(shard["compression"]).partition(":")[0]
    if compression not in _COMPRESSIONS:
        known = ", ".join(_COMPRESSIONS)
        raise SourceError(f"{printable(packed)} is compressed by {compression}; shardio unpacks {known}")
    return Shard(packed, count)


def _plain(name: Any) -> str:
    """Return a file's name; ValueError for a path, which would lead out of the directory."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"a file called {name!r}")
    return name


def open_mds(path: Path) -> File:
    """Open a shard, unpacked to a temporary file if it is compressed: see `files.open_file`."""
    return open_file(path, () if path.name.endswith(".mds") else _COMPRESSIONS.values())


def scan(shard: Shard) -> Spans:
    """Locate the samples of a shard; SourceError if it is damaged or cut short."""
    file, place = open_mds(shard.path), printable(shard.path)
    head = np.frombuffer(file.read(0, 4 * (shard.samples + 2)), "<u4").astype(np.int64)
    if len(head) < shard.samples + 2 or head[0] != shard.samples:
        raise SourceError(f"{place}: damaged: it does not begin with the offsets of {shard.samples} samples")
    ends = head[1:]
    if ends[0] < 4 * len(head) or (np.diff(ends) < 0).any() or ends[-1] > file.size:
        raise SourceError(f"{place}: damaged or cut off: its samples are not within its {file.size} bytes")
    return ends[:-1], np.diff(ends)


def split_sample(data: bytes, columns: Sequence[Column]) -> list[bytes]:
    """Return the bytes of each column of a sample; BadSample if they are not as many as it says."""
    varying = sum(column.size is None for column in columns)
    if len(data) < 4 * varying:
        raise BadSample(f"damaged: it has {len(data)} bytes")
    given = iter(np.frombuffer(data, "<u4", varying).tolist())
    sizes = [next(given) if column.size is None else column.size for column in columns]
    if 4 * varying + sum(sizes) != len(data):
        raise BadSample(f"damaged: its columns have {sum(sizes)} bytes, there are {len(data) - 4 * varying}")
    ends = np.cumsum([4 * varying, *sizes]).tolist()
    return [data[start:end] for start, end in pairwise(ends)]


def array_type(encoding: str) -> tuple[str | None, tuple[int, ...] | None]:
    """Return the dtype and the shape that an encoding `ndarray[:DTYPE[:SHAPE]]` states; ValueError if damaged."""
    _, _, rest = encoding.partition(":")
    dtype, _, shape = rest.partition(":")
    if dtype and dtype not in NUMBERS.values():
        raise ValueError(f"the dtype {dtype!r}")
    return dtype or None, tuple(int(size) for size in shape.split(",")) if shape else None


def array(data: bytes, encoding: str) -> NDArray[Any]:
    """Return the array in a value of this encoding; BadSample if it is damaged."""
    try:
        dtype, shape = array_type(encoding)
        at = 0
        if dtype is None:
            dtype, at = _DTYPES[data[0]], 1
        if shape is None:
            ndim, width = data[at] >> 2, 1 << (data[at] & 3)
            shape = tuple(np.frombuffer(data, f"<u{width}", ndim, at + 1).tolist())
            at += 1 + ndim * width
        element = np.dtype(dtype).newbyteorder("<")
        if math.prod(shape) * element.itemsize != len(data) - at:
            raise BadSample(f"damaged: {list(shape)} of {element.name} are not {len(data) - at} bytes")
        return np.frombuffer(data, element, -1, at).reshape(shape)
    except (LookupError, ValueError) as error:
        raise BadSample(f"damaged: not an array: {error}") from error


def pixels(data: bytes) -> NDArray[np.uint8]:
    """Return the pixels in a value of the encoding `pil`, [h, w] or [h, w, 3]; BadSample for other modes."""
    if len(data) < 12:
        raise BadSample(f"damaged: it has {len(data)} bytes")
    width, height, letters = np.frombuffer(data, "<u4", 3).tolist()
    mode, raw = data[12 : 12 + letters], data[12 + letters :]
    if mode not in (b"L", b"RGB"):
        raise BadSample(f"pixels of the mode {mode[:8].decode(errors='replace')!r}; only L and RGB are taken")
    shape = (height, width) if mode == b"L" else (height, width, 3)
    if math.prod(shape) != len(raw):
        raise BadSample(f"damaged: {list(shape)} pixels are not {len(raw)} bytes")
    return np.frombuffer(raw, np.uint8).reshape(shape)
