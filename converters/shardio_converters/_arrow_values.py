"""Arrow's types, and how their values become those of a sample: the lower part of `_arrow`.

A value is a pyarrow.Scalar. The types are described at https://arrow.apache.org/docs/format/Columnar.html.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample
from shardio.source import Field, load_optional, probe_image

from ._fields import array_field

Convert: TypeAlias = Callable[[Any], Any]
"""Makes a sample's value of a scalar that is not null, or raises BadSample."""

# By name, because older versions of pyarrow lack the functions that tell some of them.
_LISTS = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
_BYTES = ("binary", "large_binary", "fixed_size_binary", "binary_view")
_TEXTS = ("string", "large_string", "string_view")


def arrow() -> Any:
    """The package pyarrow."""
    return load_optional("pyarrow", purpose="reading tables of Arrow", extra="parquet")


def stored(kind: Any) -> Any:
    """The type that values of an extension or a dictionary have."""
    while (inner := _within(kind)) is not None:
        kind = inner
    return kind


def lists_within(kind: Any) -> tuple[tuple[int | None, ...], Any]:
    """The lengths of lists within lists, None where they vary, and the type of what is in the innermost."""
    lengths: list[int | None] = []
    while _name(kind) in _LISTS:
        lengths.append(kind.list_size if _name(kind) == "fixed_size_list" else None)
        kind = kind.value_type
    return tuple(lengths), kind


def number(kind: Any) -> Field | None:
    """The field of numbers of type `kind`; None if they are none."""
    types = arrow().types
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return array_field(np.dtype(kind.to_pandas_dtype()), ())
    return None


def is_bytes(kind: Any) -> bool:
    """Whether values are bytes, of any length or of one."""
    return _name(kind) in _BYTES


def is_media(kind: Any) -> bool:
    """Whether values are structs of `bytes` and `path`, as Hugging Face keeps images and sounds."""
    parts = {field.name: field.type for field in kind} if arrow().types.is_struct(kind) else {}
    if parts.keys() != {"bytes", "path"}:
        return False
    return is_bytes(parts["bytes"]) and _name(parts["path"]) in (*_TEXTS, "null")


def plain(kind: Any) -> Convert | None:
    """How values become text, a number, or a value of JSON that is made of them; None if they cannot."""
    convert = _plain(stored(kind))
    return convert and through(kind, convert)


def through(kind: Any, convert: Convert) -> Convert:
    """`convert` for scalars of type `kind`, an extension or a dictionary of what it takes, or just that."""
    inner = _within(kind)
    return convert if inner is None else partial(_below, through(inner, convert))


def or_none(convert: Convert, scalar: Any) -> Any:
    """None of a null, which only JSON can hold."""
    return convert(scalar) if scalar.is_valid else None


def checked(convert: Convert, scalar: Any) -> Any:
    """The value of a scalar that must not be null."""
    if not scalar.is_valid:
        raise BadSample("null")
    return convert(scalar)


def as_py(scalar: Any) -> Any:
    """A number, text or bytes."""
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        raise BadSample(f"not UTF-8: {error}") from error


def image(convert: Convert, scalar: Any) -> bytes:
    """Bytes that must be an image."""
    data: bytes = convert(scalar)
    probe_image(data)
    return data


def media(read_file: Callable[[str], bytes], scalar: Any) -> bytes:
    """The bytes of a struct of `bytes` and `path`; those of the file where there is only a path."""
    data, path = as_py(scalar["bytes"]), as_py(scalar["path"])
    if data is None and path is None:
        raise BadSample("neither bytes nor a path")
    return read_file(path) if data is None else cast(bytes, data)


def array(field: Field, lengths: tuple[int, ...], scalar: Any) -> NDArray[Any]:
    """An array of a list of numbers, or of lists in which further lists have these lengths."""
    values = scalar.values
    outer = len(values)
    for length in lengths:
        found = (
            load_optional("pyarrow.compute", purpose="arrays", extra="parquet")
            .list_value_length(values)
            .to_numpy(False)
        )
        if (found != length).any():  # a null has the length nan
            raise BadSample(f"expected lists of {length} values, got one of {found[found != length][0]}")
        values = values.flatten()
    if values.null_count:
        raise BadSample("null in a list of numbers")
    shape = (outer, *lengths) if field.shape is None else field.shape
    if len(values) != math.prod(shape):
        raise BadSample(f"expected {list(shape)} numbers, got {len(values)}")
    return np.array(values.to_numpy(zero_copy_only=False), field.row_dtype).reshape(shape)


def numbers(column: Any, field: Field) -> NDArray[Any]:
    """All values of a pyarrow.ChunkedArray of scalars; BadSample if one is null."""
    parts = [np.empty(0, field.row_dtype)]
    for chunk in column.chunks:
        while _within(chunk.type) is not None:
            chunk = chunk.storage if hasattr(chunk, "storage") else chunk.dictionary_decode()
        if chunk.null_count:
            raise BadSample("null")
        parts.append(chunk.to_numpy(zero_copy_only=False))
    return np.concatenate(parts)


def _name(kind: Any) -> str:
    """The name of a type without what it is made of: `list` of `list<item: int64>`."""
    return str(kind).partition("<")[0].partition("[")[0]


def _within(kind: Any) -> Any:
    """The type that an extension or a dictionary is made of, or None."""
    if isinstance(kind, arrow().BaseExtensionType):
        return kind.storage_type
    return kind.value_type if arrow().types.is_dictionary(kind) else None


def _plain(kind: Any) -> Convert | None:
    types = arrow().types
    if number(kind) or types.is_null(kind) or _name(kind) in _TEXTS:
        return as_py
    if types.is_decimal(kind):
        return _decimal
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind):
        return partial(_moment, kind)
    if types.is_struct(kind):
        parts = {field.name: part for field in kind if (part := plain(field.type))}
        return partial(_struct, parts) if len(parts) == kind.num_fields else None
    if types.is_map(kind):
        key, item = plain(kind.key_type), plain(kind.item_type)
        return partial(_map, key, item, _name(stored(kind.key_type)) in _TEXTS) if key and item else None
    inner = plain(kind.value_type) if _name(kind) in _LISTS else None
    return inner and partial(_list, inner)


def _below(convert: Convert, scalar: Any) -> Any:
    return checked(convert, scalar.value)


def _struct(parts: Mapping[str, Convert], scalar: Any) -> dict[str, Any]:
    return {name: or_none(convert, scalar[name]) for name, convert in parts.items()}


def _list(convert: Convert, scalar: Any) -> list[Any]:
    return [or_none(convert, value) for value in scalar.values]


def _map(key: Convert, item: Convert, named: bool, scalar: Any) -> dict[str, Any] | list[list[Any]]:
    pairs: Any = [[key(pair[0]), or_none(item, pair[1])] for pair in scalar.values]
    if not named:
        return cast(list[list[Any]], pairs)
    found: dict[str, Any] = dict(pairs)
    if len(found) < len(pairs):
        raise BadSample("a map has a key twice")
    return found


def _decimal(scalar: Any) -> str:
    return format(scalar.as_py(), "f")


def _moment(kind: Any, scalar: Any) -> str:
    """A moment in ISO 8601, with the digits that its type has; in UTC and with a Z if it has a time zone."""
    types = arrow().types
    unit: Any = "D" if types.is_date32(kind) else "ms" if types.is_date64(kind) else kind.unit
    day, separator, time = str(np.datetime64(scalar.value, unit)).partition("T")
    if types.is_date(kind):
        return day
    if types.is_time(kind):
        return time
    return f"{day}{separator}{time}{'Z' if kind.tz else ''}"
