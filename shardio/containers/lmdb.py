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
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..errors import BadSample, ConfigError, ShardCorrupt
from ..format.fields import Field
from ..format.limits import MAX_VALUE_BYTES
from ..native import rows as compiled
from ..system.types import Column, Rows, Stored
from . import row_locator
from ._files import Handle, RawFile, as_rows, check_request
from ._lmdb_pages import Pages
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
    """A `Reader`. Readers of one file share one environment, and look keys up in the file's pages themselves."""

    def __init__(self, path: Path, fields: Mapping[str, Field]) -> None:
        self._path, self._fields = path, dict(fields)
        self._handle = Handle(_open, path, fields, per_process=True)

    def __len__(self) -> int:
        return self._handle.get().count

    def read(self, rows: Rows, field: str, out: NDArray[Any] | None = None, *, most: int = MAX_VALUE_BYTES) -> Column:
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
        if field in lease.columns:
            out = check_out(out, len(rows), kind)
            out[...] = lease.columns[field].view(kind.row_dtype).reshape(lease.count, *kind.row_shape)[rows]
            return out
        values = lease.file.read_values(*self._spans(lease, rows, field), rows, field, most)
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
        self._handle.close()  # the file closes with its last reader in this process

    def _spans(self, lease: Lease, rows: Rows, field: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the offset and size of each value, int64 [n] each."""
        locator = lease.locators.get(field)
        try:
            spans = None if locator is None else row_locator.locate(locator, rows)
        except compiled.MappedFileLost as error:
            raise ShardCorrupt(f"{self._path}: cut short while it was open, or its storage failed") from error
        if spans is not None:
            return spans
        found = np.empty((len(rows), 2), np.int64)
        for place, row in enumerate(rows.tolist()):
            span = lease.pages.find((row + lease.first).to_bytes(8, "big") + field.encode())
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

    def read_fields(self, path: Path) -> Mapping[str, Field] | None:
        with _damage_named(path), GATE:
            lease = _leased(RawFile(path))
            text = _value(lease, _FIELDS)
        return None if text is None else parse_fields(text, path)

    def files(self, path: Path) -> tuple[Path, ...]:
        return (path,)


def _open(path: Path, fields: Mapping[str, Field]) -> Lease:
    with _damage_named(path), GATE:
        lease = _leased(RawFile(path))
        _check_content(lease, fields)
        if native.library() is not None:
            lease.locators = _locators(lease, fields)
        return lease


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        with disk_errors():
            yield
    except importlib.import_module("lmdb").Error as error:
        raise ShardCorrupt(f"{path}: not a complete LMDB file: {error}") from error


def _leased(file: RawFile) -> Lease:
    # LMDB divides by a page size of 0 and maps as much as a header says: it gets only what has been checked.
    pages = Pages(file)
    if not pages.known:
        raise ShardCorrupt(f"{file.path}: not a complete LMDB file: its first two pages are not those of a plain LMDB")
    if file.size < pages.extent:
        raise ShardCorrupt(f"{file.path}: cut short: {file.size} of {pages.extent} bytes")
    return take_lease(file, pages)


def _check_size(lease: Lease) -> None:
    if (size := os.fstat(lease.file.fd).st_size) < lease.pages.extent:
        raise ShardCorrupt(f"{lease.file.path}: cut short: {size} of {lease.pages.extent} bytes")


def _locators(lease: Lease, fields: Mapping[str, Field]) -> dict[str, RowLocator]:
    """Return a locator of each field, by name, for compiled lookups."""
    file, mapped = lease.file, lease.mapped
    locators: dict[str, RowLocator] = {name: MemoryRows.of(column) for name, column in lease.columns.items()}
    for name in fields.keys() - lease.columns.keys():
        keys = LmdbKeys(mapped.ctypes.data, file.fd, lease.first, file.size, name.encode(), (mapped, file))
        locators[name] = keys
    return locators


def _check_content(lease: Lease, fields: Mapping[str, Field]) -> None:
    """Read the shard's numbers and columns into `lease`; ShardCorrupt if these or the fields are missing."""
    path, find = lease.file.path, lease.pages.find
    numbers = [_value(lease, key) for key in (_FIRST, _COUNT)]
    if any(number is None or len(number) != 8 for number in numbers):
        raise ShardCorrupt(
            f"{path}: its first index or its number of samples is missing: not written by this container"
        )
    lease.first, lease.count = (int.from_bytes(number, "little") for number in numbers if number is not None)
    if lease.first + lease.count >= 1 << 63:
        raise ShardCorrupt(f"{path}: {lease.count} samples from index {lease.first} on are more than there can be")
    for name, field in fields.items():
        if name.startswith("_"):
            span, expected = find(_SHARD_KEY + name.encode()), lease.count * field.row_bytes
            if span is None:
                raise ShardCorrupt(f"{path}: column {name!r} is missing")
            start, size = span
            if size != expected:
                raise ShardCorrupt(f"{path}: column {name!r} has {size} of {expected} bytes")
            lease.columns[name] = lease.mapped[start : start + size].reshape(lease.count, field.row_bytes)
        elif lease.count and find(lease.first.to_bytes(8, "big") + name.encode()) is None:
            raise ShardCorrupt(f"{path}: has no field {name!r}")


def _value(lease: Lease, key: bytes) -> bytes | None:
    """Return the value of a key that stands once in the shard."""
    span = lease.pages.find(key)
    return None if span is None else os.pread(lease.file.fd, span[1], span[0])
