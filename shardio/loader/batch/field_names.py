"""The names under which a batch delivers fields: which stored field each stands for, and what it draws."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

from ...errors import ConfigError
from ...format.fields import presence
from ...views.readable import ReadableDataset

Fields: TypeAlias = Sequence[str] | Mapping[str, str] | None
"""The fields to deliver: a list of stored fields, or {delivered name: stored field}; None delivers all."""


@final
@dataclass(frozen=True, slots=True)
class FieldNames:
    """The stored field of each delivered name.

    Attributes:
        stored: by delivered name, the stored field.
        beside: by the name of a column that is made beside a delivered name, that name; `stored` and `draws` have it.
        delivered: by stored field, the names that deliver it, in order.
        draws: by delivered name, which set of random draws it takes: the n-th name of a stored field the n-th, from 0.
    """

    stored: Mapping[str, str]
    beside: Mapping[str, str] = field(default_factory=dict)
    delivered: Mapping[str, tuple[str, ...]] = field(init=False)
    draws: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        delivered: dict[str, tuple[str, ...]] = {}
        draws = {}
        for name, stored in self.stored.items():
            draws[name] = len(delivered.get(stored, ()))
            delivered[stored] = (*delivered.get(stored, ()), name)
        draws |= {column: draws[name] for column, name in self.beside.items()}
        made = {column: self.stored[name] for column, name in self.beside.items()}
        object.__setattr__(self, "stored", {**self.stored, **made})
        object.__setattr__(self, "delivered", delivered)
        object.__setattr__(self, "draws", draws)

    @classmethod
    def of(cls, dataset: ReadableDataset, fields: Fields) -> "FieldNames":
        """Check `fields` against a dataset. Raise ConfigError for a field that it lacks, or a name that is taken."""
        names = cls(_by_delivered_name(dataset, fields))
        taken = {*dataset.id_columns, "valid"}
        for stored in names.stored.values():
            if stored not in dataset.fields:
                dataset.field(stored)  # raises an error that says why, unless it is a hidden column
                raise ConfigError(f"{dataset.path}: no field {stored!r}; there are {', '.join(dataset.fields)}")
        taken |= {presence(name) for name, stored in names.stored.items() if dataset.fields[stored].optional}
        if clashing := [name for name in names.stored if name in taken]:
            how = "deliver it under another name" if isinstance(fields, Mapping) else "choose fields= without it"
            raise ConfigError(
                f"{dataset.path}: field {clashing[0]!r} clashes with a column that the loader adds; {how}"
            )
        return names


def _by_delivered_name(dataset: ReadableDataset, fields: Fields) -> dict[str, str]:
    if isinstance(fields, Mapping):
        if wrong := [item for item in fields.items() if not all(isinstance(name, str) for name in item)]:
            name, stored = wrong[0]
            raise ConfigError(
                f"fields must be a dict of stored fields by the names to deliver, got {name!r}: {stored!r}"
            )
        return dict(fields)
    if isinstance(fields, str) or not isinstance(fields, Iterable | None):
        how = f", as in [{fields!r}]" if isinstance(fields, str) else ""
        raise ConfigError(f"fields must be a list of names{how}, got {fields!r}")
    return {name: name for name in (dataset.fields if fields is None else fields)}
