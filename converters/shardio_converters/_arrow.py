"""What parquet and huggingface share: the fields of Arrow's columns, and rows of a table as samples.

The libraries of Hugging Face note beside Arrow's types what they stand for, as
https://huggingface.co/docs/datasets/about_dataset_features describes.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, final

from shardio.errors import BadSample, SourceError
from shardio.source import Field, labelled

from . import _arrow_values as values
from ._arrow_values import arrow

Features: TypeAlias = Mapping[str, Any]
"""Features by column as their JSON has them: `{"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}`."""

ReadFile: TypeAlias = Callable[[str], bytes]
"""The bytes of the file that an image names instead of being one, or BadSample."""

_BLOCK = 1 << 20
_MOST_ROWS = 1024


@final
@dataclass(frozen=True, slots=True)
class Column:
    """A column that is taken.

    Attributes:
        name: its own name.
        field: what its values are; bytes may turn out to be images.
        lengths: of an array, the length of each list within its lists.
        mean: about how many bytes a value takes, 0 where that is not known.
    """

    name: str
    field: Field
    lengths: tuple[int, ...] = ()
    mean: int = 0


def damage() -> tuple[type[Exception], ...]:
    """All that is raised for what cannot be read; MemoryError where damage is taken for a length."""
    kinds = (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError)
    return (BadSample, arrow().ArrowException, *kinds)


def noted(schema: Any, place: str) -> Features:
    """What the schema's metadata, of a table or a file, tell of features; SourceError if they are no JSON."""
    try:
        note = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{place}: what Hugging Face notes in it is no JSON: {error}") from error
    match note:
        case {"info": {"features": dict(features)}}:
            return features
    return {}


def columns(names: Mapping[str, str], schema: Any, features: Features, place: str) -> dict[str, Column]:
    """The columns called `names`, by field; SourceError if one is not there, or no field holds its type.

    Args:
        names: own names by field, from `choose`.
        schema: a pyarrow.Schema.
        features: what Hugging Face noted of columns, as far as it did.
        place: the source, for the message.
    """
    found = {}
    for field, name in names.items():
        if (count := len(schema.get_all_field_indices(name))) != 1:
            raise SourceError(f"{place} has {'several columns' if count else 'no column'} called {name!r}")
        kind = schema.field(name).type
        column = _column(name, kind, features.get(name))
        if column is None:
            raise SourceError(f"{place}: no field holds the column {name!r}, {kind}; choose others with fields")
        found[field] = replace(column, field=labelled(field, column.field))
    return found


def _column(name: str, kind: Any, feature: Any) -> Column | None:
    """The column of Arrow's type `kind`, of which a feature may tell more; None if no field holds it."""
    hint = feature if isinstance(feature, Mapping) else {}
    if getattr(kind, "extension_name", "") == "arrow.fixed_shape_tensor":
        shape = tuple(kind.shape)
        dtype = values.number(kind.value_type) if kind.permutation in (None, [*range(len(shape))]) else None
        return Column(name, replace(dtype, kind="array", shape=shape)) if dtype else None
    kind = values.stored(kind)
    if found := values.number(kind):
        return Column(name, found)
    lengths, inner = values.lists_within(kind)
    first, *others = _noted_shape(hint, len(lengths)) or lengths or (None,)
    if lengths and (found := values.number(inner)) and None not in others:
        known = tuple(length for length in others if length is not None)
        return Column(name, replace(found, kind="array", shape=None if first is None else (first, *known)), known)
    if values.is_bytes(kind) or values.is_media(kind):
        return Column(name, Field("image" if hint.get("_type") == "Image" else "bytes"))
    if values.plain(kind) is None:
        return None
    types = arrow().types
    return Column(name, Field("json" if types.is_nested(kind) or types.is_null(kind) else "text"))


def _noted_shape(hint: Mapping[str, Any], dimensions: int) -> tuple[int | None, ...] | None:
    """The shape that an Array2D to Array5D has, if it is one of so many dimensions."""
    shape = hint.get("shape")
    if not str(hint.get("_type")).startswith("Array") or not isinstance(shape, (list, tuple)):
        return None
    sound = all(length is None or (isinstance(length, int) and length >= 0) for length in shape)
    return tuple(shape) if sound and len(shape) == dimensions else None


def classes(found: Mapping[str, Column], features: Features) -> dict[str, list[str]]:
    """The classes' names as metadata has them: `classes` of `label` or the only field with some, or `classes.FIELD`."""
    named = {
        field: [str(name) for name in feature["names"]]
        for field, column in found.items()
        if isinstance(feature := features.get(column.name), Mapping) and isinstance(feature.get("names"), list)
    }
    main = "label" if "label" in named else next(iter(named), None) if len(named) == 1 else None
    return {"classes" if field == main else f"classes.{field}": names for field, names in named.items()}


def rows_at_once(mean: int) -> int:
    """How many rows of `mean` bytes are read at once: about a megabyte, but not too many of what may be far longer."""
    return max(1, min(_MOST_ROWS, _BLOCK // max(1, mean)))


@final
class Rows:
    """The rows of a table, as samples.

    Args:
        table: a pyarrow.Table; not a RecordBatch, whose arrays of extensions may give other scalars than Arrow's.
        found: the columns to take.
        read_file: reads what an image names.
    """

    def __init__(self, table: Any, found: Mapping[str, Column], read_file: ReadFile) -> None:
        self._columns = {
            field: (column.name, data, _converter(column, data.type, read_file))
            for field, column in found.items()
            for data in [table.column(column.name)]
        }

    def sample(self, row: int, place: str) -> dict[str, Any]:
        """Row `row`; BadSample names `place` and the column."""
        sample = {}
        for field, (name, data, convert) in self._columns.items():
            try:
                sample[field] = convert(data[row])
            except damage() as error:
                raise BadSample(f"{place}, column {name!r}: {error}") from error
        return sample


def _converter(column: Column, kind: Any, read_file: ReadFile) -> values.Convert:
    """How a scalar of the type `kind` becomes a value of `column`, which may be of another type with like values."""
    match column.field.kind:
        case "array":
            convert: values.Convert = partial(values.array, column.field, column.lengths)
        case "image" | "bytes":
            is_media = values.is_media(values.stored(kind))
            convert = partial(values.media, read_file) if is_media else values.as_py
            convert = partial(values.image, convert) if column.field.kind == "image" else convert
        case _:
            given = values.or_none if column.field.kind == "json" else values.checked
            return partial(given, values.plain(kind) or values.as_py)
    return partial(values.checked, values.through(kind, convert))
