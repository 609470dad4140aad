"""Decompressed chunks that a process keeps, as the rows that it reads next may be in them as well."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..system.background import Departures
from ..system.forks import reset_in_children

MOST_BYTES = 256 << 20
"""The bytes of chunks that a process keeps at most."""

Chunk: TypeAlias = NDArray[np.uint8]


@final
@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """The cost of reading one row of a dataset whose chunks hold several rows.

    Attributes:
        rows: the rows of a chunk.
        size: the bytes of all chunks that hold parts of one row.
        kept: whether the process keeps them for the next rows.
    """

    rows: int
    size: int
    kept: bool


class _Slot:
    """The place of a chunk, which one thread fills while others wait."""

    __slots__ = ("chunk", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.chunk: Chunk | None = None


@final
class ChunkCache:
    """Keeps the chunks that were used last, up to `most` bytes. Any number of threads may use it at once.

    A chunk of more than half of `most` is not kept: it would drive out all others.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._numbers = count()
        self._gone: Departures[int] = Departures()
        self.reset_in_child()
        reset_in_children(self)

    def reset_in_child(self) -> None:
        """Forget all chunks; another thread of the parent may have held the locks."""
        self._lock = threading.Lock()
        self._slots: OrderedDict[tuple[int, Hashable], _Slot] = OrderedDict()
        self.used = 0

    def holds(self, size: int) -> bool:
        """Return whether chunks of `size` bytes are kept."""
        return size <= self.most // 2

    def number_of(self, owner: object) -> int:
        """Return a number for an owner of chunks, which are forgotten once it is gone."""
        number = next(self._numbers)
        self._gone.watch(owner, number)
        return number

    def get(self, owner: int, key: Hashable, make: Callable[[], Chunk]) -> Chunk:
        """Return a chunk of an owner; `make` makes it unless it is kept. Nobody may change it.

        Threads that ask for the same chunk meanwhile wait for it. Raises what `make` raises.
        """
        name = owner, key
        with self._lock:
            self._forget(set(self._gone.collect()))
            slot = self._slots.setdefault(name, _Slot())
            self._slots.move_to_end(name)
        with slot.lock:
            if slot.chunk is None:
                try:
                    slot.chunk = make()
                finally:
                    self._settle(name, slot)
            return slot.chunk

    def _settle(self, name: tuple[int, Hashable], slot: _Slot) -> None:
        """Count a new chunk, and drop those that were used longest ago; drop the slot if there is no chunk."""
        with self._lock:
            if self._slots.get(name) is not slot:
                return  # so many came after it that it was dropped already
            if slot.chunk is None:
                del self._slots[name]
                return
            self.used += len(slot.chunk)
            while self.used > self.most:
                _, dropped = self._slots.popitem(last=False)
                self.used -= 0 if dropped.chunk is None else len(dropped.chunk)

    def _forget(self, owners: set[int]) -> None:
        for name in [name for name in self._slots if name[0] in owners] if owners else ():
            dropped = self._slots.pop(name)
            self.used -= 0 if dropped.chunk is None else len(dropped.chunk)


CHUNKS = ChunkCache(MOST_BYTES)
"""The chunks of this process."""
