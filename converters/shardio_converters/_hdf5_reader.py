"""Reading the columns of one open HDF5 file in blocks."""

import contextlib
import importlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.containers.chunked_rows import ChunkedRows
from shardio.containers.files import RawFile, open_hdf5
from shardio.containers.hdf5_chunks import chunked_rows
from shardio.containers.hdf5_fields import data_offset, is_raw
from shardio.containers.hdf5_library import DAMAGE, LibraryFile, Unreadable, missing_filter, resolve
from shardio.errors import BadSample, DatasetError, ShardCorrupt, SourceError
from shardio.foreign.names import printable, source_errors
from shardio.format import cf
from shardio.format.unwritten import Unwritten
from shardio.system import os_errors

from ._fields import array_field
from ._hdf5_columns import Column, cf_attributes
from ._source_base import ColumnReader, first_axis, rows_at_once

_VARYING = 256  # the most rows of varying size to read at once
SERVICE = "shardio_converters._hdf5_service"  # the helper process imports it, because h5py's import takes its time
_LARGEST_CHUNK = 64 << 20  # bytes of a chunk to decompress in this process, whose memory is not limited
_MOST_CHUNKS = 1 << 16  # the most chunks to find when a file is opened: more would take seconds
_OFFSETS = 1 << 17  # the offsets to read at once
_MOST_ROWS = 1 << 24  # of a virtual dataset whose sources are looked through
_MOST_BYTES = 1 << 40  # in a value: whatever offsets say, the sum of all sizes fits int64


def try_in_helper(path: Path, read_timeout: float, function: str, **arguments: Any) -> Sequence[Any]:
    """Let the helper process, which damage may hold or crash, do first what the caller is about to do with a file.

    Returns what the function yields; () if it fails, as it then does in the caller as well.

    Args:
        path: the file.
        read_timeout: seconds that this may take.
        function: the function of `_hdf5_service` that does it.
        arguments: its arguments.

    Raises SourceError if it does not end in time.
    """
    called = f"{SERVICE}:{function}"
    try:
        return LibraryFile(path, read_timeout).call(called, [called], **arguments)
    except Unreadable as error:
        raise SourceError(f"{printable(path)} cannot be read as HDF5: {error}") from error
    except (*DAMAGE, DatasetError, SourceError):
        return ()


def unwritten(dataset: Any, name: str) -> Unwritten:
    """Return how much of a dataset was never written, from its table of chunks."""
    h5d, properties = importlib.import_module("h5py").h5d, dataset.id.get_create_plist()
    one = Unwritten(name, "", dataset.shape[0])
    if not dataset.size:
        return one
    one, layout = replace(one, fill=str(dataset.fillvalue)), properties.get_layout()
    if layout == h5d.CHUNKED:
        grid = [-(-side // chunk) for side, chunk in zip(dataset.shape, dataset.chunks, strict=True)]
        if (count := math.prod(grid)) == dataset.id.get_num_chunks():
            return replace(one, count=count)
        there = list[Any]()
        dataset.id.chunk_iter(lambda info: there.append(info.chunk_offset))
        cells = np.array(there, np.int64).reshape(-1, len(grid)) // dataset.chunks
        numbers = np.sort(np.ravel_multi_index(tuple(cells.T), grid)) if count < 1 << 62 else np.arange(0)
        return one.of_grid(
            numbers, grid, lambda cell: f"at {np.multiply(cell, dataset.chunks).tolist()}", 0, dataset.chunks[0]
        )
    if layout == h5d.CONTIGUOUS and not properties.get_external_count() and dataset.id.get_offset() is None:
        return replace(one, tail=0, lacking=one.rows, count=one.rows, first="row 0", what="rows")
    if layout == h5d.VIRTUAL and one.rows <= _MOST_ROWS:
        return _unmapped(properties, one, dataset.size)
    return one


def _unmapped(properties: Any, one: Unwritten, size: int) -> Unwritten:
    """Return how many rows of a virtual dataset no source maps; if each has some values, how many values none maps."""
    rows, values = np.zeros(one.rows, np.bool_), 0
    for number in range(properties.get_virtual_count()):
        space = properties.get_virtual_vspace(number)
        try:
            low, high = space.get_select_bounds()
        except (*DAMAGE, RuntimeError):
            return one  # as many as there will be
        rows[low[0] : high[0] + 1] = True
        values += space.get_select_npoints()
    if not rows.all():
        return replace(one.of_grid(np.flatnonzero(rows), [one.rows], lambda cell: f"row {cell[0]}"), what="rows")
    return replace(one, lacking=max(0, size - values), count=size, first="in row 0 or later", what="values")


def open_file(path: Path) -> Any:
    try:
        path.stat()  # so that the system says why it cannot be opened
        return open_hdf5(path)
    except (*DAMAGE, ShardCorrupt) as error:
        system = isinstance(error, OSError) and error.errno  # else h5py's own text tells more
        reason = os_errors.reason(OSError(system, os.strerror(system), str(path))) if system else error
        raise SourceError(f"{printable(path)} cannot be read as HDF5: {reason}") from error


@final
class Reader(ColumnReader):
    """An open HDF5 file, with the latest block of each dataset that is read.

    This process reads contiguous numbers, and chunks of numbers whose filters shardio undoes itself. The helper
    process, which damage may hold or crash, reads everything else: other filters, numbers that HDF5 converts, compound
    values and values that differ in size.

    Args:
        path: the file.
        columns: the columns that will be read.
        external_links: whether to read data in other files that it names.
        read_timeout: seconds that libhdf5 may take for each block that the helper process reads.

    Raises SourceError if the file cannot be opened, lacks a column or needs a filter that is not installed.
    """

    def __init__(self, path: Path, columns: Iterable[Column], external_links: bool, read_timeout: float) -> None:
        super().__init__(path)
        self._external_links = external_links
        self._windows: dict[str, tuple[int, NDArray[Any]]] = {}
        self._datasets: dict[str, Any] = {}
        self._heads: dict[str, list[str]] = {}  # the members to read of each compound dataset
        self._means: dict[str, int] = {}
        self._axes: dict[str, int] = {}
        self._in_process: dict[str, Callable[[int, int], NDArray[Any]]] = {}
        self._packed: dict[str, tuple[dict[str, Any], cf.Decoding]] = {}  # attributes of datasets that are decoded
        self._file = open_file(path)
        try:
            with source_errors(path, *DAMAGE, ShardCorrupt):
                self._library = LibraryFile(path, read_timeout)
                for column in columns:
                    self._open(column)
        except SourceError:
            self.close()
            raise

    def close(self) -> None:
        self._datasets.clear()
        self._in_process.clear()
        self._file.close()

    def packing(self) -> dict[str, dict[str, Any]]:
        """Return the attributes of each dataset whose values are not the numbers that are stored, see `cf.to_json`."""
        return {path: cf.to_json(attributes) for path, (attributes, _) in self._packed.items()}

    def _open(self, column: Column) -> None:
        for name in datasets_of([column]):
            if name in self._datasets:  # of another member
                continue
            dataset = take(self._file, name, self._path, self._external_links)
            self._datasets[name], self._axes[name] = along(dataset, column.axis), column.axis
            if (read := reader_in_process(self._datasets[name], name)) is not None:
                self._in_process[name] = read
        if column.decoded:
            dataset = self._datasets[column.path]
            attributes = cf_attributes(dataset)
            if column.units_from:
                times = take(self._file, column.units_from, self._path, self._external_links)
                attributes = cf.with_units_of(attributes, cf_attributes(times))
            how = cf.decoding(attributes, dataset.dtype)
            if not how.idle:
                self._packed[column.path] = attributes, how
        for path in datasets_of([column]):
            self._means[path] = self._means.get(path, 0) + column.mean
        if column.members:
            heads = self._heads.setdefault(column.path, [])
            heads += [name for name in column.members[:1] if name not in heads]

    def span(self, column: Column) -> tuple[int, int]:
        """Where a dataset that is one row is in the file, offset and size; SourceError unless it is in one piece."""
        self._go_to(column)
        dataset = self._datasets[column.path]
        offset = data_offset(dataset, RawFile(self._path), column.path) if column.field.kind == "array" else None
        field = array_field(dataset.dtype, dataset.shape)
        if offset is None or column.path in self._packed or not (field and is_raw(dataset, field)):
            raise SourceError(
                "{}: {!r} cannot be read in place as part of one sample, as it is compressed, in chunks, decoded or no "
                "plain array: convert it",
                printable(self._path),
                column.path,
            )
        return offset, dataset.nbytes

    def _go_to(self, column: Column) -> None:
        """Open the dataset of a column in another group, and close those opened before."""
        if column.whole and column.path not in self._datasets:
            for kept in (self._datasets, self._in_process, self._packed, self._heads):
                kept.clear()
            self._open(column)

    def add_lengths(self, column: Column, sizes: NDArray[np.int64]) -> None:
        """Add the bytes of each row of a ragged column to `sizes`, except for rows whose offsets cannot be read."""
        unit = column.field.entry_bytes if column.field.ragged else 1
        for low in range(0, len(sizes), _OFFSETS):
            part = sizes[low : low + _OFFSETS]
            with contextlib.suppress(BadSample):  # those rows will be bad samples
                offsets = self._read(f"{column.path}/offsets", low, low + len(part) + 1)
                lengths = offsets[1:].astype(np.int64) - offsets[:-1].astype(np.int64)
                part += np.clip(lengths, 0, _MOST_BYTES // unit) * unit

    def _element(self, column: Column, row: int, alone: bool) -> Any:
        self._go_to(column)
        if column.ragged:
            return self._ragged(column, row)
        if column.whole:
            shape = self._datasets[column.path].shape
            return self._rows(column, 0, shape[0] if shape else 1)[()]
        if alone:
            return self._rows(column, row, row + 1)[0]
        return _member(self._row(column.path, row, self._step(column)), column)

    def _rows(self, column: Column, start: int, stop: int) -> NDArray[Any]:
        rows: NDArray[Any] = _member(self._read(column.path, start, stop), column)
        return rows

    def _ragged(self, column: Column, row: int) -> NDArray[Any]:
        path, data = f"{column.path}/data", self._datasets[f"{column.path}/data"]
        start, stop = (int(self._row(f"{column.path}/offsets", at, _OFFSETS)) for at in (row, row + 1))
        size = data.shape[0]
        if not 0 <= start <= stop <= size:
            what = "entries" if column.field.ragged else "bytes"
            raise BadSample(f"offsets {start} to {stop} are not within {size} {what}")
        low, window = self._windows.get(path) or (0, np.empty((0, *data.shape[1:]), data.dtype))
        if not low <= start <= stop <= low + len(window):
            chunk = data.chunks[0] if data.chunks else 1
            low = start // chunk * chunk
            self._windows.pop(path, None)
            window = self._read(path, low, min(-(-stop // chunk) * chunk, size))
            self._windows[path] = low, window
        return window[start - low : stop - low]

    def _row(self, path: str, row: int, step: int) -> Any:
        count = self._datasets[path].shape[0]
        return self._blocks.row(path, row, count, step, lambda start, stop: self._read(path, start, stop))

    def _step(self, column: Column) -> int:
        dataset = self._datasets[column.path]
        if dataset.dtype.hasobject:
            return min(_VARYING, rows_at_once(self._means[column.path]))
        row_bytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=np.int64))
        return rows_at_once(row_bytes, dataset.chunks, dataset.shape)

    def _read(self, path: str, start: int, stop: int) -> NDArray[Any]:
        rows = self._stored(path, start, stop)
        return self._packed[path][1].apply(rows) if path in self._packed else rows

    def _stored(self, path: str, start: int, stop: int) -> NDArray[Any]:
        if (read := self._in_process.get(path)) is not None:
            with reading():
                return read(start, stop)
        try:
            parts = self._library.call(
                f"{SERVICE}:block",
                [self._key(path, start, stop)],
                name=path,
                heads=self._heads.get(path, []),
                start=start,
                stop=stop,
                axis=self._axes[path],
                external_links=self._external_links,
            )
        except Unreadable as error:
            raise BadSample(str(error)) from error
        return _restore(json.loads(parts[0]), iter(parts[1:]))

    def _key(self, path: str, start: int, stop: int) -> tuple[str, int, int]:
        """Return the rows that fail together: those asked for or, if one chunk holds them, all rows of that chunk."""
        dataset = self._datasets[path]
        chunk = dataset.chunks[0] if dataset.chunks and not dataset.dtype.hasobject else 0
        if chunk and start // chunk == (stop - 1) // chunk:
            start = start // chunk * chunk
            stop = start + chunk
        return path, start, stop


@final
class _Moved:
    """A dataset whose rows are along another axis than its first."""

    def __init__(self, dataset: Any, axis: int) -> None:
        self._dataset, self._axis = dataset, axis
        self.attrs, self.id, self.dtype, self.file = dataset.attrs, dataset.id, dataset.dtype, dataset.file
        self.shape = first_axis(dataset.shape, axis)
        self.chunks = None if dataset.chunks is None else first_axis(dataset.chunks, axis)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        found = self._dataset[(*[slice(None)] * self._axis, rows)]
        return np.ascontiguousarray(np.moveaxis(found, self._axis, 0))


def along(dataset: Any, axis: int) -> Any:
    """Return a dataset whose rows are along an axis."""
    return _Moved(dataset, axis) if axis else dataset


def _member(values: Any, column: Column) -> Any:
    for name in column.members:
        values = values[name]
    return values


def datasets_of(columns: Iterable[Column]) -> list[str]:
    """Return the paths of the datasets that hold columns, each once."""
    parts = {True: ("/data", "/offsets"), False: ("",)}
    return sorted({column.path + part for column in columns for part in parts[column.ragged]})


def reader_in_process(dataset: Any, name: str) -> Callable[[int, int], NDArray[Any]] | None:
    """Return a function that reads rows `start` to `stop` of a dataset in this process, which damage cannot hold there.

    None if libhdf5 would have to find chunks, undo filters or convert values, other than in contiguous numbers.
    """
    field = array_field(dataset.dtype, dataset.shape[1:])
    if field is None or isinstance(dataset, _Moved) or not is_raw(dataset, field):
        return None
    h5d, properties = importlib.import_module("h5py").h5d, dataset.id.get_create_plist()
    if properties.get_layout() == h5d.CONTIGUOUS and not properties.get_external_count():
        return partial(read_rows, dataset, ())
    if not dataset.chunks or math.prod(dataset.chunks) * dataset.dtype.itemsize > _LARGEST_CHUNK:
        return None
    if math.prod(-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True)) > _MOST_CHUNKS:
        return None
    try:
        chunks = chunked_rows(dataset, RawFile(Path(dataset.file.filename)), name, field)
    except (*DAMAGE, ShardCorrupt):
        return None  # libhdf5 may be able to read some of its rows
    return None if chunks is None else partial(_read_chunks, chunks)


def _read_chunks(chunks: ChunkedRows, start: int, stop: int) -> NDArray[Any]:
    out = np.empty((stop - start, *chunks.field.row_shape), chunks.field.row_dtype)
    try:
        if out.size:
            chunks.read(np.arange(start, stop), out, _LARGEST_CHUNK)
    except ShardCorrupt as error:
        raise BadSample(f"damaged: {error.__cause__ or error}") from error  # the cause without the place
    return out


def take(file: Any, name: str, path: Path, external_links: bool) -> Any:
    """Return the dataset at `name` in an open file.

    Raises:
        ShardCorrupt: it leads to another file, and may not.
        SourceError: one of its filters is not installed.
    """
    found = file[name] if external_links else resolve(file, name, path)
    if found is None:
        raise KeyError(f"there is no {name!r}")
    if what := missing_filter(found):  # which loads hdf5plugin if it has it
        raise SourceError(f"{printable(path)}, {name} needs {what}: pip install hdf5plugin may provide it")
    return found


def read_rows(dataset: Any, heads: Sequence[str], start: int, stop: int) -> NDArray[Any]:
    rows = dataset.fields(list(heads)) if heads else dataset
    values: NDArray[Any] = rows[start:stop] if dataset.shape else np.asarray(rows[()], None if heads else dataset.dtype)
    return values


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Raise h5py's errors for unreadable data as BadSample."""
    try:
        yield
    except (*DAMAGE, ShardCorrupt) as error:
        raise BadSample(f"damaged, h5py says: {error}") from error


def encode_rows(rows: NDArray[Any]) -> Iterator[bytes | memoryview]:
    """Yield a description of rows in JSON, then the parts that it names."""
    parts: list[bytes | memoryview] = []
    yield json.dumps(_describe(rows, parts)).encode()
    yield from parts


def _describe(values: NDArray[Any], parts: list[bytes | memoryview]) -> dict[str, Any]:
    """Append an array's bytes to `parts`; return its description."""
    if values.dtype.names is not None:
        return {"members": {name: _describe(values[name], parts) for name in values.dtype.names}}
    if not values.dtype.hasobject:
        whole = np.ascontiguousarray(values)
        parts.append(whole.reshape(-1).view(np.uint8).data if whole.nbytes else b"")
        return {"dtype": values.dtype.str, "shape": values.shape}
    flat = [value.encode() if isinstance(value, str) else value for value in values.reshape(-1).tolist()]
    kinds = {value.dtype.str if isinstance(value, np.ndarray) else type(value).__name__ for value in flat} or {"bytes"}
    if len(kinds) > 1:
        raise TypeError(f"expected values of one type, got {', '.join(sorted(kinds))}")
    elements = [value if isinstance(value, bytes) else value.tobytes() for value in flat]
    parts.append(np.array([len(element) for element in elements], "<i8").tobytes())
    parts.append(b"".join(elements))
    return {"elements": kinds.pop(), "shape": values.shape}


def _restore(described: dict[str, Any], parts: Iterator[bytes | bytearray]) -> NDArray[Any]:
    """Return the array of this description, with text as UTF-8."""
    if "members" in described:
        members = {name: _restore(member, parts) for name, member in described["members"].items()}
        count = len(next(iter(members.values())))
        kinds: Any = [(name, values.dtype, values.shape[1:]) for name, values in members.items()]
        whole = np.empty(count, kinds)
        for name, values in members.items():
            whole[name] = values
        return whole
    if "dtype" in described:
        return np.frombuffer(next(parts), described["dtype"]).reshape(described["shape"])
    ends, data = np.cumsum(np.frombuffer(next(parts), "<i8")).tolist(), bytes(next(parts))
    kind, found = described["elements"], np.empty(len(ends), object)
    for i, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        found[i] = data[start:end] if kind == "bytes" else np.frombuffer(data[start:end], kind)
    return found.reshape(described["shape"])
