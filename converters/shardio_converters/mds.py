"""MosaicML Streaming's datasets, MDS, in a local directory, read without the library.

Source: https://docs.mosaicml.com/projects/streaming/en/stable/preparing_datasets/dataset_format.html. A directory holds
`index.json`, which lists the shards. A shard is the number of samples, the offset of each and of the end (all uint32,
little-endian), a header that nothing needs, and the samples: the sizes of the columns that vary, then all values.
"""

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, SourceError
from shardio.foreign.files import File, open_file, order_hints
from shardio.foreign.locations import Spans, ValueLocations, scan_files
from shardio.foreign.names import bad_samples_at, printable
from shardio.source import Field, Sample, check_image, check_index, encode_png, label_as_int64, local_path

from ._fields import array_field, choose_fields, decode_utf8, field_of_files, rename_remarks, shape_of_all
from ._files import parse_json, plain_name, read_json
from ._source_base import LocatedSource

_INDEX = "index.json"
_COMPRESSIONS = {"gz": "gzip", "bz2": "bzip2", "zstd": "zstd"}
_PROBED = 16  # the first samples, whose values tell what columns of bytes and arrays hold

_DTYPES = {
    **dict(zip((8, 16, 32, 64), ("uint8", "uint16", "uint32", "uint64"), strict=True)),
    **dict(zip((9, 17, 33, 65), ("int8", "int16", "int32", "int64"), strict=True)),
    **dict(zip((18, 34, 66), ("float16", "float32", "float64"), strict=True)),
}
"""The dtypes of arrays, by their numbers in arrays of any dtype."""
_NUMBERS = {"int": "int64", **{name: name for name in _DTYPES.values()}}
"""The dtypes of single numbers, by their encodings."""
_FIELDS = {
    "str": Field("text"),
    "str_int": Field("scalar", dtype="int64"),
    "str_float": Field("scalar", dtype="float64"),
    "str_decimal": Field("text"),
    "jpeg": Field("image"),
    "png": Field("image"),
    "pil": Field("image"),
    "json": Field("json"),
}


def mds(src: str | os.PathLike[str], *, fields: str | Mapping[str, str] | None = None) -> "Mds":
    """A local directory of MDS shards, which MosaicML Streaming wrote: of one split, with its index.json.

    Numbers become scalars, `ndarray` arrays, of fixed shape if the encoding states one, `str` and `str_decimal` text,
    and `json` JSON. `jpeg` and `png` become images, byte for byte, `pil` PNGs, and `bytes` images if they begin like
    one. Pickles and lists of images are not read. Shards compressed with zstd (which needs pyarrow), gz or bz2 are
    unpacked to unnamed temporary files in TMPDIR, unless they are there unpacked as well. The package
    mosaicml-streaming is not needed.

    Args:
        src: the directory.
        fields: the columns to take, with names for their fields, as in "image=jpg,label". Without it: all.

    Example:
        shardio convert mds imagenet/train data/train --fields image,label=id
        shardio convert mds imagenet/train data/all --strict

    Raises:
        SourceError: the directory holds no MDS, a shard is missing, damaged or compressed otherwise, or no field holds
            a column.
        ConfigError: `fields` names a column that does not exist.
    """
    root = local_path(src).absolute()
    if not (root / _INDEX).is_file() and (splits := sorted(p.parent.name for p in root.glob(f"*/{_INDEX}"))):
        raise SourceError(f"{printable(root)} holds the splits {', '.join(splits)}: name one of them")
    columns, shards = _read_index(root)
    own = [column.name for column in columns]
    names = choose_fields(fields, own, printable(root))
    taken = {field: own.index(name) for field, name in names.items()}
    for number in taken.values():
        _field(columns[number], (), printable(root))  # refuses before the shards are scanned
    places = ValueLocations([path for path, _ in shards], scan_files(shards, _scan), _open)
    if not len(places):
        raise SourceError(f"{printable(root)} holds no samples")
    first = []
    for sample in range(min(_PROBED, len(places))):
        with contextlib.suppress(BadSample):
            first.append(_read(places, sample, columns)[0])
    chosen = {}
    for field, number in taken.items():
        found = _field(columns[number], [values[number] for values in first], printable(root))
        chosen[field] = label_as_int64(field, found)
    return Mds(places, columns, taken, chosen, rename_remarks(fields, names), order_hints(places.paths))


class _Column(NamedTuple):
    """A column: its name, how its values are encoded, and the bytes of each value if that is always the same."""

    name: str
    encoding: str
    size: int | None


@final
@dataclass(frozen=True, eq=False)
class Mds(LocatedSource):
    """The samples of MDS shards.

    Attributes:
        layout: all columns, in the order of a sample's values.
        taken: the number of each field's column.
        fields: the fields.
    """

    layout: tuple[_Column, ...]
    taken: Mapping[str, int]
    fields: Mapping[str, Field]
    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    source = "mds"

    def __getitem__(self, index: int) -> Sample:
        check_index(index, len(self.places))
        values, place = _read(self.places, index, self.layout)
        sample = {}
        for name, number in self.taken.items():
            with bad_samples_at(f"{place}, column {self.layout[number].name!r}"):
                sample[name] = _decoded(values[number], self.layout[number].encoding, self.fields[name])
        return sample


def _read_index(folder: Path) -> tuple[tuple[_Column, ...], list[tuple[Path, int]]]:
    """Return the columns of a directory, and the file of each shard and the number of its samples.

    Raises SourceError if it holds no MDS, if a shard is missing or has other columns, or is compressed by Brotli or
    Snappy.
    """
    place, index = printable(folder / _INDEX), read_json(folder / _INDEX)
    shards: list[tuple[Path, int]] = []
    columns: tuple[_Column, ...] = ()
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


def _columns(shard: Mapping[str, Any]) -> tuple[_Column, ...]:
    if shard["format"] != "mds":
        raise ValueError(f"format {shard['format']!r}")
    found = []
    for parts in zip(shard["column_names"], shard["column_encodings"], shard["column_sizes"], strict=True):
        name, encoding, size = parts
        if not (isinstance(name, str) and isinstance(encoding, str) and (size is None or type(size) is int)):
            raise TypeError(f"a column {parts!r}")
        found.append(_Column(name, encoding, size or None))  # Streaming takes 0 as varying, too
    return tuple(found)


def _shard(folder: Path, shard: Mapping[str, Any]) -> tuple[Path, int]:
    raw = folder / plain_name(shard["raw_data"]["basename"])
    count = shard["samples"]
    if type(count) is not int or not 0 <= count < 1 << 32:
        raise ValueError(f"{count!r} samples")
    if raw.exists() or not shard["zip_data"]:
        return raw, count
    packed = folder / plain_name(shard["zip_data"]["basename"])
    compression = str(shard["compression"]).partition(":")[0]
    if compression not in _COMPRESSIONS:
        known = ", ".join(_COMPRESSIONS)
        raise SourceError(f"{printable(packed)} is compressed by {compression}; shardio unpacks {known}")
    return packed, count


def _open(path: Path) -> File:
    """Open a shard, unpacked to a temporary file if it is compressed: see `files.open_file`."""
    return open_file(path, () if path.name.endswith(".mds") else _COMPRESSIONS.values())


def _scan(shard: tuple[Path, int]) -> Spans:
    """Locate the samples of a shard; SourceError if it is damaged or cut short."""
    (path, count), place = shard, printable(shard[0])
    file = _open(path)
    head = np.frombuffer(file.read(0, 4 * (count + 2)), "<u4").astype(np.int64)
    if len(head) < count + 2 or head[0] != count:
        raise SourceError(f"{place}: damaged: it does not begin with the offsets of {count} samples")
    ends = head[1:]
    if ends[0] < 4 * len(head) or (np.diff(ends) < 0).any() or ends[-1] > file.size:
        raise SourceError(f"{place}: damaged or cut off: its samples are not within its {file.size} bytes")
    return ends[:-1], np.diff(ends)


def _read(places: ValueLocations, index: int, columns: Sequence[_Column]) -> tuple[list[bytes], str]:
    """Return the bytes of each column of a sample, and its name in messages; BadSample if it is damaged."""
    file, row, offset, size = places.locate(index)
    with bad_samples_at(place := f"{printable(file.path)}, sample {row}"):
        return _split(file.read_exactly(offset, size), columns), place


def _split(data: bytes, columns: Sequence[_Column]) -> list[bytes]:
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


def _field(column: _Column, values: Sequence[bytes], place: str) -> Field:
    """Return the field for a column, some of whose values are given; SourceError if none holds it."""
    encoding = column.encoding
    if encoding in _NUMBERS:
        return Field("scalar", dtype=_NUMBERS[encoding])
    if encoding == "bytes":
        return field_of_files(values)
    if encoding in _FIELDS:
        return _FIELDS[encoding]
    reason = "pickles are never loaded" if encoding == "pkl" else "no field holds it"
    if encoding.partition(":")[0] == "ndarray":
        try:
            dtype, shape = _array_type(encoding)
            found = array_field(np.dtype(dtype), shape) if shape else _field_of_shapes(dtype, values, encoding)
        except ValueError:
            found = None
        if found is not None:
            return found
    raise SourceError(f"{place}: the column {column.name!r} is {encoding!r}: {reason}; choose others with fields")


def _field_of_shapes(dtype: str | None, values: Sequence[bytes], encoding: str) -> Field:
    """Return the field of arrays whose encoding states no shape, and perhaps no dtype: some of them decide."""
    arrays = []
    for value in values:
        with contextlib.suppress(BadSample):
            arrays.append(_array(value, encoding))
    if not arrays:
        return Field("array", dtype=dtype or "float32")
    return Field("array", dtype=arrays[0].dtype.name, shape=shape_of_all((a.shape for a in arrays), fixed=False))


def _decoded(data: bytes, encoding: str, field: Field) -> Any:
    """Return the value of a column; BadSample if it is damaged."""
    if encoding.partition(":")[0] == "ndarray":
        return _array(data, encoding)
    if encoding == "pil":
        return encode_png(_pixels(data), "the image")
    if field.kind == "image":
        check_image(data)
    if field.kind in ("image", "bytes"):
        return data
    try:
        if encoding == "json":
            return parse_json(data, nan=False)
        if encoding in _NUMBERS:
            (number,) = np.frombuffer(data, np.dtype(_NUMBERS[encoding]).newbyteorder("<")).tolist()
            return number
        text = decode_utf8(data)
        return {"str_int": int, "str_float": float}.get(encoding, str)(text)
    except ValueError as error:
        raise BadSample(f"not {encoding}: {error}") from error


def _array_type(encoding: str) -> tuple[str | None, tuple[int, ...] | None]:
    """Return the dtype and the shape that an encoding `ndarray[:DTYPE[:SHAPE]]` states; ValueError if damaged."""
    _, _, rest = encoding.partition(":")
    dtype, _, shape = rest.partition(":")
    if dtype and dtype not in _NUMBERS.values():
        raise ValueError(f"the dtype {dtype!r}")
    return dtype or None, tuple(int(size) for size in shape.split(",")) if shape else None


def _array(data: bytes, encoding: str) -> NDArray[Any]:
    """Return the array in a value of this encoding; BadSample if it is damaged."""
    try:
        dtype, shape = _array_type(encoding)
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


def _pixels(data: bytes) -> NDArray[np.uint8]:
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
