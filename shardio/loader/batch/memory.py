"""Reusable memory of batches: the first use of fresh pages costs more than the copy into them.

A batch's memory returns to its pool when nothing refers to it any more: neither the batch nor a tensor, array or view
of it. You may keep batches as long as you like; a loop that drops them cycles through the same few buffers.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray

from ...containers.packed_values import Scratch
from ...system import allocation, background
from ...system.background import Departures, call_when_gone

PAGE = 4096  # bytes that the system hands out at once
LARGE = 16 << 20  # bytes of a set of arrays whose first use takes longer than a thread's start

ArrayLayout: TypeAlias = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""The shape and dtype of an array, by field."""


@final
class BufferPool:
    """Lends arrays of one dtype and shape of row, and takes each back when its last reference is gone.

    Args:
        shape: the shape of each array; of one with more rows, all axes but the first.
        dtype: their NumPy dtype.
        pin: whether to page-lock the memory, for copies to a GPU.

    Attributes:
        size: bytes of an array.
        made: the number of arrays made until now.
        kept: how many free arrays are kept for the next use.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, pin: bool = False) -> None:
        self.shape, self.dtype, self._pin = shape, dtype, pin
        self.size = math.prod(shape) * dtype.itemsize
        self.made, self.kept = 0, 2
        self._free: list[NDArray[np.uint8]] = []
        self._returned: Departures[NDArray[np.uint8]] = Departures()

    def keep(self, count: int) -> None:
        """Set how many free arrays to keep for the next use."""
        self.kept = count
        del self._free[count:]

    def lend(self, rows: int | None = None) -> NDArray[Any]:
        """Return an array of as many rows, by default those of the pool's shape, whose content is undefined."""
        shape = self.shape if rows is None else (rows, *self.shape[1:])
        count = math.prod(shape)
        if not count:
            return np.empty(shape, self.dtype)
        self._take_back()
        owner = self._owner(count * self.dtype.itemsize)
        # NumPy makes a view of a view refer to the array that owns the memory. A memoryview in between prevents that:
        # every view and tensor of the loan keeps `loan` itself alive, and when `loan` is deleted, the memory is free.
        loan = np.frombuffer(owner.data, self.dtype, count)
        self._returned.watch(loan, owner)
        return loan.reshape(shape)

    def prepare(self, count: int) -> None:
        """Make arrays and use them once, until so many were made."""
        while self.size and self.made < count:
            owner = self._make(self.size)
            owner[::PAGE] = 0
            self._add(owner)

    def end_loop(self) -> None:
        """Take arrays on loan back as soon as they are gone, and not when the next one is lent: the loop is over.

        As many of the last loans as are kept anyway wait for the next one, which may be ahead of its loop.
        """
        self._take_back()
        for loan, owner in self._returned.forget(but=max(0, self.kept - len(self._free))):
            call_when_gone(loan, self._add, owner)

    def _owner(self, size: int) -> NDArray[np.uint8]:
        """Return free memory of at least `size` bytes; if none is as large, replace the smallest by new memory."""
        for number, owner in enumerate(self._free):
            if len(owner) >= size:
                return self._free.pop(number)
        if self._free:
            self._free.pop(min(range(len(self._free)), key=lambda number: len(self._free[number])))
        return self._make(self.size if size <= self.size else 1 << (size - 1).bit_length())

    def _make(self, size: int) -> NDArray[np.uint8]:
        self.made += 1
        if self._pin:
            return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        return allocation.empty((size,), np.dtype(np.uint8))

    def _take_back(self) -> None:
        for owner in self._returned.collect():
            self._add(owner)

    def _add(self, owner: NDArray[np.uint8]) -> None:
        if len(self._free) < self.kept:
            self._free.append(owner)


@final
class BatchMemory:
    """The memory of a loader's batches: a pool of arrays for each field.

    Args:
        layout: the shape and dtype of each field's array.
        pin: whether to page-lock the memory, for copies to a GPU.

    Attributes:
        size: bytes of a set of arrays.
        filled_first: the number of jobs that have filled new arrays.
    """

    def __init__(self, layout: ArrayLayout, *, pin: bool = False) -> None:
        self._pools = {name: BufferPool(shape, dtype, pin=pin) for name, (shape, dtype) in layout.items()}
        self.size = sum(pool.size for pool in self._pools.values())
        self.filled_first = 0

    @property
    def made(self) -> int:
        """The number of arrays made until now, without those beyond what is kept: a loop that holds its batches needs
        new ones for ever."""
        return sum(min(pool.made, pool.kept) for pool in self._pools.values())

    def keep(self, count: int) -> None:
        """Set how many sets of arrays to keep for the next use."""
        for pool in self._pools.values():
            pool.keep(count)

    def prepare(self, count: int) -> None:
        """Make sets of arrays in the background until there are `count`, if they are large.

        Otherwise each new one is made while a batch waits for it, which may be the last one only after many steps.
        """
        if self.size >= LARGE and any(pool.size and pool.made < count for pool in self._pools.values()):
            background.start(partial(self._prepare, count))

    def _prepare(self, count: int) -> None:
        with suppress(MemoryError, RuntimeError):  # `lend` says it in words if it needs more than there is
            for pool in self._pools.values():
                pool.prepare(count)

    def lend(self, rows: int | None = None) -> dict[str, NDArray[Any]]:
        """Return an array for each field, of as many rows, by default those of the layout; the content is undefined."""
        try:
            return {name: pool.lend(rows) for name, pool in self._pools.items()}
        except MemoryError as error:
            parts = ", ".join(f"{name} {pool.shape} of {pool.dtype}" for name, pool in self._pools.items())
            raise MemoryError(f"there is not enough memory for {self.size} bytes of batches: {parts}") from error

    def end_loop(self) -> None:
        """Take memory on loan back as soon as it is gone; the loop is over."""
        for pool in self._pools.values():
            pool.end_loop()


@final
class ScratchPool:
    """Lends scratch memory for stored values; it outlives the threads of an epoch."""

    def __init__(self) -> None:
        self._free: deque[Scratch] = deque()
        self._held: Departures[list[Scratch]] = Departures()

    @contextmanager
    def lend(self) -> Iterator[Scratch]:
        """Lend scratch to the calling thread alone for the `with` block."""
        scratch = self.take()
        try:
            yield scratch
        finally:
            self.give_back(scratch)

    def take(self) -> Scratch:
        """Return scratch that only the caller uses until it gives it back."""
        for scratches in self._held.collect():
            self._free.extend(scratches)
        try:
            return self._free.pop()
        except IndexError:
            return Scratch()

    def give_back(self, scratch: Scratch) -> None:
        self._free.append(scratch)

    def give_back_when_gone(self, thing: object, scratches: list[Scratch]) -> None:
        """Take the scratches back that are in the list when `thing` is gone."""
        self._held.watch(thing, scratches)

    def __reduce__(self) -> tuple[Any, ...]:
        return ScratchPool, ()  # memory stays in its process
