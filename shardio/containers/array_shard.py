"""Shards of arrays in files of other programs: their fields put together, and a base of readers of them."""

from abc import ABC
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..format.fields import Field
from ..format.file_table import Table
from ..system.types import Rows
from . import array_index
from .extents import Blocks, Extent, FileSpans
from .field_reader import ChunkSpan, FieldReader
from .files import BaseReader
from .row_locator import RowLocator
from .stacked_rows import stack_readers


@dataclass(frozen=True, slots=True)
class ArrayShard:
    """An open shard.

    Attributes:
        count: its number of samples.
        readers: the readers of its fields.
        locators: where rows are, for the fields that need nothing else.
        beside: the fields that the index next to the file holds.
        taken: the rows in files that are the samples, int64 [samples]; None for all.
    """

    count: int
    readers: Mapping[str, FieldReader]
    locators: Mapping[str, RowLocator]
    beside: frozenset[str]
    taken: Table | None

    def __len__(self) -> int:
        return self.count

    def rows_of(self, field: str, samples: Rows) -> Rows:
        """Return the rows that the reader of a field has for samples."""
        return samples if self.taken is None or field in self.beside else self.taken.take(samples)

    @classmethod
    def of(
        cls,
        path: Path,
        fields: Mapping[str, Field],
        names: Iterable[str],
        readers: Mapping[str, FieldReader],
        columns: Mapping[str, Table],
        others: Mapping[str, Field],
    ) -> "ArrayShard":
        """Put a shard together.

        Args:
            path: the shard, for messages.
            fields: the fields that are in files.
            names: what the index calls them, and the variables of stacks.
            readers: the readers of what is in files: of each field, or of each variable of a stack.
            columns: the tables of the index next to the shard.
            others: the fields that these tables hold.

        Raises ShardCorrupt for rows that are not in a file, fields of several lengths, and what `columns_of` refuses.
        """
        beside, taken = array_index.columns_of(path, columns, others), columns.get(array_index.ROWS)
        found = {**beside, **readers}
        counts = {name: len(reader) for name, reader in found.items()}
        if taken is not None:
            rows = np.asarray(taken)
            least, most = (int(rows.min()), int(rows.max())) if len(rows) else (0, -1)
            for name, reader in readers.items():
                if not 0 <= least <= most + 1 <= len(reader):
                    raise ShardCorrupt(f"{path}, field {name!r}: has {len(reader)} rows, and its index names others")
            counts |= dict.fromkeys(readers, len(taken))
        if len(set(counts.values())) > 1:
            raise ShardCorrupt(f"{path}: fields differ in their number of samples: {counts}")
        stack_readers(found, fields, names)
        whole = found if taken is None else beside  # no locator leaves rows out
        locators = {name: locator for name, reader in whole.items() if (locator := reader.locator()) is not None}
        return cls(next(iter(counts.values()), 0), found, locators, frozenset(beside), taken)


class ArrayReader(BaseReader[ArrayShard], ABC):
    """A base of readers that read each field by a `FieldReader`."""

    def _read(
        self, shard: ArrayShard, rows: Rows, field: str, out: NDArray[Any], most: int, blocks: Blocks | None
    ) -> None:
        shard.readers[field].read(shard.rows_of(field, rows), out, most, blocks)

    def _read_values(self, shard: ArrayShard, rows: Rows, field: str, most: int) -> list[bytes]:
        return shard.readers[field].read_values(shard.rows_of(field, rows), most)

    def locator(self, field: str) -> RowLocator | None:
        # None for arrays that are chunked, filtered or of another byte order.
        return self._shard().locators.get(field)

    def spans(self, rows: Rows, field: str, extent: Extent | None = None) -> FileSpans | None:
        shard = self._shard()
        return shard.readers[field].spans(shard.rows_of(field, rows), extent)

    def tables(self, rows: Rows, field: str, extent: Extent | None = None) -> FileSpans:
        shard = self._shard()
        return shard.readers[field].tables(shard.rows_of(field, rows), extent)

    def chunk_spans(self) -> Mapping[str, ChunkSpan]:
        """Return the chunk that reading one row decompresses, for each field whose chunks hold several rows."""
        spans = {name: reader.chunk_span for name, reader in self._shard().readers.items()}
        return {name: span for name, span in spans.items() if span is not None}
