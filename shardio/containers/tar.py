"""The `tar` container: a plain WebDataset tar, and beside it an index of where each value is.

Other programs read the tar alone. Scalars and hidden columns stand in the index as well, where they need no parsing.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from .. import npy
from ..errors import BadSample, ShardCorrupt
from ..fields import Field
from ..types import Buffer, Column, Rows, Stored
from . import _tar_layout as layout
from ._files import Handle, RawFile, as_rows, check_request
from ._writing import OutputFiles, check_options, check_sample, size_of
from .base import check_out
from .direct import Direct, rows_of


@final
class TarWriter:
    """See `base.Writer`; the index is written row by row beside the tar, so memory stays bounded."""

    def __init__(self, path: Path, fields: Mapping[str, Field], first: int) -> None:
        layout.check_names(fields)
        dtype = layout.index_dtype(fields)
        self._path, self._fields, self._first = path, dict(fields), first
        self._members = layout.visible(fields)
        self._packed = layout.packed(fields)
        self._places = struct.Struct(f"<{2 * len(self._members)}q")
        self._array_headers = {n: layout.array_header(f) for n, f in fields.items() if f.kind == "array" and f.fixed}
        self._descr = np.lib.format.dtype_to_descr(dtype)
        self._count = self._position = 0
        self._whole, self._closed = True, False
        self._files = OutputFiles()
        self._tar = self._files.create(path)
        self._index = self._files.create(layout.index_path(path))
        self._index.write(self._index_header())

    def append(self, sample: Stored) -> None:
        """Adds one sample; ConfigError for other fields, BadSample for a wrong or too large size."""
        if self._closed or not self._whole:
            raise ValueError(f"{self._path}: the writer is closed, or an earlier append failed")
        check_sample(sample, self._fields, self._first + self._count, self._path)
        contents = [self._content(name, field, sample[name]) for name, field in self._members.items()]
        # What fails from here on leaves half a sample behind, which `close` must not pass off as a shard.
        self._whole = False
        key = f"{self._first + self._count:0{layout.KEY_DIGITS}d}"
        places: list[int] = []
        for extension, before, value, size in contents:
            full = len(before) + size
            self._tar.write(layout.member_header(f"{key}.{extension}", full))
            self._tar.write(before)
            self._tar.write(value)
            self._tar.write(bytes(-full % layout.BLOCK))
            places += [self._position + layout.BLOCK + len(before), size]
            self._position += layout.BLOCK + full + -full % layout.BLOCK
        self._index.write(self._places.pack(*places))
        for name in self._packed:
            self._index.write(sample[name])
        self._count += 1
        self._whole = True

    def close(self) -> None:
        """Ends both files and syncs them; after a failed append it only lets go."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._whole:
                self._tar.write(bytes(2 * layout.BLOCK))
                self._index.seek(0)
                self._index.write(self._index_header())
                self._files.sync()
        finally:
            self._files.drop()

    def _content(self, name: str, field: Field, stored: Buffer) -> tuple[str, bytes, Buffer, int]:
        value = layout.member_text(field, stored) if field.kind == "scalar" else stored
        before, size = self._array_headers.get(name, b""), size_of(value)
        if len(before) + size > layout.LARGEST_MEMBER:
            raise BadSample(
                f"{self._path.name}, sample {self._first + self._count}, field {name!r}: "
                f"a tar member has at most {layout.LARGEST_MEMBER} bytes, got {size}"
            )
        return layout.extension_of(name, field, stored), before, value, size

    def _index_header(self) -> bytes:
        return layout.npy_header({"descr": self._descr, "fortran_order": False, "shape": (self._count,)})


@dataclass(frozen=True, slots=True)
class _Open:
    file: RawFile
    index: NDArray[Any]


@final
class TarReader:
    """See `base.Reader`; a value is one `pread` at the place that the memory-mapped index gives."""

    def __init__(self, path: Path, fields: Mapping[str, Field]) -> None:
        self._path, self._fields = path, dict(fields)
        self._handle = Handle(_open, path, fields)

    def __len__(self) -> int:
        return len(self._handle.get().index)

    def read(self, rows: Rows, field: str, out: NDArray[Any] | None = None) -> Column:
        """One field of many samples: see `base.Reader`."""
        opened = self._handle.get()
        rows, kind = check_request(rows, field, out, self._fields, len(opened.index), self._path)
        if field.startswith("_") or kind.kind == "scalar":
            out = check_out(out, len(rows), kind)
            out[...] = opened.index[field][rows]
            return out
        offsets, sizes = opened.index[f"{field}.offset"][rows], opened.index[f"{field}.size"][rows]
        if not kind.fixed:
            return opened.file.read_values(offsets, sizes, rows, field)
        wrong = np.flatnonzero(sizes != kind.row_bytes)
        if len(wrong):
            row, size = rows[wrong[0]], sizes[wrong[0]]
            raise ShardCorrupt(f"{self._path}, field {field!r}, row {row}: expected {kind.row_bytes} bytes, got {size}")
        out = check_out(out, len(rows), kind)
        opened.file.read_rows(offsets, as_rows(out, kind), rows, field)
        return out

    def direct(self, field: str) -> Direct | None:
        """See `base.Reader`."""
        opened = self._handle.get()
        index, stride = opened.index, opened.index.dtype.itemsize
        if field in (index.dtype.names or ()):
            return rows_of(index[field])
        places = index[f"{field}.offset"].ctypes.data
        if index[f"{field}.size"].ctypes.data != places + 8:
            return None
        return Direct("places", stride, places, opened.file.fd, limit=opened.file.size, owner=opened)

    def close(self) -> None:
        """Lets go of files."""
        self._handle.close()


@final
class TarContainer:
    """WebDataset tars with a side index."""

    name = "tar"
    suffix = ".tar"

    def writer(self, path: Path, fields: Mapping[str, Field], first: int, **options: Any) -> TarWriter:
        """A tar to be written at `path`, its index beside it; takes no options."""
        check_options(options, (), self.name)
        return TarWriter(Path(path), fields, first)

    def reader(self, path: Path, fields: Mapping[str, Field]) -> TarReader:
        """The tar and index at `path`; ShardCorrupt if either is missing, cut short or damaged."""
        return TarReader(Path(path), fields)

    def files(self, path: Path) -> tuple[Path, ...]:
        """The tar and its index."""
        return path, layout.index_path(path)


def _open(path: Path, fields: Mapping[str, Field]) -> _Open:
    file = RawFile(path)
    place = layout.index_path(path)
    try:
        mapped = npy.guarded(lambda: np.lib.format.open_memmap(place, mode="r", max_header_size=1 << 20))
    except FileNotFoundError as error:
        raise ShardCorrupt(f"{path}: its index {place.name} is missing") from error
    except (ValueError, EOFError) as error:
        raise ShardCorrupt(f"{place}: the index is cut short or damaged: {error}") from error
    index = np.asarray(mapped)
    expected = layout.index_dtype(fields)
    for name in expected.names or ():
        if index.ndim != 1 or name not in (index.dtype.names or ()):
            raise ShardCorrupt(f"{place}: the index has no column {name!r}")
        if index.dtype[name] != expected[name]:
            raise ShardCorrupt(f"{place}, column {name!r}: expected {expected[name]}, got {index.dtype[name]}")
    for name in layout.visible(fields) if len(index) else ():
        end = int(index[f"{name}.offset"][-1]) + int(index[f"{name}.size"][-1])
        if end > file.size:
            raise ShardCorrupt(f"{path}, field {name!r}, row {len(index) - 1}: ends at byte {end} of {file.size}")
    return _Open(file, index)
