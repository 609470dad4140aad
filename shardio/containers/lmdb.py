"""The `lmdb` container: single LMDB files with one entry per sample and field.

==============================================  =====================================================
key                                             value
==============================================  =====================================================
uint64 index, big-endian, then the field name   the stored bytes
eight bytes of 0xff, then a hidden column name  the values of all samples, end to end, if they have one size
eight bytes of 0xff, then `_first`              the first sample's index, uint64, little-endian
eight bytes of 0xff, then `_count`              the number of samples, uint64, little-endian
eight bytes of 0xff, then `_fields`             the fields, as JSON
==============================================  =====================================================
"""

import contextlib
import errno
import importlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import final

import numpy as np

from .. import native
from ..errors import BadSample, ConfigError, ShardCorrupt
from ..format.fields import Field
from ..format.file_table import FileTable
from ..native import rows as compiled
from ..system import portable
from ..system.types import Rows, Stored
from . import located_rows
from ._writing import Writer, fields_text, parse_fields, size_of
from .base import Container
from .extents import FileSpans
from .files import RawFile, SpanReader, SpanShard
from .lmdb_pages import Pages
from .row_locator import LmdbKeys, MemoryRows, RowLocator, not_mapped

_SHARD_KEY = b"\xff" * 8
_FIRST, _COUNT, _FIELDS = _SHARD_KEY + b"_first", _SHARD_KEY + b"_count", _SHARD_KEY + b"_fields"
_LONGEST_KEY = 511
_LARGEST_VALUE = 2**32 - 1
_COMMIT_BYTES = 32 << 20
_SMALLEST_MAP = 1 << 20


@final
class LmdbWriter(Writer):
    """A `Writer` that puts samples in key order, a bounded number of bytes per transaction."""

    def __init__(self, path: Path, fields: Mapping[str, Field], first: int, rows: int | None) -> None:
        for name in fields:
            if len(_SHARD_KEY) + len(name.encode()) > _LONGEST_KEY:
                raise ConfigError(f"an LMDB key has at most {_LONGEST_KEY} bytes: field {name!r} is too long")
        super().__init__(path, fields, first, rows)
        self._columns = {name: bytearray() for name, field in fields.items() if _is_column(name, field)}
        self._entries = sorted((name.encode(), name) for name in fields if name not in self._columns)
        self._pending: list[tuple[bytes, bytes]] = []
        self._pending_bytes, self._map_size = 0, _SMALLEST_MAP
        # Without these, each commit would wait for the disk: `close` waits once, before anyone has seen the file.
        options = {"subdir": False, "lock": False, "sync": False, "metasync": False, "map_size": self._map_size}
        if int(importlib.import_module("lmdb").__version__.partition(".")[0]) >= 3:
            options["lib_version"] = 0  # or $LMDB_DEFAULT_LIB_VERSION decides the format of the file
        self._file = self._create(path)
        with _disk_errors():  # LMDB would follow a link at `path`: it gets the file that was created there
            opened = importlib.import_module("lmdb").open(portable.path_of(self._file.fileno()), **options)
        self._environment = opened
        # The library knows an environment by its inode, which another file may have once this one is closed and gone.
        self._users.append(opened.close)

    def _add(self, sample: Stored, index: int) -> None:
        for name, value in sample.items():
            if (size := size_of(value)) > _LARGEST_VALUE:
                raise BadSample(
                    f"{self._path.name}, sample {index}, field {name!r}: 4 GiB or more: {size} bytes; use tar or hdf5"
                )
        key = index.to_bytes(8, "big")
        for encoded, name in self._entries:
            value = bytes(sample[name])
            self._pending.append((key + encoded, value))
            self._pending_bytes += len(value)
        for name, column in self._columns.items():
            column += sample[name]
        if self._pending_bytes >= _COMMIT_BYTES:
            self._commit()

    def _finish(self) -> None:
        entries = {_SHARD_KEY + name.encode(): bytes(column) for name, column in self._columns.items()}
        entries[_FIRST] = self._first.to_bytes(8, "little")
        entries[_COUNT] = self._count.to_bytes(8, "little")
        entries[_FIELDS] = fields_text(self._fields).encode()
        self._pending += sorted(entries.items())
        self._commit()
        size = int((self._environment.info()["last_pgno"] + 1) * self._environment.stat()["psize"])
        if os.fstat(self._file.fileno()).st_size < size:
            # LMDB never writes trailing pages that a transaction freed again, but readers map them.
            os.truncate(self._file.fileno(), size)
        with _disk_errors():
            self._environment.sync(True)
        if not Pages(self._file.fileno(), size).plain:
            raise ConfigError(f"{self._path}: the lmdb library wrote another format than that of LMDB 0.9")

    def _commit(self) -> None:
        map_full = importlib.import_module("lmdb").MapFullError
        while True:
            try:
                with _disk_errors(), self._environment.begin(write=True) as transaction:
                    for key, value in self._pending:
                        transaction.put(key, value, append=True)
                break
            except map_full:
                self._map_size *= 2
                self._environment.set_mapsize(self._map_size)
            except OSError as error:
                # LMDB reports an input/output error when the disk is full after a part of the data.
                disk = os.fstatvfs(self._file.fileno())
                if error.errno == errno.EIO and disk.f_bavail * disk.f_frsize < 2 * self._pending_bytes:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path)) from error
                raise
        self._pending, self._pending_bytes = [], 0


@final
class _Shard(SpanShard):
    """An open shard.

    Attributes:
        file: the file itself.
        pages: its pages.
        first: the index of its first sample.
        count: its number of samples.
        columns: the hidden columns, by name.
        locators: where the fields are, for compiled lookups; empty without the compiled part.
    """

    def __init__(self, file: RawFile) -> None:
        self.file, self.pages = file, Pages(file.fd, file.size)
        if not self.pages.plain:
            what = "not a complete LMDB file: its first two pages are not those of a plain LMDB"
            raise ShardCorrupt(f"{file.path}: {what}")
        self.check_size()
        self.first = self.count = 0
        self.columns: dict[str, FileTable] = {}
        self.locators: dict[str, RowLocator] = {}

    def __len__(self) -> int:
        return self.count

    def check_size(self) -> None:
        """Raise ShardCorrupt if the file is shorter now than by its own account."""
        if (size := os.fstat(self.file.fd).st_size) < self.pages.extent:
            raise ShardCorrupt(f"{self.file.path}: cut short: {size} of {self.pages.extent} bytes")

    def value(self, key: bytes) -> bytes | None:
        """Return the value of a key that stands once in the shard."""
        span = self.pages.find(key)
        return None if span is None else os.pread(self.file.fd, span[1], span[0])


@final
class LmdbReader(SpanReader[_Shard]):
    """A `Reader`. It looks keys up in the file's pages itself, because the LMDB library trusts them."""

    def _open(self) -> _Shard:
        file, path = RawFile(self._path), self._path
        shard = _Shard(file)
        numbers = [shard.value(key) for key in (_FIRST, _COUNT)]
        if any(number is None or len(number) != 8 for number in numbers):
            what = "its first index or its number of samples is missing: not written by this container"
            raise ShardCorrupt(f"{path}: {what}")
        shard.first, shard.count = (int.from_bytes(number, "little") for number in numbers if number is not None)
        if shard.first + shard.count >= 1 << 63:
            raise ShardCorrupt(f"{path}: {shard.count} samples from index {shard.first} on are more than there can be")
        for name, field in self._fields.items():
            hidden = _is_column(name, field)
            span = shard.pages.find((_SHARD_KEY if hidden else shard.first.to_bytes(8, "big")) + name.encode())
            if span is None and (hidden or shard.count):
                raise ShardCorrupt(f"{path}: has no field {name!r}")
            key = shard.first, file.size, name.encode()
            parts = file.map_parts if field.ragged or field.fixed else not_mapped
            locator: RowLocator = LmdbKeys(file.address, file.fd, *key, file, parts)
            if hidden and span is not None:
                start, size = span
                if size != (expected := shard.count * field.row_bytes):
                    raise ShardCorrupt(f"{path}: column {name!r} has {size} of {expected} bytes")
                column = FileTable(file, np.dtype((field.row_dtype, field.row_shape)), shard.count, start)
                shard.columns[name], locator = column, MemoryRows.in_file(column)
            if native.library() is not None:
                shard.locators[name] = locator
        return shard

    def locator(self, field: str) -> RowLocator | None:
        return self._shard().locators.get(field)

    def _column(self, shard: _Shard, field: str) -> FileTable | None:
        shard.check_size()
        return shard.columns.get(field)

    def _spans(self, shard: _Shard, rows: Rows, field: str) -> FileSpans:
        shard.check_size()
        locator = shard.locators.get(field)
        try:
            spans = None if locator is None else located_rows.locate(locator, rows)
        except compiled.MappedFileLost as error:
            raise ShardCorrupt(f"{self._path}: cut short while it was open, or its storage failed") from error
        if spans is not None:
            return spans
        found = np.empty((len(rows), 2), np.int64)
        for place, row in enumerate(rows.tolist()):
            span = shard.pages.find((row + shard.first).to_bytes(8, "big") + field.encode())
            if span is None:
                raise ShardCorrupt(f"{self._path}, field {field!r}, row {row}: there is no such entry")
            found[place] = span
        return found[:, 0], found[:, 1]


@final
class LmdbContainer(Container):
    """Single LMDB files without a lock file."""

    name = "lmdb"
    suffix = ".lmdb"
    writer_type, reader_type = LmdbWriter, LmdbReader

    def read_fields(self, path: Path) -> Mapping[str, Field] | None:
        text = _Shard(RawFile(path)).value(_FIELDS)
        return None if text is None else parse_fields(text, path)


def _is_column(name: str, field: Field) -> bool:
    """Return whether the values of all samples are one entry: of hidden columns of one size."""
    return name.startswith("_") and field.fixed


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    """Turn errors of the system into OSError, as files raise them: LMDB has their numbers in its messages only."""
    lmdb = importlib.import_module("lmdb")
    try:
        yield
    except lmdb.MapFullError:
        raise
    except lmdb.Error as error:
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EMFILE):
            if os.strerror(number) in str(error):
                raise OSError(number, str(error)) from error
        raise
