"""The writer of HDF5 shards: it spools each field to a file, and puts them together once their sizes are known.

Where all sizes are known before the first sample, each field is written straight to its place in the shard.
"""

import importlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, final

import numpy as np

from ..errors import ConfigError, Message, MissingDependency
from ..format.checksums import rows_of
from ..format.fields import Field
from ..system.direct_file import BLOCK, DirectFile
from ..system.portable import copy_file
from ..system.types import Stored
from ._writing import Columns, Writer, fields_text, size_of

Compression: TypeAlias = Literal["gzip", "lzf", "zstd"] | None

_CHUNK_BYTES = 256 << 10
_PAGE = 4096
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
FIELDS_ATTRIBUTE = "shardio.fields"
"""The attribute of a shard that describes its fields: enough to rebuild a lost manifest."""


@final
class Hdf5Writer(Writer):
    """A `Writer` whose memory stays bounded; a shard is the same bytes whether its number of rows was known or not."""

    def __init__(
        self, path: Path, fields: Mapping[str, Field], first: int, rows: int | None, compression: Compression = None
    ) -> None:
        if compression not in (None, "gzip", "lzf", "zstd"):
            raise ConfigError("{compression} must be None, 'gzip', 'lzf' or 'zstd', got {!r}", compression)
        if compression == "zstd":
            _zstd()  # raises before anything is written
        super().__init__(path, fields, first, rows)
        self._compression = compression
        # Entries of ragged fields, bytes of others.
        self._totals = {name: 0 for name, field in fields.items() if not field.fixed}
        self._is_placed = rows is not None and all(f.fixed and not self._options(n, f, rows) for n, f in fields.items())
        places = self._write_structure(rows or 0) if self._is_placed else {}
        lowest = min(places.values(), default=0)  # behind the structure, which has its content
        self._data: dict[str, Any] = {}  # what writes each field, to its place or to a spool
        for name in fields:
            if self._is_placed:
                seen = self.begun.add if places.get(name) == lowest < BLOCK else None
                self._data[name] = DirectFile(self._open(), places.get(name, 0), seen)
            else:
                self._data[name] = self._spool()
        if self._is_placed:  # until it is finished it is no HDF5 file, since its rows would seem to be there
            os.pwrite(self._open().fileno(), bytes(len(_SIGNATURE)), 0)
        self._ends = {name: self._spool() for name in self._totals}
        for spool in self._ends.values():
            spool.write(bytes(8))

    def _add(self, sample: Stored, index: int) -> None:
        for name, spool in self._data.items():
            spool.write(sample[name])
        for name, spool in self._ends.items():
            self._totals[name] += size_of(sample[name]) // self._units.get(name, 1)
            spool.write(self._totals[name].to_bytes(8, "little"))

    def extend(self, columns: Columns) -> None:
        if self._ends:
            super().extend(columns)
            return
        parts = ((n, rows_of(c[None])[0] if isinstance(c, np.ndarray) else b"".join(c)) for n, c in columns.items())
        self._append(dict(parts), len(next(iter(columns.values()))))

    def _finish(self) -> None:
        places = {} if self._is_placed else self._write_structure(self._count)
        spools = {self._data_path(name): spool for name, spool in self._data.items()}
        spools |= {f"{name}/offsets": spool for name, spool in self._ends.items()}
        for file in self._data.values() if self._is_placed else ():  # all, before the cache takes what is left
            file.wait()
        for spool in spools.values():
            spool.flush()
        target = self._open().fileno()
        for path, offset in places.items():
            copy_file(spools[path].fileno(), spools[path].tell(), target, offset)
        os.pwrite(target, _SIGNATURE, 0)
        os.fsync(target)

    def _open(self) -> io.FileIO:
        file = io.FileIO(os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), "rb+")
        self._files.append(file)
        return file

    def _data_path(self, name: str) -> str:
        return name if self._fields[name].fixed else f"{name}/data"

    def _write_structure(self, rows: int) -> dict[str, int]:
        """Write the file without what is contiguous; return the offset of each such dataset that has bytes."""
        h5py = importlib.import_module("h5py")
        # Aligned, so that whole pages can be read; small datasets stay packed.
        aligned = {"alignment_threshold": _PAGE, "alignment_interval": _PAGE}
        places: dict[str, int] = {}
        self._path.unlink(missing_ok=True)

        def allocate(path: str, shape: tuple[int, ...], dtype: Any) -> None:
            dataset = file.create_dataset(path, shape, dtype, dcpl=_contiguous(h5py))
            if dataset.size and dataset.dtype.itemsize:
                places[path] = dataset.id.get_offset()

        try:
            with h5py.File(self._path, "x", **aligned) as file:
                file.attrs[FIELDS_ATTRIBUTE] = fields_text(self._fields)
                for name, field in self._fields.items():
                    shape = (rows, *field.row_shape)
                    if field.fixed and (options := self._options(name, field, rows)):
                        _copy(self._data[name], file.create_dataset(name, shape, field.row_dtype, **options))
                    elif field.fixed:
                        allocate(name, shape, field.row_dtype)
                    else:
                        dtype = field.row_dtype if field.ragged else np.uint8
                        entry_shape = field.entry_shape if field.ragged else ()
                        allocate(self._data_path(name), (self._totals[name], *entry_shape), dtype)
                        allocate(f"{name}/offsets", (rows + 1,), "<i8")
        except RuntimeError as error:  # h5py raises it where a write fails while the file is closed
            raise OSError(str(error)) from error
        return places

    def _options(self, name: str, field: Field, count: int) -> dict[str, Any]:
        if self._compression is None or field.kind not in ("array", "pixels") or name.startswith("_"):
            return {}
        if not count or not field.row_bytes:
            return {}  # HDF5 has no chunks without elements
        rows = min(count, max(1, _CHUNK_BYTES // field.row_bytes))
        chunks = {"chunks": (rows, *field.row_shape)}
        if self._compression == "lzf":
            return {**chunks, "compression": "lzf"}
        filters = _zstd() if self._compression == "zstd" else {"compression": "gzip"}
        return {**chunks, **filters, "shuffle": True}


def _contiguous(h5py: Any) -> Any:
    """Return the properties of a dataset whose space in the file is allocated at once, and not filled."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return properties


def _zstd() -> dict[str, Any]:
    try:
        return dict(importlib.import_module("hdf5plugin").Zstd())
    except ImportError as error:
        raise MissingDependency(Message("{compression:zstd} needs hdf5plugin: pip install hdf5plugin")) from error


def _copy(file: IO[bytes], dataset: Any) -> None:
    """Copy a spooled field into a chunked dataset, which compresses it."""
    file.seek(0)
    row_bytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=np.int64))
    chunk = dataset.chunks[0]
    # Whole chunks, so that each is compressed once.
    block = max(1, BLOCK // (row_bytes * chunk)) * chunk
    for start in range(0, len(dataset), block):
        rows = min(block, len(dataset) - start)
        values = np.frombuffer(file.read(rows * row_bytes), dataset.dtype)
        dataset[start : start + rows] = values.reshape(rows, *dataset.shape[1:])
