"""Batch memory that is used again: fresh pages cost more than the copy into them.

A batch's memory goes back to its pool when nobody refers to it any more, neither to the batch nor to a tensor, array
or view made of it. So a consumer may keep batches as long as it likes, and a loop that drops them reuses the same few.
"""

import weakref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


class BufferPool:
    """Arrays of one shape and dtype, lent out and taken back by reference count.

    Args:
        shape: of each array.
        dtype: NumPy dtype.
        pin: page-lock the memory, for copies to a GPU.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, pin: bool = False) -> None:
        self.shape, self.dtype, self._pin = shape, dtype, pin
        self.size = int(np.prod(shape)) * dtype.itemsize
        self._free: list[NDArray[np.uint8]] = []
        self._keep = 2

    def keep(self, count: int) -> None:
        """How many arrays to keep for the next use."""
        self._keep = count
        del self._free[count:]

    def lend(self) -> NDArray[Any]:
        """An array with whatever its last user left in it."""
        try:
            owner = self._free.pop()
        except IndexError:
            size = self.size
            owner = (
                torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy() if self._pin else np.empty(size, np.uint8)
            )
        # NumPy shortens chains of views to the array that owns the memory. Behind a memoryview it can't, so that every
        # view of the loan, and every tensor, keeps `loan` itself alive; when it goes, the memory is free.
        if not len(owner):
            return np.empty(self.shape, self.dtype)
        loan = np.frombuffer(owner.data, self.dtype)
        weakref.finalize(loan, self._take_back, owner).atexit = False
        return loan.reshape(self.shape)

    def _take_back(self, owner: NDArray[np.uint8]) -> None:
        if len(self._free) < self._keep:
            self._free.append(owner)
