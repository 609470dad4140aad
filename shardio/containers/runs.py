"""Runs of neighbouring bytes, of which blocks of arrays consist; and how many bytes were asked of files."""

import threading
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ..system.forks import reset_in_children


class Runs(NamedTuple):
    """The runs of one block of each of n arrays, which all lie alike."""

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


def block_runs(shape: Sequence[int], begins: NDArray[np.int64], size: Sequence[int], item_bytes: int) -> Runs:
    """Return the runs of blocks, which lie within arrays in C order; they are as long as possible.

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
    return Runs(begins @ strides, steps, item_bytes * int(np.prod(size[-axes:], dtype=np.int64)))


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
