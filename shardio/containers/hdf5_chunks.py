"""Where the chunks of an HDF5 dataset are in its file, and by which filters, read without libhdf5.

Source: HDF5 File Format Specification, "The Data Layout Message" and "The Filter Pipeline Message".
"""

import contextlib
import importlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..format.fields import Field
from ..native.chunks import END, FILE, MASK, OFFSET, SIZE
from ..system.types import Rows
from . import chunk_codecs as codecs
from .chunk_cache import CHUNKS
from .chunk_codecs import Bytes, Damaged, Undo
from .chunk_filters import FilterPipeline
from .chunked_rows import ChunkedRows, Located, StoredChunks
from .extents import FileSpans
from .files import RawFile
from .requested import REQUESTED
from .row_locator import within


@final
@dataclass(frozen=True, slots=True)
class FileChunks(StoredChunks):
    """The chunks of an HDF5 dataset.

    Attributes:
        file: the file.
        offsets: of each chunk in the file, int64 [chunks along each axis]; -1 if it was never written.
        sizes: the bytes of each chunk in the file, of the same shape.
        masks: a bit for each filter that was skipped for the chunk, of the same shape.
    """

    file: RawFile
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    masks: NDArray[np.int64]

    def has(self, cell: tuple[int, ...]) -> bool:
        return bool(self.offsets[cell] >= 0)

    def load(self, cell: tuple[int, ...], row: int, out: Bytes | None = None) -> Bytes | None:
        if (offset := int(self.offsets[cell])) < 0:
            return None
        size = int(self.sizes[cell])
        buffers = self.pipeline.buffers(size)
        raw = buffers[0][:size]
        REQUESTED.add(size)
        # `read_rows` continues after a partial read, and raises where the file ends.
        if os.preadv(self.file.fd, [raw.data], offset) != size:
            self.file.read_rows(np.array([offset]), raw.reshape(1, -1), np.array([row]), self.name)
        try:
            return self.pipeline.undo(buffers, size, int(self.masks[cell]), out)
        except Damaged as error:
            raise ShardCorrupt(
                f"{self.file.path}, field {self.name!r}, row {row}: the chunk at byte {offset} is damaged: {error}"
            ) from error

    @contextlib.contextmanager
    def located(self, cells: NDArray[np.int64]) -> Iterator[Located]:
        places = tuple(cells.T)
        table = np.zeros((len(cells), END + 1), np.int64)
        table[:, FILE], table[:, OFFSET] = self.file.fd, self.offsets[places]
        table[:, SIZE] = np.where(table[:, OFFSET] < 0, -1, self.sizes[places])
        table[:, MASK] = self.masks[places]
        yield Located(table)

    def read_rows(self, rows: Rows, per_chunk: int, out: NDArray[np.uint8]) -> NDArray[np.bool_]:
        offsets = self.row_offsets(rows, per_chunk, out.shape[1])
        written: NDArray[np.bool_] = offsets >= 0
        if written.all():
            self.file.read_rows(offsets, out, rows, self.name)
        else:
            target = np.empty((int(written.sum()), out.shape[1]), np.uint8)
            self.file.read_rows(offsets[written], target, rows[written], self.name)
            out[written] = target
        return written

    def row_offsets(self, rows: Rows, per_chunk: int, row_bytes: int) -> NDArray[np.int64]:
        chunks = self.offsets.reshape(-1)[rows // per_chunk]
        return np.where(chunks < 0, -1, chunks + rows % per_chunk * row_bytes)

    def spans(self, numbers: NDArray[np.int64]) -> FileSpans:
        """Return where chunks are in the file, by their numbers in the flat grid, without chunks never written."""
        offsets, sizes = self.offsets.reshape(-1)[numbers], self.sizes.reshape(-1)[numbers]
        return offsets[offsets >= 0], sizes[offsets >= 0]

    def read_raw_blocks(
        self, rows: Rows, begins: NDArray[np.int64], chunk: tuple[int, ...], fill: Any, out: NDArray[Any]
    ) -> bool:
        # Each run is in one chunk.
        if not self.is_raw:
            return False
        *outer, last = (1, *out.shape[1:])
        strides = np.cumprod([out.itemsize, *chunk[:0:-1]])[::-1]
        grid = np.cumprod([1, *self.offsets.shape[:0:-1]])[::-1]
        cells, within = (np.zeros((len(rows), *(1 for _ in outer)), np.int64) for _ in range(2))
        for axis, size in enumerate(outer):
            places = begins[:, axis, None] + np.arange(size)
            places = places.reshape(len(rows), *(size if axis == each else 1 for each in range(len(outer))))
            cells = cells + places // chunk[axis] * grid[axis]
            within = within + places % chunk[axis] * strides[axis]
        # Along the last axis, a run ends where its chunk does.
        chunks = begins[:, -1, None] // chunk[-1] + np.arange((last - 2) // chunk[-1] + 2)
        starts = np.maximum(chunks * chunk[-1], begins[:, -1, None])
        stops = np.minimum((chunks + 1) * chunk[-1], begins[:, -1, None] + last)
        shape = (len(rows), *(1 for _ in outer), -1)
        chunks, starts, sizes = (each.reshape(shape) for each in (chunks, starts, np.maximum(stops - starts, 0)))
        cells = cells[..., None] + np.minimum(chunks, self.offsets.shape[-1] - 1)
        offsets = self.offsets.reshape(-1)[cells]
        written = offsets >= 0
        if not written.all():
            out[...] = fill
        offsets = offsets + within[..., None] + (starts - chunks * chunk[-1]) * out.itemsize
        lines = np.arange(math.prod(outer[1:]) * len(rows)).reshape(*within.shape, 1) * last
        targets = (lines + starts - begins[:, -1].reshape(shape)) * out.itemsize
        kept = np.broadcast_to(written & (sizes > 0), offsets.shape)
        columns = (offsets, sizes * out.itemsize, targets, rows.reshape(shape))
        spans = (np.broadcast_to(each, offsets.shape)[kept] for each in columns)
        starts, sizes, targets, of = spans
        self.file.read_runs(starts, sizes, targets, out.reshape(-1).view(np.uint8), of, self.name)
        return True


_FILTERS: dict[int, tuple[str, Callable[[tuple[int, ...]], Undo | None]]] = {
    1: ("deflate", codecs.undo_gzip),
    2: ("shuffle", lambda values: codecs.undo_shuffle(values[0] if values else 0)),
    3: ("fletcher32", codecs.undo_fletcher32),
    307: ("bzip2", lambda _: codecs.undo_bzip2),
    32000: ("lzf", codecs.undo_lzf),
    32001: ("blosc", codecs.undo_blosc),
    32004: ("lz4", codecs.undo_lz4),
    32008: ("bitshuffle", codecs.undo_bitshuffle),
    32015: ("zstd", codecs.undo_zstd),
    32026: ("blosc2", codecs.undo_blosc2),
}
"""By HDF5's number of a filter: its name, and a function of its settings that returns what undoes it."""


def _pipeline_of(dataset: Any, size: int) -> FilterPipeline | None:
    """Return the filters of an h5py dataset with chunks of `size` bytes; None if only libhdf5 can undo one of them."""
    properties = dataset.id.get_create_plist()
    filters = []
    for i in range(properties.get_nfilters()):
        code, _, values, _ = properties.get_filter(i)
        name, make = _FILTERS.get(code, ("", None))
        try:
            undo = None if make is None else make(values)
        except (ImportError, OSError, AttributeError):
            return None  # its library is not installed, built for another machine, or without the functions
        if undo is None:
            return None
        filters.append((name, undo))
    return FilterPipeline(tuple(filters), size)


def _chunks_of(dataset: Any, file: RawFile, name: str) -> FileChunks | None:
    """Return the chunks of an h5py dataset.

    None if only libhdf5 can undo its filters, or if most chunks were never written: a table of all, which a header of a
    few bytes may claim any number of, is no longer than the file.
    """
    pipeline = _pipeline_of(dataset, math.prod(dataset.chunks) * dataset.dtype.itemsize)
    grid = tuple(-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True))
    if pipeline is None or math.prod(grid) > file.size:
        return None
    offsets, sizes, masks = (np.full(grid, empty, np.int64) for empty in (-1, 0, 0))
    # libhdf5 before 1.14.4 counts from the end of the user block: https://github.com/HDFGroup/hdf5/issues/3003
    version = importlib.import_module("h5py").version.hdf5_version_tuple
    begin = dataset.file.userblock_size if version < (1, 14, 4) else 0

    def add(info: Any) -> None:
        cell = tuple(start // size for start, size in zip(info.chunk_offset, dataset.chunks, strict=True))
        offsets[cell], sizes[cell], masks[cell] = begin + info.byte_offset, info.size, info.filter_mask

    if dataset.size:
        dataset.id.chunk_iter(add)
    return FileChunks(str(file.path), name, grid, pipeline, not pipeline.filters, file, offsets, sizes, masks)


def chunked_rows(dataset: Any, file: RawFile, name: str, field: Field) -> ChunkedRows | None:
    """Return a reader of an h5py dataset's chunks; None if only libhdf5 finds or decompresses them."""
    if (chunks := _chunks_of(dataset, file, name)) is None:
        return None
    pipeline, offsets, sizes = chunks.pipeline, chunks.offsets, chunks.sizes
    written = offsets >= 0
    for cell in np.argwhere(written & ~within(offsets, sizes, 0, file.size))[:1].tolist():
        offset, size = int(offsets[*cell]), int(sizes[*cell])
        raise ShardCorrupt(f"{file.path}, field {name!r}: ends at byte {offset + size} of {file.size}")
    if not pipeline.filters and (short := sizes[written & (sizes < pipeline.size)]).size:
        raise ShardCorrupt(f"{file.path}, field {name!r}: a chunk has {short[0]} of {pipeline.size} bytes")
    fill = np.asarray(dataset.fillvalue, field.row_dtype)
    kept = CHUNKS.number_of(file, math.prod(chunks.grid) * pipeline.size)
    return ChunkedRows(chunks, name, field, dataset.chunks, dataset.dtype, fill, kept, len(dataset))
