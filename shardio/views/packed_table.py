"""Which documents are in each packed row: a table, made once for a dataset, a field and a length, and kept in a file.

Documents that fill rows alone come first: document 7 of 5,000 entries makes two rows of 2,048. What is left of them,
and all shorter documents, is packed by best fit (`views/packing.py`). A document takes 4 bytes for its number, 2 for
its length (more in rows of 65,536 or more), and a few bits.

```text
shardio.packed-<key>.bin     JSON and arrays, as `containers/array_index.py` writes them
```

The file is in the dataset's folder, if that is writable, or in the folder `packed` of the cache. The key is a hash of
what the table belongs to. A file that is damaged, or belongs to something else, is written anew.
"""

import contextlib
import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..cache.location import given_folder
from ..cache.private_folder import lasting_path, private_folder, private_place
from ..containers.array_index import read_json, read_tables, write_tables
from ..errors import CacheError, ConfigError, ManifestError
from ..format import manifest
from ..format.file_table import Table, TableFile, parts
from ..output.own_files import packed_name
from ..system.directory import Directory
from ..system.file_locks import try_lock
from ..system.replacement import remove_abandoned, replacing
from ..system.types import Indices
from .columns import value_lengths
from .documents import Pieces
from .index_map import BLOCK_OF_BITS, BitMap, counted_bits, with_counts
from .packing import best_fit
from .readable import ReadableDataset

_FORMAT, _VERSION = "shardio packed rows", 1
_FEW = 1 << 16  # documents, whose table is made faster than a file is written durably
_MANY = 1 << 21  # documents, whose table takes long enough to say so
_MOST_WAIT, _LOOK = 3600.0, 0.1  # seconds


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
    if len(base) < _FEW:
        return made(base, name, length)
    of = {"digest": base.digest, "field": name, "length": length, "documents": len(base)}
    folder, _open = _folder(base)
    if folder is None:
        return _made_noticed(base, name, length, None)
    path = folder / packed_name(xxhash.xxh3_128_hexdigest(json.dumps([_VERSION, of]).encode()))
    if (table := _read(path, of)) is not None:
        return table
    with _alone(folder):
        if (table := _read(path, of)) is None:
            table = _made_noticed(base, name, length, path)
            with contextlib.suppress(OSError, ConfigError):  # a full disk: the table is in memory all the same
                remove_abandoned(folder, {path.name})
                _write(path, of, table)
                table = _read(path, of) or table
    return table


def _made_noticed(base: ReadableDataset, name: str, length: int, path: Path | None) -> PackedTable:
    if len(base) >= _MANY:
        kept = "" if path is None else f"; the table stays in {path}"
        print(f"shardio: packing {len(base):,} documents into rows of {length:,}{kept}", file=sys.stderr)
    return made(base, name, length)


def _folder(base: ReadableDataset) -> tuple[Path | None, Directory | None]:
    """Return the folder for tables: the dataset's, if it has one that may be written, else one of this user's cache.

    None if there is none; then the directory that has to stay open meanwhile.
    """
    place = base.path
    if isinstance(place, Path) and (place / manifest.FILE_NAME).is_file() and os.access(place, os.W_OK | os.X_OK):
        return place, None
    with contextlib.suppress(OSError, CacheError, ConfigError):
        folder = private_folder(private_place(given_folder(None))).make("packed", exist_ok=True)
        if os.access(folder.place(), os.W_OK | os.X_OK):
            return lasting_path(folder), folder
    return None, None


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process makes a table in a folder; without locks, or if it takes too long, go on at once."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # NFS locks no folder
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            held.callback(os.close, descriptor)
            until = time.monotonic() + _MOST_WAIT
            while try_lock(descriptor) is False and time.monotonic() < until:
                time.sleep(_LOOK)
        yield


def _write(path: Path, of: Mapping[str, Any], table: PackedTable) -> None:
    head = {"format": _FORMAT, "version": _VERSION, **of, "full": table.full}
    bits = (table.firsts.bits, table.long.bits, table.begun.bits)
    with replacing(path) as file:
        write_tables(file, json.dumps(head).encode(), (table.documents, table.sizes, *bits))


def _read(path: Path, of: Mapping[str, Any]) -> PackedTable | None:
    """Return the table in a file; None if there is none, or it is damaged or belongs to something else.

    Also None for a file of a user who may not change the dataset: if its folder has the sticky bit, others may add
    files, but replace only their own.
    """
    try:
        folder = Directory(path.parent)
        descriptor = folder.open(path.name, os.O_RDONLY)
    except (OSError, ConfigError):
        return None
    try:
        above, file = folder.status(), TableFile(descriptor, path, ManifestError)
        if above.st_mode & stat.S_ISVTX and file.owner not in (0, os.geteuid(), above.st_uid):
            return None
        return _checked(file, of)
    except (ValueError, KeyError, TypeError, OSError, ManifestError):
        return None


def _checked(file: TableFile, of: Mapping[str, Any]) -> PackedTable:
    """Return the table in a file; ValueError if that is not what it must be.

    A checksum is no proof that shardio wrote the file, so all numbers are checked that become addresses.
    """
    head = read_json(file)
    full = head["full"]
    if head != {"format": _FORMAT, "version": _VERSION, **of, "full": full}:
        raise ValueError("another table")
    if type(full) is not int or not 0 <= full < 1 << 62:
        raise ValueError("no number of rows")
    documents, sizes, *bits = read_tables(file, ("documents", "sizes", "firsts", "long", "begun")).values()
    if any(each.dtype.kind != "u" for each in (documents, sizes)) or len(documents) != len(sizes):
        raise ValueError("no arrays of unsigned numbers")
    if any((each.dtype.base, each.shape[1:]) != BLOCK_OF_BITS.subdtype for each in bits):
        raise ValueError("no bits")
    firsts, long, begun = map(with_counts, bits)
    table = PackedTable(of["length"], full, documents, sizes, firsts, long, begun)
    if len(long) != len(begun) or not (
        _are_of(long, of["documents"]) and _begin(firsts, len(sizes)) and _begin(begun, full)
    ):
        raise ValueError("other bits than those of its arrays")
    if any(part.max() >= of["documents"] for part in parts(documents)):
        raise ValueError("documents that there are not")
    if not _fit(sizes, firsts, of["length"]):
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
