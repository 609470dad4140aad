"""Tables of Arrow as samples, for `parquet` and `huggingface`: the field of each column, and the value of each cell.

Types are described at https://arrow.apache.org/docs/format/Columnar.html. Hugging Face's libraries also note what a
column stands for: https://huggingface.co/docs/datasets/about_dataset_features.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.format.fields import Kind
from shardio.source import Field, Missing, check_image, describe_field, label_as_int64, load_optional

from ._fields import array_field, readable
from ._files import parse_json, read_listed
from ._source_base import ColumnSource

Features: TypeAlias = Mapping[str, Any]
"""Features by column, as in Hugging Face's JSON: `{"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}`."""

ReadFile: TypeAlias = Callable[[str], bytes]
"""Read the file that a cell names where others hold an image's bytes; raise BadSample if that is not possible."""

Convert: TypeAlias = Callable[[Any], Any]
"""Turn a pyarrow.Scalar that is not null into a sample's value; raise BadSample if it is none."""

MOST_ROWS = 1024
"""The most rows to read at once: few enough if some are far longer than the mean."""

# By name, because older versions of pyarrow lack functions that recognize some of these types.
_LISTS = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
_BYTES = ("binary", "large_binary", "fixed_size_binary", "binary_view")
S = TypeVar("S", bound=ColumnSource)
_FIRST = 100  # rows that may tell the length of lists
_TEXTS = ("string", "large_string", "string_view")
_NOTED: Mapping[str, Kind] = {"Image": "image", "Video": "video"}  # kinds by features


@final
@dataclass(frozen=True, slots=True)
class Column:
    """A column that becomes a field.

    Attributes:
        name: its name in the table.
        field: the field; of kind `bytes` until values show that they are images or videos.
        lengths: for an array, the length of each list within its lists.
        mean: the average bytes of a value, 0 where that is not known.
        root: for a column of paths of files, whose contents are the values: the folder that the paths start from; else
            None.
    """

    name: str
    field: Field
    lengths: tuple[int, ...] = ()
    mean: int = 0
    root: Path | None = None


def arrow() -> Any:
    """Return the package pyarrow; MissingDependency if it is not installed."""
    return load_optional("pyarrow", purpose="reading tables of Arrow", extra="parquet")


def damage() -> tuple[type[Exception], ...]:
    """Return the errors that pyarrow raises for unreadable data; MemoryError where damage is taken for a length."""
    kinds = (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError)
    return (BadSample, arrow().ArrowException, *kinds)


def noted_features(schema: Any, place: str) -> Features:
    """The features that Hugging Face notes in a schema's metadata, none without them; SourceError if not JSON."""
    try:
        note = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"))
    except ValueError as error:
        raise SourceError(f"{place}: what Hugging Face notes in it is not JSON: {error}") from error
    match note:
        case {"info": {"features": dict(features)}}:
            return features
    return {}


def columns(names: Mapping[str, str], schema: Any, features: Features, place: str) -> dict[str, Column]:
    """Return the chosen columns, by field; SourceError if one does not exist, or if no field holds its type.

    Args:
        names: the columns' names by field, from `choose_fields`.
        schema: a pyarrow.Schema.
        features: the features that Hugging Face noted, for some or all columns.
        place: the source, for error messages.
    """
    found = {}
    for field, name in names.items():
        if (count := len(schema.get_all_field_indices(name))) != 1:
            raise SourceError(f"{place} has {'several columns' if count else 'no column'} called {name!r}")
        kind = schema.field(name).type
        column = _column(name, kind, features.get(name))
        if column is None:
            raise SourceError(f"{place}: no field holds the column {name!r}, {kind}; choose others with fields")
        found[field] = replace(column, field=label_as_int64(field, column.field))
    return found


def with_fixed(source: S, names: Collection[str]) -> S:
    """Return a source of columns some of whose lists of numbers all have the length of the first one that can be read.

    Raises ConfigError for a field that is no list of numbers, SourceError if none can be read.
    """
    columns: dict[str, Column] = dict(source.columns)
    for name in names:
        if name not in columns or not columns[name].field.ragged:
            there = ", ".join(one for one, column in columns.items() if column.field.ragged) or "none"
            raise ConfigError("{fixed} takes fields of lists of numbers, got {!r}; there are {}", name, there)
        alone: Any = replace(source, columns={"": columns[name]})  # type: ignore[type-var]  # a dataclass
        rows = range(min(len(source.sizes()), _FIRST))

        def read(row: int, one: Any = alone) -> Any:
            return one[row][""]

        ((_, first), *_) = readable(rows, read, f"list of the field {name!r}")
        columns[name] = replace(columns[name], field=replace(columns[name].field, shape=first.shape))
    return replace(source, columns=columns)  # type: ignore[type-var]  # a dataclass


def path_column(column: Column, root: Path, place: str) -> Column:
    """Return a column of texts, or of Hugging Face's images, sounds and videos, as the files at these paths.

    Raises SourceError, which names `place`, for a column of another type.
    """
    if column.field.kind not in ("text", "bytes", "image", "video"):
        raise SourceError(
            "{}: {path} must name columns of strings, {!r} is {}", place, column.name, describe_field(column.field)
        )
    return replace(column, field=Field("bytes"), root=root)


def classes(chosen: Mapping[str, Column], features: Features) -> dict[str, list[str]]:
    """Class names as a source's metadata: `classes` for `label` or the only field with some, else `classes.FIELD`."""
    named = {
        field: [str(name) for name in feature["names"]]
        for field, column in chosen.items()
        if isinstance(feature := features.get(column.name), Mapping) and isinstance(feature.get("names"), list)
    }
    main = "label" if "label" in named else next(iter(named), None) if len(named) == 1 else None
    return {"classes" if field == main else f"classes.{field}": names for field, names in named.items()}


def names_within(feature: Any, key: str = "") -> dict[str, list[str]]:
    """Return the class names that a feature notes, of itself, `key`, or of the keys of structs within."""
    if isinstance(feature, list):
        return names_within(feature[0], key) if feature else {}
    if not isinstance(feature, Mapping):
        return {}
    if isinstance(feature.get("names"), list):
        return {key: [str(name) for name in feature["names"]]}
    parts = (names_within(part, key if own == "feature" else own) for own, part in feature.items())
    return {own: names for part in parts for own, names in part.items()}


@final
class Rows:
    """Rows of a table, as samples by number.

    Args:
        table: a pyarrow.Table; not a RecordBatch, whose arrays of extension types may give other scalars than Arrow's.
        chosen: the columns to take, by field.
        read_file: reads the file that a cell names.
        place: the source, for messages.
        first: the number there of the table's first row.
    """

    def __init__(self, table: Any, chosen: Mapping[str, Column], read_file: ReadFile, place: str, first: int) -> None:
        self._place, self._first, self._count = place, first, table.num_rows
        self._columns = {
            field: (column.name, data, _column_converter(column, data.type, read_file), column.field.kind == "json")
            for field, column in chosen.items()
            for data in [table.column(column.name)]
        }

    def __len__(self) -> int:
        return int(self._count)

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Row `row` as a sample, with `Missing` for a null outside JSON; BadSample names the row and the column."""
        sample: dict[str, Any] = {}
        for field, (name, data, convert, holds_null) in self._columns.items():
            try:
                scalar = data[row]
                lacks = not (holds_null or scalar.is_valid)
                sample[field] = Missing(f"{self._cell(row, name)}: null") if lacks else convert(scalar)
            except damage() as error:
                raise BadSample(f"{self._cell(row, name)}: {error}") from error
        return sample

    def _cell(self, row: int, name: str) -> str:
        return f"{self._place}, row {self._first + row}, column {name!r}"


def scalar_column(column: Any, field: Field) -> NDArray[Any]:
    """Return all values of a pyarrow.ChunkedArray of numbers, `[n]`; BadSample if one is null."""
    parts = [np.empty(0, field.row_dtype)]
    for chunk in column.chunks:
        while _wrapped_type(chunk.type) is not None:
            chunk = chunk.storage if hasattr(chunk, "storage") else chunk.dictionary_decode()
        if chunk.null_count:
            raise BadSample("null")
        parts.append(chunk.to_numpy(zero_copy_only=False))
    return np.concatenate(parts)


# Types to fields.


def _column(name: str, kind: Any, feature: Any) -> Column | None:
    """Return the column of the type `kind`, with what a feature adds to it; None if no field holds it."""
    hint = feature if isinstance(feature, Mapping) else {}
    if getattr(kind, "extension_name", "") == "arrow.fixed_shape_tensor":
        shape = tuple(kind.shape)
        dtype = _number_field(kind.value_type) if kind.permutation in (None, [*range(len(shape))]) else None
        return Column(name, replace(dtype, kind="array", shape=shape)) if dtype else None
    kind = _storage_type(kind)
    if found := _number_field(kind):
        return Column(name, found)
    lengths, inner = _list_lengths(kind)
    first, *others = _noted_shape(hint, len(lengths)) or lengths or (None,)
    if lengths and (found := _number_field(inner)) and None not in others:
        known = tuple(length for length in others if length is not None)
        lists = None if first is None and 0 in known else (first, *known)
        return Column(name, replace(found, kind="array", shape=lists), known)
    if len(lengths) == 1 and (_is_media(inner) or (_holds_images(hint) and _type_name(inner) in _BYTES)):
        return Column(name, Field("images"))
    if _type_name(kind) in _BYTES or _is_media(kind):
        return Column(name, Field(_NOTED.get(str(hint.get("_type")), "bytes")))
    if _json_converter(kind) is None:
        return None
    types = arrow().types
    return Column(name, Field("json" if types.is_nested(kind) or types.is_null(kind) else "text"))


def _noted_shape(hint: Mapping[str, Any], dimensions: int) -> tuple[int | None, ...] | None:
    """Return the shape that an Array2D to Array5D states, if it has this number of dimensions."""
    shape = hint.get("shape")
    if not str(hint.get("_type")).startswith("Array") or not isinstance(shape, (list, tuple)):
        return None
    sound = all(length is None or (isinstance(length, int) and length >= 0) for length in shape)
    return tuple(shape) if sound and len(shape) == dimensions else None


def _number_field(kind: Any) -> Field | None:
    types = arrow().types
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return array_field(np.dtype(kind.to_pandas_dtype()), ())
    return None


def _list_lengths(kind: Any) -> tuple[tuple[int | None, ...], Any]:
    """The lengths of nested lists, outermost first, None where they vary; and the type of the innermost elements."""
    lengths: list[int | None] = []
    while _type_name(kind) in _LISTS:
        lengths.append(kind.list_size if _type_name(kind) == "fixed_size_list" else None)
        kind = kind.value_type
    return tuple(lengths), kind


def _is_media(kind: Any) -> bool:
    """Return whether values are structs of `bytes` and `path`, as Hugging Face keeps images and sounds."""
    parts = {field.name: field.type for field in kind} if arrow().types.is_struct(kind) else {}
    if parts.keys() != {"bytes", "path"}:
        return False
    return _type_name(parts["bytes"]) in _BYTES and _type_name(parts["path"]) in (*_TEXTS, "null")


def _holds_images(hint: Mapping[str, Any]) -> bool:
    """Return whether a feature is a list of images."""
    inner = hint.get("feature")
    return isinstance(inner, Mapping) and inner.get("_type") == "Image"


def _type_name(kind: Any) -> str:
    """Return the name of a type without its parameters: `list` of `list<item: int64>`."""
    return str(kind).partition("<")[0].partition("[")[0]


def _wrapped_type(kind: Any) -> Any:
    """Return the type of the values that an extension or a dictionary wraps; None for any other type."""
    if isinstance(kind, arrow().BaseExtensionType):
        return kind.storage_type
    return kind.value_type if arrow().types.is_dictionary(kind) else None


def _storage_type(kind: Any) -> Any:
    while (inner := _wrapped_type(kind)) is not None:
        kind = inner
    return kind


# Scalars to values.


def _column_converter(column: Column, kind: Any, read_file: ReadFile) -> Convert:
    """The conversion of scalars of the type `kind`, which may differ from the type that `column` was made from."""
    convert: Convert = _python_value  # of scalars, too: NaN and infinities are numbers; only JSON has none
    match column.field.kind:
        case "json":
            return _json_converter(kind) or _python_value
        case "text":
            convert = _storage_converter(_storage_type(kind)) or _python_value
        case "array":
            convert = partial(_array, column.field, column.lengths)
        case "images":
            kinds, one = kind, _storage_type(kind)
            part = _column_converter(Column(column.name, Field("image")), one.value_type, read_file)
            return _unwrapping(kinds, lambda scalar: list(map(part, scalar.values)))
        case "image" | "bytes" | "video":
            read = read_file if column.root is None else partial(read_listed, column.root, field=column.field)
            if _is_media(_storage_type(kind)):
                convert = partial(_media_bytes, read)
            elif column.root is not None:
                convert = partial(_listed_file, read)
            if column.field.kind == "image" and column.root is None:
                convert = partial(_image, convert)
    return _unwrapping(kind, convert)


def _unwrapping(kind: Any, convert: Convert) -> Convert:
    """`convert`, applied to the scalar within extensions and dictionaries of the type `kind`; BadSample for a null."""
    depth = 0
    while (inner := _wrapped_type(kind)) is not None:
        kind, depth = inner, depth + 1

    def unwrapped(scalar: Any) -> Any:
        for _ in range(depth):
            scalar = scalar.value if scalar.is_valid else scalar
        if not scalar.is_valid:
            raise BadSample("null")
        return convert(scalar)

    return unwrapped


def _python_value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        raise BadSample(f"not UTF-8: {error}") from error


def _finite(scalar: Any) -> Any:
    """Return a number within JSON, which has no others."""
    value = _python_value(scalar)
    if not math.isfinite(value):
        raise BadSample(f"{value} is not JSON")
    return value


def _image(convert: Convert, scalar: Any) -> bytes:
    data: bytes = convert(scalar)
    check_image(data)
    return data


def _media_bytes(read_file: ReadFile, scalar: Any) -> bytes:
    """Return the bytes in a struct of `bytes` and `path`, or those of the file where there is only a path."""
    data, path = _python_value(scalar["bytes"]), _python_value(scalar["path"])
    if data is None and path is None:
        raise BadSample("neither bytes nor a path")
    return read_file(path) if data is None else cast(bytes, data)


def _listed_file(read: ReadFile, scalar: Any) -> bytes:
    return read(_python_value(scalar))


def _array(field: Field, lengths: tuple[int, ...], scalar: Any) -> NDArray[Any]:
    """Return the array in a list of numbers, or in lists whose nested lists have these lengths."""
    values = scalar.values
    outer = len(values)
    for length in lengths:
        compute = load_optional("pyarrow.compute", purpose="reading tables of Arrow", extra="parquet")
        found = compute.list_value_length(values).to_numpy(False)
        if (found != length).any():  # a null has the length nan
            raise BadSample(f"expected lists of {length} values, got one of {found[found != length][0]}")
        values = values.flatten()
    if values.null_count:
        raise BadSample("null in a list of numbers")
    shape = field.row_shape if field.fixed else (outer, *lengths)
    if len(values) != math.prod(shape):
        raise BadSample(f"expected {list(shape)} numbers, got {len(values)}")
    return np.array(values.to_numpy(zero_copy_only=False), field.row_dtype).reshape(shape)


def _json_converter(kind: Any) -> Convert | None:
    """Return the conversion to a JSON value, None for a null; None if there is no conversion of the type `kind`."""
    if (plain := _storage_converter(_storage_type(kind))) is None:
        return None
    convert = _unwrapping(kind, plain)
    return lambda scalar: convert(scalar) if scalar.is_valid else None


def _storage_converter(kind: Any) -> Convert | None:
    """The conversion of valid scalars to text, a number, or a JSON value made of these; None if there is none."""
    types = arrow().types
    if types.is_floating(kind):
        return _finite
    if _number_field(kind) or types.is_null(kind) or _type_name(kind) in _TEXTS:
        return _python_value
    if types.is_decimal(kind):
        return lambda scalar: format(scalar.as_py(), "f")
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind):
        return partial(_iso_8601, kind)
    if types.is_struct(kind):
        parts = {field.name: part for field in kind if (part := _json_converter(field.type))}
        whole = len(parts) == kind.num_fields
        return (lambda scalar: {name: part(scalar[name]) for name, part in parts.items()}) if whole else None
    if types.is_map(kind):
        key, item = _json_converter(kind.key_type), _json_converter(kind.item_type)
        text_keys = _type_name(_storage_type(kind.key_type)) in _TEXTS
        return partial(_map, key, item, text_keys) if key and item else None
    inner = _json_converter(kind.value_type) if _type_name(kind) in _LISTS else None
    return inner and (lambda scalar: list(map(inner, scalar.values)))


def _map(key: Convert, item: Convert, text_keys: bool, scalar: Any) -> dict[str, Any] | list[list[Any]]:
    """Return a map with text keys as an object, any other as pairs."""
    pairs = [[key(pair[0]), item(pair[1])] for pair in scalar.values]
    if not text_keys:
        return pairs
    if len(found := dict(pairs)) < len(pairs):
        raise BadSample("a map has a key twice")
    return found


def _iso_8601(kind: Any, scalar: Any) -> str:
    """A date, a time or both, with as many digits as the type has; in UTC, with a Z, if the type has a time zone."""
    types = arrow().types
    unit: Any = "D" if types.is_date32(kind) else "ms" if types.is_date64(kind) else kind.unit
    day, separator, time = str(np.datetime64(scalar.value, unit)).partition("T")
    if types.is_date(kind):
        return day
    if types.is_time(kind):
        return time
    return f"{day}{separator}{time}{'Z' if kind.tz else ''}"
