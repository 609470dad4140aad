"""Undoes all filters of a dataset's chunk, one after the other, in memory that the thread's next chunk reuses."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..native import chunks as compiled
from ..system.timing import unpacking
from . import _hdf5_codecs as codecs
from ._hdf5_codecs import Bytes, Damaged, Undo, WithStep

Buffers: TypeAlias = tuple[Bytes, Bytes]
"""Two buffers: each filter but the last writes to the one that does not hold its input."""

_KEPT_BYTES = 32 << 20
"""Buffers of up to this size stay with their thread; for larger chunks an allocation costs little in comparison."""


_local = threading.local()


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
        kept: Buffers | None = getattr(_local, "buffers", None)
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
        """The most bytes between filters: codecs and checksums add a little to what does not compress."""
        return self.size + self.size // 8 + 4096


_FILTERS: dict[int, tuple[str, Callable[[tuple[int, ...]], Undo | None]]] = {
    1: ("deflate", codecs.undo_gzip),
    2: ("shuffle", lambda values: codecs.undo_shuffle(values[0] if values else 0)),
    3: ("fletcher32", lambda _: codecs.undo_fletcher32),
    307: ("bzip2", lambda _: codecs.undo_bzip2),
    32000: ("lzf", codecs.undo_lzf),
    32001: ("blosc", codecs.undo_blosc),
    32004: ("lz4", codecs.undo_lz4),
    32008: ("bitshuffle", codecs.undo_bitshuffle),
    32015: ("zstd", codecs.undo_zstd),
    32026: ("blosc2", codecs.undo_blosc2),
}
"""By HDF5's number of a filter: its name, and a function of its settings that returns what undoes it."""


def pipeline_of(dataset: Any, size: int) -> FilterPipeline | None:
    """Return the filters of an h5py dataset with chunks of `size` bytes; None if only libhdf5 can undo one of them."""
    properties = dataset.id.get_create_plist()
    filters = []
    for i in range(properties.get_nfilters()):
        code, _, values, _ = properties.get_filter(i)
        name, make = _FILTERS.get(code, ("", None))
        try:
            undo = None if make is None else make(values)
        except (ImportError, OSError, AttributeError):
            return None  # its library is not installed, built for another machine, or without the functions
        if undo is None:
            return None
        filters.append((name, undo))
    return FilterPipeline(tuple(filters), size)
