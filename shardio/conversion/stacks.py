"""Fields that are several variables of a source, stacked along a first axis: `x=t2m,u10,v10`, `[3, ...]`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..containers.stacked_rows import of_variable
from ..containers.zarr_index import ZarrIndex
from ..errors import BadSample, ConfigError, Message
from ..foreign.names import field_name
from ..format.fields import Field, Missing, describe, listed_names
from ..system.types import Sample
from .source import Adoption, Hdf5Names, Source, WrappedSource, ZarrIndexes

Stacks: TypeAlias = Mapping[str, Sequence[str]]
"""By field, the variables of which it is made."""

_VARIABLES = "variables"  # the attribute of a stack that names them


def listed_stacks(given: str | Stacks | None) -> dict[str, tuple[str, ...]]:
    """Return stacks that were given by field, or as text such as `"x=t2m,u10,y=msl,sp"`; ConfigError for no such text.

    In text a variable may have an equals sign in its name only behind a first one.
    """
    if not isinstance(given, str):
        found = {name: tuple(listed_names(variables)) for name, variables in (given or {}).items()}
    else:
        found, name = {}, ""
        for part in listed_names(given):
            field, equals, variable = part.partition("=")
            name = field.strip() if equals else name
            found[name] = (*(found.get(name, ()) if not equals else ()), (variable if equals else part).strip())
    for name, variables in found.items():
        if field_name(name) != name or not all(variables) or not variables:
            raise ConfigError("{stack} takes FIELD=VARIABLE,VARIABLE, as in x=t2m,u10,v10, got {!r}", given)
    return found


def with_variables(fields: Any, stacks: Stacks) -> Any:
    """Return a converter's choice of fields with the variables of stacks added; None stays None."""
    extra = {_chosen(name, i): one for name, variables in stacks.items() for i, one in enumerate(variables)}
    if isinstance(fields, str):
        return ",".join([fields, *(f"{field}={variable}" for field, variable in extra.items())])
    return fields if fields is None else {**fields, **extra}


def _chosen(name: str, number: int) -> str:
    """Return the field of a stack's variable in a source whose fields were chosen."""
    return f"{name}.variable{number}"


@final
class Stacked(WrappedSource):
    """The samples of a source with some of its variables stacked, which then are no fields of their own.

    Args:
        source: the source; with a choice of fields it was given `with_variables`.
        stacks: the stacks.

    Raises ConfigError for a variable that the source does not have, that is no array or number of one shape, or unlike
    the others in shape, dtype or the order of its axes.
    """

    def __init__(self, source: Source, stacks: Stacks) -> None:
        super().__init__(source)
        self._parts = {name: _parts(source.fields, name, variables) for name, variables in stacks.items()}
        used = {part for parts in self._parts.values() for part in parts}
        self.fields = {name: field for name, field in source.fields.items() if name not in used}
        for name, parts in self._parts.items():
            if name in self.fields:
                raise ConfigError("{stack}: there is a field {!r} already: give the stack another name", name)
            self.fields[name] = _stack_of(name, stacks[name], [source.fields[part] for part in parts])
        axes = {name: self._axes(name, stacks[name]) for name in self._parts}
        self.hints = (*source.hints, *(told for found in axes.values() for told in found))

    @property
    def changes(self) -> Mapping[str, Any]:
        """See `Source.changes`: the variables, as their order may differ where samples do not."""
        return {**self.source.changes, "stack": {n: list(p) for n, p in self._parts.items()}}

    @property
    def adoption(self) -> Adoption | None:
        """See `Source.adoption`: the names of the variables of the stack `x` are of `x/0`, `x/1` and so on."""
        found = self.source.adoption
        if isinstance(found, Hdf5Names):
            names, in_file = self._renamed(found.names), self._renamed(found.in_file)
            return replace(found, names=names, in_file=in_file, packing=lambda n: self._renamed(found.packing(n)))
        if isinstance(found, ZarrIndexes):

            def index(number: int, *, listed: bool = True) -> ZarrIndex:
                made: ZarrIndex = found.index(number, listed=listed)
                return replace(made, arrays=self._renamed(made.arrays))

            return replace(found, names=self._renamed(found.names), index=index)
        return None

    def column(self, name: str) -> NDArray[Any] | Sequence[str] | None:
        """See `Source.column`: fields that are no stacks are as they were."""
        return self.source.column(name) if name in self.fields and name not in self._parts else None

    def block(self, numbers: NDArray[np.int64]) -> Iterator[Sample | BadSample]:
        """See `Source.block`."""
        for found in self.source.block(numbers):
            yield found if isinstance(found, BadSample) else self._stacked(found)

    def __getitem__(self, index: int) -> Sample:
        return self._stacked(self.source[index])

    def _axes(self, name: str, variables: Sequence[str]) -> Iterator[Message]:
        """Yield remarks on the axes of a stack's variables, as their coordinates may differ."""
        of_source = self.source.dimensions
        known = [(v, of_source[p]) for v, p in zip(variables, self._parts[name], strict=True) if of_source.get(p)]
        for variable, axes in known[1:]:
            first, wanted = known[0]
            differ = [(one, other) for one, other in zip(wanted, axes, strict=True) if one and other and one != other]
            own, others = (", ".join(map(str, each)) for each in (wanted, axes))
            told = Message("{stack} {}: {!r} has the axes {}, and {!r} has {}", name, first, own, variable, others)
            if {one for one, _ in differ} & {other for _, other in differ}:
                raise ConfigError(told)
            if differ:
                yield told + ", so their values may be of other locations"
                return

    def _stacked(self, sample: Sample) -> Sample:
        made: dict[str, Any] = {name: value for name, value in sample.items() if name in self.fields}
        for name, parts in self._parts.items():
            values, dtype = [sample[part] for part in parts], self.fields[name].row_dtype
            if lacking := [value for value in values if isinstance(value, Missing)]:
                made[name] = lacking[0]
                continue
            try:
                made[name] = np.stack([np.asarray(value, dtype) for value in values])
            except ValueError as error:
                raise BadSample(f"field {name!r}: {error}") from error
        return made

    def _renamed(self, of_source: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a source has by field as what this has by field, and for stacks by `field/number`."""
        renamed = {of_variable(n, i): part for n, parts in self._parts.items() for i, part in enumerate(parts)}
        own = {name: name for name in self.fields if name not in self._parts}
        return {name: of_source[part] for name, part in (own | renamed).items() if part in of_source}


def stacked(source: Source, stacks: Stacks) -> Source:
    """Return a source with these stacks."""
    return Stacked(source, stacks) if stacks else source


def stacks_of(names: Mapping[str, str]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return, of the names that an adopted dataset has, those of fields, and the variables of stacks."""
    own = {name: path for name, path in names.items() if "/" not in name}
    stacks: dict[str, list[str]] = {}
    for name, path in names.items():
        if "/" in name:
            stacks.setdefault(name.partition("/")[0], []).append(path)
    return own, stacks


def _parts(fields: Mapping[str, Field], name: str, variables: Sequence[str]) -> list[str]:
    """Return the source's fields of a stack's variables."""
    parts = []
    for number, variable in enumerate(variables):
        known = [one for one in (_chosen(name, number), variable, field_name(variable)) if one in fields]
        if not known:
            raise ConfigError("{stack}: there is no {!r}; there are {}", variable, ", ".join(fields))
        parts.append(known[0])
    return parts


def _stack_of(name: str, variables: Sequence[str], fields: Sequence[Field]) -> Field:
    for variable, field in zip(variables, fields, strict=True):
        if field.kind not in ("array", "scalar") or not field.fixed or field.optional:
            what = describe(field)
            raise ConfigError(
                "{stack} {}: variables are arrays of one shape or numbers, {!r} is {}", name, variable, what
            )
        if _form(field) != _form(fields[0]):
            raise ConfigError(
                "{stack} {}: its variables must have one shape and dtype, {!r} is {}, and {!r} is {}",
                name,
                variables[0],
                describe(fields[0]),
                variable,
                describe(field),
            )
    stated = {key: None for field in fields for key in field.attributes or {}}
    of_each = {key: [(field.attributes or {}).get(key) for field in fields] for key in stated}
    shape = (len(fields), *fields[0].row_shape)
    return Field("array", fields[0].dtype, shape, attributes={_VARIABLES: list(variables), **of_each})


def _form(field: Field) -> Field:
    return replace(field, attributes=None)
