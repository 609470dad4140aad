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

import errno
import importlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..errors import BadSample, ConfigError, ShardCorrupt
from ..format.fields import Field
from ..native import rows as compiled
from ..system.types import Column, Rows, Stored
from . import row_locator
from ._files import Handle, RawFile, as_rows, check_request
from ._lmdb_shared import GATE, Lease, disk_errors, extent_of, take_lease
from ._writing import OutputFiles, check_options, check_sample, fields_text, fixed_sizes, parse_fields, size_of
from .base import check_out
from .row_locator import LmdbKeys, MemoryRows, RowLocator

_SHARD_KEY = b"\xff" * 8
_FIRST, _COUNT, _FIELDS = _SHARD_KEY + b"_first", _SHARD_KEY + b"_count", _SHARD_KEY + b"_fields"
_LONGEST_KEY = 511
_LARGEST_VALUE = 2**32 - 1
_COMMIT_BYTES = 32 << 20
_SMALLEST_MAP = 1 << 20

_LOOKUP = threading.Lock()
"""Lets one thread look up keys at a time: py-lmdb releases the GIL for each key, and contention for it costs more."""


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
        with disk_errors():  # LMDB would follow a link at `path`: it gets the file that was created there
            opened = importlib.import_module("lmdb").open(f"/proc/self/fd/{self._file.fileno()}", **options)
            self._environment = opened

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
                size = extent_of(self._environment)
                if os.fstat(self._file.fileno()).st_size < size:
                    # LMDB never writes trailing pages that a transaction freed again, but readers map them.
                    os.truncate(self._file.fileno(), size)
                with disk_errors():
                    self._environment.sync(True)
        finally:
            self._environment.close()
            self._files.close()

    def _commit(self) -> None:
        map_full = importlib.import_module("lmdb").MapFullError
        self._intact = False
        while True:
            try:
                with disk_errors(), self._environment.begin(write=True) as transaction:
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
    """A `Reader`. Readers of one file share one environment; each thread has its own transaction."""

    def __init__(self, path: Path, fields: Mapping[str, Field]) -> None:
        self._path, self._fields = path, dict(fields)
        self._handle = Handle(_open, path, fields, per_process=True)

    def __len__(self) -> int:
        return self._handle.get().count

    def read(self, rows: Rows, field: str, out: NDArray[Any] | None = None) -> Column:
        lease = self._handle.get()
        rows, kind = check_request(rows, field, out, self._fields, lease.count, self._path)
        _check_size(lease)
        locator = lease.locators.get(field)
        if isinstance(locator, MemoryRows):
            out = check_out(out, len(rows), kind)
            try:
                compiled.gather(locator.address + rows * locator.stride, kind.row_bytes, out)
            except compiled.MappedFileLost as error:
                raise ShardCorrupt(f"{self._path}: cut short while it was open, or its storage failed") from error
            return out
        if field.startswith("_"):
            out = check_out(out, len(rows), kind)
            # The column is not copied: a transaction of its own lends the pages while the rows are taken.
            with GATE, lease.environment.handle.begin(buffers=True) as transaction:
                stored = transaction.get(_SHARD_KEY + field.encode())
                column = np.frombuffer(stored, kind.row_dtype).reshape(lease.count, *kind.row_shape)
                out[...] = column[rows]
                del column, stored
            return out
        values: Sequence[Any]
        if locator is None:
            values = self._values_by_lmdb(lease, rows, field)
        else:
            values = self._values_by_locator(lease, locator, rows, field)
        if not kind.fixed:
            return list(map(bytes, values))
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
        self._handle.close()  # the file closes with its last reader in this process

    def _values_by_locator(self, lease: Lease, locator: RowLocator, rows: Rows, field: str) -> list[bytes]:
        """Read by compiled lookups: LMDB itself would follow a damaged page out of its memory, and end the process."""
        try:
            spans = row_locator.locate(locator, rows)
            if spans is None:
                wrong = next(
                    (row for row in rows.tolist() if row_locator.locate(locator, np.array([row])) is None), rows[0]
                )
                raise ShardCorrupt(f"{self._path}, field {field!r}, row {wrong}: there is no such entry")
        except compiled.MappedFileLost as error:
            raise ShardCorrupt(f"{self._path}: cut short while it was open, or its storage failed") from error
        return lease.file.read_values(*spans, rows, field)

    def _values_by_lmdb(self, lease: Lease, rows: Rows, field: str) -> list[memoryview]:
        """Return views of LMDB's own pages, which are valid as long as the lease is."""
        indexes, name = (rows + lease.first).astype(">u8").tobytes(), field.encode()
        # One get per key beats Cursor.getmulti: 1.36 against 1.17 million 3 KB values per second at 512 keys a call.
        try:
            with GATE, _LOOKUP:
                get = lease.environment.transaction().get
                values = [get(indexes[at : at + 8] + name) for at in range(0, len(indexes), 8)]
        except importlib.import_module("lmdb").Error as error:
            raise ShardCorrupt(f"{self._path}, field {field!r}: damaged: {error}") from error
        if None in values:
            raise ShardCorrupt(f"{self._path}, field {field!r}, row {rows[values.index(None)]}: there is no such entry")
        return values


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

    def read_fields(self, path: Path) -> Mapping[str, Field] | None:
        lmdb = importlib.import_module("lmdb")
        try:
            with disk_errors(), GATE:
                lease = take_lease(RawFile(path))
                _check_size(lease)
                with lease.environment.handle.begin() as transaction:
                    text = transaction.get(_FIELDS)
        except lmdb.Error as error:
            raise ShardCorrupt(f"{path}: not a complete LMDB file: {error}") from error
        return None if text is None else parse_fields(text, path)

    def files(self, path: Path) -> tuple[Path, ...]:
        return (path,)


def _open(path: Path, fields: Mapping[str, Field]) -> Lease:
    file = RawFile(path)
    try:
        with GATE:
            return _checked_lease(file, fields)
    except compiled.MappedFileLost as error:
        raise ShardCorrupt(f"{path}: cut short while it was opened, or its storage failed") from error
    except importlib.import_module("lmdb").Error as error:
        raise ShardCorrupt(f"{path}: not a complete LMDB file: {error}") from error


def _checked_lease(file: RawFile, fields: Mapping[str, Field]) -> Lease:
    lease = take_lease(file)
    # Before any transaction: to read pages that the file does not have would end the process.
    _check_size(lease)
    mapped = file.map()
    if native.library() is not None and compiled.is_lmdb(mapped):
        get = lookup(mapped)
        _check_content(lease, fields, get)
        lease.locators = _locators(lease, mapped, fields, get)
    else:
        with lease.environment.handle.begin(buffers=True) as transaction:
            _check_content(lease, fields, transaction.get)
    return lease


def lookup(mapped: NDArray[np.uint8]) -> Callable[[bytes], NDArray[np.uint8] | None]:
    """Return a function that gives a key's value in a mapped LMDB file, or None if there is no such entry."""
    maps, sizes = np.array([mapped.ctypes.data]), np.array([len(mapped)])

    def get(key: bytes) -> NDArray[np.uint8] | None:
        span = np.empty((1, 2), np.int64)
        if not compiled.find_lmdb_values(maps, sizes, np.frombuffer(key, np.uint8).reshape(1, -1), span):
            return None
        start, size = span[0].tolist()
        return mapped[start : start + size]

    return get


def _check_size(lease: Lease) -> None:
    if (size := os.fstat(lease.file.fd).st_size) < lease.extent:
        raise ShardCorrupt(f"{lease.file.path}: cut short: {size} of {lease.extent} bytes")


def _locators(
    lease: Lease,
    mapped: NDArray[np.uint8],
    fields: Mapping[str, Field],
    get: Callable[[bytes], NDArray[np.uint8] | None],
) -> dict[str, RowLocator]:
    """Return a locator of each field, by name, for lookups that bypass LMDB."""
    file, address = lease.file, mapped.ctypes.data
    locators: dict[str, RowLocator] = {}
    for name, field in fields.items():
        column = get(_SHARD_KEY + name.encode()) if name.startswith("_") else None
        if column is not None:
            locators[name] = MemoryRows.of(column.reshape(lease.count, field.row_bytes))
        else:
            locators[name] = LmdbKeys(address, file.fd, lease.first, file.size, name.encode(), (mapped, file))
    return locators


def _check_content(lease: Lease, fields: Mapping[str, Field], get: Callable[[bytes], Any]) -> None:
    """Read the shard's numbers into `lease`; ShardCorrupt if these or the fields are missing."""
    path = lease.file.path
    numbers = [get(key) for key in (_FIRST, _COUNT)]
    if any(number is None or len(number) != 8 for number in numbers):
        raise ShardCorrupt(
            f"{path}: its first index or its number of samples is missing: not written by this container"
        )
    lease.first, lease.count = (int.from_bytes(bytes(number), "little") for number in numbers)
    for name, field in fields.items():
        if name.startswith("_"):
            column, expected = get(_SHARD_KEY + name.encode()), lease.count * field.row_bytes
            if column is None:
                raise ShardCorrupt(f"{path}: column {name!r} is missing")
            if len(column) != expected:
                raise ShardCorrupt(f"{path}: column {name!r} has {len(column)} of {expected} bytes")
        elif lease.count and get(lease.first.to_bytes(8, "big") + name.encode()) is None:
            raise ShardCorrupt(f"{path}: has no field {name!r}")
