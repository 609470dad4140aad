"""Some samples of a dataset, located in their shards once, whichever of their fields you then read."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..containers import row_locator
from ..containers.base import Reader, check_out
from ..containers.row_locator import Scratch
from ..errors import ConfigError, ShardCorrupt
from ..format.fields import Field
from ..native.rows import MappedFileLost
from ..system.types import Buffer, Rows

SMALL_ROW = 4096  # bytes: below it, one call for many rows and a second copy cost less than a call for each row
MEASURED = 64  # values that are in memory at once for nothing but their sizes


@final
class Selection:
    """Samples to read, in a fixed order. `Dataset.select` makes it.

    Args:
        field: returns a field by its name, or raises ConfigError.
        reader: returns a shard's reader by its number.
        path: returns a shard's path by its number, for messages.
        most: how many readers may be held at once.
        shards, rows: where each sample is, int64 [n].
    """

    def __init__(
        self,
        field: Callable[[str], Field],
        reader: Callable[[int], Reader],
        path: Callable[[int], str],
        most: int,
        shards: NDArray[np.int64],
        rows: Rows,
    ) -> None:
        self._field = field
        self._reader = reader
        self._path = path
        self._rows = rows
        self._numbers, self._which = _distinct(shards)
        self._readers = [reader(number) for number in self._numbers] if len(self._numbers) <= most else None

    def column(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read a scalar, or an array of one shape, of all samples, in the order that they were asked for.

        Args:
            name: a field, or a hidden column (`_checksum`, `_shape.<image>`).
            out: an array to fill, C-contiguous `[n, *shape]` of the field's dtype.

        Returns:
            `out`, or a new array like it.
        """
        field = self._field(name)
        if not field.fixed:
            raise ConfigError(f"the sizes of field {name!r} differ; read it with values()")
        array = check_out(out, len(self._rows), field)
        if not array.size or self._filled(name, array):
            return array
        if len(self._numbers) == 1:
            self._reader(self._numbers[0]).read(self._rows, name, array)
            return array
        for reader, places in self._groups():
            if field.row_bytes <= SMALL_ROW:
                array[places] = reader.read(self._rows[places], name)
            else:
                for place in places.tolist():
                    reader.read(self._rows[place : place + 1], name, array[place : place + 1])
        return array

    def values(self, name: str, scratch: Scratch | None = None) -> Sequence[Buffer]:
        """Read the stored bytes of any other field (images, text, ...) of all samples, in the order asked for.

        With `scratch` they may stand in it, and hold until it is used again: then they are `row_locator.PackedValues`.
        """
        if self._field(name).fixed:
            raise ConfigError(f"field {name!r} has one size throughout; read it with column()")
        if found := self._locators(name):
            with self._present(found, name):
                packed = row_locator.read_values(found, self._which, self._rows, scratch or Scratch())
            if packed is not None:
                return packed if scratch is not None else [bytes(value) for value in packed]
        if len(self._numbers) == 1:
            return list(self._reader(self._numbers[0]).read(self._rows, name))
        values = [b""] * len(self._rows)
        for reader, places in self._groups():
            for place, value in zip(places.tolist(), reader.read(self._rows[places], name), strict=True):
                values[place] = value
        return values

    def sizes(self, name: str) -> NDArray[np.int64]:
        """The stored bytes of a field of each sample, int64 [n]: looked up where the values are, or else measured."""
        field = self._field(name)
        if field.fixed:
            return np.full(len(self._rows), field.row_bytes, np.int64)
        sizes = np.empty(len(self._rows), np.int64)
        for number, (reader, places) in zip(self._numbers, self._groups(), strict=True):
            rows, found = self._rows[places], reader.locator(name) if native.library() is not None else None
            try:
                known = None if found is None else row_locator.value_sizes(found, rows)
            except MappedFileLost as error:
                raise _cut_short(self._path(number), name) from error
            sizes[places] = _measured(reader, rows, name) if known is None else known
        return sizes

    def spans(self, name: str) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]] | None:
        """Where the rows of a fixed field stand in files; None unless all stand there as they are delivered.

        Returns the files, and for each sample the number of its file and the offset of its first byte, int64 [n].
        """
        size, offsets = self._field(name).row_bytes, np.empty(len(self._rows), np.int64)
        if native.library() is None:
            return None
        for number, (reader, places) in zip(self._numbers, self._groups(), strict=True):
            found = reader.locator(name)
            try:
                spans = None if found is None else row_locator.fixed_offsets(found, self._rows[places], size)
            except MappedFileLost as error:
                raise _cut_short(self._path(number), name) from error
            if spans is None:
                return None
            offsets[places] = spans
        return [self._path(number) for number in self._numbers], self._which, offsets

    def stored(self, name: str, out: NDArray[Any] | None = None, scratch: Scratch | None = None) -> Any:
        """Read any field of all samples as it is stored: `column` where its size is fixed, else `values`."""
        return self.column(name, out) if self._field(name).fixed else self.values(name, scratch)

    def _filled(self, name: str, array: NDArray[Any]) -> bool:
        """Fill `array` in one call of compiled code, and return whether that was possible."""
        found = self._locators(name)
        if not found:
            return False
        out = array.reshape(-1).view(np.uint8).reshape(len(array), -1)
        with self._present(found, name):
            return row_locator.read_fixed(found, self._which, self._rows, out)

    @contextmanager
    def _present(self, found: Sequence[row_locator.RowLocator], name: str) -> Iterator[None]:
        """Name the shards whose mapped memory is gone."""
        try:
            yield
        except MappedFileLost as error:
            gone = ", ".join(self._path(n) for n in self._gone(found, name)) or self._path(self._numbers[0])
            raise _cut_short(gone, name) from error

    def _gone(self, found: Sequence[row_locator.RowLocator], name: str) -> Iterator[int]:
        field = self._field(name)
        for place, number in enumerate(self._numbers):
            rows = self._rows[self._which == place]
            alone = [found[place]], np.zeros(len(rows), np.int64), rows
            try:
                if field.fixed:
                    row_locator.read_fixed(*alone, np.empty((len(rows), field.row_bytes), np.uint8))
                else:
                    row_locator.read_values(*alone, Scratch())
            except MappedFileLost:
                yield number

    def _locators(self, name: str) -> list[row_locator.RowLocator] | None:
        """Where the field is in each shard; None if it has to be asked for shard by shard."""
        if native.library() is None or self._readers is None:
            return None
        found = [place for reader in self._readers if (place := reader.locator(name)) is not None]
        alike = len(found) == len(self._readers) and len(set(map(type, found))) == 1
        return found if alike else None

    def _groups(self) -> Iterator[tuple[Reader, NDArray[np.int64]]]:
        """Each shard's reader, and which of the samples are in it."""
        order = np.argsort(self._which, kind="stable")
        ends = np.cumsum(np.bincount(self._which, minlength=len(self._numbers))).tolist()
        for number, start, end in zip(self._numbers, [0, *ends], ends, strict=False):
            yield self._reader(number), order[start:end]


def _cut_short(paths: str, name: str) -> ShardCorrupt:
    return ShardCorrupt(f"{paths}, field {name!r}: the file was cut short while it was open, or its storage failed")


def _measured(reader: Reader, rows: Rows, name: str) -> NDArray[np.int64]:
    """Measure values that have to be read for it, a few at a time."""
    parts = (rows[first : first + MEASURED] for first in range(0, len(rows), MEASURED))
    return np.array([len(value) for part in parts for value in reader.read(part, name)], np.int64)


def _distinct(shards: NDArray[np.int64]) -> tuple[list[int], NDArray[np.int64]]:
    """The distinct shards, and for each sample the place of its shard among them."""
    if len(shards) and (shards == shards[0]).all():
        return [int(shards[0])], np.zeros(len(shards), np.int64)
    numbers, which = np.unique(shards, return_inverse=True)
    return numbers.tolist(), which.astype(np.int64, copy=False)
