"""Readers of one field of an open shard: the base class, and readers of columns and of decoded numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import SourceError
from ..format import cf
from ..format.fields import Field
from ..format.file_table import Table
from ..system import allocation
from ..system.types import Rows
from .extents import NO_BYTES, Blocks, Extent, FileSpans
from .row_locator import MemoryRows, RowLocator


@final
@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """The cost of reading one row of a field whose chunks hold several rows.

    Attributes:
        rows: the rows of a chunk.
        size: the bytes of all chunks that hold parts of one row.
        kept: whether the process keeps them for the next rows.
    """

    rows: int
    size: int
    kept: bool


class FieldReader:
    """Reads one field of a shard, whose rows are known to be within the shard.

    Readers of fixed fields have `read`, those of other fields have `read_values`.

    Attributes:
        count: the number of rows.
    """

    __slots__ = ()
    count: int

    def __len__(self) -> int:
        return self.count

    def read(self, rows: Rows, out: NDArray[Any], most: int, blocks: Blocks | None = None) -> None:
        """Fill `out` [n, *shape] with rows of a fixed field, or `out` [n, *block shape] with a block of each.

        Raises:
            ShardCorrupt: the file is cut short or damaged.
            BadSample: the bytes that are decompressed for a row are more than `most`.
        """
        raise NotImplementedError("values of several sizes fill no array")

    def read_values(self, rows: Rows, most: int) -> list[bytes]:
        """Return the bytes of each row of a field that is not fixed; raise what `read` raises."""
        raise NotImplementedError("rows of one size fill an array")

    def spans(self, rows: Rows, extent: Extent | None) -> FileSpans | None:
        """Return the bytes of the shard's own file that reading takes; None if these may be any: see `Reader.spans`."""
        return None

    def tables(self, rows: Rows, extent: Extent | None) -> FileSpans:
        """Return the bytes of the file that `spans` itself reads: see `Reader.tables`."""
        return NO_BYTES

    def locator(self) -> RowLocator | None:
        """Return a locator of the rows; None if only `read` finds them."""
        return None

    @property
    def chunk_span(self) -> ChunkSpan | None:
        """The chunks that reading one row decompresses; None if it decompresses that row alone, or nothing."""
        return None


@final
@dataclass(frozen=True, slots=True)
class ColumnRows(FieldReader):
    """A column of the index next to a shard: reading it takes no bytes of the shard's own file."""

    column: Table

    def __len__(self) -> int:
        return len(self.column)

    def read(self, rows: Rows, out: NDArray[Any], most: int, blocks: Blocks | None = None) -> None:
        values = self.column.take(rows, axis=0)
        out[...] = values if blocks is None else blocks.cut(values, out)

    def spans(self, rows: Rows, extent: Extent | None) -> FileSpans:
        return NO_BYTES

    def locator(self) -> RowLocator:
        return MemoryRows.of(self.column) if isinstance(self.column, np.ndarray) else MemoryRows.in_file(self.column)


@final
@dataclass(frozen=True, slots=True)
class DecodedRows(FieldReader):
    """Numbers that are decoded by attributes of netCDF. No locator reads them: they are not in the file."""

    reader: FieldReader
    field: Field  # of the stored numbers
    decoding: cf.Decoding

    def __len__(self) -> int:
        return len(self.reader)

    def read(self, rows: Rows, out: NDArray[Any], most: int, blocks: Blocks | None = None) -> None:
        numbers = out if self.field.row_dtype == out.dtype else allocation.empty(out.shape, self.field.row_dtype)
        self.reader.read(rows, numbers, most, blocks)
        self.decoding.apply(numbers, out)

    def spans(self, rows: Rows, extent: Extent | None) -> FileSpans | None:
        return self.reader.spans(rows, extent)

    def tables(self, rows: Rows, extent: Extent | None) -> FileSpans:
        return self.reader.tables(rows, extent)

    @property
    def chunk_span(self) -> ChunkSpan | None:
        return self.reader.chunk_span


def decoding_of(packing: Mapping[str, Any], stored: np.dtype[Any], field: Field) -> cf.Decoding:
    """Return how stored numbers become those of a field, by the attributes that an index has of them.

    Raises ValueError if these give other numbers, or are no attributes.
    """
    try:
        how = cf.decoding(cf.from_json(packing), stored)
    except (SourceError, AttributeError) as error:
        raise ValueError(f"the index has no attributes of netCDF, {error}") from error
    if how.dtype != field.row_dtype:
        raise ValueError(f"expected {field.dtype}, its attributes give {how.dtype}")
    return how
