"""Rows of a field of many shards, found by their locators once, and read in one call of compiled code.

`LocatedRows` serve all reads of the rows, or of parts of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ..native import rows as native
from ..system import portable, stopping
from ..system.types import Rows
from .extents import BlockRuns, Runs
from .packed_values import PackedValues, Scratch
from .requested import REQUESTED
from .row_locator import (
    MAPPED_ROW,
    NOT_MAPPED,
    FileMap,
    FileRows,
    LmdbKeys,
    MemoryRows,
    RowLocator,
    SpanTable,
    StackedLocators,
    within,
)


class _Spans(NamedTuple):
    offsets: NDArray[np.int64]
    """Offsets in the files, int64 [n]."""
    sizes: NDArray[np.int64]
    """Bytes, int64 [n]."""
    begin: NDArray[np.int64] | int = 0
    """The offset at which each row's field begins in its file, int64 [n] or one for all."""

    def part(self, rows: slice) -> "_Spans":
        return _Spans(self.offsets[rows], self.sizes[rows])  # which are known to be within their field's data


@final
@dataclass(frozen=True, slots=True)
class LocatedRows:
    """Rows of one field of several shards, found in their files or in memory.

    Attributes:
        locators: the locator of each shard, all of one kind.
        shard_of: for each row the index of its shard's locator, int64 [n].
        rows: its number in that shard, int64 [n].
        addresses: the address in memory of each row of one size, int64 [n]; None if they are in no memory.
        spans: the span of each row in its file, within its field's data; None if any is not, or if rows are in memory.
    """

    locators: Sequence[RowLocator]
    shard_of: NDArray[np.int64]
    rows: Rows
    addresses: NDArray[np.int64] | None
    spans: _Spans | None
    _files: "dict[bool, _Files]" = field(default_factory=dict)

    @classmethod
    def of(cls, locators: Sequence[RowLocator], shard_of: NDArray[np.int64], rows: Rows) -> "LocatedRows":
        """Find rows. Raises MappedFileLost if a mapped file is lost."""
        in_memory = all(
            isinstance(each, MemoryRows) or (isinstance(each, FileRows) and each.address) for each in locators
        )
        addresses = _entries(locators, shard_of, rows) if in_memory else None
        spans = _locate(locators, shard_of, rows)
        inside = spans is not None and _all_within(locators, shard_of, spans)
        return cls(locators, shard_of, rows, addresses, spans if inside else None)

    def __getitem__(self, part: slice) -> "LocatedRows":
        addresses = None if self.addresses is None else self.addresses[part]
        spans = None if self.spans is None else self.spans.part(part)
        return LocatedRows(self.locators, self.shard_of[part], self.rows[part], addresses, spans, self._files)

    def files(self, *, mapped: bool) -> "_Files":
        """Return the shards' files, in memory if they are `mapped`. Parts of the rows share them."""
        if (known := self._files.get(mapped)) is None:
            known = self._files[mapped] = _Files.of(self.locators, mapped=mapped)
        return known


@final
@dataclass(frozen=True, slots=True)
class _Files:
    """Files of shards, as `native.read` takes them, and what keeps their memory alive."""

    files: NDArray[np.int32]
    maps: NDArray[np.int64]
    most: NDArray[np.int64]
    populated: NDArray[np.int64]
    owners: Sequence[FileMap]

    @classmethod
    def of(cls, locators: Sequence[RowLocator], *, mapped: bool) -> "_Files":
        in_files = [each for each in locators if not isinstance(each, MemoryRows | StackedLocators)]
        found = [each.map() if mapped else NOT_MAPPED for each in in_files]
        columns = [(each.address, each.most, each.populated) for each in found]
        maps, most, populated = np.array(columns, np.int64).reshape(-1, 3).T.copy()
        return cls(np.array([each.file for each in in_files], np.int32), maps, most, populated, found)


def read_fixed(located: LocatedRows, out: NDArray[np.uint8]) -> bool:
    """Read rows of a fixed field into `out` [n, row bytes], C-contiguous.

    Returns:
        False if anything is wrong: `Reader.read` then raises the error that explains it.
    """
    locators, shard_of, rows = located.locators, located.shard_of, located.rows
    if isinstance(locators[0], StackedLocators):
        inner, variables = _variables(locators)
        which = (shard_of[:, None] * variables + np.arange(variables)).reshape(-1)
        own = out.reshape(len(which), out.shape[1] // variables)
        return bool(inner) and read_fixed(LocatedRows.of(inner, which, np.repeat(rows, variables)), own)
    count, size = out.shape
    REQUESTED.add(out.size)
    if located.addresses is not None and isinstance(locators[0], MemoryRows):
        native.gather(located.addresses, size, out)
        return True
    spans = located.spans
    if spans is None or (spans.sizes != size).any():
        return False
    if isinstance(locators[0], LmdbKeys) and size <= MAPPED_ROW:
        native.gather(_column(locators, "address", shard_of) + spans.offsets, size, out)
        return True
    if located.addresses is not None:
        files = located.files(mapped=False).files[shard_of]
        populated = _column(locators, "populated", shard_of) + rows
        if native.copy_large_rows(located.addresses, populated, files, spans.offsets + size, size, out):
            return True
    return _copy(located, spans, np.arange(0, count * size, size), out.reshape(-1), mapped=False)


def read_runs(located: LocatedRows, row_bytes: int, runs: BlockRuns, out: NDArray[np.uint8]) -> bool:
    """Read runs within rows of a fixed field end to end into `out`, uint8, C-contiguous.

    Returns:
        False if anything is wrong: `Reader.read_blocks` then raises the error that explains it.
    """
    if isinstance(located.locators[0], StackedLocators):
        return _read_stacked_runs(located, row_bytes, runs, out)
    if isinstance(located.locators[0], MemoryRows) and located.addresses is not None:
        native.gather((located.addresses[:, None] + runs.offsets).reshape(-1), runs.size, out)
    else:
        spans = located.spans
        if spans is None or (spans.sizes != row_bytes).any():
            return False
        first = _Spans(spans.offsets + runs.begins, np.full(len(runs.begins), runs.size))
        targets = np.arange(0, out.size, runs.size * len(runs.steps))
        if not _copy(located, first, targets, out, steps=runs.steps, ahead=True):
            return False
    REQUESTED.add(out.size)
    return True


def _read_stacked_runs(located: LocatedRows, row_bytes: int, runs: BlockRuns, out: NDArray[np.uint8]) -> bool:
    """Do as `read_runs` of rows of stacks: each run is one of a variable, or of several whole ones."""
    rows = located.rows
    inner, variables = _variables(located.locators)
    size = row_bytes // variables
    offsets = runs.offsets
    if runs.size > size:
        whole = runs.size // size
        offsets = (offsets[..., None] + size * np.arange(whole)).reshape(len(rows), whole * offsets.shape[1])
    if not inner:
        return False
    which = (located.shard_of[:, None] * variables + offsets // size).reshape(-1)
    own = BlockRuns((offsets % size).reshape(-1), np.zeros(1, np.int64), min(runs.size, size))
    return read_runs(LocatedRows.of(inner, which, np.repeat(rows, offsets.shape[1])), size, own, out)


def read_values(located: LocatedRows, memory: Scratch, most: int) -> PackedValues | None:
    """Read the values of a field that is not fixed, of at most `most` bytes each, into `memory`.

    Returns:
        None if anything is wrong: `Reader.read` then raises the error that explains it.
    """
    if (spans := located.spans) is None:
        return None
    sizes = spans.sizes
    if len(sizes) and sizes.max() > most:
        return None
    ends = sizes.cumsum()
    targets = ends - sizes
    data = memory.take(int(ends[-1]) if len(ends) else 0)
    return PackedValues(data, targets, sizes) if _copy(located, spans, targets, data) else None


def read_parts(
    located: LocatedRows,
    lengths: NDArray[np.int64],
    runs: Runs,
    entry_bytes: int,
    most: int,
    memory: Callable[[int], NDArray[Any]],
) -> NDArray[Any] | None:
    """Read runs of entries of values of a ragged field.

    Args:
        located: the values.
        lengths: how many entries each value is to have, int64 [n].
        runs: the runs.
        entry_bytes: bytes per entry.
        most: the most bytes of a value's runs.
        memory: returns the array to fill, C-contiguous, for a number of entries.

    Returns:
        That array; None if anything is wrong: `Reader.read` then raises the error that explains it.
    """
    if (spans := located.spans) is None:
        return None
    entries = spans.sizes // entry_bytes
    if (entries != lengths).any() or (entries < runs.stops).any() or (spans.sizes != entries * entry_bytes).any():
        return None
    if len(runs) and runs.sizes.max() * entry_bytes > most:
        return None
    counts = runs.ends - runs.begins
    stops = np.cumsum(counts)
    out = memory(int(stops[-1]) if len(stops) else 0)
    parts = _Spans(runs.repeated(spans.offsets) + runs.begins * entry_bytes, counts * entry_bytes)
    targets = (stops - counts) * entry_bytes
    done = _copy(located, parts, targets, out.reshape(-1).view(np.uint8), shard_of=runs.repeated(located.shard_of))
    return out if done else None


def locate(locator: RowLocator, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the offset and size of each row of one shard, both int64 [n]; None if any row cannot be found."""
    spans = _locate([locator], np.zeros(len(rows), np.int64), rows)
    return None if spans is None else spans[:2]


def file_spans(locator: RowLocator, rows: Rows, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return which bytes of the shard's file reading rows of one shard takes.

    Args:
        locator: the locator of the field.
        rows: the rows, int64 [n].
        size: the bytes of a row, for rows of one size.

    Returns:
        Offsets and sizes, int64 [n]; none if the rows are not in that file. None if any row cannot be found.
    """
    match locator:
        case MemoryRows(base=None):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        case MemoryRows(base=int(base), stride=stride):
            return base + rows * stride, np.full(len(rows), size)
        case _:
            return locate(locator, rows)


def value_sizes(locator: RowLocator, rows: Rows) -> NDArray[np.int64] | None:
    """Return the stored bytes of each row of one shard, int64 [n].

    Returns:
        None if any row cannot be found, or is not within the field's data.
    """
    shard_of = np.zeros(len(rows), np.int64)
    spans = _locate([locator], shard_of, rows)
    return spans.sizes if spans is not None and _all_within([locator], shard_of, spans) else None


def read_ahead(locator: RowLocator, start: int, stop: int) -> None:
    """Ask the kernel to read rows start..stop-1 ahead, with whatever other fields are between them."""
    if isinstance(locator, StackedLocators):
        for variable in locator.variables:
            read_ahead(variable, start, stop)
        return
    shard_of = np.zeros(2, np.int64)
    spans = _locate([locator], shard_of, np.array([start, stop - 1]))
    if spans is not None and not isinstance(locator, MemoryRows) and _all_within([locator], shard_of, spans):
        (first, last), size = spans.offsets.tolist(), int(spans.sizes[1])
        if first <= last:
            portable.advise(locator.file, first, last + size - first, "willneed")


def _variables(locators: Sequence[Any]) -> tuple[list[RowLocator], int]:
    """Return the locators of all variables of stacks, none if one call cannot read them, and how many a stack has."""
    inner = [variable for stack in locators for variable in stack.variables]
    return inner if len(set(map(type, inner))) == 1 else [], len(locators[0].variables)


def _column(locators: Sequence[RowLocator], attribute: str, shard_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an attribute of each row's locator, int64 [n]."""
    return np.array([getattr(locator, attribute) for locator in locators], np.int64)[shard_of]


def _entries(locators: Sequence[Any], shard_of: NDArray[np.int64], rows: Rows) -> NDArray[np.int64]:
    """Return the address in memory of each row, or of its entry in a table."""
    stride = locators[0].stride if len(locators) == 1 else _column(locators, "stride", shard_of)
    return _column(locators, "address", shard_of) + rows * stride


def _locate(locators: Sequence[RowLocator], shard_of: NDArray[np.int64], rows: Rows) -> _Spans | None:
    """Return the span of each row in its file; None if any cannot be found, or if rows are in memory."""
    spans = np.empty((len(rows), 2), np.int64)
    match locators[0]:
        case FileRows(stride=stride):
            begin = _column(locators, "base", shard_of)
            return _Spans(begin + rows * stride, np.full(len(rows), stride), begin)
        case LmdbKeys(suffix=suffix):
            keys = np.empty((len(rows), 8 + len(suffix)), np.uint8)
            keys[:, :8] = (_column(locators, "first", shard_of) + rows).astype(">u8").view(np.uint8).reshape(-1, 8)
            keys[:, 8:] = np.frombuffer(suffix, np.uint8)
            maps, sizes = _column(locators, "address", shard_of), _column(locators, "limit", shard_of)
            return _Spans(spans[:, 0], spans[:, 1]) if native.find_lmdb_values(maps, sizes, keys, spans) else None
        case SpanTable(has_ends=has_ends, unit=unit):
            native.gather(_entries(locators, shard_of, rows), 2 * spans.itemsize, spans)
            begin = _column(locators, "base", shard_of)
            sizes = spans[:, 1] - spans[:, 0] if has_ends else spans[:, 1]
            if unit == 1:
                return _Spans(spans[:, 0] + begin, sizes, begin)
            # Before they are multiplied, which could make a place within the data of one outside.
            ends = (_column(locators, "limit", shard_of) - begin) // unit
            if not within(spans[:, 0], sizes, 0, ends).all():
                return None
            return _Spans(spans[:, 0] * unit + begin, sizes * unit, begin)
        case _:
            return None


def _all_within(locators: Sequence[RowLocator], shard_of: NDArray[np.int64], spans: _Spans) -> bool:
    limits = _column(locators, "limit", shard_of)
    return bool(within(spans.offsets, spans.sizes, spans.begin, limits).all())


def _copy(
    located: LocatedRows,
    spans: _Spans,
    targets: NDArray[np.int64],
    out: NDArray[np.uint8],
    *,
    shard_of: NDArray[np.int64] | None = None,
    steps: NDArray[np.int64] | None = None,
    mapped: bool = True,
    ahead: bool = False,
) -> bool:
    """Read spans that are within their field's data to `out[targets[i]:]`; False if any cannot be read.

    `shard_of` is the shard of each span if these aren't the rows. With `steps`, each span is the first of several: see
    `native.read`. They come from memory if files are `mapped`; with `ahead`, the kernel is asked for all of them first.
    """
    columns = located.shard_of if shard_of is None else shard_of, spans.offsets, spans.sizes, targets
    which, offsets, sizes, starts = (np.ascontiguousarray(column, np.int64) for column in columns)
    shards = located.files(mapped=mapped)
    if ahead:
        native.read_ahead(which, shards.files, shards.populated, offsets, sizes, steps)
    if native.read(which, shards.files, shards.maps, shards.most, shards.populated, offsets, sizes, starts, out, steps):
        return True
    stopping.check()
    return False
