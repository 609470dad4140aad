"""Some samples of a dataset, located in their shards once for all fields that you read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..containers import located_rows
from ..containers.base import Reader
from ..containers.extents import NO_BLOCKS, Blocks, Extent, Runs
from ..containers.located_rows import LocatedRows
from ..containers.out_arrays import check_blocks, check_out, check_value_bytes, part_memory
from ..containers.packed_values import PackedValues, Scratch
from ..containers.row_locator import RowLocator
from ..errors import BadSample, ConfigError, ShardCorrupt
from ..format.fields import Field, describe, length_column
from ..native.rows import MappedFileLost
from ..system.types import Buffer, Rows
from ..views.classes import renumber
from ..views.readable import SelectedSamples, StoredPart
from .shards import Shards

SMALL_ROW = 4096  # bytes; up to this size, one call for many rows and a second copy cost less than a call per row
_NOTHING = nullcontext()
MEASURED = 64  # values held in memory at once to measure their sizes


@final
class Selection(SelectedSamples):
    """Samples to read, in a fixed order; `Dataset.selection` returns it.

    Args:
        shards: the dataset's shards.
        field: returns a field by its name, or raises ConfigError.
        numbers: the number of each sample's shard, int64 [n].
        rows: the row of each sample in its shard, int64 [n].
        max_value_bytes: the most bytes of one value, see `Limits`.
        renumbered: by field, the new numbers that labels get as they are read.
    """

    def __init__(
        self,
        shards: Shards,
        field: Callable[[str], Field],
        numbers: NDArray[np.int64],
        rows: Rows,
        max_value_bytes: int,
        renumbered: Mapping[str, NDArray[np.int64]],
    ) -> None:
        self._shards, self._field, self._rows = shards, field, rows
        self._most, self._renumbered = max_value_bytes, renumbered
        self._fetched: Mapping[str, Extent | None] = {}
        self._located: dict[str, LocatedRows | None] = {}
        self._numbers, self._which = _distinct(numbers)

    @cached_property
    def _readers(self) -> list[Reader] | None:
        """The reader of each shard; None if so many must not be held at once."""
        few = len(self._numbers) <= self._shards.limit // 4
        return [self._shards[number] for number in self._numbers] if few else None

    def locate(self, names: Iterable[str]) -> None:
        """Find the values of some fields, once for all parts of this selection that are taken from then on."""
        for name in names:
            with self._naming_lost_shards(name):
                self._located[name] = self._locate(name)

    def __getitem__(self, part: slice) -> Selection:
        """Return some of the samples, whose values are where `locate` has found them."""
        if self._readers is None:  # of fewer samples they may be held
            numbers = np.array(self._numbers)[self._which[part]]
            return Selection(self._shards, self._field, numbers, self._rows[part], self._most, self._renumbered)
        found = copy.copy(self)
        found._rows, found._which, found._fetched = self._rows[part], self._which[part], {}
        found._located = {name: each and each[part] for name, each in self._located.items()}
        return found

    def stored_parts(self, names: Iterable[str], blocks: Mapping[str, Extent] = NO_BLOCKS) -> Iterator[StoredPart]:
        wanted = self._with_lengths(names)
        if (read_set := self._shards.read_set(self._rows_by_shard(blocks), wanted)) is not None:
            yield read_set, self._local({name: blocks.get(name) for name in wanted})

    @contextmanager
    def _local(self, fetched: Mapping[str, Extent | None]) -> Iterator[None]:
        """Return a `with` block in which some fields, or extents of them, are local."""
        before, self._fetched = self._fetched, {**self._fetched, **fetched}
        try:
            yield
        finally:
            self._fetched = before

    def _with_lengths(self, names: Iterable[str]) -> list[str]:
        """Return names, and the columns that ragged fields among them are compared with."""
        listed = list(names)
        return [*listed, *(length_column(name) for name in listed if self._field(name).has_lengths)]

    def column(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read a field whose values all have one size, of all samples, in the order asked for.

        Args:
            name: a field, or a hidden column (`_checksum`, `_shape.<image>`).
            out: an array to fill, C-contiguous `[n, *shape]` of the field's dtype.

        Returns:
            `out`, or a new array like it.
        """
        field = self._field(name)
        if not field.fixed:
            raise ConfigError(f"the values of field {name!r} differ in size; read it with values()")
        array = check_out(out, len(self._rows), field)
        if array.size:
            with self._fetch_field(name):
                self._read_fixed(name, field, array)
        if name in self._renumbered and (nameless := renumber(array, self._renumbered[name])) is not None:
            shard = self._shards.path(self._numbers[self._which[nameless]])
            raise BadSample(
                "{}, row {}, field {!r}: label {} names no class, so {classes:union} cannot number it by name",
                shard,
                self._rows[nameless],
                name,
                array[nameless],
            )
        return array

    def _read_fixed(self, name: str, field: Field, array: NDArray[Any], blocks: Blocks | None = None) -> None:
        """Fill `array` with values of one size, or a block of each: in one call of compiled code, or by shard."""
        with self._naming_lost_shards(name):
            if (located := self._locate(name)) is not None:
                out = array.reshape(-1).view(np.uint8)
                if blocks is not None:
                    filled = located_rows.read_runs(located, field.row_bytes, blocks.runs(field), out)
                else:
                    filled = located_rows.read_fixed(located, out.reshape(len(array), -1))
                if filled:
                    return
        target = array if len(self._numbers) == 1 else None
        for number, places in self._groups():
            reader, rows = self._shards[number], self._rows[places]
            if blocks is not None:
                found = reader.read_blocks(rows, name, blocks[places], target, most=self._most)
            elif target is not None or field.row_bytes <= SMALL_ROW:
                found = np.asarray(reader.read(rows, name, target, most=self._most))
            else:
                # In the order of their rows, so that those of a chunk are read one after the other.
                for place in places[np.argsort(rows, kind="stable")].tolist():
                    reader.read(self._rows[place : place + 1], name, array[place : place + 1], most=self._most)
                continue
            if target is None:
                array[places] = found

    def blocks(self, name: str, blocks: Blocks, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read a block of each sample's value of a field of one size, see `SelectedSamples.blocks`."""
        field = self._field(name)
        if not field.fixed:
            raise ConfigError(f"the values of field {name!r} differ in size; read parts of them with parts()")
        array = check_blocks(blocks, out, len(self._rows), field)
        if array.shape[1:] == field.row_shape:
            return self.column(name, array)
        if array.size:
            with self._fetch_field(name, blocks):
                self._read_fixed(name, field, array, blocks)
        return array

    def values(self, name: str, scratch: Scratch | None = None) -> Sequence[Buffer]:
        """Read the stored bytes of any other field (images, text, ...) of all samples, in the order asked for.

        With `scratch` they may be `PackedValues`: views of it, valid until it is used again.
        """
        if self._field(name).fixed:
            return super().values(name)  # raises
        with self._fetch_field(name):
            values = self._read_values(name, scratch)
        if self._field(name).has_lengths:
            self._check_lengths(name, values)
        return values

    def parts(
        self, name: str, runs: Runs, out: NDArray[Any] | None = None, scratch: Scratch | None = None
    ) -> NDArray[Any]:
        """Read runs of entries of a ragged field's values, see `SelectedSamples.parts`."""
        field = self._field(name)
        if not field.has_runs:
            raise ConfigError(f"field {name!r} is {describe(field)}: only values of a shape (None, ...) have parts")
        if not runs.are_of(len(self._rows)):
            if (self.column(length_column(name)) < 0).any():
                self.values(name)  # raises the error that names the value
            raise ValueError(f"runs must be of {len(self._rows)} values, with 0 <= begin <= end")

        def memory(count: int) -> NDArray[Any]:
            return part_memory(out, count, field, scratch)

        with self._fetch_field(name, runs):
            with self._naming_lost_shards(name):
                if (located := self._locate(name)) is not None:
                    lengths = self.column(length_column(name))
                    read = located_rows.read_parts(located, lengths, runs, field.entry_bytes, self._most, memory)
                    if read is not None:
                        return read
            self._check_runs(name, field, runs)
            values = [field.entries(value) for value in self.values(name)]
        for place, (value, stop) in enumerate(zip(values, runs.stops.tolist(), strict=True)):
            if len(value) < stop:
                raise ShardCorrupt(f"{self._place(name, place)}: has {len(value)} entries, and is to have {stop}")
        places = runs.repeated(np.arange(len(values))).tolist()
        taken = [values[p][b:e] for p, b, e in zip(places, runs.begins.tolist(), runs.ends.tolist(), strict=True)]
        array = memory(sum(map(len, taken)))
        return np.concatenate(taken, out=array) if taken else array

    def _check_runs(self, name: str, field: Field, runs: Runs) -> None:
        """Raise BadSample for the runs of a value that have too many bytes, though they are in it."""
        sizes = runs.sizes * field.entry_bytes
        inside = runs.stops * field.entry_bytes <= self.sizes(name)
        for place in np.flatnonzero(inside & (sizes > self._most))[:1].tolist():
            check_value_bytes(int(sizes[place]), self._most, self._place(name, place))

    def _check_lengths(self, name: str, values: Sequence[Buffer]) -> None:
        """Raise ShardCorrupt for a value that has not as many entries as its `_length` says."""
        field, column = self._field(name), length_column(name)
        lengths = self.column(column)
        if field.has_runs:
            sizes = values.sizes if isinstance(values, PackedValues) else np.array([len(v) for v in values], np.int64)
            wrong = (sizes // field.entry_bytes != lengths) | (sizes % field.entry_bytes != 0)
        else:
            wrong = np.array([_entries(field, value) for value in values], np.int64) != lengths
        for place in np.flatnonzero(wrong)[:1].tolist():
            raise ShardCorrupt(
                f"{self._place(name, place)}: its {len(values[place])} bytes are no value of length {lengths[place]}, "
                f"which {column!r} states"
            )

    def _place(self, name: str, place: int) -> str:
        shard = self._shards.path(self._numbers[self._which[place]])
        return f"{shard}, field {name!r}, row {self._rows[place]}"

    def _read_values(self, name: str, scratch: Scratch | None) -> Sequence[Buffer]:
        with self._naming_lost_shards(name):
            if (located := self._locate(name)) is not None:
                packed = located_rows.read_values(located, scratch or Scratch(), self._most)
                if packed is not None:
                    return packed if scratch is not None else [bytes(value) for value in packed]
        if len(self._numbers) == 1:
            return list(self._shards[self._numbers[0]].read(self._rows, name, most=self._most))
        values = [b""] * len(self._rows)
        for number, places in self._groups():
            read = self._shards[number].read(self._rows[places], name, most=self._most)
            for place, value in zip(places.tolist(), read, strict=True):
                values[place] = value
        return values

    def sizes(self, name: str) -> NDArray[np.int64]:
        """Return the size in bytes of each stored value, int64 [n].

        The sizes come from the shards' indexes if those hold them; else the values are read and measured.
        """
        field = self._field(name)
        if field.fixed:
            return np.full(len(self._rows), field.row_bytes, np.int64)
        sizes = np.empty(len(self._rows), np.int64)
        for number, places in self._groups():
            reader, rows = self._shards[number], self._rows[places]
            locator = reader.locator(name) if native.library() is not None else None
            with self._naming_lost_shards(name):
                known = None if locator is None else located_rows.value_sizes(locator, rows)
            sizes[places] = _measured(reader, rows, name) if known is None else known
        return sizes

    def _fetch_field(self, name: str, extent: Extent | None = None) -> AbstractContextManager[object]:
        """Return a `with` block that has what reading a field, or an extent of it, needs where readers read it."""
        if not self._shards.in_store:
            return _NOTHING
        if name in self._fetched:
            held = self._fetched[name]
            if held is None or (extent is not None and extent.within(held)):
                return _NOTHING
        return self.fetch([name], NO_BLOCKS if extent is None else {name: extent})

    def _rows_by_shard(self, extents: Mapping[str, Extent]) -> Iterator[tuple[int, Rows, Mapping[str, Extent]]]:
        """Yield the number of each shard, the rows to read of it, and the extents of fields that are not read whole."""
        for number, places in self._groups():
            yield number, self._rows[places], {name: extent[places] for name, extent in extents.items()}

    @contextmanager
    def _naming_lost_shards(self, name: str) -> Iterator[None]:
        """Turn MappedFileLost into a ShardCorrupt that names the shards whose mapped files are lost."""
        try:
            yield
        except MappedFileLost as error:
            lost = list(self._lost_shards(name)) or self._numbers[:1]
            paths = ", ".join(f"{self._shards.path(number)}" for number in lost)
            raise ShardCorrupt(
                f"{paths}, field {name!r}: the file was cut short while it was open, or its storage failed"
            ) from error

    def _lost_shards(self, name: str) -> Iterator[int]:
        """Read from each shard alone, and yield the numbers of those whose mapped files are lost."""
        field, locators = self._field(name), self._locators(name) or ()
        for number, places in self._groups():
            rows = self._rows[places]
            try:
                locator = locators[self._numbers.index(number)]
                alone = LocatedRows.of([locator], np.zeros(len(rows), np.int64), rows)
                if field.fixed:
                    located_rows.read_fixed(alone, np.empty((len(rows), field.row_bytes), np.uint8))
                else:
                    located_rows.read_values(alone, Scratch(), self._most)
            except MappedFileLost:
                yield number

    def _locate(self, name: str) -> LocatedRows | None:
        """Find the values of a field; None if one call cannot read all shards. Raises MappedFileLost."""
        if name in self._located:
            return self._located[name]
        locators = self._locators(name)
        return LocatedRows.of(locators, self._which, self._rows) if locators else None

    def _locators(self, name: str) -> list[RowLocator] | None:
        """Return a locator of the field for each shard; None if one call cannot read all shards."""
        if native.library() is None or self._readers is None:
            return None
        locators = [locator for reader in self._readers if (locator := reader.locator(name)) is not None]
        same_kind = len(locators) == len(self._readers) and len(set(map(type, locators))) == 1
        return locators if same_kind else None

    def _groups(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the number of each shard, and the positions of its samples in this selection."""
        order = np.argsort(self._which, kind="stable")
        ends = np.cumsum(np.bincount(self._which, minlength=len(self._numbers))).tolist()
        for number, start, end in zip(self._numbers, [0, *ends], ends, strict=False):
            if end > start:  # a part of a selection may lack a shard
                yield number, order[start:end]


def _entries(field: Field, value: Buffer) -> int:
    """Return how many entries a value has; -1 if that is unknown."""
    try:
        return field.length_of(value)
    except ValueError:
        return -1


def _measured(reader: Reader, rows: Rows, name: str) -> NDArray[np.int64]:
    """Read values to measure their sizes, a few at a time."""
    parts = (rows[first : first + MEASURED] for first in range(0, len(rows), MEASURED))
    return np.array([len(value) for part in parts for value in reader.read(part, name)], np.int64)


def _distinct(shards: NDArray[np.int64]) -> tuple[list[int], NDArray[np.int64]]:
    """Return the distinct shards, and for each sample the index of its shard among them."""
    if len(shards) and (shards == shards[0]).all():
        return [int(shards[0])], np.zeros(len(shards), np.int64)
    numbers, which = np.unique(shards, return_inverse=True)
    return numbers.tolist(), which.astype(np.int64, copy=False)
