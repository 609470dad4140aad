"""Joins: which row of another dataset each sample gets fields of, by its key or by its position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np

from ..errors import ConfigError
from ..format.fields import Field, as_fields, describe, present_column
from ..format.file_table import Table, parts
from ..format.keys import is_key
from ..system.types import Indices
from .choice import Choice
from .classes import KEY, named_field, names_by_field
from .columns import AT_ONCE
from .derived import Derived
from .index_map import IndexMap, of_mask
from .kept_table import KeptTable
from .key_table import find
from .readable import ReadableDataset

How: TypeAlias = Literal["error", "optional", "inner"]


@final
class Join(Choice, frozen=True, rename={"fields": "join"}):
    """Fields of another dataset: see `BaseDataset.join`.

    Attributes:
        fields: the names of the fields in the other dataset, by their names here.
        on: the field whose value finds a sample's row there; None joins by position.
        how: what happens to samples that have no row there.
        replace: whether fields may take the place of others.
    """

    fields: dict[str, str]
    on: str | None
    how: How
    replace: bool

    def __post_init__(self) -> None:
        if self.how not in get_args(How):
            raise ConfigError(f"how must be one of {', '.join(map(repr, get_args(How)))}, got {self.how!r}")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A function from samples of a base, int64 [n], to their rows of another dataset, int64 [n], -1 for none.

    Attributes:
        rows: by key, the row of each sample, int32 or int64 [n], -1 where there is none; None by position.
        views: by position, the views that lie between the base and the dataset whose samples have these positions.
        count: the rows that there are.
        kept: the samples of the base that the join has; None for all.
    """

    rows: Table | None
    views: Sequence[ReadableDataset]
    count: int
    kept: IndexMap | None = None

    def __call__(self, samples: Indices) -> Indices:
        if self.rows is not None:
            return self.rows.take(samples).astype(np.int64)
        for view in self.views:
            (part,) = view.parts(samples)
            samples = part.indices
        return np.where(samples < self.count, samples, -1)

    def of_first(self, samples: int) -> Iterator[tuple[Indices, Indices]]:
        """Yield the first samples of the base and their rows, in parts."""
        for first in range(0, samples, AT_ONCE):
            numbers = np.arange(first, min(first + AT_ONCE, samples))
            yield numbers, self(numbers)


def matched(base: ReadableDataset, other: ReadableDataset, choice: Join) -> Match:
    """Decide which rows of another dataset samples get.

    Raises ConfigError for samples without a row, unless `how` allows them, with their count and the first; for keys
    that several rows have; and for a dataset that was derived from another one.
    """
    by_key = None if choice.on is None else _by_key(base, other, choice.on)
    found = Match(by_key, _views(base, other) if by_key is None else (), len(other))
    if choice.how == "inner":
        return replace(found, kept=of_mask(rows >= 0 for _, rows in found.of_first(len(base))))
    every = found.of_first(len(base) if choice.how == "error" else 0)
    if len(lacking := np.concatenate([np.empty(0, np.int64), *(samples[rows < 0] for samples, rows in every)])):
        raise ConfigError(
            f"{other.path} has no row for {len(lacking):,} of {len(base):,} samples of {base.path}, the first is "
            f"{base.locate(int(lacking[0]))}; how='optional' makes the fields optional, how='inner' leaves these "
            "samples out"
        )
    return found


def _by_key(base: ReadableDataset, other: ReadableDataset, on: str) -> Table:
    """Return the row of each sample's key, from a file if there is one."""
    here, there = base.field(on), other.field(on)
    if here.kind != there.kind:
        raise ConfigError(f"the key {on!r} is {describe(here)} in {base.path}, but {describe(there)} in {other.path}")
    dtype = np.dtype("<i4" if len(other) < 1 << 31 else "<i8")

    def made() -> Table:
        rows = np.full(len(base), -1, dtype)
        for first in range(0, len(base), AT_ONCE):
            samples = np.arange(first, min(first + AT_ONCE, len(base)))
            if here.optional:
                samples = samples[base.selection(samples).column(present_column(on))]
            rows[samples] = find(other, base.read(samples, [on])[on], on)
        return rows

    def restored(head: Mapping[str, Any], arrays: Mapping[str, Table]) -> Table:
        if (arrays["rows"].dtype, arrays["rows"].shape) != (dtype, (len(base),)):
            raise ValueError("another table")
        if any(part.min() < -1 or part.max() >= len(other) for part in parts(arrays["rows"])):
            raise ValueError("rows that there are not")
        return arrays["rows"]

    of = {"base": base.digest, "other": other.digest, "on": on}
    kept: KeptTable[Table] = KeptTable("join", of, ("rows",), lambda rows: ({}, (rows,)), restored)
    return kept.get(base, made, f"joining {len(base):,} samples by {on!r}")


def _views(base: ReadableDataset, other: ReadableDataset) -> Sequence[ReadableDataset]:
    """Return the views between a base and the dataset whose samples the rows of another one are for, by position.

    That is the one that it was derived from, if it says so, else the one at the bottom.
    """
    stack, derived = [base], _derived_from(other)
    while isinstance(stack[-1], Derived) and derived not in (stack[-1].digest, *stack[-1].earlier):
        stack.append(stack[-1].base)
    if derived is not None and derived not in (stack[-1].digest, *stack[-1].earlier):
        raise ConfigError(
            f"{other.path} was derived from a dataset with the digest {derived}, and by position joins only that one "
            f"and its views; {stack[-1].path} has the digest {stack[-1].digest}"
        )
    if len(other) > len(stack[-1]):
        raise ConfigError(
            f"by position, row i is for sample i: {other.path} has {len(other):,} rows, and {stack[-1].path} "
            f"{len(stack[-1]):,} samples"
        )
    return stack[:-1]


def _derived_from(other: ReadableDataset) -> str | None:
    """Return the digest of the dataset that another one, or the one that it is a view of, was derived from.

    Raises ConfigError for a view in which the rows have other numbers than in the dataset that was derived.
    """
    views = [other]
    while isinstance(views[-1], Derived):
        views.append(views[-1].base)
    *views, bottom = views
    numbered = Match(None, views, len(bottom)).of_first(0 if bottom.derived_from is None else len(other))
    if any((numbers != rows).any() for numbers, rows in numbered):
        raise ConfigError(f"rows have other numbers in {other!r} than as they were derived: join all, then choose")
    return bottom.derived_from


def chosen_fields(other: ReadableDataset, given: Any, on: str | None) -> dict[str, str]:
    """Return the names of the fields to join in the other dataset, by their new names.

    Args:
        other: the dataset.
        given: None for all but `on`; a list of names; or old names by new ones, in which None stands for the field of
            that name, or for the only one.
        on: the field that is joined on.
    """
    names = [name for name in other.fields if name != on]
    if isinstance(given, str):
        raise ConfigError(f"fields must be a list of names, as in [{given!r}], or a dict, got {given!r}")
    if not isinstance(given, Mapping):
        return {name: name for name in (names if given is None else given)}
    only = names[0] if len(names) == 1 else None
    return {new: (only or new) if old is None else old for new, old in given.items()}


def joined_fields(base: ReadableDataset, other: ReadableDataset, choice: Join) -> dict[str, Field]:
    """Return the fields of a join: those of the base, then the new ones.

    Raises ConfigError for fields that the other dataset lacks; for a name that the base has, unless it is to be
    replaced, and then for another kind or shape.
    """
    fields, renamed = dict(base.fields), {old: new for new, old in choice.fields.items()}
    for dataset in (base, other):
        if choice.on is not None:
            dataset.field(choice.on)  # ConfigError if there is none
        if any(field.window for field in dataset.fields.values()):
            raise ConfigError(f"{dataset!r} is made of other samples: join these first, and make it of the result")
    if not renamed or len(renamed) < len(choice.fields):
        raise ConfigError(f"a join takes at least one field of {other.path}, and each once, got {choice.fields}")
    for new, old in choice.fields.items():
        if old not in other.fields:
            raise ConfigError(f"{other.path}: no field {old!r}; there are {', '.join(other.fields)}")
        field, before = other.fields[old], fields.get(new)
        field = replace(
            field,
            on=renamed.get(field.on or "", field.on),
            per=renamed.get(field.per or "", field.per),
            optional=field.optional or choice.how == "optional",
        )
        if before is not None and not choice.replace:
            by_key = f"; to join by key, give on={new!r}" if choice.on is None and is_key(before) else ""
            raise ConfigError(
                f"{base.path} has a field {new!r} already: rename it, as with fields={{'{new}_2': {old!r}}}, or "
                f"replace=True takes its place{by_key}"
            )
        if before is not None and _form(before) != _form(field):
            raise ConfigError(
                f"replace keeps a field's kind and shape: {new!r} is {describe(before)} in {base.path}, and would be "
                f"{describe(field)}"
            )
        fields[new] = field
    return as_fields(fields)


def _form(field: Field) -> Any:
    return field.kind, field.role, field.channels if field.is_image else field.shape


def joined_metadata(
    base: ReadableDataset, other: ReadableDataset, choice: Join, fields: Mapping[str, Field]
) -> dict[str, Any]:
    """Return the metadata of the base, with the names of the classes of the fields that there are now."""
    ours, theirs = (names_by_field(dataset.metadata, dataset.fields) for dataset in (base, other))
    named = {name: names for name, names in ours.items() if name not in choice.fields}
    named |= {new: theirs[old] for new, old in choice.fields.items() if old in theirs}
    rest = {key: value for key, value in base.metadata.items() if named_field(key, base.fields) not in ours}
    keys = {name: KEY if named_field(KEY, fields) == name else f"{KEY}.{name}" for name in named}
    return rest | {keys[name]: list(names) for name, names in named.items()}
