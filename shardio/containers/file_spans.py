"""Which bytes of a file reading takes: of rows, of blocks of rows, of windows of values, of chunks.

Spans of bytes are offsets and sizes in bytes, int64 [m] each, in any order; they may overlap.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..format.pieces import PIECE
from .base import Blocks, Entries

FileSpans: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]

NO_BYTES: FileSpans = np.empty(0, np.int64), np.empty(0, np.int64)


def of_blocks(rows: NDArray[np.int64], shape: Sequence[int], item: int, blocks: Blocks) -> FileSpans:
    """Return the spans of blocks of rows; one span has what lies less than a piece apart.

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


def of_entries(values: FileSpans, unit: int, entries: Entries) -> FileSpans:
    """Return the spans of some entries, of `unit` bytes, of each value."""
    offsets, sizes = values
    begins = np.minimum(entries.begins * unit, sizes)
    return offsets + begins, np.maximum(np.minimum(entries.ends * unit, sizes) - begins, 0)


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
    whole = len(grid) - len(blocks.size)  # axes of which a block has all, that of rows among them
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
