"""Functions that read HDF5 files for `hdf5_library`. The helper process runs them: damage may hold or crash it.

Every function takes the file's path, and its device and inode number, to check that the file is still the one that the
caller has open; it yields bytes.
"""

import importlib
import json
import math
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO, cast, final

import numpy as np

from ..errors import ShardCorrupt
from ..format.fields import as_field
from ..format.pieces import pieces_of
from ..system.seekable import Seekable
from . import files
from ._hdf5_writer import FIELDS_ATTRIBUTE
from .hdf5 import open_shard
from .hdf5_fields import have_spans
from .hdf5_index import Layout
from .hdf5_library import DAMAGE, check_filters, resolve
from .out_arrays import check_value_bytes
from .row_locator import within

_MOST_OPEN = 64
_NODE_CHILDREN = 64  # of a node of a B-tree of chunks, unless the file's writer chose another number

os.environ["HDF5_USE_FILE_LOCKING"] = "FALSE"  # files stay open for long, and that is to keep nobody from writing
_h5py: Any = importlib.import_module("h5py")  # with the module, so that the limit does not include its import


@dataclass(frozen=True, slots=True)
class _OpenFile:
    """A file that stays open.

    Attributes:
        state: its size and time.
        file: its h5py.File.
        datasets: by path in the file, the datasets that were read.
    """

    state: tuple[int, int]
    file: Any
    datasets: dict[str, list[Any]]


_files: OrderedDict[tuple[int, ...], _OpenFile] = OrderedDict()  # by device and inode number


def open_file(path: str, inode: Sequence[int]) -> Any:
    """Return the h5py.File at `path`, opened once as long as it stays the same.

    Raises ShardCorrupt if it is another file than the caller's.
    """
    return _open(path, inode).file


def _open(path: str, inode: Sequence[int]) -> _OpenFile:
    status = Path(path).stat()
    key, state = (status.st_dev, status.st_ino), (status.st_size, status.st_mtime_ns)
    if key != tuple(inode):
        raise ShardCorrupt(f"{path}: another file has taken its place since it was opened")
    if key not in _files or _files[key].state != state:
        _close(key)  # libhdf5 would not read a file anew that it has open
        while len(_files) >= _MOST_OPEN:
            _close(next(iter(_files)))
        _files[key] = _OpenFile(state, files.open_hdf5(Path(path)), {})
    _files.move_to_end(key)
    return _files[key]


def _close(key: tuple[int, ...]) -> None:
    if (opened := _files.pop(key, None)) is not None:
        opened.file.close()


def open_adopted(
    path: str, inode: Sequence[int], fields: Mapping[str, Any], layout: Mapping[str, Any], merged: Sequence[str]
) -> Iterator[bytes]:
    """Open a file that another program wrote, to see that it comes to an end; yield nothing.

    Args:
        path, inode: the file.
        fields: the fields in it, as JSON stores them.
        layout: where they are.
        merged: the files that are merged with it.
    """
    _close(tuple(inode))
    described = {name: as_field(field) for name, field in fields.items()}
    open_shard(Path(path), described, Layout(**layout), [Path(other) for other in merged])
    yield from ()


@final
class _KnownPieces(Seekable):
    """A file that has some of its pieces: reading another piece is an error, and adds it to `missing`.

    Pieces that the tables of chunks refer to are added as well, so that a few errors find all of them.
    """

    def __init__(self, path: str, pieces: Sequence[int]) -> None:
        super().__init__()
        self._file, self._known = files.RawFile(Path(path)), frozenset(pieces)
        self.missing: set[int] = set()
        self._ahead: set[int] = set()

    @property
    def size(self) -> int:
        return self._file.size

    def read_at(self, offset: int, view: memoryview) -> int:
        pieces = pieces_of(np.array([offset]), np.array([len(view)])).tolist()
        if missing := set(pieces) - self._known:
            self.missing |= missing | self._ahead - self._known
            raise OSError("the file has no such piece yet")
        got = os.preadv(self._file.fd, [view], offset)
        self._look_ahead(bytes(view[:got]))
        return got

    def _look_ahead(self, node: bytes) -> None:
        """Note the pieces that hold the children of a node of a version 1 B-tree of chunks."""
        key, rest = divmod(len(node) - 24 - 8 * _NODE_CHILDREN, _NODE_CHILDREN + 1)
        if node[:5] == b"TREE\x01" and node[5] and not rest and key > 0:
            number = min(int.from_bytes(node[6:8], "little"), _NODE_CHILDREN)
            places = [24 + key + place * (key + 8) for place in range(number)]
            offsets = np.array([int.from_bytes(node[place : place + 8], "little", signed=True) for place in places])
            inside = offsets[within(offsets, len(node), 0, self._file.size)]
            self._ahead.update(pieces_of(inside, np.full(len(inside), len(node))).tolist())


def touch(
    path: str, inode: Sequence[int], fields: Mapping[str, Any], layout: Mapping[str, Any], pieces: Sequence[int]
) -> Iterator[bytes]:
    """Read what opening a file that another program wrote reads, of a file that has some pieces of it.

    Args:
        path, inode: the file.
        fields: the fields in it, as JSON stores them.
        layout: where they are; no file is merged.
        pieces: the numbers of the pieces that are there.

    Yields as JSON whether the readers of all fields then know where their rows are, and the pieces that are missing:
    some of them at a time.
    """
    file = _KnownPieces(path, pieces)
    described = {name: as_field(field) for name, field in fields.items()}
    by_spans = have_spans(cast(BinaryIO, file), Path(path), described, Layout(**layout))
    yield json.dumps([by_spans, sorted(file.missing)]).encode()


def fields_text(path: str, inode: Sequence[int]) -> Iterator[bytes]:
    """Yield the attribute that describes the fields of a shard, if there is one."""
    try:
        text = open_file(path, inode).attrs.get(FIELDS_ATTRIBUTE)
    except DAMAGE as error:
        raise ShardCorrupt(f"{path}: cut short or damaged: {error}") from error
    if isinstance(text, (str, bytes)):
        yield text.encode(errors="surrogateescape") if isinstance(text, str) else text


def rows(
    path: str,
    inode: Sequence[int],
    name: str,
    groups: Sequence[Sequence[int]],
    dtype: str,
    windows: Sequence[Sequence[Sequence[int]]] | None,
) -> Iterator[Any]:
    """Yield, for each group of ascending rows, those rows of the dataset at `name` as numbers of `dtype`.

    With `windows`, only what is from a begin to an end along each of their axes, a list of these for each group.
    """
    for group, window in zip(groups, windows or repeat(()), strict=False):
        try:
            (dataset,) = _datasets(path, inode, name)
            place = (slice(group[0], group[-1] + 1), *(slice(*ends) for ends in window))
            found = np.ascontiguousarray(dataset[place][np.subtract(group, group[0])], np.dtype(dtype))
        except DAMAGE as error:
            raise _damaged(path, name, group[0], error) from error
        yield found.reshape(-1).view(np.uint8).data


def values(path: str, inode: Sequence[int], name: str, rows: Sequence[int], most: int) -> Iterator[bytes]:
    """Yield each row's bytes: of a dataset of strings or variable-length uint8, or of a group of data and offsets."""
    parts: list[Any] = []
    for row in rows:
        try:
            parts = parts or _datasets(path, inode, name)
            value = _value(parts, row, most, f"{path}, field {name!r}, row {row}")
        except DAMAGE as error:
            raise _damaged(path, name, row, error) from error
        yield value


def _value(parts: Sequence[Any], row: int, most: int, place: str) -> bytes:
    if len(parts) == 1:
        value = parts[0][row]
        value = value.encode() if isinstance(value, str) else bytes(value)
        check_value_bytes(len(value), most, place)
        return value
    data, offsets = parts
    start, end = (int(offset) for offset in offsets[row : row + 2])
    size = len(data)
    if not 0 <= start <= end <= size:
        raise ValueError(f"offsets {start} to {end} are not within {size} entries")
    entry_bytes = math.prod(data.shape[1:]) * data.dtype.itemsize  # 1 unless the field is ragged
    chunk_bytes = math.prod(data.chunks or (0,)) * data.dtype.itemsize
    check_value_bytes(max((end - start) * entry_bytes, chunk_bytes), most, place)
    return bytes(data[start:end].astype(data.dtype.newbyteorder("<"), copy=False).tobytes())


def _datasets(path: str, inode: Sequence[int], name: str) -> list[Any]:
    """Return the dataset at `name`, or the `data` and `offsets` of a group."""
    opened = _open(path, inode)
    if name not in opened.datasets:
        place = Path(path)
        found = [resolve(opened.file, name, place)]
        if not isinstance(found[0], _h5py.Dataset):
            found = [resolve(opened.file, f"{name}/{part}", place) for part in ("data", "offsets")]
        for dataset in found:
            if not isinstance(dataset, _h5py.Dataset):
                raise ShardCorrupt(f"{path}: has no field {name!r}")
            check_filters(dataset, place, name)
        opened.datasets[name] = found
    return opened.datasets[name]


def _damaged(path: str, name: str, row: int, error: BaseException) -> ShardCorrupt:
    return ShardCorrupt(f"{path}, field {name!r}, row {row}: damaged, h5py says: {error}")
