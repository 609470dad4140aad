"""Files of records: found by path or pattern, read by position, unpacked if they are compressed."""

import bz2
import glob
import gzip
import lzma
import os
import re
import stat
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path
from typing import IO, Any, final

from .. import containers
from ..errors import SourceError
from ..system import optional as _optional
from .names import Paths, shown

_CHUNK = 1 << 20
_AHEAD = 4096  # bytes read at a time where headers are: a few small members, or one header of a large one
_MOST_NAMES = 1_000_000
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MAGIC = {
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "bzip2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\0"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "zlib": re.compile(rb"\x78[\x01\x5e\x9c\xda]"),
}


@final
class File:
    """A file open for reading by position; it closes when nobody holds it any more.

    Attributes:
        path: its path, for messages; of a compressed file, which lies unpacked elsewhere, that of the compressed one.
        size: bytes, unpacked.
        packed: how it is compressed, or None: only then are places in it places in the file at `path`.

    Raises OSError.
    """

    __slots__ = ("__weakref__", "_fd", "_near", "_near_at", "packed", "path", "size")

    def __init__(self, path: Path, unpacked: IO[bytes] | None = None, packed: str | None = None) -> None:
        self._fd = os.dup(unpacked.fileno()) if unpacked else os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        weakref.finalize(self, os.close, self._fd)
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("not a regular file")
        self.path, self.packed = path, packed
        self.size = found.st_size
        self._near, self._near_at = b"", 0

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes at `offset`; fewer where the file ends."""
        parts = []
        while size > 0:
            part = os.pread(self._fd, min(size, 1 << 30), offset)
            if not part:
                break
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def near(self, offset: int, size: int) -> bytes:
        """As `read`, for a few bytes of which others nearby will be wanted next. For one thread at a time."""
        start = offset - self._near_at
        if start < 0 or start + size > len(self._near):
            self._near, self._near_at, start = self.read(offset, max(size, _AHEAD)), offset, 0
        return self._near[start : start + size]

    def keep(self, offset: int, size: int) -> None:
        """Reads these bytes at once, so that `near` has them."""
        self._near, self._near_at = self.read(offset, size), offset


def open_file(path: Path, compressions: Iterable[str], plain: Callable[[bytes], bool] = lambda head: False) -> File:
    """The file at `path`; a compressed one unpacked to a temporary file without a name, in `tempfile.gettempdir()`.

    Args:
        path: the file.
        compressions: which it may have: `gzip`, `bzip2`, `xz`, `zstd`, `zlib`. They are known by the first bytes.
        plain: whether a file that begins with these 12 bytes is certainly not compressed.

    Raises SourceError if it cannot be read, unpacked or stored.
    """
    try:
        file = File(path)
        head = file.read(0, 12)
    except OSError as error:
        raise unreadable(path, error) from error
    if plain(head):
        return file
    for name in compressions:
        if _MAGIC[name].match(head):
            return _unpacked(path, name)
    return file


def check_plain(file: File) -> None:
    """SourceError if the file is compressed, so that places in it are none in the file that lies there."""
    if file.packed:
        raise SourceError(
            f"{shown(file.path)} is compressed by {file.packed}, so it cannot be read as it lies: convert it"
        )


def unreadable(path: Path, error: OSError) -> SourceError:
    """What to raise for a file that the system does not give."""
    return SourceError(f"{shown(path)} cannot be read: {error.strerror or error}")


def _unpacked(path: Path, compression: str) -> File:
    try:
        with tempfile.TemporaryFile() as target:
            for chunk in _chunks(path, compression):
                target.write(chunk)
            target.flush()
            return File(path, target, compression)
    except OSError as error:  # of the temporary file: what reading raises is a SourceError already
        where = f"the temporary folder {tempfile.gettempdir()} (TMPDIR)"
        raise SourceError(f"{shown(path)} cannot be unpacked to {where}: {error.strerror}") from error


def _chunks(path: Path, compression: str) -> Iterator[bytes]:
    try:
        with _stream(path, compression) as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
    # ValueError is what pyarrow raises.
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise SourceError(f"{shown(path)} cannot be unpacked: damaged or cut off: {error}") from error


def _stream(path: Path, compression: str) -> AbstractContextManager[Any]:
    match compression:
        case "gzip":
            return gzip.GzipFile(path)
        case "bzip2":
            return bz2.BZ2File(path)
        case "xz":
            return lzma.LZMAFile(path)
        case "zlib":
            return _Zlib(path)
    arrow = _optional.load("pyarrow", purpose=f"reading {path.name}, compressed with Zstandard,", extra="parquet")
    stream: AbstractContextManager[Any] = arrow.input_stream(str(path), compression="zstd")
    return stream


@final
class _Zlib(AbstractContextManager["_Zlib"]):
    """A zlib stream (RFC 1950) in a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._codec = zlib.decompressobj()

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; b"" at the end, EOFError if the file ends before the stream does."""
        while not self._codec.eof:
            packed = self._codec.unconsumed_tail or self._file.read(_CHUNK)
            data = self._codec.decompress(packed, size)
            if data:
                return data
            if not packed:
                raise EOFError("the file ends before its zlib stream does")
        return b""

    def __exit__(self, *error: object) -> None:
        self._file.close()


def find(src: Paths, takes: Callable[[str], bool], wanted: str) -> list[Path]:
    """The files that `src` names: one file, those in a directory, or those that fit a pattern; absolute paths.

    Args:
        src: a path, or text with `*`, `?`, `[...]` or ranges of numbers such as `{000..009}`; or several of these.
        takes: whether a file in a directory is wanted, by its name. Hidden ones never are, nor shardio's indexes.
        wanted: what is looked for, for messages.

    Returns:
        At least one. The files of a directory and of `*` are sorted, those of ranges in the order of the numbers.

    Raises SourceError.
    """
    if isinstance(src, (str, os.PathLike)):
        return _find(src, takes, wanted)
    paths = [path for one in src for path in _find(one, takes, wanted)]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise SourceError(f"{shown(twice)} is given twice")
    if not paths:
        raise SourceError(f"no {wanted} are given")
    return paths


def _find(src: str | os.PathLike[str], takes: Callable[[str], bool], wanted: str) -> list[Path]:
    path = Path(src).absolute()
    try:
        if path.is_dir():
            with os.scandir(path) as entries:
                names = sorted(entry.name for entry in entries if not entry.is_dir())
            paths = [path / name for name in names if not name.startswith(".") and takes(name)]
        elif path.exists():
            paths = [path]
        else:
            paths = [Path(name) for text in _expanded(str(path)) for name in _globbed(text)]
        indexes = containers.index_suffixes()  # shardio's own, which may lie beside the files
        paths = [found for found in paths if not found.name.endswith(indexes)]
        if missing := next((found for found in paths if not found.is_file()), None):
            raise SourceError(
                f"{shown(missing)} is no file" if missing.exists() else f"{shown(missing)}: there is no such file"
            )
        if not paths:
            raise SourceError(f"{shown(path)}: {f'holds no {wanted}' if path.is_dir() else 'no file fits this'}")
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise SourceError(f"{shown(path)} cannot be read: {error}") from error
    return paths


def _expanded(text: str) -> Iterator[str]:
    """`a{08..10}` as `a08`, `a09`, `a10`."""
    ranges = [(int(low), int(high), _width(low, high)) for low, high in _RANGE.findall(text)]
    count = 1
    for low, high, _ in ranges:
        if high < low:
            raise SourceError(f"{text}: a range begins with its smaller number, got {{{low}..{high}}}")
        count *= high - low + 1
    if count > _MOST_NAMES:
        raise SourceError(f"{text} stands for {count} files, at most {_MOST_NAMES} are taken")
    parts = _RANGE.split(text)[::3]
    for numbers in product(*(range(low, high + 1) for low, high, _ in ranges)):
        digits = [f"{number:0{width}d}" for number, (_, _, width) in zip(numbers, ranges, strict=True)]
        yield "".join(part + number for part, number in zip(parts, [*digits, ""], strict=True))


def _width(low: str, high: str) -> int:
    return max(len(low), len(high)) if low.startswith("0") or high.startswith("0") else 0


def _globbed(text: str) -> list[str]:
    if Path(text).exists() or not glob.has_magic(text):
        return [text]
    return sorted(glob.glob(text, recursive=True))
