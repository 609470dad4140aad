"""Input files: found by path or pattern, read at offsets, unpacked if they are compressed."""

import bz2
import contextlib
import glob
import gzip
import lzma
import os
import re
import tempfile
import weakref
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice, pairwise, product
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, final, get_args

from ..containers import side_index
from ..errors import BadSample, ConfigError, Message, MissingDependency, Option, SourceError
from ..format.manifest import FILE_NAME, TABLE_NAME
from ..system import optional as _optional
from ..system.did_you_mean import near_path
from ..system.local_path import local_path
from ..system.os_errors import reason
from ..system.regular_files import open_regular
from ..system.units import counted
from .names import Paths, printable

_CHUNK = 1 << 20
_AHEAD = 4096  # bytes per buffered read: the headers of a few small members, or of one large member
_MOST_NAMES = 1_000_000
_MOST_FOLDERS = 5  # that a message names
_LISTED = 5  # the most files that a remark names
_MOST_COMPARED = 100_000  # names whose order is looked at for a hint
_NUMBER = re.compile(r"([0-9]+)")
PARTS = frozenset(("train", "training", "val", "valid", "validation", "test", "testing"))
"""Words that name a part of a data set."""

_PART = re.compile(rf"(?<![^-_./])(?:{'|'.join(sorted(PARTS))})(?![^-_./])", re.IGNORECASE)
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MAGIC = {
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "bzip2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\0"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "zlib": re.compile(rb"\x78[\x01\x5e\x9c\xda]"),
}


Sort: TypeAlias = Literal["name", "natural"]
"""The order of listed files: by name, or by name with the numbers in it as numbers, so that `s_2` precedes `s_10`."""


@final
class File:
    """A file open for reads at any offset. It closes when it is garbage-collected, or by `close`.

    Attributes:
        path: its path, for messages; of an unpacked file, the path of the compressed one.
        size: the size in bytes, unpacked.
        compression: how the file at `path` is compressed. None if it is not: only then do offsets hold for that file.

    Raises OSError if it cannot be opened or is not a regular file.
    """

    __slots__ = ("__weakref__", "_buffer", "_buffer_start", "_fd", "close", "compression", "path", "size")

    def __init__(self, path: Path, unpacked: IO[bytes] | None = None, compression: str | None = None) -> None:
        self._fd = os.dup(unpacked.fileno()) if unpacked else open_regular(path, os.O_RDONLY)
        self.close = weakref.finalize(self, os.close, self._fd)
        self.path, self.compression = path, compression
        self.size = os.fstat(self._fd).st_size
        self._buffer, self._buffer_start = b"", 0

    def fileno(self) -> int:
        """Return the descriptor of the file, or of the unnamed one that it was unpacked to."""
        return self._fd

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes at `offset`; fewer at the end of the file."""
        parts = []
        while size > 0:
            part = os.pread(self._fd, min(size, 1 << 30), offset)
            if not part:
                break
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_exactly(self, offset: int, size: int) -> bytes:
        """Read `size` bytes at `offset`; BadSample if the file ends before."""
        data = self.read(offset, size)
        if len(data) < size:
            raise BadSample(f"the file ends within it, after {len(data)} of {size} bytes")
        return data

    def read_buffered(self, offset: int, size: int) -> bytes:
        """Like `read`, through a buffer: for a few bytes whose neighbours are read next. Not thread-safe."""
        start = offset - self._buffer_start
        if start < 0 or start + size > len(self._buffer):
            self._buffer, self._buffer_start, start = self.read(offset, max(size, _AHEAD)), offset, 0
        return self._buffer[start : start + size]

    def fill_buffer(self, offset: int, size: int) -> None:
        """Read these bytes into the buffer of `read_buffered`, in one call."""
        self._buffer, self._buffer_start = self.read(offset, size), offset


def open_file(path: Path, compressions: Iterable[str], plain: Callable[[bytes], bool] = lambda head: False) -> File:
    """Open a file; unpack a compressed one to an unnamed temporary file in `tempfile.gettempdir()`.

    Args:
        path: the file.
        compressions: the compressions to recognize by the first bytes: `gzip`, `bzip2`, `xz`, `zstd`, `zlib`.
        plain: returns whether the first 12 bytes of a file prove that it is not compressed.

    Raises SourceError if the file cannot be read or unpacked, or the temporary file cannot be written.
    """
    try:
        file = File(path)
        head = file.read(0, 12)
    except OSError as error:
        raise unreadable(path, error) from error
    if plain(head):
        return file
    name = compression_of(head, compressions)
    return file if name is None else _unpacked(path, name)


def compression_of(head: bytes, compressions: Iterable[str] = tuple(_MAGIC)) -> str | None:
    """Return which of these compressions a file that begins with `head` has; None if it has none of them."""
    return next((name for name in compressions if _MAGIC[name].match(head)), None)


def peek(path: Path, compression: str, size: int) -> bytes:
    """Return the first `size` bytes of a compressed file; fewer, or none, if it is shorter or cannot be unpacked."""
    parts = []
    with contextlib.suppress(SourceError, MissingDependency):
        for chunk in _chunks(path, compression, size):
            parts.append(chunk)
            if sum(map(len, parts)) >= size:
                break
    return b"".join(parts)[:size]


def check_uncompressed(file: File) -> None:
    """Raise SourceError if the file is compressed: offsets in it then mean nothing in the file on disk."""
    if file.compression:
        reason = f"is compressed by {file.compression}, so it cannot be read in place"
        raise SourceError(f"{printable(file.path)} {reason}: unpack it, or convert it")


def unreadable(path: Path, error: OSError) -> SourceError:
    """Return the error to raise if the operating system can't read a file."""
    return SourceError(f"{printable(path)} cannot be read: {reason(error)}")


def _unpacked(path: Path, compression: str) -> File:
    try:
        with tempfile.TemporaryFile() as target:
            for chunk in _chunks(path, compression):
                target.write(chunk)
            target.flush()
            return File(path, target, compression)
    except OSError as error:  # from the temporary file: errors while reading are SourceErrors already
        where = f"the temporary folder {tempfile.gettempdir()} (TMPDIR)"
        raise SourceError(f"{printable(path)} cannot be unpacked to {where}: {error.strerror}") from error


def _chunks(path: Path, compression: str, size: int = _CHUNK) -> Iterator[bytes]:
    try:
        if compression == "zlib":
            yield from _inflated(path, size)
            return
        with _stream(path, compression) as stream:
            while chunk := stream.read(size):
                yield chunk
    # pyarrow raises ValueError.
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise SourceError(f"{printable(path)} cannot be unpacked: damaged or cut off: {error}") from error


def _stream(path: Path, compression: str) -> AbstractContextManager[Any]:
    match compression:
        case "gzip":
            return gzip.GzipFile(path)
        case "bzip2":
            return bz2.BZ2File(path)
        case "xz":
            return lzma.LZMAFile(path)
    arrow = _optional.load("pyarrow", purpose=f"reading {path.name}, compressed with Zstandard,", extra="parquet")
    stream: AbstractContextManager[Any] = arrow.input_stream(str(path), compression="zstd")
    return stream


def _inflated(path: Path, size: int) -> Iterator[bytes]:
    """Yield the content of a zlib stream (RFC 1950) in parts of at most `size` bytes; EOFError if it is cut off."""
    codec = zlib.decompressobj()
    with path.open("rb") as file:
        while not codec.eof:
            packed = codec.unconsumed_tail or file.read(_CHUNK)
            data = codec.decompress(packed, size)
            if not packed and not data:
                raise EOFError("the file ends before its zlib stream does")
            yield data


def order_key(sort: Sort) -> Callable[[str], Any]:
    """Return the key function that sorts names; ConfigError if `sort` is none of `Sort`."""
    if sort not in get_args(Sort):
        raise ConfigError("{sort} must be one of {}, got {!r}", ", ".join(get_args(Sort)), sort)
    return _natural if sort == "natural" else str


def _natural(name: str) -> tuple[Any, ...]:
    return (*(int(part) if number % 2 else part for number, part in enumerate(_NUMBER.split(name))), name)


def order_hints(names: Iterable[str | Path], what: str = "files") -> tuple[str, ...]:
    """Return a hint if listed names are in another order than the numbers in them, as `s_10` before `s_2` is.

    Args:
        names: the names in their order; only the first 100,000 are looked at.
        what: what the names are of, for the message.
    """
    first = [str(name) for name in islice(names, _MOST_COMPARED)]
    if first != sorted(first):  # the user's own order
        return ()
    for one, other in pairwise(first):
        if _NUMBER.split(one)[::2] == _NUMBER.split(other)[::2] and _natural(one) > _natural(other):
            found = f"{printable(Path(one).name)} comes before {printable(Path(other).name)}"
            told = "the {} are in the order of their names, where {}; {sort:natural} goes by the numbers"
            return (Message(told, what, found),)
    return ()


def find_files(src: Paths, accepts: Callable[[str], bool], description: str, sort: Sort = "name") -> list[Path]:
    """Return the absolute paths of the files that `src` names: one file, a directory's, or those that fit a pattern.

    Args:
        src: a path, or a pattern with `*`, `?`, `[...]` or numeric ranges such as `{000..009}`; or several of these.
        accepts: returns by its name whether to take a file in a directory. Hidden files and shardio's indexes are never
            taken.
        description: the kind of files, for messages, such as `"Parquet files (*.parquet)"`.
        sort: `"natural"` sorts all files by the numbers in their paths.

    Returns:
        At least one path. Paths in a directory or from `*` are sorted; ranges keep the order of their numbers.

    Raises SourceError if there are none, one does not exist or cannot be read, or one is named twice.
    """
    items, key = [src] if isinstance(src, (str, os.PathLike)) else src, order_key(sort)
    paths = [path for item in items for path in _find(item, accepts, description)]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise SourceError(f"{printable(twice)} is given twice")
    if not paths:
        raise SourceError(f"no {description} are given")
    return paths if sort == "name" else sorted(paths, key=lambda path: key(str(path)))


def within_folders(src: Paths, files: str | None) -> Paths:
    """Return `src` with each directory replaced by the pattern `files` in it; as it is, for None."""
    if isinstance(src, (str, os.PathLike)):
        return within_folder(src, files)
    return [within_folder(one, files) for one in src]


def within_folder(path: str | os.PathLike[str], files: str | None) -> str | os.PathLike[str]:
    """Return a path, for a directory the pattern `files` in it, unless that is None."""
    is_folder = files is not None and local_path(path).is_dir()
    return f"{glob.escape(str(local_path(path)))}/{files}" if is_folder else path


def parts_among(names: Iterable[str]) -> dict[str, str]:
    """Return the first name of each part of a data set that names state, as `train-000.tar` and `val-000.tar` do.

    The words of `PARTS` count between `-`, `_`, `.` and `/`, in names that are otherwise equal but for digits. Empty if
    there are fewer than two.
    """
    alike: dict[str, dict[str, str]] = {}
    for name in names:
        for word in _PART.finditer(name):
            rest = _NUMBER.sub("0", f"{name[: word.start()]}/{name[word.end() :]}")
            alike.setdefault(rest, {}).setdefault(word[0].lower(), name)
    return next((parts for parts in alike.values() if len(parts) > 1), {})


def part_remarks(src: Paths, taken: Collection[Path]) -> tuple[str, ...]:
    """Return a remark for each directory in `src` that files of several parts are taken from."""
    folders = [local_path(one) for one in ([src] if isinstance(src, (str, os.PathLike)) else src)]
    inside = ((one, [path.name for path in taken if path.parent == one.absolute()]) for one in folders if one.is_dir())
    return tuple(remark for folder, names in inside for remark in part_remark(folder, names))


def part_remark(folder: object, names: Iterable[str]) -> tuple[str, ...]:
    """Return a remark if the files that are taken from a directory are several parts of a data set."""
    if not (parts := parts_among(names)):
        return ()
    (part, first), *_ = parts.items()
    told = "{} holds {}, which look like parts of a data set, and are taken together: {} takes one of them, {} all"
    listed = ", ".join(map(printable, parts.values()))
    choices = Option("files", f"*{part}*"), Option("files", f"*{Path(first).suffix}")
    return (Message(told, printable(str(folder)), listed, *choices),)


def other_files(src: Paths, taken: Collection[Path], description: str) -> tuple[str, ...]:
    """Return a remark for each directory that `src` names and that also holds files other than the `taken` ones, or
    files of several parts of a data set.

    Args:
        src: what `find_files` got.
        taken: the files that it found there.
        description: the kind of files that it found, such as `"tars"`.
    """
    known, remarks = set(taken), list(part_remarks(src, taken))
    for folder in map(Path, [src] if isinstance(src, (str, os.PathLike)) else src):
        others = _in_folder(folder, lambda name: name not in (FILE_NAME, TABLE_NAME)) if folder.is_dir() else []
        if rest := [path for path in others if path.absolute() not in known and path.is_file()]:
            remarks.append(left_out_files(folder, rest, description))
    return tuple(remarks)


def left_out_files(folder: str | Path, others: Sequence[Path], description: str) -> str:
    """Return the remark that a directory also holds files of other kinds than the one that is taken from it."""
    names = ", ".join(printable(path.name) for path in others[:_LISTED]) + (", ..." if len(others) > _LISTED else "")
    return f"left out {counted(len(others), 'file')} beside the {description} in {printable(folder)}: {names}"


def _in_folder(folder: Path, accepts: Callable[[str], bool]) -> list[Path]:
    """Return what a directory holds but folders and hidden files, sorted, as far as `accepts` takes the names."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if not entry.is_dir())
    own = side_index.SUFFIX  # indexes, which may be next to the files
    return [folder / name for name in names if not name.startswith(".") and not name.endswith(own) and accepts(name)]


def _find(src: str | os.PathLike[str], accepts: Callable[[str], bool], description: str) -> list[Path]:
    path = local_path(src).absolute()
    try:
        if path.is_dir():
            paths = _in_folder(path, accepts)
        elif path.exists():
            paths = [path]
        else:
            paths = [Path(name) for text in expanded(str(path)) for name in _globbed(text)]
        paths = [found for found in paths if not found.name.endswith(side_index.SUFFIX)]
        if missing := next((found for found in paths if not found.is_file()), None):
            raise SourceError(
                f"{printable(missing)} is not a file"
                if missing.exists()
                else f"{printable(missing)} does not exist{near_path(missing)}"
            )
        if not paths:
            reason = f"holds no {description}{_folders_in(path)}" if path.is_dir() else "no file fits this"
            raise SourceError(f"{printable(path)}: {reason}")
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have, as with a null byte
        raise SourceError(f"{printable(path)} cannot be read: {error}") from error
    return paths


def _folders_in(path: Path) -> str:
    """Return words on the folders that a directory without suitable files holds; "" if there are none."""
    folders = sorted(one.name for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
    named = ", ".join(map(printable, folders[:_MOST_FOLDERS])) + (", ..." if len(folders) > _MOST_FOLDERS else "")
    return f" itself, but folders: {named}; give one of them" if folders else ""


def expanded(text: str) -> Iterator[str]:
    """Expand numeric ranges: `a{08..10}` to `a08`, `a09`, `a10`."""
    widths = [max(map(len, ends)) if any(end.startswith("0") for end in ends) else 0 for ends in _RANGE.findall(text)]
    ranges = [(int(low), int(high)) for low, high in _RANGE.findall(text)]
    count = 1
    for low, high in ranges:
        if high < low:
            raise SourceError(f"{text}: a range begins with its smaller number, got {{{low}..{high}}}")
        count *= high - low + 1
    if count > _MOST_NAMES:
        raise SourceError(f"{text} names {count} files, at most {_MOST_NAMES} are allowed")
    parts = _RANGE.split(text)[::3]
    for numbers in product(*(range(low, high + 1) for low, high in ranges)):
        digits = [f"{number:0{width}d}" for number, width in zip(numbers, widths, strict=True)]
        yield "".join(part + number for part, number in zip(parts, [*digits, ""], strict=True))


def _globbed(text: str) -> list[str]:
    if Path(text).exists() or not glob.has_magic(text):
        return [text]
    return sorted(glob.glob(text, recursive=True))
