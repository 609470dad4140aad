"""Leases: which processes use a cache now. A lease ends with its process, however that ends."""

import os
import weakref
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..system.directory import Directory
from ..system.file_locks import try_lock

MOST = 1024
"""The most processes that may use a cache at once: each has one bit."""

WORDS = MOST // 64
"""The words of 64 bits that they take."""


@final
class Lease:
    """A numbered place in a cache's folder of leases, held by a lock on a file until the process ends.

    Attributes:
        number: between 0 and `MOST - 1`; no other living process has it.
    """

    def __init__(self, number: int, descriptor: int) -> None:
        self.number, self._close = number, weakref.finalize(self, os.close, descriptor)

    def end(self) -> None:
        """Give the place up; in a forked child, close the copy that would keep it for a parent that has died."""
        self._close()


def take(folder: Directory) -> Lease | None:
    """Take a free lease; None if all are held. The caller holds the cache's lock."""
    for number in range(MOST):
        if (descriptor := _lock(folder, number)) is not None:
            return Lease(number, descriptor)
    return None


def as_words(bits: int) -> NDArray[np.uint64]:
    """Return bits of leases as columns have them: uint64 [WORDS]."""
    return np.array([bits >> 64 * word & 0xFFFF_FFFF_FFFF_FFFF for word in range(WORDS)], np.uint64)


def as_bits(words: NDArray[np.uint64]) -> int:
    """Return the bits of leases in words."""
    return sum(int(word) << 64 * place for place, word in enumerate(words))


def held(folder: Directory) -> int:
    """Return which leases are held, as bits. The caller holds the cache's lock."""
    bits = 0
    for name in folder.names():
        if not name.isdecimal() or (number := int(name)) >= MOST:
            continue
        if (descriptor := _lock(folder, number)) is None:
            bits |= 1 << number
        else:
            os.close(descriptor)
    return bits


def _lock(folder: Directory, number: int) -> int | None:
    """Lock a lease's file; return its descriptor, or None if another process holds it."""
    descriptor, locked = folder.open(str(number), os.O_RDWR | os.O_CREAT), False
    try:
        locked = bool(try_lock(descriptor))  # never None: the cache's lock has shown that there are locks
    finally:
        if not locked:
            os.close(descriptor)
    return descriptor if locked else None
