"""Fields of a source: which columns become fields, of what kind, and how an element becomes a value."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError, Message, SourceError
from shardio.foreign.media import format_of
from shardio.foreign.names import field_name
from shardio.format import cf
from shardio.format.fields import Shape
from shardio.source import Field, Missing, check_image, sniff_image

T = TypeVar("T")

_MOST = 20  # arrays in a message, and remarks of one kind
_SNIFFED = 16  # the most rows to search for an image
_HEAD = 64  # bytes that tell one
_OTHER_IMAGE = re.compile(rb"GIF8|II\*\0|MM\0\*|....ftyp(avif|hei[cx]|mif1)", re.DOTALL)
_SOUND = re.compile(rb"....ftypM4[AB]", re.DOTALL)
_VIDEOS = ("mov", "matroska", "avi")  # whose first bytes tell them from other files
_LAST_CHARACTER = 0x10FFFF


def choose_fields(given: str | Mapping[str, str] | None, available: Iterable[str], place: object) -> dict[str, str]:
    """Return the chosen columns of a source by field, in order: `{field: column}`.

    Args:
        given: `{field: column}`, or text such as `"image=data/images,label"`, where a name without `=` is both. None
            takes all columns that are available.
        available: the names of the source's columns.
        place: the source, for messages.

    Raises ConfigError for a column that the source does not have, or two columns for one field.
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
        name = name if name in known else name.removeprefix(".")  # of an extension
        if name not in known:
            swapped = f"; the field's name comes first: {name}={field}" if field in known else ""
            raise ConfigError(f"{place} has no {name!r}; there are {', '.join(known) or 'none'}{swapped}")
        if field in chosen:
            raise ConfigError(f"{place}: {chosen[field]!r} and {name!r} would both be the field {field!r}; rename one")
        chosen[field] = name
    if not chosen:
        raise ConfigError("{fields} must name at least one of {}, got {!r}", ", ".join(known), given)
    return chosen


def known_fields(given: str | Mapping[str, str], available: Iterable[str]) -> str | dict[str, str]:
    """Return the part of a choice of fields that names available columns: each merged file has some of them."""
    known = list(available)

    def has(one: str | Mapping[str, str]) -> bool:
        with contextlib.suppress(ConfigError):
            return bool(choose_fields(one, known, ""))
        return False

    if isinstance(given, str):
        return ",".join(part for part in given.split(",") if part.strip() and has(part))
    return {field: name for field, name in given.items() if has({field: name})}


def _pair(part: str, known: list[str]) -> tuple[str, str]:
    if part in known:  # a name may hold an equals sign itself
        return field_name(part), part
    field, equals, name = part.partition("=")
    return (field.strip(), name.strip()) if equals else (field_name(part), part)


def rename_remarks(given: str | Mapping[str, str] | None, chosen: Mapping[str, str]) -> tuple[str, ...]:
    """Return a remark for each column whose field is called something else, unless `given` states that name.

    Args:
        given: the choice of fields that the user made, see `choose_fields`.
        chosen: `{field: column}`, which it returned.
    """
    if isinstance(given, Mapping):
        return ()
    parts = [part.partition("=") for part in (given or "").split(",")]
    stated = {(field.strip(), name.strip().removeprefix(".")) for field, _, name in parts}
    rule = "a field's name is letters, digits, '_', '-' and '.'"
    others = [
        (field, name)
        for field, name in chosen.items()
        if field != name and (field, name.removeprefix(".")) not in stated
    ]
    return shortened([f"{name!r} becomes the field {field!r}: {rule}" for field, name in others], "columns are renamed")


def shortened(remarks: Sequence[str], rest: str) -> tuple[str, ...]:
    """Return the first 20 remarks, and one that counts the others, such as `3 more columns are renamed`."""
    more = [f"{len(remarks) - _MOST} more {rest}"] if len(remarks) > _MOST else []
    return (*remarks[:_MOST], *more)


@lru_cache
def array_field(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Field | None:
    """The scalar or array field of numbers whose rows have `shape`; None if no field holds `dtype`, or so much."""
    if dtype.kind not in "biufc" or dtype.char in "gG":
        return None
    try:
        return Field("array", dtype=dtype.name, shape=shape) if shape else Field("scalar", dtype=dtype.name)
    except ConfigError:  # too many bytes or dimensions
        return None


def shape_of_all(shapes: Iterable[tuple[int, ...]], *, fixed: bool = True) -> Shape | None:
    """Return the shape of a field whose arrays have these shapes, among others; None for any shape.

    Where they differ along the first axis only, it has any length.

    Args:
        shapes: at least one shape.
        fixed: whether all arrays have one shape if these have; otherwise nothing is known of their axes.
    """
    first, *others = dict.fromkeys(shapes)
    if not others and (fixed or len(first) != 1):
        return first if fixed else None
    alike = bool(first) and all(shape and shape[1:] == first[1:] for shape in others)
    return (None, *first[1:]) if alike and all(first[1:]) else None


def with_attributes(field: Field, attributes: Mapping[str, Any], name: str, decode_cf: bool) -> tuple[Field, str]:
    """Return a field of stored numbers with what attributes of netCDF state of its values, and a remark on them, or "".

    Args:
        field: the field of the numbers as they are stored.
        attributes: what the source states of them, see `shardio.format.cf`.
        name: what the source calls them.
        decode_cf: whether they are decoded; the field is then that of decoded values.

    Raises SourceError, in words that follow the name, if they cannot be decoded.
    """
    if decode_cf:
        how = cf.decoding(attributes, np.dtype(field.dtype))
        stated = cf.stated(attributes, decoded=True)
        remark = f"of {name!r}, {'; '.join(how.ignored)}" if how.ignored else ""
        return replace(field, dtype=how.dtype.name, attributes=stated), remark
    stated = cf.stated(attributes)
    changes = cf.changes(stated)
    return replace(field, attributes=stated), remark_on_packing(name, changes) if changes else ""


def remark_on_packing(name: str, changes: Mapping[str, Any]) -> str:
    """Return the remark that attributes of netCDF are not applied."""
    return Message(
        "the values of {!r} are taken as they are stored: its attributes {} are not applied, which {decode_cf:True} "
        "does",
        name,
        cf.told(changes),
    )


def unheld(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """Return the reason why no field holds an array."""
    return f"holds {list(shape)} of {dtype_in_words(dtype)}, which no field holds"


def dtype_in_words(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype that no field holds, with advice for dates and a long double."""
    if dtype.kind in "Mm":
        return f"{dtype} (x.astype('int64') makes numbers of it)"
    advice = " (a long double, which differs from machine to machine: write it as float64)"
    return f"{dtype}{advice if dtype.kind in 'fc' and dtype.char in 'gG' else ''}"


def check_same_rows(columns: Mapping[str, Any], place: str) -> None:
    """Raise SourceError unless the columns, which have a `shape`, have the same number of rows."""
    if len({column.shape[0] for column in columns.values()}) > 1:
        lines = [f"{name} {list(column.shape)}" for name, column in columns.items()]
        told = "{}: what is taken must have the same number of rows; choose some with {fields}: {}"
        more = [f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
        raise SourceError(told, place, ", ".join(lines[:_MOST] + more))


def check_same_axes(
    found: Mapping[str, Any], expected: Mapping[str, Any], place: str, first: str, what: str = "files"
) -> None:
    """Raise SourceError if an axis of a field, other than the rows, has another name than in the first file.

    Args:
        found, expected: by field, the column, whose `dimensions` are the names of its axes, as far as they are known.
        place, first: the file, and the first one.
        what: what these are.
    """
    for name, column in found.items():
        axes, others = column.dimensions, expected[name].dimensions
        if any(one and other and one != other for one, other in zip(axes[1:], others[1:], strict=False)):
            told = [", ".join(axis or "?" for axis in given) for given in (axes, others)]
            raise SourceError(
                f"{what} must agree: field {name!r} has the axes {told[0]} in {place}, and {told[1]} in {first}"
            )


def remark_on_rows(columns: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a remark if the rows of fields are along axes of different names, which merely have the same length."""
    first: dict[str, str] = {}
    for name, column in columns.items():
        if column.dimensions and column.dimensions[0]:
            first.setdefault(column.dimensions[0], name)
    along = [f"those of {name!r} are along {axis!r}" for axis, name in first.items()]
    return (f"rows of fields belong to different axes: {', '.join(along)}",) if len(along) > 1 else ()


def check_characters(rows: NDArray[Any]) -> NDArray[Any]:
    """Return `rows`; raise BadSample if they are NumPy's strings and hold a number that is no character.

    NumPy would make a string of it that crashes what reads it, or encodes to something that is not UTF-8.
    """
    if rows.dtype.kind == "U" and rows.nbytes:
        native = np.ascontiguousarray(rows, rows.dtype.newbyteorder("="))
        if (largest := int(native.view(np.uint32).max())) > _LAST_CHARACTER:
            raise BadSample(f"not a string: {largest:#x} is not the code point of a character")
    return rows


def sample_value(element: Any, field: Field) -> Any:
    """Convert an element of an array to a sample's value: numbers in native byte order, text decoded, bytes unchanged.

    Raises BadSample for text that is not UTF-8, and for bytes in an image field that are not an image.
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
                check_image(data)
            return data


def measure(column: Any, count: int, read: Callable[[int], Any], most: int = 100) -> Any:
    """Return a column with the final kind of its field and the mean bytes of its values, from reading some that vary.

    Args:
        column: a dataclass with a `field`, by the column's type, and the `mean`; `bytes` becomes `image` or `video` if
            half of the values that are read begin like one, or more.
        count: the number of rows.
        read: returns the value of a row, or raises BadSample.
        most: the most rows to read for the mean.
    """
    field = column.field
    if field.fixed:
        return replace(column, mean=field.row_bytes)
    lengths, heads = list[int](), list[bytes]()
    for value in _good(evenly_spaced(count, most or _SNIFFED), read):
        data = field.encode(value)
        lengths.append(len(data) if most else 0)
        heads += [bytes(data[:_HEAD])] if field.kind == "bytes" and len(data) else []
    if field.kind == "bytes":
        first = islice(_good(range(count), read), _SNIFFED)  # where those are missing, empty or bad
        field = replace(field, kind=field_of_files(heads or first).kind)
    return replace(column, field=field, mean=sum(lengths) // max(1, len(lengths)))


def readable(numbers: Iterable[int], read: Callable[[int], T], what: str) -> list[tuple[int, T]]:
    """Return what `read` returns for those of the numbered samples that can be read, with their numbers.

    Raises SourceError, which calls the samples `what`, if there are any and `read` raises BadSample for all of them.
    """
    found: list[tuple[int, T]] = []
    wrong = None
    for number in numbers:
        try:
            found.append((number, read(number)))
        except BadSample as error:
            wrong = wrong or error
    if wrong and not found:
        raise SourceError(f"no {what} can be read: {wrong}") from wrong
    return found


def _good(rows: Iterable[int], read: Callable[[int], Any]) -> Iterator[Any]:
    for row in rows:
        with contextlib.suppress(BadSample):
            if not isinstance(value := read(row), Missing):
                yield value


def field_of_files(values: Iterable[bytes]) -> Field:
    """Return the field `image` or `video` if half of the values that are not empty, or more, begin so, else `bytes`.

    Images in other formats don't count: among images that fit they are bad samples, alone they are bytes.
    """
    heads = [value for value in values if len(value) and not _OTHER_IMAGE.match(value)]
    if not heads:
        return Field("bytes")
    if 2 * sum(sniff_image(head) is not None for head in heads) >= len(heads):
        return Field("image")
    videos = [head for head in heads if format_of(head, _VIDEOS) and not _SOUND.match(head)]
    return Field("video" if 2 * len(videos) >= len(heads) else "bytes")


def evenly_spaced(count: int, most: int = 100) -> list[int]:
    """Return the numbers of at most `most` of `count` rows, evenly spaced."""
    rows: list[int] = np.linspace(0, count - 1, min(count, most)).astype(np.int64).tolist()
    return rows


def decode_utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadSample(f"not UTF-8: {error}") from error
