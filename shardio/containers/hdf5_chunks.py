"""Chunked HDF5 datasets without libhdf5: where each chunk is, and how its filters are undone.

Source: HDF5 File Format Specification, "The Data Layout Message" and "The Filter Pipeline Message".
"""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..fields import Field
from ..types import Rows
from ._files import RawFile, as_rows
from ._hdf5_library import block_parts

_DEFLATE, _SHUFFLE, _FLETCHER32 = 1, 2, 3
_CHECKSUM_BYTES = 4


class _Damaged(Exception):
    """A chunk's bytes are not what its filters made; caught where the place is known."""


@dataclass(frozen=True, slots=True)
class ChunkedRows:
    """A chunked dataset `[n, *shape]`, read chunk by chunk with `pread`, each chunk once per call.

    Attributes:
        file, name, field: what is read.
        chunk: a chunk's shape, samples first; chunks at the edges are padded to it.
        stored: the element type in the file, of either byte order.
        fill: the value of chunks that were never written.
        filters: (code, element size) in the order of writing.
        places, sizes, masks: int64 [chunks along each axis]: the chunk's first byte (-1: never written), its bytes in
            the file, and a bit for each filter that was left out.
    """

    file: RawFile
    name: str
    field: Field
    chunk: tuple[int, ...]
    stored: np.dtype[Any]
    fill: Any
    filters: tuple[tuple[int, int], ...]
    places: NDArray[np.int64]
    sizes: NDArray[np.int64]
    masks: NDArray[np.int64]

    def read(self, rows: Rows, out: NDArray[Any]) -> None:
        """Fills `out` [n, *shape] with the rows; ShardCorrupt if a chunk is cut short or damaged."""
        if not self.filters and self.chunk[1:] == self.field.row_shape:
            self._read_whole_rows(rows, out)
            return
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        for part in block_parts(ordered, self.chunk[0]):
            along = int(ordered[part.start]) // self.chunk[0]
            within = ordered[part] - along * self.chunk[0]
            for cell in np.ndindex(*self.places.shape[1:]):
                starts = [i * size for i, size in zip(cell, self.chunk[1:], strict=True)]
                ends = [min(s + c, n) for s, c, n in zip(starts, self.chunk[1:], self.field.row_shape, strict=True)]
                window = tuple(slice(start, end) for start, end in zip(starts, ends, strict=True))
                used: tuple[Any, ...] = tuple(slice(0, end - start) for start, end in zip(starts, ends, strict=True))
                values = self._chunk((along, *cell), ordered[part][:1])
                target: tuple[Any, ...] = (order[part], *window)
                out[target] = self.fill if values is None else values[(within, *used)]

    def _read_whole_rows(self, rows: Rows, out: NDArray[Any]) -> None:
        row_bytes = self.field.row_bytes
        places = self.places.reshape(-1)[rows // self.chunk[0]]
        offsets = places + rows % self.chunk[0] * row_bytes
        written = places >= 0
        if written.all():
            self.file.read_rows(offsets, as_rows(out, self.field), rows, self.name)
        else:
            target = np.empty((int(written.sum()), row_bytes), np.uint8)
            self.file.read_rows(offsets[written], target, rows[written], self.name)
            as_rows(out, self.field)[written] = target
        if self.stored.byteorder == ">":
            out.byteswap(inplace=True)
        out[~written] = self.fill

    def _chunk(self, cell: tuple[int, ...], row: Rows) -> NDArray[Any] | None:
        if self.places[cell] < 0:
            return None
        place, size = self.places[cell].reshape(1), self.sizes[cell].reshape(1)
        (raw,) = self.file.read_values(place, size, row, self.name)
        expected = int(np.prod(self.chunk, dtype=np.int64)) * self.stored.itemsize
        try:
            data = _undo(raw, self.filters, int(self.masks[cell]), expected)
        except (_Damaged, zlib.error) as error:
            raise ShardCorrupt(
                f"{self.file.path}, field {self.name!r}, row {row[0]}: the chunk at byte {place[0]} is damaged: {error}"
            ) from error
        return np.frombuffer(data, self.stored).reshape(self.chunk)


def chunked_rows(dataset: Any, file: RawFile, name: str, field: Field) -> ChunkedRows | None:
    """A reader of an h5py dataset's chunks, or None where only libhdf5 can undo its filters."""
    properties = dataset.id.get_create_plist()
    found = [properties.get_filter(i) for i in range(properties.get_nfilters())]
    if any(code not in (_DEFLATE, _SHUFFLE, _FLETCHER32) for code, *_ in found):
        return None
    filters = tuple((code, values[0] if values else 0) for code, _, values, _ in found)
    grid = tuple(-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True))
    places, sizes, masks = (np.full(grid, empty, np.int64) for empty in (-1, 0, 0))

    def note(info: Any) -> None:
        cell = tuple(at // size for at, size in zip(info.chunk_offset, dataset.chunks, strict=True))
        places[cell], sizes[cell], masks[cell] = info.byte_offset, info.size, info.filter_mask

    if dataset.size:
        dataset.id.chunk_iter(note)
    if places.size and (end := int((places + sizes).max())) > file.size:
        raise ShardCorrupt(f"{file.path}, field {name!r}: ends at byte {end} of {file.size}")
    fill = np.asarray(dataset.fillvalue, field.row_dtype)
    return ChunkedRows(file, name, field, dataset.chunks, dataset.dtype, fill, filters, places, sizes, masks)


def _undo(data: bytes, filters: tuple[tuple[int, int], ...], mask: int, expected: int) -> bytes:
    for i in reversed(range(len(filters))):
        code, width = filters[i]
        if mask >> i & 1:
            continue
        if code == _DEFLATE:
            data = _inflate(data, expected + _CHECKSUM_BYTES * len(filters))
        elif code == _SHUFFLE:
            data = _unshuffle(data, width)
        else:
            data = _checked(data)
    if len(data) != expected:
        raise _Damaged(f"it has {len(data)} of {expected} bytes")
    return data


def _inflate(data: bytes, limit: int) -> bytes:
    # Without a limit a few damaged bytes could ask for all memory.
    stream = zlib.decompressobj()
    inflated = stream.decompress(data, limit + 1)
    if not stream.eof:
        raise _Damaged(f"its deflate stream does not end within {limit} bytes")
    return inflated


def _unshuffle(data: bytes, width: int) -> bytes:
    """Undoes HDF5's shuffle, which puts the first bytes of all elements first, then the second bytes, and so on."""
    if width < 2:
        return data
    whole = len(data) // width * width
    return np.frombuffer(data, np.uint8, whole).reshape(width, -1).T.tobytes() + data[whole:]


def _checked(data: bytes) -> bytes:
    """Strips and verifies the checksum at the end."""
    content, stored = data[:-_CHECKSUM_BYTES], int.from_bytes(data[-_CHECKSUM_BYTES:], "little")
    if (actual := fletcher32(content)) != stored:
        raise _Damaged(f"fletcher32 {actual:08x} is not {stored:08x}")
    return content


def fletcher32(data: bytes) -> int:
    """HDF5's Fletcher-32 of big-endian 16-bit words (an odd last byte is the high half of one more).

    Sums are taken modulo 65535 in ones' complement, where a sum that is not zero never becomes zero.
    """
    words = np.frombuffer(data + bytes(len(data) % 2), ">u2").astype(np.uint64)
    weights = np.arange(len(words) - 1, -1, -1, dtype=np.int64).astype(np.uint64) % 65535 + 1
    first, second = (_folded(int(total)) for total in (words.sum(), (words * weights).sum()))
    return second << 16 | first


def _folded(total: int) -> int:
    return (total - 1) % 65535 + 1 if total else 0
