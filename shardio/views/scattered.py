"""Samples of several datasets in one order, or of one that lacks some, read as if they were of one dataset."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..containers.extents import NO_BLOCKS, Blocks, Extent, Runs
from ..containers.out_arrays import check_blocks, check_out, part_memory
from ..containers.packed_values import Scratch
from ..format.fields import sum_column
from ..format.packets import sum_of
from ..system.types import Buffer
from .readable import SelectedSamples, StoredPart


class Delegating(SelectedSamples):
    """Samples to read, each field of which another selection has."""

    @abstractmethod
    def _of(self, name: str) -> tuple[SelectedSamples, str]:
        """Return the selection that has a field or hidden column, and its name there."""

    def column(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        selection, own = self._of(name)
        return selection.column(own, out)

    def values(self, name: str, scratch: Scratch | None = None) -> Sequence[Buffer]:
        selection, own = self._of(name)
        return selection.values(own, scratch)

    def parts(
        self, name: str, runs: Runs, out: NDArray[Any] | None = None, scratch: Scratch | None = None
    ) -> NDArray[Any]:
        selection, own = self._of(name)
        return selection.parts(own, runs, out, scratch)

    def blocks(self, name: str, blocks: Blocks, out: NDArray[Any] | None = None) -> NDArray[Any]:
        selection, own = self._of(name)
        return selection.blocks(own, blocks, out)

    def sizes(self, name: str) -> NDArray[np.int64]:
        selection, own = self._of(name)
        return selection.sizes(own)


@final
class ScatteredSelection(SelectedSamples):
    """Samples of several datasets to read, in a fixed order: a selection of each, and its rows in that order.

    Rows of no selection have zeros or no bytes, as samples that lack the value of an optional field do.
    """

    def __init__(self, field: Any, count: int, parts: Sequence[tuple[SelectedSamples, NDArray[np.int64]]]) -> None:
        self._field, self._count, self._parts = field, count, parts

    def locate(self, names: Iterable[str]) -> None:
        fields = list(names)
        for part, _ in self._parts:
            part.locate(fields)

    def __getitem__(self, part: slice) -> Any:
        start, stop, _ = part.indices(self._count)
        cuts = [(each, rows, slice(*np.searchsorted(rows, (start, stop)).tolist())) for each, rows in self._parts]
        parts = [(each[cut], rows[cut] - start) for each, rows, cut in cuts if cut.start < cut.stop]
        return scattered(self._field, stop - start, parts)

    def stored_parts(self, names: Iterable[str], blocks: Mapping[str, Extent] = NO_BLOCKS) -> Iterator[StoredPart]:
        fields = list(names)
        for part, rows in self._parts:
            yield from part.stored_parts(fields, {name: each[rows] for name, each in blocks.items()})

    def column(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        array = self._blank(name, check_out(out, self._count, self._field(name)))
        for part, rows in self._parts:
            array[rows] = part.column(name)
        return array

    def blocks(self, name: str, blocks: Blocks, out: NDArray[Any] | None = None) -> NDArray[Any]:
        array = self._blank(name, check_blocks(blocks, out, self._count, self._field(name)))
        for part, rows in self._parts:
            array[rows] = part.blocks(name, blocks[rows])
        return array

    def _blank(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        if sum(len(rows) for _, rows in self._parts) < self._count:
            array[...] = sum_of(b"") if name.startswith(sum_column("")) else 0
        return array

    def values(self, name: str, scratch: Scratch | None = None) -> Sequence[Buffer]:
        values: list[Buffer] = [b""] * self._count
        for part, rows in self._parts:
            for row, value in zip(rows.tolist(), part.values(name), strict=True):
                values[row] = value
        return values

    def parts(
        self, name: str, runs: Runs, out: NDArray[Any] | None = None, scratch: Scratch | None = None
    ) -> NDArray[Any]:
        read = [part.parts(name, runs[rows]) for part, rows in self._parts]
        stops = np.cumsum(runs.sizes)
        starts = stops - runs.sizes
        array = part_memory(out, int(stops[-1]) if len(stops) else 0, self._field(name), scratch)
        for (_, rows), entries in zip(self._parts, read, strict=True):
            done = 0
            for start, stop in zip(starts[rows].tolist(), stops[rows].tolist(), strict=True):
                array[start:stop] = entries[done : done + stop - start]
                done += stop - start
        return array

    def sizes(self, name: str) -> NDArray[np.int64]:
        sizes = np.full(self._count, len(self._field(name).blank))
        for part, rows in self._parts:
            sizes[rows] = part.sizes(name)
        return sizes


def scattered(field: Any, count: int, parts: Sequence[tuple[SelectedSamples, NDArray[np.int64]]]) -> SelectedSamples:
    """Return the selection of all parts; of a single one that has all rows, that itself."""
    return parts[0][0] if len(parts) == 1 and len(parts[0][1]) == count else ScatteredSelection(field, count, parts)
