"""Zarr stores found on a disk: their arrays, by the metadata of format 2 and 3, and the chunks that there are.

Nothing in a store runs, and no link in it is followed. Metadata are JSON; what they mean for arrays of numbers,
`containers/zarr_metadata.py` knows.
"""

import glob
import math
import os
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Protocol, TypeAlias, final

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


class ZarrStore(Protocol):
    """A store on a disk."""

    @property
    def root(self) -> Path:
        """Its path."""

    @property
    def links(self) -> Sequence[str]:
        """The paths of what `arrays` has passed over because it is a link."""

    @property
    def zipped(self) -> tuple[int, int] | None:
        """The size and the time of a zip file; None for a folder."""

    def arrays(self) -> list[FoundArray]:
        """Return the arrays, sorted by their paths; SourceError for metadata that cannot be read."""

    def attributes(self) -> Metadata:
        """Return the attributes of its root."""

    def chunks(self, path: str) -> ChunkFiles:
        """Return where the chunks of an array are; ShardCorrupt if it is gone."""

    def entries(self, path: str, layout: ArrayLayout) -> NDArray[Any]:
        """Return what there is of an array's chunks, without reading any: see `IndexedArray.chunks`."""

    def there(self, path: str, layout: ArrayLayout) -> NDArray[np.int64]:
        """Return the numbers of the chunks that there are, ascending, in a fraction of the time of `entries`."""

    def live_entries(self, path: str, layout: ArrayLayout) -> NDArray[Any] | None:
        """Return what finding chunks needs where there is no index: see `ZarrChunks.entries`."""


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
class FolderStore:
    """A store that is a folder: see `ZarrStore`."""

    zipped: tuple[int, int] | None = None

    def __init__(self, root: Path) -> None:
        self.root = root
        self.links: list[str] = []

    def arrays(self) -> list[FoundArray]:
        with _reading(self.root):
            self.links.clear()
            return sorted(self._find(self.root, "", 0), key=lambda found: found.path)

    def attributes(self) -> Metadata:
        def read(name: str) -> bytes | None:
            file = self.root / name
            return strict_json.read_bytes(file) if file.exists() else None

        return _attributes(self.root, read)

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
            return np.asarray(self.entries(path, layout)["number"])
        with _reading(self.root):
            folder = os.open(self.root / path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            cells = product(*map(range, layout.grid))
            return np.flatnonzero([os.access(layout.key(cell), os.F_OK, dir_fd=folder) for cell in cells])
        finally:
            os.close(folder)

    def live_entries(self, path: str, layout: ArrayLayout) -> NDArray[Any] | None:
        return None

    def _listed(self, folder: Path, above: str, depth: int) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yield what lies `depth` folders deep at most, by its name from the array on."""
        with os.scandir(folder) as entries:
            for entry in entries:
                if depth > 1 and entry.is_dir(follow_symlinks=False):
                    yield from self._listed(Path(entry.path), f"{above}{entry.name}/", depth - 1)
                else:
                    if depth > 1 and entry.is_symlink() and entry.is_dir():
                        raise SourceError(f"{printable(entry.path)} is a link: a store must not lead out of itself")
                    yield f"{above}{entry.name}", entry

    def _find(self, folder: Path, path: str, depth: int) -> Iterator[FoundArray]:
        known = [folder / name for name in METADATA if (folder / name).exists()]
        if depth > _DEEPEST or not (known or (folder / ".zgroup").exists()):
            return
        metadata = [(printable(file), strict_json.read_bytes(file)) for file in known]
        beside = folder / ".zattrs"
        attributes = (printable(beside), strict_json.read_bytes(beside)) if beside.exists() else None
        found = _array(path, metadata, attributes)
        if found is not None:
            yield found
            return
        with os.scandir(folder) as entries:
            inner = sorted((entry.name, entry.is_symlink()) for entry in entries if entry.is_dir())
        for name, is_link in inner:
            there = f"{path}/{name}".lstrip("/")
            if is_link:
                self.links.append(there)
            else:
                yield from self._find(folder / name, there, depth + 1)


@final
class ZipStore:
    """A store that is a zip file: see `ZarrStore`."""

    links: Sequence[str] = ()

    def __init__(self, root: Path) -> None:
        self.root, self._file = root, RawFile(root)
        status = os.fstat(self._file.fd)
        self.zipped: tuple[int, int] | None = (status.st_size, status.st_mtime_ns)
        with _reading(root), self._opened() as opened:
            self._members = {info.filename: info for info in opened.infolist() if not info.is_dir()}
            self._directory = opened.start_dir

    def arrays(self) -> list[FoundArray]:
        paths = {name.rpartition("/")[0] for name in self._members if name.rpartition("/")[2] in METADATA}
        with _reading(self.root), self._opened() as opened:
            found = [self._array(opened, path) for path in sorted(paths)]
        return [one for one in found if one is not None]

    def attributes(self) -> Metadata:
        def read(name: str) -> bytes | None:
            if (info := self._members.get(name)) is None:
                return None
            strict_json.check_size(info.file_size)
            with self._opened() as opened:
                return opened.read(info)

        return _attributes(self.root, read)

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

    def there(self, path: str, layout: ArrayLayout) -> NDArray[np.int64]:
        return np.asarray(self.entries(path, layout)["number"])

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
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        with open(os.dup(self._file.fd), "rb") as whole, closing(zipfile.ZipFile(whole)) as file:
            yield file

    def _array(self, opened: zipfile.ZipFile, path: str) -> FoundArray | None:
        def read(name: str) -> tuple[str, bytes] | None:
            member = f"{path}/{name}" if path else name
            if (info := self._members.get(member)) is None:
                return None
            strict_json.check_size(info.file_size)
            return f"{printable(self.root)}, {member}", opened.read(info)

        return _array(path, [one for name in METADATA if (one := read(name)) is not None], read(".zattrs"))


def _array(path: str, metadata: Sequence[tuple[str, bytes]], attributes: tuple[str, bytes] | None) -> FoundArray | None:
    """Return the array that metadata, as places and texts, describe; None for a group."""
    found = [_object(*one) for one in metadata]
    arrays = tuple(one for one in found if one.get("node_type") != "group")
    if not arrays:
        return None
    own = arrays[0].get("attributes", {})
    if attributes is not None and any(one.get("zarr_format") == 2 for one in arrays):
        own = _object(*attributes)
    return FoundArray(path, arrays, own if isinstance(own, dict) else {})


def _attributes(root: Path, read: Callable[[str], bytes | None]) -> Metadata:
    """Return the attributes of a store's root, which `read` reads the files of; those of format 2 have their own."""
    with _reading(root):
        for name in (".zattrs", "zarr.json"):
            if (data := read(name)) is not None:
                found = _object(f"{printable(root)}, {name}", data)
                own = found if name == ".zattrs" else found.get("attributes")
                return own if isinstance(own, dict) else {}
    return {}


def _object(place: str, data: bytes) -> Metadata:
    try:
        metadata = strict_json.parse(data, foreign=True, nan=True)
    except ValueError as error:
        raise SourceError(f"{place}: not JSON: {error}") from error
    if not isinstance(metadata, dict):
        raise SourceError(f"{place} is not Zarr metadata")
    return metadata


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
