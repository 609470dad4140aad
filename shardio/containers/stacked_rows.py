"""Rows of several variables stacked: each variable's reader fills its part of the rows, without a copy."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..format.fields import Field
from ..system.types import Rows
from .extents import NO_BYTES, Blocks, Extent, FileSpans
from .field_reader import ChunkSpan, FieldReader
from .row_locator import RowLocator, StackedLocators


def of_variable(name: str, number: int) -> str:
    """Return the name of a variable of the stack `name` among fields, whose names have no slash."""
    return f"{name}/{number}"


def stacks_among(fields: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
    """Return what the variables of stacks are called, by field, where an index has all these `names`."""
    counts = dict.fromkeys(fields, 0)
    for name in names:
        stack, slash, _ = name.partition("/")
        if slash and stack in counts:
            counts[stack] += 1
    return {name: [of_variable(name, n) for n in range(count)] for name, count in counts.items() if count}


def with_variables(path: Path, fields: Mapping[str, Field], names: Iterable[str]) -> dict[str, Field]:
    """Return fields with the variables of stacks instead of the stacks; ShardCorrupt for what is no such stack."""
    stacks = stacks_among(fields, names)
    for name, found in stacks.items():
        if not fields[name].fixed or fields[name].row_shape[:1] != (len(found),):
            raise ShardCorrupt(f"{path}: field {name!r} is no stack of {len(found)} variables, which its index names")
    stored = {name: field for name, field in fields.items() if name not in stacks}
    return stored | {one: _field_of_variable(fields[name]) for name, found in stacks.items() for one in found}


def stack_readers(readers: dict[str, FieldReader], fields: Mapping[str, Field], names: Iterable[str]) -> None:
    """Replace the readers of variables, which `readers` has by name, by readers of their stacks."""
    for name, found in stacks_among(fields, names).items():
        readers[name] = StackedRows(tuple(readers.pop(one) for one in found), len(fields[name].row_shape))


def _field_of_variable(stack: Field) -> Field:
    """Return the field of each variable of a stack of arrays [variables, *shape]."""
    shape = stack.row_shape[1:]
    return replace(stack, kind="array", shape=shape) if shape else Field("scalar", stack.dtype)


@final
@dataclass(frozen=True, slots=True)
class StackedRows(FieldReader):
    """Rows [variables, *shape] of a field, whose variables have readers of their own, of fixed rows [*shape].

    Attributes:
        variables: the readers.
        axes: the axes of a row, that of variables among them.
    """

    variables: tuple[FieldReader, ...]
    axes: int

    def __len__(self) -> int:
        return len(self.variables[0])

    def read(self, rows: Rows, out: NDArray[Any], most: int, blocks: Blocks | None = None) -> None:
        if blocks is None:
            for number, variable in enumerate(self.variables):
                variable.read(rows, out[:, number], most)
            return
        # No variable is read in vain.
        for number, (variable, places, inner) in enumerate(self._touched(rows, blocks)):
            if not len(places):
                continue
            found = np.empty((len(places), *out.shape[2:]), out.dtype)
            variable.read(rows[places], found, most, inner)
            first = blocks.begins[places, 0] if len(blocks.size) == self.axes else 0
            out[places, number - first] = found

    def spans(self, rows: Rows, extent: Extent | None) -> FileSpans | None:
        found = [variable.spans(rows[places], inner) for variable, places, inner in self._touched(rows, extent)]
        known = [spans for spans in found if spans is not None]
        return _together(known) if len(known) == len(found) else None

    def tables(self, rows: Rows, extent: Extent | None) -> FileSpans:
        touched = self._touched(rows, extent)
        return _together([variable.tables(rows[places], inner) for variable, places, inner in touched])

    def locator(self) -> RowLocator | None:
        found = [locator for variable in self.variables if (locator := variable.locator()) is not None]
        return StackedLocators(tuple(found)) if len(found) == len(self.variables) else None

    @property
    def chunk_span(self) -> ChunkSpan | None:
        spans = [span for variable in self.variables if (span := variable.chunk_span) is not None]
        if not spans:
            return None
        return ChunkSpan(max(s.rows for s in spans), sum(s.size for s in spans), all(s.kept for s in spans))

    def _touched(
        self, rows: Rows, extent: Extent | None
    ) -> Iterator[tuple[FieldReader, NDArray[np.int64], Blocks | None]]:
        """Yield each variable with the indices in `rows` of the rows to read of it, and their blocks."""
        blocks = extent if isinstance(extent, Blocks) else None
        everywhere = np.arange(len(rows))
        for number, variable in enumerate(self.variables):
            if blocks is None or len(blocks.size) < self.axes:
                yield variable, everywhere, blocks
                continue
            first = blocks.begins[:, 0]  # along the axis of variables, too
            places = np.flatnonzero((first <= number) & (number < first + blocks.size[0]))
            inner = Blocks(blocks.begins[places, 1:], blocks.size[1:])
            yield variable, places, inner if inner.size else None


def _together(found: Sequence[FileSpans]) -> FileSpans:
    offsets, sizes = (np.concatenate(column) for column in zip(NO_BYTES, *found, strict=True))
    return offsets, sizes
