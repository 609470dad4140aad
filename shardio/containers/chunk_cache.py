"""Decompressed chunks that a process keeps for the next reads, of HDF5 and of Zarr."""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import count
from typing import NamedTuple, final

from ..system.background import Departures
from ..system.forks import reset_in_children
from .chunk_codecs import Bytes

MOST_BYTES = 256 << 20
"""The bytes of chunks that a process keeps at most."""

_RARE = 4  # with four times as many bytes as are kept, a row in random order finds its chunk once in four times


class _Slot:
    """A slot for a chunk: one thread fills it while others wait."""

    __slots__ = ("chunk", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.chunk: Bytes | None = None


class Claimed(NamedTuple):
    """Chunks of a `ChunkCache` for one caller.

    Attributes:
        chunks: the bytes of each chunk; None if it is not kept.
        made: what the caller makes, by its index in `chunks`: None before, and if that fails. Another thread makes the
            chunks that are neither kept nor here.
    """

    chunks: list[Bytes | None]
    made: dict[int, Bytes | None]


@final
class ChunkCache:
    """Keeps the chunks that were used last, up to `most` bytes. Any number of threads may use it at once.

    A chunk of more than half of `most` is not kept: it would drive out all others.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._numbers = count()
        self._gone: Departures[int] = Departures()
        self._sizes: dict[int, int] = {}
        self._known = 0
        self.reset_in_child()
        reset_in_children(self)

    def reset_in_child(self) -> None:
        """Forget all chunks; another thread of the parent may have held the locks."""
        self._lock = threading.Lock()
        self._slots: OrderedDict[tuple[int, Hashable], _Slot] = OrderedDict()
        self.used = 0

    def holds(self, size: int, rows: int = 2) -> bool:
        """Return whether chunks of `size` bytes, which hold parts of so many rows, are kept.

        Those of one row are not if all owners together have many times what is kept: rows in random order find so few
        that keeping costs more.
        """
        if size > self.most // 2 or rows > 1:
            return size <= self.most // 2
        with self._lock:
            self._forget(set(self._gone.collect()))
            return self._known <= _RARE * self.most

    def number_of(self, owner: object, size: int) -> int:
        """Return a number for an owner of chunks, `size` bytes in all, which are forgotten once it is gone."""
        number = next(self._numbers)
        with self._lock:
            self._sizes[number] = size
            self._known += size
        self._gone.watch(owner, number)
        return number

    def get(self, owner: int, key: Hashable, make: Callable[[], Bytes]) -> Bytes:
        """Return a chunk of an owner; `make` makes it unless it is kept. Nobody may change it.

        Threads that ask for the same chunk meanwhile wait for it. Raises what `make` raises.
        """
        name = owner, key
        with self._lock:
            self._forget(set(self._gone.collect()))
            slot = self._slots.setdefault(name, _Slot())
            self._slots.move_to_end(name)
        with slot.lock:
            if (chunk := slot.chunk) is None:
                try:
                    chunk = make()
                finally:
                    self._settle([(name, slot, chunk)])
            return chunk

    @contextlib.contextmanager
    def claimed(self, owner: int, keys: Sequence[Hashable]) -> Iterator["Claimed"]:
        """Find chunks of an owner, different ones, and let the caller make those that nobody has or makes.

        Other threads that ask for these wait until the block ends, within which the caller asks for no other chunks.
        """
        names = [(owner, key) for key in keys]
        with self._lock:
            self._forget(set(self._gone.collect()))
            slots = []
            for name in names:
                if (slot := self._slots.get(name)) is None:
                    slot = self._slots[name] = _Slot()  # at the end
                else:
                    self._slots.move_to_end(name)
                slots.append(slot)
        found, mine = Claimed([slot.chunk for slot in slots], {}), []
        try:
            for number, slot in enumerate(slots):
                if found.chunks[number] is None and slot.lock.acquire(blocking=False):
                    mine.append(number)
                    if slot.chunk is None:
                        found.made[number] = None
                    else:  # it was made meanwhile
                        found.chunks[number] = slot.chunk
            yield found
        finally:
            self._settle([(names[number], slots[number], chunk) for number, chunk in found.made.items()])
            for number in mine:
                slots[number].lock.release()

    def _settle(self, made: Sequence[tuple[tuple[int, Hashable], _Slot, Bytes | None]]) -> None:
        """Keep and count new chunks, and drop those used longest ago; drop the slots for which there are none."""
        with self._lock:
            for name, slot, chunk in made:
                slot.chunk = chunk
                if self._slots.get(name) is not slot:
                    continue  # so many came after it that it was dropped already
                if chunk is None:
                    del self._slots[name]
                else:
                    self.used += len(chunk)
            while self.used > self.most:
                _, dropped = self._slots.popitem(last=False)
                self.used -= 0 if dropped.chunk is None else len(dropped.chunk)

    def _forget(self, owners: set[int]) -> None:
        self._known -= sum(self._sizes.pop(owner, 0) for owner in owners)
        for name in [name for name in self._slots if name[0] in owners] if owners else ():
            dropped = self._slots.pop(name)
            self.used -= 0 if dropped.chunk is None else len(dropped.chunk)


CHUNKS = ChunkCache(MOST_BYTES)
"""The chunks of this process."""
