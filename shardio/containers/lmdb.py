"""The `lmdb` container: single LMDB files with one entry per sample and field.

==============================================  =====================================================
key                                             value
==============================================  =====================================================
uint64 index, big-endian, then the field name   the stored bytes
eight bytes of 0xff, then a hidden column name  the values of all samples, end to end
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
from types import MappingProxyType
from typing import Any, BinaryIO, final

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..errors import BadSample, ConfigError, ShardCorrupt
from ..format.fields import Field
from ..format.limits import MAX_VALUE_BYTES
from ..native import rows as compiled
from ..system.types import Column, Rows, Stored
from . import row_locator
from ._files import Handle, RawFile, as_rows, check_request, take_mapped
from ._writing import OutputFiles, check_options, check_sample, fields_text, fixed_sizes, parse_fields, size_of
from .base import check_out
from .lmdb_pages import Pages
from .row_locator import LmdbKeys, MemoryRows, RowLocator

_SHARD_KEY = b"\xff" * 8
_FIRST, _COUNT, _FIELDS = _SHARD_KEY + b"_first", _SHARD_KEY + b"_count", _SHARD_KEY + b"_fields"
_LONGEST_KEY = 511
_LARGEST_VALUE = 2**32 - 1
_COMMIT_BYTES = 32 << 20
_SMALLEST_MAP = 1 << 20


@final
class LmdbWriter:
    """A `Writer` that puts samples in key order, a bounded number of bytes per transaction."""

    def __init__(self, path: Path, fields: Mapping[str, Field], first: int) -> None:
        for name in fields:
            if len(_SHARD_KEY) + len(name.encode()) > _LONGEST_KEY:
                raise ConfigError(f"an LMDB key has at most {_LONGEST_KEY} bytes: field {name!r} is too long")
        self._path, self._fields, self._first = path, dict(fields), first
        self._row_bytes = fixed_sizes(fields)
        self._entries = sorted((name.encode(), name) for name in fields if not name.startswith("_"))
        self._columns = {name: bytearray() for name in fields if name.startswith("_")}
        self._pending: list[tuple[bytes, bytes]] = []
        self._pending_bytes = self._count = 0
        self._map_size = _SMALLEST_MAP
        self._intact, self._closed = True, False
        # Without these, each commit would wait for the disk: `close` waits once, before anyone has seen the file.
        options = {"subdir": False, "lock": False, "sync": False, "metasync": False, "map_size": self._map_size}
        self._files = OutputFiles()
        self._file = self._files.create(path)
        with _disk_errors():  # LMDB would follow a link at `path`: it gets the file that was created there
            opened = importlib.import_module("lmdb").open(f"/proc/self/fd/{self._file.fileno()}", **options)
        self._environment = opened
        # The library knows an environment by its inode, which another file may have once this one is closed and gone.
        self._files.close_first(opened.close)

    def append(self, sample: Stored) -> None:
        if self._closed or not self._intact:
            raise ValueError(f"{self._path}: the writer is closed, or an earlier append failed")
        index = self._first + self._count
        check_sample(sample, self._fields, self._row_bytes, index, self._path)
        for name, value in sample.items():
            if (size := size_of(value)) > _LARGEST_VALUE:
                raise BadSample(f"{self._path.name}, sample {index}, field {name!r}: 4 GiB or more: {size} bytes")
        key = index.to_bytes(8, "big")
        for encoded, name in self._entries:
            value = bytes(sample[name])
            self._pending.append((key + encoded, value))
            self._pending_bytes += len(value)
        for name, column in self._columns.items():
            column += sample[name]
        self._count += 1
        if self._pending_bytes >= _COMMIT_BYTES:
            self._commit()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._intact:
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
        finally:
            self._files.close()

    def _commit(self) -> None:
        map_full = importlib.import_module("lmdb").MapFullError
        self._intact = False
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
        self._intact = True


@final
class LmdbReader:
    """A `Reader`. It looks keys up in the file's pages itself, because the LMDB library trusts them."""

    def __init__(self, path: Path, fields: Mapping[str, Field]) -> None:
        self._path, self._fields = path, dict(fields)
        self._handle = Handle(_open, path, fields)

    def __len__(self) -> int:
        return self._handle.get().count

    def read(self, rows: Rows, field: str, out: NDArray[Any] | None = None, *, most: int = MAX_VALUE_BYTES) -> Column:
        shard = self._handle.get()
        rows, kind = check_request(rows, field, out, self._fields, shard.count, self._path)
        _check_size(shard)
        if field in shard.columns:
            out = check_out(out, len(rows), kind)
            take_mapped(shard.columns[field], rows, self._path, as_rows(out, kind))
            return out
        values = shard.file.read_values(*self._spans(shard, rows, field), rows, field, most)
        if not kind.fixed:
            return values
        size = kind.row_bytes
        if set(map(len, values)) - {size}:
            row, wrong = next((row, len(value)) for row, value in zip(rows, values, strict=True) if len(value) != size)
            raise ShardCorrupt(f"{self._path}, field {field!r}, row {row}: expected {size} bytes, got {wrong}")
        if out is None:
            return np.frombuffer(bytearray().join(values), kind.row_dtype).reshape(len(rows), *kind.row_shape)
        as_rows(check_out(out, len(rows), kind), kind).reshape(-1)[:] = np.frombuffer(b"".join(values), np.uint8)
        return out

    def locator(self, field: str) -> RowLocator | None:
        return self._handle.get().locators.get(field)

    def close(self) -> None:
        self._handle.close()

    def _spans(self, shard: "_Shard", rows: Rows, field: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the offset and size of each value, int64 [n] each."""
        locator = shard.locators.get(field)
        try:
            spans = None if locator is None else row_locator.locate(locator, rows)
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
class LmdbContainer:
    """Single LMDB files without a lock file."""

    name = "lmdb"
    suffix = ".lmdb"
    index_suffix = ""
    on_disk = True
    options: Mapping[str, str] = MappingProxyType({})

    def writer(self, path: Path, fields: Mapping[str, Field], first: int, **options: Any) -> LmdbWriter:
        check_options(options, self)
        return LmdbWriter(Path(path), fields, first)

    def reader(self, path: Path, fields: Mapping[str, Field]) -> LmdbReader:
        return LmdbReader(Path(path), fields)

    def companions(self, name: str, *, adopted: bool) -> tuple[str, ...]:
        return ()

    def touch(self, file: BinaryIO, fields: Mapping[str, Field], *, adopted: bool) -> bool:
        return False  # a key may be on any page

    def read_fields(self, path: Path) -> Mapping[str, Field] | None:
        text = _value(_checked(RawFile(path)), _FIELDS)
        return None if text is None else parse_fields(text, path)

    def files(self, path: Path) -> tuple[Path, ...]:
        return (path,)


@final
class _Shard:
    """An open shard.

    Attributes:
        file: the file itself.
        pages: its pages.
        mapped: the file in memory, uint8 [size].
        first: the index of its first sample.
        count: its number of samples.
        columns: the hidden columns, by name, uint8 [n, row bytes].
        locators: where the fields are, for compiled lookups; empty without the compiled part.
    """

    def __init__(self, file: RawFile, pages: Pages) -> None:
        self.file, self.pages, self.mapped = file, pages, file.map()
        self.first = self.count = 0
        self.columns: dict[str, NDArray[np.uint8]] = {}
        self.locators: dict[str, RowLocator] = {}


def _open(path: Path, fields: Mapping[str, Field]) -> _Shard:
    shard = _checked(RawFile(path))
    _check_content(shard, fields)
    if native.library() is not None:
        shard.locators = _locators(shard, fields)
    return shard


def _checked(file: RawFile) -> _Shard:
    pages = Pages(file.fd, file.size)
    if not pages.plain:
        raise ShardCorrupt(f"{file.path}: not a complete LMDB file: its first two pages are not those of a plain LMDB")
    if file.size < pages.extent:
        raise ShardCorrupt(f"{file.path}: cut short: {file.size} of {pages.extent} bytes")
    return _Shard(file, pages)


def _check_size(shard: _Shard) -> None:
    if (size := os.fstat(shard.file.fd).st_size) < shard.pages.extent:
        raise ShardCorrupt(f"{shard.file.path}: cut short: {size} of {shard.pages.extent} bytes")


def _locators(shard: _Shard, fields: Mapping[str, Field]) -> dict[str, RowLocator]:
    """Return a locator of each field, by name, for compiled lookups."""
    file, mapped = shard.file, shard.mapped
    locators: dict[str, RowLocator] = {name: MemoryRows.of(column) for name, column in shard.columns.items()}
    for name in fields.keys() - shard.columns.keys():
        keys = LmdbKeys(mapped.ctypes.data, file.fd, shard.first, file.size, name.encode(), (mapped, file))
        locators[name] = keys
    return locators


def _check_content(shard: _Shard, fields: Mapping[str, Field]) -> None:
    """Read the shard's numbers and columns into `shard`; ShardCorrupt if these or the fields are missing."""
    path, find = shard.file.path, shard.pages.find
    numbers = [_value(shard, key) for key in (_FIRST, _COUNT)]
    if any(number is None or len(number) != 8 for number in numbers):
        raise ShardCorrupt(
            f"{path}: its first index or its number of samples is missing: not written by this container"
        )
    shard.first, shard.count = (int.from_bytes(number, "little") for number in numbers if number is not None)
    if shard.first + shard.count >= 1 << 63:
        raise ShardCorrupt(f"{path}: {shard.count} samples from index {shard.first} on are more than there can be")
    for name, field in fields.items():
        if name.startswith("_"):
            span, expected = find(_SHARD_KEY + name.encode()), shard.count * field.row_bytes
            if span is None:
                raise ShardCorrupt(f"{path}: column {name!r} is missing")
            start, size = span
            if size != expected:
                raise ShardCorrupt(f"{path}: column {name!r} has {size} of {expected} bytes")
            shard.columns[name] = shard.mapped[start : start + size].reshape(shard.count, field.row_bytes)
        elif shard.count and find(shard.first.to_bytes(8, "big") + name.encode()) is None:
            raise ShardCorrupt(f"{path}: has no field {name!r}")


def _value(shard: _Shard, key: bytes) -> bytes | None:
    """Return the value of a key that stands once in the shard."""
    span = shard.pages.find(key)
    return None if span is None else os.pread(shard.file.fd, span[1], span[0])


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
