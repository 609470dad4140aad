"""Fields of a source: which of its columns become which fields, of what kind, and how an element becomes a value."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from shardio.errors import BadSample, ConfigError
from shardio.foreign.names import field_name
from shardio.source import Field, probe_image, sniff_image

_LISTED = 20  # arrays that a message names
_SNIFFED = 16  # rows that are looked at for an image


def choose_fields(given: str | Mapping[str, str] | None, available: Iterable[str], place: object) -> dict[str, str]:
    """Which of a source's own names become which fields, in order: `{field: own name}`.

    Args:
        given: `{field: own name}`, or text such as `"image=data/images,label"`, where a name without `=` is both. All
            that are available without it.
        available: the source's own names.
        place: the source, for messages.

    Raises ConfigError for a name that the source does not have, or one field given twice.
    """
    known = list(available)
    if given is None:
        pairs = [(field_name(name), name) for name in known]
    elif isinstance(given, str):
        parts = [part.strip() for part in given.split(",") if part.strip()]
        pairs = [_pair(part, known) for part in parts]
    else:
        pairs = list(given.items())
    chosen: dict[str, str] = {}
    for field, name in pairs:
        if name not in known:
            raise ConfigError(f"{place} has no {name!r}; there are {', '.join(known) or 'none'}")
        if field in chosen:
            raise ConfigError(f"{place}: {chosen[field]!r} and {name!r} would both be the field {field!r}; rename one")
        chosen[field] = name
    if not chosen:
        raise ConfigError(f"fields must name at least one of {', '.join(known)}, got {given!r}")
    return chosen


def _pair(part: str, known: list[str]) -> tuple[str, str]:
    if part in known:  # a name may hold an equals sign itself
        return field_name(part), part
    field, equals, name = part.partition("=")
    return (field.strip(), name.strip()) if equals else (field_name(part), part)


def array_field(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Field | None:
    """The field of numbers whose rows have `shape`; None if no field holds `dtype`."""
    if dtype.kind not in "biufc" or dtype.char in "gG":
        return None
    return Field("array", dtype=dtype.name, shape=shape) if shape else Field("scalar", dtype=dtype.name)


def listed_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Arrays and their shapes as a message names them, not too many."""
    lines = [f"{name} {list(shape)}" for name, shape in shapes.items()]
    more = [f"and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    return ", ".join(lines[:_LISTED] + more) or "none"


def sample_value(element: Any, field: Field) -> Any:
    """An element of an array as a sample has it: numbers native, text decoded, bytes as they are.

    Raises BadSample for text that is not UTF-8, and for an image that is none.
    """
    match field.kind:
        case "scalar":
            return np.asarray(element).astype(field.row_dtype).item()
        case "array":
            return np.array(element, field.row_dtype)
        case "json":
            return [sample_value(part, field if isinstance(part, np.ndarray) else Field("text")) for part in element]
        case "text":
            return decode_utf8(element) if isinstance(element, bytes) else str(element)
        case _:
            data = element.tobytes() if isinstance(element, (np.ndarray, np.void)) else element
            if not isinstance(data, bytes):
                raise BadSample(f"expected bytes, got {type(data).__name__}")
            if field.kind == "image":
                probe_image(data)
            return data


def measure_field(field: Field, count: int, read: Callable[[int], Any], most: int = 100) -> tuple[Field, int]:
    """A field as it is, and about how many bytes it takes in a sample, by reading some rows where they vary.

    Args:
        field: what the type says; bytes become images if the first that are not empty begin like one.
        count: the number of rows.
        read: gives the value of a row, or BadSample.
        most: how many rows are read for the average.
    """
    if field.fixed:
        return field, field.row_bytes
    if field.kind == "bytes":
        field = image_or_bytes(islice(_good(range(count), read), _SNIFFED))
    lengths = [len(field.encode(value)) for value in _good(evenly_spaced(count, most), read)]
    return field, sum(lengths) // max(1, len(lengths))


def _good(rows: Iterable[int], read: Callable[[int], Any]) -> Iterator[Any]:
    for row in rows:
        try:
            value = read(row)
        except BadSample:
            continue
        yield value


def image_or_bytes(values: Iterable[bytes]) -> Field:
    """A field of images if the first of `values` that isn't empty begins like one, otherwise of bytes."""
    first = next((value for value in values if len(value)), b"")
    return Field("image" if sniff_image(first) else "bytes")


def evenly_spaced(count: int, most: int = 100) -> list[int]:
    """At most `most` of `count` rows, evenly spaced: a sample to estimate sizes from."""
    rows: list[int] = np.linspace(0, count - 1, min(count, most)).astype(np.int64).tolist()
    return rows


def decode_utf8(data: bytes) -> str:
    """`data` as text; BadSample if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadSample(f"not UTF-8: {error}") from error
