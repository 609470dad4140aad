"""Which documents are in each packed row: a table, made once for a dataset, a field and a length, and kept in a file.

Documents that fill rows alone come first: document 7 of 5,000 entries makes two rows of 2,048. What is left of them,
and all shorter documents, is packed by best fit (`views/packing.py`). A document takes 4 bytes for its number, 2 for
its length (more in rows of 65,536 or more), and a few bits.

The table is kept in a file (`views/kept_table.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..format.file_table import Table, parts
from ..system.types import Indices
from .columns import value_lengths
from .documents import Pieces
from .index_map import BLOCK_OF_BITS, BitMap, counted_bits, with_counts
from .kept_table import KeptTable, Stored
from .packing import best_fit
from .readable import ReadableDataset


@final
@dataclass(frozen=True, slots=True, eq=False)
class PackedTable:
    """Rows of whole documents, and of pieces of those that are longer than a row.

    Args:
        length: the entries of a row.
        full: the number of rows that one document fills; they come first.
        documents: the documents in the other rows, row by row, unsigned [n].
        sizes: how many entries each has there, its last ones, unsigned [n].
        firsts: the bits of the first document of each row, of n.
        long: the bits of the documents that fill rows.
        begun: the bits of the first row that each of these fills, of `full`.

    Attributes:
        padding: the share of all rows' entries that are padding.
    """

    length: int
    full: int
    documents: Table
    sizes: Table
    firsts: BitMap
    long: BitMap
    begun: BitMap
    padding: float = field(init=False)

    def __post_init__(self) -> None:
        entries = self.full * self.length + sum(int(part.sum(dtype=np.int64)) for part in parts(self.sizes))
        object.__setattr__(self, "padding", 1 - entries / (len(self) * self.length) if len(self) else 0.0)

    def __len__(self) -> int:
        return self.full + len(self.firsts)

    @property
    def numbers(self) -> int:
        """The number of rows."""
        return len(self)

    def pieces(self, numbers: Indices) -> Pieces:
        """Return the pieces in some rows."""
        filled = numbers < self.full
        if filled.all():
            return self._full_rows(numbers, np.arange(len(numbers)))
        rows = np.flatnonzero(~filled)
        packed = self._packed_rows(numbers[rows] - self.full, rows)
        if len(rows) == len(numbers):
            return packed
        rows = np.flatnonzero(filled)
        full = self._full_rows(numbers[rows], rows)
        order = np.argsort(np.concatenate((full.rows, packed.rows)), kind="stable")
        return Pieces(*(np.concatenate(pair)[order] for pair in zip(full, packed, strict=True)))

    def _full_rows(self, numbers: Indices, rows: NDArray[np.int64]) -> Pieces:
        which = self.begun.before(numbers + 1) - 1
        begins = (numbers - self.begun(which)) * self.length
        return Pieces(self.long(which), begins, begins + self.length, rows)

    def _packed_rows(self, numbers: Indices, rows: NDArray[np.int64]) -> Pieces:
        firsts = self.firsts(numbers)
        following = numbers + 1
        ends = np.full(len(numbers), len(self.documents))
        inside = following < len(self.firsts)
        ends[inside] = self.firsts(following[inside])
        counts = ends - firsts
        places = np.arange(int(counts.sum())) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
        documents = self.documents.take(places).astype(np.int64)
        sizes = self.sizes.take(places).astype(np.int64)
        begins = np.zeros(len(documents), np.int64)
        is_long = np.flatnonzero(self.long.has(documents)) if len(self.long) else ()
        if len(is_long):
            which = self.long.before(documents[is_long])
            begins[is_long] = (self._begun(which + 1) - self._begun(which)) * self.length
        return Pieces(documents, begins, begins + sizes, np.repeat(rows, counts))

    def _begun(self, which: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of rows that the long documents before some fill."""
        rows, inside = np.full(len(which), self.full), which < len(self.begun)
        rows[inside] = self.begun(which[inside])
        return rows


def made(base: ReadableDataset, name: str, length: int) -> PackedTable:
    """Make the table of a dataset: its documents are the values of a ragged field."""
    lengths = np.concatenate([np.empty(0, np.int64), *value_lengths(base, name)])
    full_rows = lengths // length
    lengths %= length
    pieces, firsts = best_fit(lengths, length)
    long = full_rows > 0
    return PackedTable(
        length,
        int(full_rows.sum()),
        pieces.astype(_unsigned(len(base))),
        lengths[pieces].astype(_unsigned(length)),
        _bits(firsts[:-1], len(pieces)),
        counted_bits([long]),
        _bits((np.cumsum(full_rows) - full_rows)[long], int(full_rows.sum())),
    )


def _unsigned(largest: int) -> np.dtype[Any]:
    return np.dtype(np.uint16 if largest < 1 << 16 else np.uint32 if largest < 1 << 32 else np.uint64)


def _bits(numbers: Indices, count: int) -> BitMap:
    mask = np.zeros(count, np.bool_)
    mask[numbers] = True
    return counted_bits([mask])


def packed_table(base: ReadableDataset, name: str, length: int) -> PackedTable:
    """Return the table of a dataset, from its file if there is one. One process of a node makes it.

    Args:
        base: the dataset.
        name: the ragged field that holds documents.
        length: the entries of a row.

    Raises what `value_lengths` raises.
    """
    of = {"digest": base.digest, "field": name, "length": length, "documents": len(base)}
    doing = f"packing {len(base):,} documents into rows of {length:,}"
    return kept(of).get(base, lambda: made(base, name, length), doing)


def kept(of: Mapping[str, Any]) -> KeptTable[PackedTable]:
    """Return the form in a file of the table of some documents, identified by `of`."""
    return KeptTable("packed", of, ("documents", "sizes", "firsts", "long", "begun"), _stored, _restored)


def _stored(table: PackedTable) -> Stored:
    bits = (table.firsts.bits, table.long.bits, table.begun.bits)
    return {"full": table.full}, (table.documents, table.sizes, *bits)


def _restored(head: Mapping[str, Any], arrays: Mapping[str, Table]) -> PackedTable:
    """Return the table in a file; ValueError if that is not what it must be."""
    full, length, count = head["full"], head["length"], head["documents"]
    documents, sizes, *bits = arrays.values()
    if type(full) is not int or not 0 <= full < 1 << 62:
        raise ValueError("no number of rows")
    if any(each.dtype.kind != "u" for each in (documents, sizes)) or len(documents) != len(sizes):
        raise ValueError("no arrays of unsigned numbers")
    if any((each.dtype.base, each.shape[1:]) != BLOCK_OF_BITS.subdtype for each in bits):
        raise ValueError("no bits")
    firsts, long, begun = map(with_counts, bits)
    table = PackedTable(length, full, documents, sizes, firsts, long, begun)
    if len(long) != len(begun) or not (_are_of(long, count) and _begin(firsts, len(sizes)) and _begin(begun, full)):
        raise ValueError("other bits than those of its arrays")
    if any(part.max() >= count for part in parts(documents)):
        raise ValueError("documents that there are not")
    if not _fit(sizes, firsts, length):
        raise ValueError("documents without entries, or rows that are too long")
    return table


def _fit(sizes: Table, firsts: BitMap, length: int) -> bool:
    """Return whether each document has entries, and the rows that begin with these have at most `length`."""
    place = entries = 0
    for part in parts(sizes):
        bits = np.unpackbits(firsts.bits[place // 512 : -(-(place + len(part)) // 512)])  # parts begin with a block
        begins = np.flatnonzero(bits[: len(part)])
        ends = np.add.reduceat(part, begins, dtype=np.int64) if len(begins) else np.zeros(0, np.int64)
        before = entries + int(part[: begins[0] if len(begins) else None].sum(dtype=np.int64))
        if part.min() < 1 or max(before, int(ends.max(initial=0))) > length:
            return False
        place, entries = place + len(part), int(ends[-1]) if len(ends) else before
    return True


def _are_of(bits: BitMap, count: int) -> bool:
    """Return whether there are as many bits as `count`, and none is set after these."""
    last = int(bits(np.array([len(bits) - 1]))[0]) if len(bits) else -1
    return last < count <= 512 * len(bits.bits)


def _begin(bits: BitMap, count: int) -> bool:
    """Return whether these are the bits of where some parts of `count` begin: the first one at 0."""
    begins_at_0 = bool(len(bits) and not bits(np.zeros(1, np.int64))[0])
    return _are_of(bits, count) and begins_at_0 == (count > 0)
