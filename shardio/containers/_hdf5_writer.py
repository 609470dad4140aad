"""The writer of HDF5 shards: it spools each field to a file, and puts them together once their sizes are known."""

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, final

import numpy as np

from ..errors import ConfigError, Message, MissingDependency
from ..format.fields import Field
from ..system.portable import copy_file
from ..system.types import Stored
from ._writing import Writer, fields_text, size_of

Compression: TypeAlias = Literal["gzip", "lzf", "zstd"] | None

_CHUNK_BYTES = 256 << 10
_BLOCK_BYTES = 4 << 20
_PAGE = 4096
FIELDS_ATTRIBUTE = "shardio.fields"
"""The attribute of a shard that describes its fields: enough to rebuild a lost manifest."""


@final
class Hdf5Writer(Writer):
    """A `Writer` whose file does not exist before `close`; memory stays bounded."""

    def __init__(self, path: Path, fields: Mapping[str, Field], first: int, compression: Compression = None) -> None:
        if compression not in (None, "gzip", "lzf", "zstd"):
            raise ConfigError("{compression} must be None, 'gzip', 'lzf' or 'zstd', got {!r}", compression)
        if compression == "zstd":
            _zstd()  # raises before anything is written
        super().__init__(path, fields, first)
        self._compression = compression
        self._data = {name: self._spool() for name in fields}
        self._ends = {name: self._spool() for name, field in fields.items() if not field.fixed}
        self._totals = dict.fromkeys(self._ends, 0)  # entries of ragged fields, bytes of others
        for spool in self._ends.values():
            spool.write(bytes(8))

    def _add(self, sample: Stored, index: int) -> None:
        for name, spool in self._data.items():
            spool.write(sample[name])
        for name, spool in self._ends.items():
            self._totals[name] += size_of(sample[name]) // self._units.get(name, 1)
            spool.write(self._totals[name].to_bytes(8, "little"))

    def _finish(self) -> None:
        try:
            offsets = self._write_structure()
        except RuntimeError as error:  # h5py raises it where a write fails while the file is closed
            raise OSError(str(error)) from error
        descriptor = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb+", buffering=0) as target:
            for spool, offset in offsets:
                spool.flush()
                copy_file(spool.fileno(), spool.tell(), target.fileno(), offset)
            os.fsync(target.fileno())

    def _write_structure(self) -> list[tuple[IO[bytes], int]]:
        """Write the file without what is contiguous; return where that belongs."""
        h5py = importlib.import_module("h5py")
        # Aligned, so that whole pages can be read; small datasets stay packed.
        aligned = {"alignment_threshold": _PAGE, "alignment_interval": _PAGE}
        offsets: list[tuple[IO[bytes], int]] = []
        self._path.unlink(missing_ok=True)
        with h5py.File(self._path, "x", **aligned) as file:
            file.attrs[FIELDS_ATTRIBUTE] = fields_text(self._fields)

            def allocate(spool: IO[bytes], name: str, shape: tuple[int, ...], dtype: Any) -> None:
                dataset = file.create_dataset(name, shape, dtype, dcpl=_contiguous(h5py))
                if dataset.size and dataset.dtype.itemsize:
                    offsets.append((spool, dataset.id.get_offset()))

            for name, field in self._fields.items():
                shape = (self._count, *field.row_shape)
                if field.fixed and (options := self._options(name, field)):
                    _copy(self._data[name], file.create_dataset(name, shape, field.row_dtype, **options))
                elif field.fixed:
                    allocate(self._data[name], name, shape, field.row_dtype)
                else:
                    dtype = field.row_dtype if field.ragged else np.uint8
                    entry_shape = field.entry_shape if field.ragged else ()
                    allocate(self._data[name], f"{name}/data", (self._totals[name], *entry_shape), dtype)
                    allocate(self._ends[name], f"{name}/offsets", (self._count + 1,), "<i8")
        return offsets

    def _options(self, name: str, field: Field) -> dict[str, Any]:
        if self._compression is None or field.kind not in ("array", "pixels") or name.startswith("_"):
            return {}
        if not self._count or not field.row_bytes:
            return {}  # HDF5 has no chunks without elements
        rows = min(self._count, max(1, _CHUNK_BYTES // field.row_bytes))
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
    block = max(1, _BLOCK_BYTES // (row_bytes * chunk)) * chunk
    for start in range(0, len(dataset), block):
        rows = min(block, len(dataset) - start)
        values = np.frombuffer(file.read(rows * row_bytes), dataset.dtype)
        dataset[start : start + rows] = values.reshape(rows, *dataset.shape[1:])
