"""Leases: which processes use a cache now. A lease ends with its process, however that ends."""

import fcntl
import os
import weakref
from pathlib import Path
from typing import final

MOST = 64
"""The most processes that may use a cache at once: each has one bit."""


@final
class Lease:
    """A numbered place in a cache's folder of leases, held by a lock on a file until the process ends.

    Attributes:
        number: between 0 and `MOST - 1`; no other living process has it.
    """

    def __init__(self, number: int, descriptor: int) -> None:
        self.number, self._descriptor = number, descriptor
        weakref.finalize(self, os.close, descriptor)


def take(folder: Path) -> Lease | None:
    """Take a free lease; None if all are held. The caller holds the cache's lock."""
    for number in range(MOST):
        if (descriptor := _lock(folder, number)) is not None:
            return Lease(number, descriptor)
    return None


def held(folder: Path) -> int:
    """Return which leases are held, as bits. The caller holds the cache's lock."""
    bits = 0
    for name in os.listdir(folder):
        number = int(name)
        if (descriptor := _lock(folder, number)) is None:
            bits |= 1 << number
        else:
            os.close(descriptor)
    return bits


def _lock(folder: Path, number: int) -> int | None:
    """Lock a lease's file; return its descriptor, or None if another process holds it."""
    descriptor = os.open(folder / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
