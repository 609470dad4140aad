"""Metadata of Zarr arrays of numbers, of format 2 and 3: how its chunks hold an array's elements, and their names.

All of it may come from anyone: whatever is not understood is refused, and sizes are checked before memory is taken.
Source: https://zarr-specs.readthedocs.io, and for codecs of format 2 https://numcodecs.readthedocs.io.
"""

import base64
import binascii
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..format.limits import MAX_VALUE_BYTES
from ..format.unwritten import Unwritten

Codec = tuple[str, Mapping[str, Any]]
"""The name of a codec, and its settings."""

_TYPES = {"bool", "float16", "float32", "float64", "complex64", "complex128"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
_PLAIN = re.compile(r"[<>|][biufc][0-9]{1,2}")
_DATES = re.compile(r"[<>]M8\[([a-zD]+)\]")
_UNITS = {
    "D": "days", "h": "hours", "m": "minutes",
    "s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds",
}  # fmt: skip
_KEY = re.compile(r"0|[1-9][0-9]{0,17}")
_MOST_AXES = 32
_MOST = 1 << 62
_MOST_CODECS = 16
_INDEX_BYTES = 16  # of an inner chunk
_MOST_INNER = 1 << 22  # inner chunks of a shard


class NotUnderstood(ValueError):
    """Metadata that no array of numbers has; the message follows the array's name."""


class Impossible(NotUnderstood):
    """Metadata of sizes that no array can have."""


@final
@dataclass(frozen=True, slots=True)
class Shard:
    """How the shards of the codec `sharding_indexed` hold inner chunks.

    Attributes:
        grid: inner chunks along each axis of a shard.
        at_end: whether the index is at the end of a shard, or at its begin.
        has_checksum: whether a CRC-32C follows the index.
    """

    grid: tuple[int, ...]
    at_end: bool
    has_checksum: bool

    @property
    def index_bytes(self) -> int:
        """The bytes of the index, with its checksum."""
        return _INDEX_BYTES * math.prod(self.grid) + 4 * self.has_checksum


@final
@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """An array of numbers.

    Attributes:
        shape: its shape.
        chunk: the shape of a chunk; with shards, of an inner chunk.
        dtype: the elements, of either byte order.
        fill: the value of chunks that were never written, a number of the dtype in native byte order.
        order: for each axis, its position among those of a stored chunk.
        codecs: the codecs from elements to bytes, in the order in which the writer applied them.
        prefix: what the names of chunks begin with.
        separator: what is between the numbers of a chunk, `.` or `/`.
        shard: how shards hold chunks; None if each chunk has a name of its own.
        attributes: the attributes, as JSON values; empty for those of format 2, which are in a file of their own.
        dimensions: the names of the axes; empty if there are none.
    """

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: Any
    order: tuple[int, ...]
    codecs: tuple[Codec, ...]
    prefix: str
    separator: str
    shard: Shard | None
    attributes: Mapping[str, Any]
    dimensions: tuple[str | None, ...]

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of named chunks along each axis: of shards, if there are some."""
        inner = self.shard.grid if self.shard else (1,) * len(self.shape)
        return tuple(-(-side // (chunk * per)) for side, chunk, per in zip(self.shape, self.chunk, inner, strict=True))

    def key(self, cell: Sequence[int]) -> str:
        """Return the name of a chunk, or of a shard, by its position in the grid."""
        return self.prefix + (self.separator.join(map(str, cell)) or ("" if self.prefix else "0"))

    def otherwise_named(self) -> Iterator["ArrayLayout"]:
        """Yield the layouts whose chunks have the names that other metadata would give these."""
        origin = [0] * len(self.shape)
        for prefix, separator in (("", "."), ("", "/"), ("c/", "/"), ("c.", ".")):
            other = replace(self, prefix=prefix, separator=separator)
            if other.key(origin) != self.key(origin):
                yield other

    def number(self, key: str) -> int | None:
        """Return the position of a chunk in the grid, as one number in C order; None if no chunk has this name."""
        if not key.startswith(self.prefix):
            return None
        parts = key.removeprefix(self.prefix).split(self.separator)
        if len(parts) != len(self.shape) or not all(map(_KEY.fullmatch, parts)):
            return None
        number = 0
        for part, size in zip(map(int, parts), self.grid, strict=True):
            if part >= size:
                return None  # an array that became smaller keeps such chunks
            number = number * size + part
        return number


def of_array(metadata: Mapping[str, Any]) -> ArrayLayout:
    """Return what the JSON value of a `.zarray` or `zarr.json` says; NotUnderstood if it is not an array of numbers."""
    try:
        layout = _of_format_2(metadata) if metadata.get("zarr_format") == 2 else _of_format_3(metadata)
    except NotUnderstood:
        raise
    except (ValueError, TypeError, KeyError, LookupError, AttributeError, ArithmeticError) as error:
        raise NotUnderstood(f"has metadata that cannot be read: {error!r}") from error
    if math.prod(layout.chunk) * layout.dtype.itemsize > MAX_VALUE_BYTES:
        raise Impossible(f"has chunks {list(layout.chunk)} of {layout.dtype}, more than {MAX_VALUE_BYTES} bytes")
    return layout


def of_chunks(
    one: Unwritten, layout: ArrayLayout, axis: int, numbers: NDArray[np.int64], *, inner: bool = False
) -> Unwritten:
    """Return `one` with the counts of an array's named chunks, or of the `inner` ones of shards, by their numbers."""
    sides = zip(layout.shape, layout.chunk, strict=True)
    grid = tuple(-(-side // chunk) for side, chunk in sides) if inner else layout.grid
    step = layout.chunk[axis] * (layout.shard.grid[axis] if layout.shard and not inner else 1)

    def key(place: Sequence[int]) -> str:
        if not inner or layout.shard is None:
            return layout.key(place)
        return f"{list(place)} in {layout.key([at // per for at, per in zip(place, layout.shard.grid, strict=True)])}"

    what = "chunks of shards" if inner else "shards" if layout.shard else "chunks"
    return replace(one, fill=str(layout.fill), what=what).of_grid(numbers, grid, key, axis, step)


def units_of_dates(metadata: Mapping[str, Any]) -> str | None:
    """Return the netCDF units of an array of datetime64, which is read as int64; None for other arrays."""
    stored = metadata.get("dtype", metadata.get("data_type"))
    unit = None
    if isinstance(stored, str) and (found := _DATES.fullmatch(stored)):
        unit = found[1]
    elif isinstance(stored, dict) and stored.get("name") == "numpy.datetime64":
        settings = stored["configuration"]
        unit = settings["unit"] if settings["scale_factor"] == 1 else None
    return f"{_UNITS[unit]} since 1970-01-01" if unit in _UNITS else None


def _of_format_2(metadata: Mapping[str, Any]) -> ArrayLayout:
    shape, chunk = _sizes(metadata["shape"], 0), _sizes(metadata["chunks"], 1)
    _same_axes(shape, chunk)
    stored = metadata["dtype"]
    if units_of_dates(metadata):
        stored = f"{stored[0]}i8"
    if not isinstance(stored, str) or not _PLAIN.fullmatch(stored):
        raise NotUnderstood(f"holds {stored!r}, which is no number")
    dtype = np.dtype(stored)
    axes = range(len(shape))
    if metadata["order"] not in ("C", "F"):
        raise NotUnderstood(f"has the order {metadata['order']!r}")
    codecs = [_codec_2(one) for one in metadata.get("filters") or ()]
    if metadata.get("compressor") is not None:
        codecs.append(_codec_2(metadata["compressor"]))
    separator = _one_of(metadata.get("dimension_separator", "."), (".", "/"), "dimension_separator")
    return ArrayLayout(
        shape, chunk, dtype, _fill(metadata.get("fill_value"), dtype, encoded=True),
        tuple(axes) if metadata["order"] == "C" else tuple(reversed(axes)),
        _few(codecs), "", separator, None, {}, (),
    )  # fmt: skip


def _of_format_3(metadata: Mapping[str, Any]) -> ArrayLayout:
    if metadata.get("zarr_format") != 3 or metadata.get("node_type") != "array":
        raise NotUnderstood("is not an array of format 2 or 3")
    for name, value in metadata.items():
        if name not in _KNOWN and not (isinstance(value, dict) and value.get("must_understand") is False):
            raise NotUnderstood(f"has metadata {name!r}, which is not known")
    if metadata.get("storage_transformers"):
        raise NotUnderstood("has storage transformers")
    shape = _sizes(metadata["shape"], 0)
    stored: Any = "int64" if units_of_dates(metadata) else metadata["data_type"]
    if not isinstance(stored, str) or stored not in _TYPES:
        raise NotUnderstood(f"holds {stored!r}, which is no number")
    dtype: Any = np.dtype(stored)
    name, settings = _named(metadata["chunk_grid"])
    if name != "regular":
        raise NotUnderstood(f"has a chunk grid {name!r}")
    chunk = _sizes(settings["chunk_shape"], 1)
    _same_axes(shape, chunk)
    name, settings = _named(metadata["chunk_key_encoding"])
    usual = {"default": "/", "v2": "."}
    separator = _one_of(settings.get("separator", usual.get(name)), (".", "/"), "separator")
    prefix = {"default": f"c{separator}" if shape else "c", "v2": ""}[_one_of(name, usual, "chunk_key_encoding")]
    codecs = [_named(one) for one in metadata["codecs"]]
    shard = None
    if len(codecs) == 1 and codecs[0][0] == "sharding_indexed":
        chunk, codecs, shard = _sharded(chunk, codecs[0][1])
    order, endian, rest = _array_codecs(codecs, len(shape))
    attributes, dimensions = metadata.get("attributes", {}), metadata.get("dimension_names") or ()
    if not isinstance(attributes, dict) or len(dimensions) not in (0, len(shape)):
        raise NotUnderstood("has attributes or dimension_names that cannot be read")
    return ArrayLayout(
        shape, chunk, dtype.newbyteorder(endian), _fill(metadata["fill_value"], dtype), order, rest,
        prefix, separator, shard, attributes, tuple(dimensions),
    )  # fmt: skip


_KNOWN = {
    "zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs",
    "attributes", "dimension_names", "storage_transformers", "consolidated_metadata",
}  # fmt: skip


def _sharded(outer: tuple[int, ...], settings: Mapping[str, Any]) -> tuple[tuple[int, ...], list[Codec], Shard]:
    """Return the shape of inner chunks, their codecs, and how shards of shape `outer` hold them."""
    inner = _sizes(settings["chunk_shape"], 1)
    _same_axes(outer, inner)
    if any(side % chunk for side, chunk in zip(outer, inner, strict=True)):
        raise NotUnderstood(f"has shards of {list(outer)}, which chunks of {list(inner)} do not fill")
    index = [_named(one) for one in settings["index_codecs"]]
    little = index[:1] == [("bytes", {"endian": "little"})]
    if not little or [name for name, _ in index[1:]] not in ([], ["crc32c"]):
        raise NotUnderstood("has an index of shards in other codecs than bytes and crc32c")
    location = _one_of(settings.get("index_location", "end"), ("end", "start"), "index_location")
    grid = tuple(side // chunk for side, chunk in zip(outer, inner, strict=True))
    if math.prod(grid) > _MOST_INNER:
        raise NotUnderstood(f"has shards of {math.prod(grid)} chunks, more than {_MOST_INNER}")
    codecs = [_named(one) for one in settings["codecs"]]
    return inner, codecs, Shard(grid, location == "end", len(index) > 1)


def _array_codecs(codecs: Sequence[Codec], axes: int) -> tuple[tuple[int, ...], str, tuple[Codec, ...]]:
    """Return the positions of axes in stored chunks, the byte order, and the codecs of bytes."""
    order, endian, rest = list(range(axes)), "", list[Codec]()
    for name, settings in codecs:
        if name == "transpose" and not endian and not rest:
            in_order = list(range(axes))
            given = {"C": in_order, "F": in_order[::-1]}.get(str(settings["order"]), settings["order"])
            if sorted(given or ()) != in_order:
                raise NotUnderstood(f"has a transpose to {settings['order']!r}")
            order = [order[axis] for axis in given or ()]  # the axis at each position
        elif name == "bytes" and not endian:
            endian = {"little": "<", "big": ">"}[settings.get("endian", "little")]
        else:
            rest.append((name, settings))
    if not endian:
        raise NotUnderstood("has no codec of bytes that is known")
    return tuple(order.index(axis) for axis in range(axes)), endian, _few(rest)


def _codec_2(value: Any) -> Codec:
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        raise NotUnderstood(f"has a codec {str(value)[:80]}")
    return f"numcodecs.{value['id']}", value


def _named(value: Any) -> Codec:
    """Return the name and the settings of an extension of format 3."""
    if isinstance(value, str):
        return value, {}
    settings = value.get("configuration", {})
    if not isinstance(value["name"], str) or not isinstance(settings, dict):
        raise NotUnderstood(f"has metadata {str(value)[:80]}")
    return value["name"], settings


def _few(codecs: Sequence[Codec]) -> tuple[Codec, ...]:
    if len(codecs) > _MOST_CODECS:
        raise NotUnderstood(f"has {len(codecs)} codecs")
    return tuple(codecs)


def _one_of(value: Any, known: Any, what: str) -> Any:
    if value not in known:
        raise NotUnderstood(f"has {what} {value!r}")
    return value


def _sizes(value: Any, least: int) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MOST_AXES:
        raise Impossible(f"has a shape {str(value)[:80]}")
    for size in value:
        if type(size) is not int or not least <= size < _MOST:
            what = "chunks of at least one element" if least else "sizes of at least 0 and less than 2^62"
            raise Impossible(f"must have {what}, it has {value}")
    return tuple(value)


def _same_axes(shape: tuple[int, ...], chunk: tuple[int, ...]) -> None:
    if len(shape) != len(chunk):
        raise Impossible(f"has {len(shape)} axes, and its chunks {len(chunk)}")


def _fill(value: Any, dtype: np.dtype[Any], *, encoded: bool = False) -> Any:
    """Return a fill value from JSON as a number of the dtype, native.

    Args:
        value: what the metadata say; None for zero.
        dtype: the dtype.
        encoded: whether text that is no number is bytes in base64, as of complex numbers of format 2.
    """
    native = dtype.newbyteorder("=")
    if value is None:
        return np.zeros((), native)[()]
    if native.kind == "c" and isinstance(value, list) and len(value) == 2:
        part = np.dtype(f"f{native.itemsize // 2}")
        return np.array([_fill(one, part) for one in value], part).view(native)[0]
    if isinstance(value, str):
        known = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}
        if value in known and native.kind in "fc":
            return np.array(known[value], native)[()]
        try:
            data = (
                bytes.fromhex(value[2:])[::-1] if value.startswith("0x") else base64.b64decode(value, validate=encoded)
            )
        except (ValueError, binascii.Error) as error:
            raise NotUnderstood(f"has the fill value {value[:80]!r}") from error
        if len(data) != native.itemsize or not (encoded or value.startswith("0x")):
            raise NotUnderstood(f"has the fill value {value[:80]!r}")
        return np.frombuffer(data, native if value.startswith("0x") else dtype).astype(native)[0]
    if not isinstance(value, (int, float, bool)) or (native.kind in "iu" and value != int(value)):
        raise NotUnderstood(f"has the fill value {str(value)[:80]}")
    if native.kind in "iu":
        limits = np.iinfo(native)
        if not limits.min <= value <= limits.max:
            raise NotUnderstood(f"has the fill value {value}, which no {native} is")
        return native.type(int(value))
    return np.array(value).astype(native)[()]
