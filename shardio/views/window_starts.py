"""Where windows start: several neighbouring rows of a dataset, cut from sequences that never run into each other.

A sequence is rows that follow each other in the dataset: those of one source file, of one value of a column, or all. A
coordinate may end it as well, where its step is another one. Each sequence has windows from its own first row on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Self, TypeAlias, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, ManifestError
from ..format import coordinates
from ..format.fields import describe, present_column
from ..system.rules import Range, check_fields
from ..system.types import Indices
from .choice import Arrays, Choice, Count, Number
from .columns import in_parts
from .index_map import IndexMap, of_runs
from .readable import ReadableDataset

FILE, ALL = "file", "dataset"
"""Values of `within` that name no column: sequences end with a source file, or never."""

_Rows: TypeAlias = Annotated[int, Range(1, 1 << 31)]  # whose products fit in 64 bits
_MOST_STEPS = 1 << 20  # of a coordinate, of which the median is taken
_NO_FILES = (
    "{within:file} needs to know the source files of samples, which only data that `shardio index` adopted tells, and "
    "{} has no field 'file' either: give {within:dataset}, or the name of a column that changes where a sequence ends"
)


class _StartsNode(msgspec.Struct, forbid_unknown_fields=True):
    windows: tuple[Count, Count, Count]
    within: str
    contiguous: tuple[str, Number] | None


@final
class Starts(Choice, frozen=True):
    """The choice of the first row of each window.

    Attributes:
        length: the rows of a window.
        stride: the rows from the start of a window to the start of the next one.
        step: the rows from one row of a window to the next one.
        within: `file`, `dataset` or the name of a column: what ends a sequence.
        contiguous: the coordinate whose gaps also end sequences, with its step; None for none.
    """

    length: _Rows
    stride: _Rows
    step: _Rows
    within: str
    contiguous: tuple[str, float] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.within, str):
            raise ConfigError(f"within must be {FILE!r}, {ALL!r} or the name of a field, got {self.within!r}")

    @property
    def span(self) -> int:
        """The rows of the dataset from the first to the last one of a window."""
        return (self.length - 1) * self.step + 1

    def rows(self, starts: Indices) -> Indices:
        """Return the rows, int64 [n, length], of the windows that start at some rows, int64 [n]."""
        return starts[:, None] + self.step * np.arange(self.length)

    def made(self, base: ReadableDataset) -> IndexMap:
        ends = _Ends(base, self.within, self.contiguous)

        def beginnings(numbers: Indices) -> Indices:
            pairs = np.arange(max(int(numbers[0]) - 1, 0), int(numbers[-1]) + 1)
            return pairs[1:][ends(pairs)]

        trivial = self.within == ALL and self.contiguous is None
        found = () if trivial else in_parts(beginnings, len(base))
        firsts = np.concatenate([np.zeros(1, np.int64), *found])
        room = np.diff(firsts, append=len(base)) - self.span
        return of_runs(firsts, np.maximum(room // self.stride + 1, 0), self.stride)

    def description(self) -> dict[str, Any]:
        contiguous = None if self.contiguous is None else list(self.contiguous)
        return {
            "windows": [self.length, self.stride, self.step],
            "within": self.within,
            "contiguous": contiguous,
        }

    @classmethod
    def restored(cls, described: Mapping[str, Any], base: ReadableDataset, arrays: Arrays) -> Self:
        node = msgspec.convert(described, _StartsNode)
        contiguous = None if node.contiguous is None else (node.contiguous[0], float(node.contiguous[1]))
        if contiguous is not None and not math.isfinite(contiguous[1]):
            raise ManifestError(f"contiguous must have a finite step, got {contiguous[1]}")
        return cls(*node.windows, node.within, contiguous)

    def in_earlier(self, made: IndexMap, samples: int) -> int | None:
        return made.leading(max(samples - self.span + 1, 0))


def usual_step(base: ReadableDataset, within: str, name: str) -> float:
    """Return the median of a coordinate's steps from row to row within sequences, in six digits.

    A million of them are enough, evenly spaced. 0 if no sequence has two rows; ConfigError for a field that is no
    coordinate, for numbers too coarse to distinguish a step from a gap, and for numbers that mostly repeat.
    """
    _check_coordinate(base, name)
    ends, every = _Ends(base, within, None), -(-len(base) // _MOST_STEPS)

    def steps(numbers: Indices) -> tuple[NDArray[np.float64], float]:
        values, present = ends.read(name, numbers)
        found = _steps(values, present)[~ends(numbers)]
        return found[np.isfinite(found)][::every], coordinates.resolution(values[present])

    parts = list(in_parts(steps, len(base)))
    found = np.concatenate([np.empty(0), *(part for part, _ in parts)])
    usual, apart = coordinates.usual_step(found), max((apart for _, apart in parts), default=0.0)
    if coordinates.is_too_coarse(found, apart):
        raise ConfigError(
            f"contiguous: {name!r} of {base.path} is {base.field(name).dtype}, whose numbers are up to {apart:.6g} "
            f"apart, too coarse to tell steps of {usual:.6g} from gaps: store it as float64 or integers"
        )
    if len(found) and not usual:
        raise ConfigError(f"contiguous: {name!r} of {base.path} is the same in most neighbouring rows: it has no step")
    return usual


def _steps(values: NDArray[Any], present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the steps between neighbouring values of a coordinate; NaN where a row lacks the value."""
    exact = np.int64 if values.dtype.kind in "iub" else np.float64
    steps: NDArray[np.float64] = np.diff(values.astype(exact)).astype(np.float64)
    steps[~(present[1:] & present[:-1])] = np.nan
    return steps


def _check_coordinate(base: ReadableDataset, name: str) -> None:
    field = base.field(name)
    if field.kind != "scalar" or field.row_dtype.kind not in "iufb":
        raise ConfigError(f"contiguous must be a scalar of real numbers, {name!r} is {describe(field)}")


@final
class _Ends:
    """Says where a sequence ends between two rows."""

    def __init__(self, base: ReadableDataset, within: str, contiguous: tuple[str, float] | None) -> None:
        self._base, self._contiguous = base, contiguous
        if contiguous is not None:
            _check_coordinate(base, contiguous[0])
        self._by_file = within == FILE and base.adopted
        if within == FILE and not self._by_file and FILE not in base.fields:
            raise ConfigError(_NO_FILES, base.path)
        self._column = None if within == ALL or self._by_file else within
        if self._column is not None and (field := base.field(within)).kind not in ("scalar", "text"):
            raise ConfigError(
                f"within must be {FILE!r}, {ALL!r} or a field that is a scalar or text, {within!r} is {describe(field)}"
            )

    def __call__(self, numbers: Indices) -> NDArray[np.bool_]:
        """Return whether a sequence ends between neighbours in `numbers`, int64 [n]; bool [n - 1]."""
        ends = np.zeros(len(numbers) - 1, np.bool_)
        if self._by_file:
            files = self._base.shard_numbers(numbers)
            ends |= files[1:] != files[:-1]
        if (name := self._column) is not None:
            values, present = self.read(name, numbers)
            ends |= present[1:] != present[:-1]
            if isinstance(values, np.ndarray):
                ends |= values[1:] != values[:-1]
            else:
                texts = [bytes(value) for value in values]
                ends |= np.fromiter(map(bytes.__ne__, texts[1:], texts), np.bool_, len(ends))
        if self._contiguous is not None:
            name, usual = self._contiguous
            ends |= ~(np.abs(_steps(*self.read(name, numbers)) - usual) < abs(usual) / 2)
        return ends

    def read(self, name: str, numbers: Indices) -> tuple[Any, NDArray[np.bool_]]:
        """Return the stored values of a field, and which rows have one."""
        field, selection = self._base.field(name), self._base.selection(numbers)
        column = present_column(name)
        with selection.fetch([name, *([column] if field.optional else [])]):
            present = selection.column(column) if field.optional else np.ones(len(numbers), np.bool_)
            return selection.stored(name), present
