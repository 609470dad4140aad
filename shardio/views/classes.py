"""Names of classes: where datasets number them differently, raise an error, or renumber labels by name.

A manifest's metadata names the classes of the field `label` as `classes`, and those of other fields as `classes.FIELD`,
or as `coarse_classes` for a field `coarse_label`. Without a field `label`, `classes` names those of `labels` per box or
point, or else of the only field that has such names.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..format.fields import Field, describe
from .readable import ReadableDataset

KEY = "classes"
Classes: TypeAlias = Literal["union", "ignore"]
D = TypeVar("D", bound=ReadableDataset)


def renumber(labels: NDArray[Any], numbers: NDArray[np.int64]) -> int | None:
    """Renumber labels in place: label i becomes `numbers[i]`. Labels below 0 name no class and stay.

    Args:
        labels: integers [n].
        numbers: the new number of each class, int64 [classes].

    Returns:
        The row of the first label that has no name; then no label has changed.
    """
    if (nameless := labels >= len(numbers)).any():
        return int(nameless.argmax())
    named = labels >= 0
    labels[named] = numbers[labels[named].astype(np.int64)]
    return None


def alike(datasets: Mapping[str, D], fields: Mapping[str, Field], classes: Classes | None) -> list[D]:
    """Return datasets whose labels mean the same classes.

    Args:
        datasets: the datasets, by their names in messages.
        fields: the fields that matter, which all datasets have.
        classes: `"union"` numbers classes by name: the first dataset's keep their numbers, and others follow in the
            order of the datasets. `"ignore"` leaves labels and names as they are. None raises ConfigError where names
            differ, with the first that does.

    Raises ConfigError for another word, and with `"union"` for a dataset that does not name its classes or gives two of
    them one name, and for labels that cannot hold the new numbers.
    """
    metadata = {name: dataset.metadata for name, dataset in datasets.items()}
    if classes is not None and classes not in get_args(Classes):
        raise ConfigError("{classes} must be 'union' or 'ignore', got {!r}", classes)
    if classes is None and (words := difference(metadata, fields)):
        raise ConfigError(
            "{}; {classes:union} numbers classes by name, {classes:ignore} takes labels as they are", words
        )
    found, keys = list(datasets.values()), [_keys(own, fields) for own in metadata.values()]
    for field, lists in () if classes == "ignore" else _differing(metadata, fields):
        union = _union(field, lists, fields)
        for place, names in enumerate(lists.values()):
            if names != tuple(union):
                numbers = np.array([union[name] for name in names], np.int64)
                renamed = {**found[place].metadata, keys[place][field]: list(union)}
                found[place] = found[place].renumbered({field: numbers}, renamed)
    return found


def difference(metadata: Mapping[str, Mapping[str, Any]], fields: Mapping[str, Field]) -> str:
    """Say which class is the first that datasets name differently, of these names and metadata; "" if none is."""
    return next((_difference(field, lists) for field, lists in _differing(metadata, fields)), "")


def _differing(
    metadata: Mapping[str, Mapping[str, Any]], fields: Mapping[str, Field]
) -> Iterator[tuple[str, dict[str, tuple[str, ...]]]]:
    """Yield each field whose classes datasets name differently, with the names by dataset."""
    keys = {name: _keys(own, fields) for name, own in metadata.items()}
    for field in dict.fromkeys(field for own in keys.values() for field in own):
        lists = {name: names_in(metadata[name][own[field]]) if field in own else () for name, own in keys.items()}
        if len(set(lists.values())) > 1:
            yield field, lists


def names_in(value: Any) -> tuple[str, ...]:
    """Return the names that a value of the metadata lists; () if it is no list of text."""
    listed = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    return tuple(value) if listed else ()


def named_field(key: str, fields: Mapping[str, Field]) -> str | None:
    """Return which of these fields has the classes that a key of the metadata names.

    None if it is none of them; the key itself if it may be one of several.
    """
    if key == KEY and "label" not in fields:
        if "labels" in fields and fields["labels"].per is not None:
            return "labels"
        integers = [name for name, field in fields.items() if _is_integer(field)]
        return integers[0] if len(integers) == 1 else (key if integers else None)
    if key.startswith(f"{KEY}."):
        name = key.removeprefix(f"{KEY}.")
    else:
        name = key.removesuffix(KEY) + "label" if key == KEY or key.endswith(f"_{KEY}") else ""
    return name if name in fields and fields[name].kind != "text" else None  # a text is a name itself


def class_name(label: Any, classes: Sequence[str]) -> str | None:
    """Return the name of the class that an integer is; None if it names none."""
    known = isinstance(label, (int, np.integer)) and 0 <= label < len(classes)
    return classes[int(label)] if known else None


def names_by_field(metadata: Mapping[str, Any], fields: Mapping[str, Field]) -> dict[str, tuple[str, ...]]:
    """Return the names of classes by field, as far as a dataset's metadata lists some."""
    return {field: names_in(metadata[key]) for field, key in _keys(metadata, fields).items()}


def _keys(metadata: Mapping[str, Any], fields: Mapping[str, Field]) -> dict[str, str]:
    """Return by field the key of the metadata that names its classes."""
    found = {named_field(key, fields): key for key, value in metadata.items() if names_in(value)}
    return {field: key for field, key in found.items() if field is not None}


def _is_integer(field: Field) -> bool:
    return field.kind == "scalar" and np.dtype(field.dtype).kind in "iu"


def _difference(field: str, lists: Mapping[str, Sequence[str]]) -> str:
    """Say which class is the first that the first dataset and another one name differently."""
    (first, names), *others = lists.items()
    other, other_names = next((other, own) for other, own in others if own != names)
    number = next(n for n in count() if names[n : n + 1] != other_names[n : n + 1])
    here, there = (repr(own[number]) if number < len(own) else "unnamed" for own in (names, other_names))
    whose = "" if field == KEY else f" of {field!r}"
    return f"the classes{whose} differ: class {number} is {here} in {first!r}, but {there} in {other!r}"


def _union(field: str, lists: Mapping[str, Sequence[str]], fields: Mapping[str, Field]) -> dict[str, int]:
    """Return the number of each class of all datasets, by name."""
    kind = fields.get(field)
    if kind is None:
        raise ConfigError("{classes:union} needs a field 'label', as any of {} may have the classes", ", ".join(fields))
    if not _is_integer(kind):
        raise ConfigError("{classes:union} numbers integer scalars, and {!r} is {}", field, describe(kind))
    numbers: dict[str, int] = {}
    for dataset, names in lists.items():
        if not names:
            raise ConfigError("{classes:union} numbers classes by name, and {!r} names none of {!r}", dataset, field)
        if len(set(names)) < len(names):
            double = next(name for name in names if names.count(name) > 1)
            raise ConfigError("{classes:union} numbers classes by name, and {!r} has two called {!r}", dataset, double)
        for name in names:
            numbers.setdefault(name, len(numbers))
    if len(numbers) - 1 > np.iinfo(np.dtype(kind.dtype)).max:
        raise ConfigError(f"{len(numbers)} classes of all datasets are too many for {field!r}, which is {kind.dtype}")
    return numbers
