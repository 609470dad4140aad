"""Runs of neighbouring bytes, of which blocks of arrays consist; and how many bytes were asked of files."""

import threading
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ..system.forks import reset_in_children


class Runs(NamedTuple):
    """The runs of one block of each of n arrays."""

    offsets: NDArray[np.int64]
    """Where each run begins, in bytes from the beginning of its array, int64 [n, runs]."""
    size: int
    """The bytes of each run."""


def run_axes(shape: Sequence[int], size: Sequence[int]) -> int:
    """Return how many of the last axes a run of a block goes along: all that are whole, and the one before them."""
    axes = 1
    while axes < len(shape) and size[-axes] == shape[-axes]:
        axes += 1
    return axes


def block_runs(
    shape: Sequence[int], begins: NDArray[np.int64], size: Sequence[int], item_bytes: int, axes: int | None = None
) -> Runs:
    """Return the runs of blocks, which lie within arrays in C order.

    Args:
        shape: the shape of the arrays.
        begins: where each block begins, int64 [n, axes of the arrays].
        size: the shape of a block.
        item_bytes: the bytes of an element.
        axes: along how many of the last axes a run goes; as many as possible by default.
    """
    axes = run_axes(shape, size) if axes is None else axes
    strides = np.cumprod([item_bytes, *shape[:0:-1]], dtype=np.int64)[::-1]
    offsets = begins @ strides
    for length, stride in zip(size[:-axes], strides.tolist(), strict=False):
        offsets = offsets[..., None] + stride * np.arange(length)
    count, length = (int(np.prod(part, dtype=np.int64)) for part in (size[:-axes], size[-axes:]))
    return Runs(offsets.reshape(len(begins), count), item_bytes * length)


@final
class ByteCount:
    """A number of bytes, to which any number of threads add."""

    def __init__(self) -> None:
        self.total = 0
        self.reset_in_child()
        reset_in_children(self)

    def reset_in_child(self) -> None:
        """Have a lock of this process: a thread of the parent may have held the other one."""
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self.total += size


REQUESTED = ByteCount()
"""The bytes of fixed fields that this process has asked of files and their memory maps."""
