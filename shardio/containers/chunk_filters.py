"""Undoes all filters or codecs of a chunk, one after the other, in memory that the thread's next chunk reuses."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..native import chunks as compiled
from ..system.timing import unpacking
from .chunk_codecs import Bytes, Damaged, Undo, WithStep

Buffers: TypeAlias = tuple[Bytes, Bytes]
"""Two buffers: each filter but the last writes to the one that does not hold its input."""

_KEPT_BYTES = 32 << 20
"""Buffers of up to this size stay with their thread; for larger chunks an allocation costs little in comparison."""


class _Local(threading.local):
    buffers: Buffers | None = None


_local = _Local()


@final
@dataclass(frozen=True, slots=True)
class FilterPipeline:
    """The filters of a dataset, which it undoes to turn stored bytes into a chunk.

    Attributes:
        filters: the name of each, for messages, and what undoes it, in the order in which the writer applied them.
        size: bytes of a chunk.
        steps: the filters as compiled code takes them; None if it does not know one of them.
    """

    filters: tuple[tuple[str, Undo], ...]
    size: int
    steps: NDArray[np.int64] | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        known = [undo.step for _, undo in self.filters if isinstance(undo, WithStep)]
        steps = compiled.table(known) if len(known) == len(self.filters) else None
        object.__setattr__(self, "steps", steps)

    def buffers(self, size: int) -> Buffers:
        """Return this thread's buffers for a chunk of `size` bytes in the file. The thread's next chunk reuses them."""
        size = max(size, self.largest())
        kept = _local.buffers
        if kept is not None and len(kept[0]) >= size:
            return kept
        buffers = np.empty(size, np.uint8), np.empty(size, np.uint8)
        if size <= _KEPT_BYTES:
            _local.buffers = buffers
        return buffers

    def undo(self, buffers: Buffers, size: int, mask: int, out: Bytes | None = None) -> Bytes:
        """Return the chunk whose bytes in the file are the first `size` of the first buffer.

        Args:
            buffers: from `buffers`.
            size: bytes in the file.
            mask: a bit for each filter that the writer skipped.
            out: where to put the chunk, uint8 of a chunk's size; by default it is in one of the buffers.

        Raises:
            Damaged: the filters cannot have produced these bytes; the message names the filter.
        """
        data = buffers[0][:size]
        applied = [step for i, step in enumerate(self.filters) if not mask >> i & 1]
        with unpacking(self.size):
            for left, (name, undo) in zip(range(len(applied) - 1, -1, -1), reversed(applied), strict=True):
                target = buffers[np.may_share_memory(data, buffers[0])][: self.largest() if left else self.size]
                try:
                    data = undo(data, target if left or out is None else out)
                except Damaged as error:
                    raise Damaged(f"{name}: {error}") from error
        if len(data) != self.size:
            names = ", ".join(name for name, _ in applied) or "no filter"
            raise Damaged(f"{names}: {len(data)} of {self.size} bytes")
        if out is None:
            return data
        if not np.may_share_memory(data, out):
            out[:] = data
        return out

    def fill(
        self,
        chunks: NDArray[np.int64],
        names: Sequence[bytes] | None,
        folder: int,
        cut: compiled.Cut,
        out: NDArray[Any],
    ) -> NDArray[np.bool_]:
        """Read chunks and copy parts of them to `out` by compiled code, with `steps`: see `native.chunks.fill`.

        In their files they have at most `largest` bytes.
        """
        assert self.steps is not None
        with unpacking(self.size * int(np.count_nonzero(chunks[:, compiled.SIZE] >= 0))):
            sizes = self.size, self.largest()
            return compiled.fill(chunks, names, folder, self.steps, sizes, self.buffers(0), cut, out)

    def largest(self) -> int:
        """Return the most bytes between filters: codecs and checksums add a little to what does not compress."""
        return self.size + self.size // 8 + 4096
