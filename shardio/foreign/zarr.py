"""Zarr stores found on a disk: their arrays, by the metadata of format 2 and 3, and the chunks that there are.

Nothing in a store runs, and no link in it is followed. Metadata are JSON; what they mean for arrays of numbers,
`containers/zarr_metadata.py` knows.
"""

import glob
import math
import os
import struct
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..containers.files import RawFile
from ..containers.zarr_files import ChunkFiles, FolderChunks, PackedChunks
from ..containers.zarr_index import ENTRY, SUMMED_ENTRY
from ..containers.zarr_metadata import ArrayLayout
from ..errors import ShardCorrupt, SourceError
from ..system import strict_json
from ..system.local_path import local_path
from ..system.regular_files import open_regular
from .files import Sort, order_key
from .names import printable

METADATA = ("zarr.json", ".zarray")
DESCRIBING = frozenset((*METADATA, ".zattrs", ".zgroup"))
"""The names of the files that say what a store holds."""

SIGNS = (*METADATA, ".zgroup", ".zmetadata")
_DEEPEST = 64
_LOCAL_HEADER = struct.Struct("<6xHH4xIIIHH")
"""Before the name of a member of a zip: flags, method, CRC-32, bytes packed, unpacked, of the name and of more."""
_STATED_LATER, _UTF_8, _IN_EXTRA = 1 << 3, 1 << 11, (1 << 32) - 1
_HIGHEST = 1 << 62
_MOST_LOOKUPS = 1 << 20  # of an array of more chunks the folder is listed, as most may not be there

Metadata: TypeAlias = Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True)
class FoundArray:
    """An array in a store.

    Attributes:
        path: its path, `a/b`; "" if the store is the array.
        metadata: the JSON values of its metadata, one of each format that is there.
        attributes: its attributes, as JSON values.
    """

    path: str
    metadata: tuple[Metadata, ...]
    attributes: Metadata


Read: TypeAlias = Callable[[str], bytes | None]
"""Returns the content of a small file by its name in a store; None if there is no such file."""


class ZarrStore(ABC):
    """A store on a disk.

    Attributes:
        root: its path.
        zipped: the size and the time of a zip file; None for a folder.
        links: the paths of what `arrays` has passed over because it is a link.
    """

    zipped: tuple[int, int] | None = None

    def __init__(self, root: Path) -> None:
        self.root = root
        self.links: list[str] = []

    def arrays(self) -> list[FoundArray]:
        """Return the arrays, sorted by their paths; SourceError for metadata that cannot be read."""
        self.links.clear()
        with _reading(self.root), self._opened() as read:
            return sorted(self._find(read), key=lambda found: found.path)

    def attributes(self) -> Metadata:
        """Return the attributes of its root; those of format 2 have a file of their own."""
        with _reading(self.root), self._opened() as read:
            for name in (".zattrs", "zarr.json"):
                if (found := self._object(read, "", name)) is not None:
                    own = found if name == ".zattrs" else found.get("attributes")
                    return own if isinstance(own, dict) else {}
        return {}

    @abstractmethod
    def chunks(self, path: str) -> ChunkFiles:
        """Return where the chunks of an array are; ShardCorrupt if it is gone."""

    @abstractmethod
    def entries(self, path: str, layout: ArrayLayout) -> NDArray[Any]:
        """Return what there is of an array's chunks, without reading any: see `IndexedArray.chunks`."""

    def there(self, path: str, layout: ArrayLayout) -> NDArray[np.int64]:
        """Return the numbers of the chunks that there are, ascending, at no more than the cost of `entries`."""
        return np.asarray(self.entries(path, layout)["number"])

    def live_entries(self, path: str, layout: ArrayLayout) -> NDArray[Any] | None:
        """Return what finding chunks needs where there is no index: see `ZarrChunks.entries`."""
        return None

    @abstractmethod
    def _opened(self) -> AbstractContextManager[Read]:
        """Open the store to read metadata."""

    @abstractmethod
    def _find(self, read: Read) -> Iterator[FoundArray]:
        """Yield the arrays in any order."""

    def _array(self, read: Read, path: str) -> FoundArray | None:
        """Return the array at a path; None for a group, or if there are no metadata."""
        found = [one for name in METADATA if (one := self._object(read, path, name)) is not None]
        arrays = tuple(one for one in found if one.get("node_type") != "group")
        if not arrays:
            return None
        is_old = any(one.get("zarr_format") == 2 for one in arrays)
        own = self._object(read, path, ".zattrs") if is_old else None
        own = arrays[0].get("attributes") if own is None else own
        return FoundArray(path, arrays, own if isinstance(own, dict) else {})

    def _object(self, read: Read, path: str, name: str) -> Metadata | None:
        """Return the JSON value of a file of metadata; None if there is no such file."""
        name = f"{path}/{name}" if path else name
        if (data := read(name)) is None:
            return None
        place = f"{printable(self.root)}{'/' if self.zipped is None else ', '}{name}"
        try:
            metadata = strict_json.parse(data, foreign=True, nan=True)
        except ValueError as error:
            raise SourceError(f"{place}: not JSON: {error}") from error
        if not isinstance(metadata, dict):
            raise SourceError(f"{place} is not Zarr metadata")
        return metadata


def open_store(root: Path) -> ZarrStore:
    """Open a store; SourceError if there is none, or it cannot be read."""
    with _reading(root):
        return FolderStore(root) if root.is_dir() else ZipStore(root)


def is_store(path: Path) -> bool:
    """Return whether a folder is a store, or a group or an array of one, or a zip file has one."""
    if path.is_dir():
        return any(os.path.lexists(path / name) for name in SIGNS)
    if path.suffix != ".zip" or not path.is_file():
        return False
    try:
        with open(path, "rb", opener=open_regular) as whole, zipfile.ZipFile(whole) as file:
            return any(name.rpartition("/")[2] in SIGNS for name in file.namelist())
    except (OSError, zipfile.BadZipFile, ValueError):
        return False


def find_stores(given: Iterable[str], sort: Sort = "name") -> list[Path]:
    """Return the stores that paths name: stores, folders of stores, or patterns. None, if one names something else."""
    found: list[Path] = []
    for one in given:
        path = local_path(one).absolute()
        if path.is_dir() and not is_store(path):
            stores = sorted(entry for entry in path.iterdir() if not entry.name.startswith(".") and is_store(entry))
        elif path.exists():
            stores = [path] if is_store(path) else []
        else:
            stores = [each for each in map(Path, sorted(glob.glob(str(path)))) if is_store(each)]
        if not stores:
            return []
        found += stores
    return found if sort == "name" else sorted(found, key=lambda path: order_key(sort)(str(path)))


@final
class FolderStore(ZarrStore):
    """A store that is a folder."""

    def chunks(self, path: str) -> ChunkFiles:
        return FolderChunks(self.root, path)

    def entries(self, path: str, layout: ArrayLayout) -> NDArray[Any]:
        found: list[tuple[int, int, int]] = []
        below = len(layout.shape) if layout.separator == "/" else 1
        with _reading(self.root):
            for key, entry in self._listed(self.root / path, "", below + (layout.prefix == "c/")):
                number = layout.number(key)
                if number is None:
                    continue
                if entry.is_symlink() or not entry.is_file(follow_symlinks=False):
                    raise SourceError(
                        f"{printable(entry.path)} is a link, or no file: a store must not lead out of itself"
                    )
                status = entry.stat(follow_symlinks=False)
                found.append((number, status.st_size, status.st_mtime_ns))
        return entries_of(found, ENTRY)

    def there(self, path: str, layout: ArrayLayout) -> NDArray[np.int64]:
        if math.prod(layout.grid) > _MOST_LOOKUPS:
            return super().there(path, layout)
        with _reading(self.root):
            folder = os.open(self.root / path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            cells = product(*map(range, layout.grid))
            return np.flatnonzero([os.access(layout.key(cell), os.F_OK, dir_fd=folder) for cell in cells])
        finally:
            os.close(folder)

    def _listed(self, folder: Path, above: str, depth: int) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yield what is at most `depth` folders deep, by its name from the array on."""
        with os.scandir(folder) as entries:
            for entry in entries:
                if depth > 1 and entry.is_dir(follow_symlinks=False):
                    yield from self._listed(Path(entry.path), f"{above}{entry.name}/", depth - 1)
                else:
                    if depth > 1 and entry.is_symlink() and entry.is_dir():
                        raise SourceError(f"{printable(entry.path)} is a link: a store must not lead out of itself")
                    yield f"{above}{entry.name}", entry

    @contextmanager
    def _opened(self) -> Iterator[Read]:
        def read(name: str) -> bytes | None:
            file = self.root / name
            return strict_json.read_bytes(file) if file.exists() else None

        yield read

    def _find(self, read: Read, path: str = "", depth: int = 0) -> Iterator[FoundArray]:
        folder = self.root / path
        if depth > _DEEPEST or not any((folder / name).exists() for name in (*METADATA, ".zgroup")):
            return
        if (found := self._array(read, path)) is not None:
            yield found
            return
        with os.scandir(folder) as entries:
            inner = sorted((entry.name, entry.is_symlink()) for entry in entries if entry.is_dir())
        for name, is_link in inner:
            there = f"{path}/{name}".lstrip("/")
            if is_link:
                self.links.append(there)
            else:
                yield from self._find(read, there, depth + 1)


@final
class ZipStore(ZarrStore):
    """A store that is a zip file."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._file = RawFile(root)
        status = os.fstat(self._file.fd)
        self.zipped = status.st_size, status.st_mtime_ns
        with _reading(root), self._zip() as opened:
            self._members = {info.filename: info for info in opened.infolist() if not info.is_dir()}
            self._directory = opened.start_dir

    def chunks(self, path: str) -> ChunkFiles:
        return PackedChunks(self._file)

    def entries(self, path: str, layout: ArrayLayout) -> NDArray[Any]:
        found: list[tuple[int, int, int, int]] = []
        prefix = f"{path}/" if path else ""
        for name, info in self._members.items():
            number = layout.number(name.removeprefix(prefix)) if name.startswith(prefix) else None
            if number is None:
                continue
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
                raise SourceError(f"{printable(self.root)}, {name}: is encrypted, or compressed by another method")
            size, deflated = info.compress_size, info.compress_type == zipfile.ZIP_DEFLATED
            begin = self._begin(info)
            found.append((number, -1 - size if deflated else size, begin, info.CRC))
        return entries_of(found, SUMMED_ENTRY)

    live_entries = entries

    def _begin(self, info: zipfile.ZipInfo) -> int:
        """Return where the content of a member begins: its local header is as long as it states itself."""
        head = os.pread(self._file.fd, _LOCAL_HEADER.size + len(info.orig_filename.encode()), info.header_offset)
        if len(head) < _LOCAL_HEADER.size or head[:4] != b"PK\3\4":
            raise SourceError(f"{printable(self.root)}, {info.filename}: the zip file is damaged")
        flags, method, crc, packed, size, name, extra = _LOCAL_HEADER.unpack_from(head)
        named = head[_LOCAL_HEADER.size :][:name].decode("utf-8" if flags & _UTF_8 else "cp437", "replace")
        stated = (crc, info.CRC), (packed, info.compress_size), (size, info.file_size)
        own = [
            (here, there) for here, there in stated if not ((flags & _STATED_LATER and here == 0) or here == _IN_EXTRA)
        ]
        begin = info.header_offset + _LOCAL_HEADER.size + int(name) + int(extra)
        if named != info.orig_filename or method != info.compress_type or any(here != there for here, there in own):
            raise SourceError(
                f"{printable(self.root)}, {info.filename}: its own header differs from the zip's directory"
            )
        if begin + info.compress_size > self._directory:
            raise SourceError(f"{printable(self.root)}, {info.filename}: reaches into the zip's directory")
        return begin

    @contextmanager
    def _zip(self) -> Iterator[zipfile.ZipFile]:
        with open(os.dup(self._file.fd), "rb") as whole, closing(zipfile.ZipFile(whole)) as file:
            yield file

    @contextmanager
    def _opened(self) -> Iterator[Read]:
        with self._zip() as opened:

            def read(name: str) -> bytes | None:
                if (info := self._members.get(name)) is None:
                    return None
                strict_json.check_size(info.file_size)
                return opened.read(info)

            yield read

    def _find(self, read: Read) -> Iterator[FoundArray]:
        for path in {name.rpartition("/")[0] for name in self._members if name.rpartition("/")[2] in METADATA}:
            if (found := self._array(read, path)) is not None:
                yield found


def entries_of(found: Sequence[tuple[int, ...]], dtype: np.dtype[Any] = ENTRY) -> NDArray[Any]:
    """Return entries in the order of their numbers; of a name that occurs twice in a zip, the last one."""
    ordered = sorted({entry[0]: entry for entry in found}.values())
    if ordered and ordered[-1][0] >= _HIGHEST:
        raise SourceError("a chunk's number is too large")
    return np.array(ordered, dtype)


@contextmanager
def _reading(root: Path) -> Iterator[None]:
    try:
        yield
    except (
        OSError,
        ValueError,
        RuntimeError,
        NotImplementedError,
        zipfile.BadZipFile,
        EOFError,
        ShardCorrupt,
    ) as error:
        if isinstance(error, SourceError):
            raise
        file, reason = getattr(error, "filename", None), getattr(error, "strerror", None) or error
        within = f"{printable(file)}: " if isinstance(file, str) and file != str(root) else ""
        raise SourceError(f"{printable(root)} cannot be read: {within}{reason}") from error
