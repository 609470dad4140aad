"""All filters of a dataset, undone one after the other in memory that the next chunk uses again."""

import threading
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from ._hdf5_codecs import compiled
from ._hdf5_filters import Bytes, Bzip2, Damaged, Deflate, Filter, Fletcher32, Shuffle

Rooms: TypeAlias = tuple[Bytes, Bytes]
"""Two pieces of memory: each filter but the last writes to the one that its data is not in."""

_KEPT_BYTES = 32 << 20
"""Memory up to this size stays with its thread; larger chunks pay for new memory, which is little beside their size."""


@final
@dataclass(frozen=True, slots=True)
class Pipeline:
    """What makes stored bytes a chunk again.

    Attributes:
        filters: in the order of writing.
        size: bytes of a chunk.
    """

    filters: tuple[Filter, ...]
    size: int

    def rooms(self, size: int) -> Rooms:
        """Memory of this thread for a chunk of `size` bytes in the file. The thread's next chunk uses it again."""
        return _rooms(max(size, self._largest()))

    def undo(self, rooms: Rooms, size: int, mask: int, out: Bytes | None = None) -> Bytes:
        """The chunk whose bytes in the file are the first `size` of the first room.

        Args:
            rooms: from `rooms`.
            size: bytes.
            mask: a bit for each filter that was left out.
            out: where the chunk goes, uint8 of a chunk's size; without it, into one of the rooms.

        Raises:
            Damaged: the filters did not make these bytes; the message names them.
        """
        data = rooms[0][:size]
        applied = [step for i, step in enumerate(self.filters) if not mask >> i & 1]
        for left, step in zip(range(len(applied) - 1, -1, -1), reversed(applied), strict=True):
            room = rooms[np.may_share_memory(data, rooms[0])][: self._largest() if left else self.size]
            try:
                data = step.undo(data, room if left or out is None else out)
            except Damaged as error:
                raise Damaged(f"{step.name}: {error}") from error
        if len(data) != self.size:
            names = ", ".join(step.name for step in applied) or "no filter"
            raise Damaged(f"{names}: {len(data)} of {self.size} bytes")
        if out is None:
            return data
        if not np.may_share_memory(data, out):
            out[:] = data
        return out

    def _largest(self) -> int:
        """Between filters: codecs and checksums add a little to what they cannot make smaller."""
        return self.size + self.size // 8 + 4096


def pipeline_of(dataset: Any, size: int) -> Pipeline | None:
    """The filters of an h5py dataset, whose chunks have `size` bytes; None if only libhdf5 can undo one of them."""
    properties = dataset.id.get_create_plist()
    found = []
    for i in range(properties.get_nfilters()):
        code, _, values, _ = properties.get_filter(i)
        step = compiled(code, values) or _python(code, values)
        if step is None:
            return None
        found.append(step)
    return Pipeline(tuple(found), size)


def _python(code: int, values: tuple[int, ...]) -> Filter | None:
    python: dict[int, Filter] = {
        1: Deflate(),
        2: Shuffle(values[0] if values else 0),
        3: Fletcher32(),
        307: Bzip2(),
    }
    return python.get(code)


_local = threading.local()


def _rooms(size: int) -> Rooms:
    """Two rooms of at least `size` bytes each."""
    kept: Rooms | None = getattr(_local, "rooms", None)
    if kept is not None and len(kept[0]) >= size:
        return kept
    made = np.empty(size, np.uint8), np.empty(size, np.uint8)
    if size <= _KEPT_BYTES:
        _local.rooms = made
    return made
