"""Parts of values that are read: blocks of arrays and entries of ragged values; and which bytes of a file these take.

Spans of bytes are offsets and sizes in bytes, int64 [m] each, in any order; they may overlap.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..format.fields import Field
from ..format.pieces import PIECE

FileSpans: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]

NO_BYTES: FileSpans = np.empty(0, np.int64), np.empty(0, np.int64)


class BlockRuns(NamedTuple):
    """The runs of one block of each of n arrays, which have the same layout."""

    begins: NDArray[np.int64]
    """Where the first run of each block begins, in bytes from the beginning of its array, int64 [n]."""
    steps: NDArray[np.int64]
    """How far behind the first run each begins, in bytes, int64 [runs]."""
    size: int
    """The bytes of each run."""

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each run begins, in bytes from the beginning of its array, int64 [n, runs]."""
        return self.begins[:, None] + self.steps


def block_runs(shape: Sequence[int], begins: NDArray[np.int64], size: Sequence[int], item_bytes: int) -> BlockRuns:
    """Return the runs of blocks within arrays in C order; the runs are as long as possible.

    Args:
        shape: the shape of the arrays.
        begins: where each block begins, int64 [n, axes of the arrays].
        size: the shape of a block.
        item_bytes: the bytes of an element.
    """
    axes = 1
    while axes < len(shape) and size[-axes] == shape[-axes]:
        axes += 1
    strides = np.cumprod([item_bytes, *shape[:0:-1]], dtype=np.int64)[::-1]
    steps = np.zeros(1, np.int64)
    for length, stride in zip(size[:-axes], strides.tolist(), strict=False):
        steps = (steps[:, None] + stride * np.arange(length)).reshape(-1)
    return BlockRuns(begins @ strides, steps, item_bytes * int(np.prod(size[-axes:], dtype=np.int64)))


@final
@dataclass(frozen=True, slots=True)
class Blocks:
    """A block of each of n rows of a fixed field, along the last k axes of the rows; of the axes before them, all.

    Attributes:
        begins: where the blocks begin, int64 [n, k].
        size: how long each is along these axes, k lengths of at least 1.
    """

    begins: NDArray[np.int64]
    size: tuple[int, ...]

    def __getitem__(self, rows: slice | NDArray[Any]) -> "Blocks":
        return Blocks(self.begins[rows], self.size)

    def shape(self, row_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the blocks of rows of this shape."""
        return (*row_shape[: len(row_shape) - len(self.size)], *self.size)

    def along(self, row_shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Return where the blocks begin along all axes of rows of this shape, int64 [n, axes]."""
        leading = np.zeros((len(self.begins), len(row_shape) - len(self.size)), np.int64)
        return np.concatenate([leading, self.begins], axis=1)

    def runs(self, field: Field) -> BlockRuns:
        """Return the runs of bytes of the blocks within rows of a fixed field."""
        shape = field.row_shape
        return block_runs(shape, self.along(shape), self.shape(shape), field.row_dtype.itemsize)

    def place(self, number: int) -> Any:
        """Return what takes a block from its row, `row[blocks.place(number)]`."""
        begins = self.begins[number].tolist()
        return (..., *(slice(begin, begin + size) for begin, size in zip(begins, self.size, strict=True)))

    def within(self, other: object) -> bool:
        """Return whether who has fetched another extent has these blocks."""
        if isinstance(other, Several):
            return any(self.within(one) for one in other.blocks)
        return isinstance(other, Blocks) and other.size == self.size and np.array_equal(other.begins, self.begins)

    def cut(self, rows: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
        """Copy the blocks of rows, `[n, *shape]`, to `out`, `[n, *blocks.shape(shape)]`, and return it."""
        for number, row in enumerate(rows):
            out[number] = row[self.place(number)]
        return out


@final
@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Runs of entries of each of n values of a ragged field.

    Attributes:
        begins, ends: the entries that each run begins and ends with, not included, int64 [m], value by value.
        counts: how many runs each value has, int64 [n]; None: one each. Those of a value are in order and apart.
    """

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    counts: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        """The number of values."""
        return len(self.begins if self.counts is None else self.counts)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many entries the runs of each value have together, int64 [n]."""
        sizes = self.ends - self.begins
        if self.counts is None:
            return sizes
        total, ends = np.concatenate([[0], np.cumsum(sizes)]), np.cumsum(self.counts)
        return np.asarray(total[ends] - total[ends - self.counts], np.int64)

    @property
    def stops(self) -> NDArray[np.int64]:
        """The entry that the last run of each value ends with, int64 [n]; 0 of a value without runs."""
        if self.counts is None:
            return self.ends
        last = np.cumsum(self.counts) - 1
        return np.where(self.counts > 0, self.ends[last] if len(self.ends) else 0, 0)

    def repeated(self, column: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a number of each value, int64 [n], for each run, int64 [m]."""
        return column if self.counts is None else np.repeat(column, self.counts)

    def __getitem__(self, rows: slice | NDArray[Any]) -> "Runs":
        if self.counts is None:
            return Runs(self.begins[rows], self.ends[rows])
        counts, firsts = self.counts[rows], (np.cumsum(self.counts) - self.counts)[rows]
        taken = np.arange(int(counts.sum())) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
        return Runs(self.begins[taken], self.ends[taken], counts)

    def are_of(self, count: int) -> bool:
        """Return whether these are runs of so many values, none of which begins below 0 or ends before it begins."""
        if len(self) != count or len(self.begins) != len(self.ends):
            return False
        if self.counts is not None and ((self.counts < 0).any() or self.counts.sum() != len(self.begins)):
            return False
        return not ((self.begins < 0) | (self.ends < self.begins)).any()

    def within(self, other: object) -> bool:
        """Return whether who has fetched another extent has these runs."""
        if not isinstance(other, Runs) or not len(self.begins):
            return isinstance(other, Runs)
        if not len(other.begins):
            return bool((self.ends == self.begins).all())
        own, their = (each.repeated(np.arange(len(each))) for each in (self, other))
        # The last run of the other's that begins no later, of the same value.
        span = int(max(self.begins.max(), other.begins.max())) + 1
        before = np.searchsorted(their * span + other.begins, own * span + self.begins, "right") - 1
        there = (before >= 0) & (their[before] == own) & (self.ends <= other.ends[before])
        return bool((there | (self.ends == self.begins)).all())


@final
@dataclass(frozen=True, slots=True, eq=False)
class Several:
    """Several blocks of each of n rows of a fixed field, as each of its names has blocks of its own."""

    blocks: tuple[Blocks, ...]

    def __getitem__(self, rows: NDArray[Any]) -> "Several":
        return Several(tuple(one[rows] for one in self.blocks))

    def within(self, other: object) -> bool:
        """Return whether who has fetched another extent has these blocks."""
        return all(one.within(other) for one in self.blocks)


Extent: TypeAlias = Blocks | Runs | Several
"""The part that is read of each value: blocks of arrays, or runs of ragged values. No reader takes `Several`."""


def each_extent(extent: Extent | None) -> tuple[Extent | None, ...]:
    """Return the blocks of an extent one by one; None stands for whole values."""
    return extent.blocks if isinstance(extent, Several) else (extent,)


NO_BLOCKS: Mapping[str, Extent] = MappingProxyType({})
"""No field needs only blocks or entries."""


def of_blocks(rows: NDArray[np.int64], shape: Sequence[int], item: int, blocks: Blocks) -> FileSpans:
    """Return the spans of blocks of rows; one span covers what is less than a piece apart.

    Args:
        rows: where each row begins, int64 [n].
        shape: the shape of a row, whose elements follow each other in C order.
        item: the bytes of an element.
        blocks: a block of each row.
    """
    axes, blocked = len(shape), len(blocks.size)
    size = np.array([*shape[: axes - blocked], *blocks.size], np.int64)
    if not len(rows) or not size.all():
        return NO_BYTES
    strides = item * np.array([math.prod(shape[axis + 1 :]) for axis in range(axes)], np.int64)
    first = rows + blocks.begins @ strides[axes - blocked :]
    apart = int(np.count_nonzero(strides > PIECE))  # the first axes, whose steps have whole pieces between them
    steps = np.zeros(1, np.int64)
    for axis in range(apart):
        steps = (steps[:, None] + strides[axis] * np.arange(size[axis])).reshape(-1)
    inner = int((size[apart:] - 1) @ strides[apart:]) + item
    return (first[:, None] + steps).reshape(-1), np.full(len(first) * len(steps), inner)


def of_runs(values: FileSpans, unit: int, runs: Runs) -> FileSpans:
    """Return the spans of runs of entries, of `unit` bytes, of each value."""
    offsets, sizes = map(runs.repeated, values)
    begins = np.minimum(runs.begins * unit, sizes)
    return offsets + begins, np.maximum(np.minimum(runs.ends * unit, sizes) - begins, 0)


def touched(
    rows: NDArray[np.int64], chunk: Sequence[int], grid: Sequence[int], blocks: Blocks | None
) -> NDArray[np.int64]:
    """Return the chunks of a dataset that rows, or blocks of them, touch: flat numbers, int64 [m], each once.

    Args:
        rows: the rows, int64 [n].
        chunk: the shape of a chunk, the axis of rows first.
        grid: the chunks along each axis.
        blocks: a block of each row; None for whole rows.
    """
    if blocks is None:
        found = np.unique(rows // chunk[0])[:, None] * math.prod(grid[1:]) + np.arange(math.prod(grid[1:]))
        return np.asarray(found.reshape(-1), np.int64)
    whole = len(grid) - len(blocks.size)  # axes that a block covers whole, the axis of rows among them
    found = (rows // chunk[0])[:, None] * math.prod(grid[1:whole]) + np.arange(math.prod(grid[1:whole]))
    inside: NDArray[np.bool_] = np.ones(found.shape, np.bool_)
    for axis, size in enumerate(blocks.size):
        begins, length, cells = blocks.begins[:, axis], chunk[whole + axis], grid[whole + axis]
        first, last = begins // length, (begins + size - 1) // length
        steps = np.arange(int((last - first).max(initial=0)) + 1)
        own = first[:, None] + steps
        there = (own <= last[:, None]) & (own >= 0) & (own < cells)
        found = (found[:, :, None] * cells + own[:, None, :]).reshape(len(rows), -1)
        inside = (inside[:, :, None] & there[:, None, :]).reshape(len(rows), -1)
    chosen: NDArray[np.int64] = np.unique(found[inside])
    return chosen
