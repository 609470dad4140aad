"""Tars of the WebDataset convention: adjacent files with the same key, the name up to its first dot, form a sample.

Sources: POSIX.1-1988 `ustar` and the older V7 format, POSIX.1-2001 `pax` extended headers, GNU tar's long names and
base-256 sizes (GNU tar manual, "Basic Tar Format"), the rules for names of https://github.com/webdataset/webdataset.

As there, the key includes the directory, extensions become lower case, and members without a key, or whose first
directory or name looks like `__this__`, are skipped. So are hidden files, whose names begin with a dot. Unlike there,
nothing is silently skipped that may be a sample: links, devices and sparse files are refused, and so is a tar without
its end mark, which may have been truncated, or with anything behind that mark.
"""

import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import BadSample, SourceError
from .files import File, open_file, unreadable
from .names import printable

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
"""Suffixes of tars in a directory."""

_BLOCK = 512
_KEEP = 1 << 20  # bytes of a sample to read in one call; larger members are read one by one
_LARGEST_EXTENSION = 1 << 20
_SUM_PRIME = 65521
_META = re.compile(rb"__[^/]*__(?:/|$)")
_OCTAL = re.compile(rb" *([0-7]*) *(?:\0|\Z)")
_PAX = re.compile(rb"(\d{1,9}) ([^=]+)=")
_REGULAR = frozenset((b"0", b"\0", b"7"))
_EXTENSIONS = frozenset((b"L", b"K", b"x", b"X", b"g"))
_DIRECTORY = b"5"
_NO_FILES = frozenset((_DIRECTORY, b"D", b"V"))  # also GNU tar's directory lists, and its volume label
_SPARSE = "a sparse file: pack the files again without `tar --sparse`"
_REFUSED = {
    b"1": "a hard link: pack the files again with `tar --hard-dereference`",
    b"2": "a symbolic link: pack the files again with `tar --dereference`",
    b"S": _SPARSE,
}


class Member(NamedTuple):
    """A file of a sample: its extension in lower case, and the offset and size of its bytes in the tar."""

    extension: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class TarSample:
    """One sample: its key, the offset and size of its headers and data in the tar, and its files.

    `key_at` is the offset of the key's UTF-8 in a header; None if the header splits it, or it is not UTF-8.
    """

    key: str
    offset: int
    size: int
    members: tuple[Member, ...]
    key_at: int | None = None

    def places(self) -> dict[str, tuple[int, int]]:
        """Return the (offset, size) of each file's bytes by extension; BadSample if two files share an extension."""
        found = {member.extension: (member.offset, member.size) for member in self.members}
        if len(found) < len(self.members):
            names = [member.extension for member in self.members]
            twice = next(name for name in names if names.count(name) > 1)
            raise BadSample(f"key {self.key!r} has two files with the extension {twice!r}")
        return found


def open_tar(path: Path) -> File:
    """Open a tar, unpacked to a temporary file if it is compressed: see `files.open_file`."""
    return open_file(path, ("gzip", "bzip2", "xz", "zstd"))


def scan(file: File, damage: list[str] | None = None) -> Iterator[TarSample]:
    """Yield the samples of a tar in order, reading only headers.

    Raises SourceError where the tar is damaged or was cut off; it names the byte and counts the complete samples before
    it. Given a list as `damage`, it adds this text there instead, and yields no more samples.

    The last sample before the damage is complete if a file of another key begins there; where that cannot be told, as
    at a cut between two files, if it has at least as many files as the sample before it.
    """
    count = 0
    try:
        for run in _samples(_files(file, 0, sys.maxsize)):
            yield run
            count += 1
    except _Damaged as error:
        text = f"{printable(file.path)}, {error}; {count} complete samples precede it"
        if damage is None or isinstance(error, _Refused):
            raise SourceError(text) from error
        damage.append(text)
    except OSError as error:
        raise unreadable(file.path, error) from error


def sample_at(file: File, offset: int, size: int) -> TarSample:
    """Read the headers of the sample in the `size` bytes at `offset`; BadSample if it is no longer there."""
    file.fill_buffer(offset, min(size, _KEEP))
    try:
        runs = list(_samples(_files(file, offset, offset + size)))
    except _Damaged as error:
        raise BadSample(str(error)) from error
    if len(runs) != 1 or runs[0].size != size:
        raise BadSample(f"byte {offset}: expected one sample of {size} bytes; the file has changed")
    return runs[0]


def is_header(block: bytes) -> bool:
    """Return whether 512 bytes are the header of a member, by their checksum."""
    try:
        return len(block) == _BLOCK and _parsed(block, 0) is not None
    except _Damaged:
        return False


class _Damaged(Exception):
    """The tar is damaged or cut off at byte `at`: within the file called `name`, or where that is None, unknown."""

    def __init__(self, at: int, reason: str, name: bytes | None = None) -> None:
        super().__init__(f"byte {at}: {reason}")
        self.name = name


class _Refused(_Damaged):
    """The tar is whole, but holds something that is not read."""


class _Header(NamedTuple):
    name: bytes
    size: int
    kind: bytes
    name_at: int | None = None


class _Entry(NamedTuple):
    """A regular file: the offset of its first header, its name and where that stands, its data, and the next header."""

    at: int
    name: bytes
    name_at: int | None
    data: int
    size: int
    after: int


def _samples(entries: Iterable[_Entry | None]) -> Iterator[TarSample]:
    """Group files into samples; None, the end mark, completes the last one."""
    key = b""
    members: list[Member] = []
    start = end = before = 0
    key_at: int | None = None

    def sample() -> TarSample:
        text = _text(key)
        return TarSample(text, start, end - start, tuple(members), key_at if text.encode() == key else None)

    try:
        for entry in entries:
            split = _split(entry.name) if entry else None
            if members and (entry is None or (split and split[0] != key)):
                yield sample()
                members, before = [], len(members)
            if entry and split:
                start, key_at = (start, key_at) if members else (entry.at, entry.name_at)
                members.append(Member(_text(split[1]).lower(), entry.data, entry.size))
                key, end = split[0], entry.after
    except _Damaged as error:
        begun = _split(error.name) if error.name is not None else None
        if members and (begun[0] != key if begun else 0 < before <= len(members)):
            yield sample()
        raise
    if members:
        yield sample()


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """Return a member's key and extension, or None if it belongs to no sample."""
    if name.startswith(b"__") and _META.match(name):
        return None
    base = name.rfind(b"/") + 1
    dot = name.find(b".", base)
    return (name[:dot], name[dot + 1 :]) if dot > base else None


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _files(file: File, at: int, end: int) -> Iterator[_Entry | None]:
    """Yield the regular files whose headers start at `at`, up to `end` or the end mark, which is None."""
    while at < end:
        start, extended = at, _Extended()
        while (header := _header(file, at)) is not None and header.kind in _EXTENSIONS:
            data, at = at + _BLOCK, _after(file, at, header)
            extended.add(header.kind, file.read_buffered(data, header.size), data)
        if header is None:
            if at > start:
                raise _Damaged(start, "damaged: an extended header without a member")
            yield None
            _check_end(file, at)
            return
        name, name_at = (extended.name, extended.name_at) if extended.name else (header.name, header.name_at)
        size = header.size if extended.size is None else extended.size
        kind = _DIRECTORY if header.kind == b"\0" and header.name.endswith(b"/") else header.kind
        if extended.sparse or not (kind in _REGULAR or kind in _NO_FILES):
            what = _SPARSE if extended.sparse else _REFUSED.get(kind, f"of the type {kind!r}; only files are read")
            raise _Refused(at, f"{_text(name)!r} is {what}")
        data, at = at + _BLOCK, _after(file, at, _Header(name, 0 if kind == _DIRECTORY else size, kind))
        if kind in _REGULAR:
            yield _Entry(start, name, name_at, data, size, at)


def _after(file: File, at: int, header: _Header) -> int:
    """Return the offset of the next header."""
    data = at + _BLOCK
    if data + header.size > file.size:
        name = None if header.kind in _EXTENSIONS else header.name
        what = "its extended header" if name is None else f"the member {_text(name)!r}"
        reason = f"{what} has {header.size} bytes, but the file ends at byte {file.size}: it was cut off"
        raise _Damaged(at, reason, name)
    if header.kind in _EXTENSIONS and header.size > _LARGEST_EXTENSION:
        raise _Refused(at, f"an extended header has at most {_LARGEST_EXTENSION} bytes, this one has {header.size}")
    return data + header.size + -header.size % _BLOCK


def _header(file: File, at: int) -> _Header | None:
    """Return the header at `at`, or None for the end mark."""
    block = file.read_buffered(at, _BLOCK)
    if len(block) < _BLOCK:
        raise _Damaged(min(at, file.size), "the file ends here without an end mark: it was cut off")
    return _parsed(block, at)


def _parsed(block: bytes, at: int) -> _Header | None:
    """Return the header in a block, which is at the offset `at`, or None for the end mark."""
    total = _number(block[148:156])
    # Adler-32 contains the sum of all bytes, in a tenth of `sum`'s time. The checksum's own field counts as spaces.
    expected = (1 + (total or 0) + sum(block[148:156]) - 8 * 32) % _SUM_PRIME
    if total is None or zlib.adler32(block) & 0xFFFF != expected:
        if not block.strip(b"\0"):
            return None
        raise _Damaged(at, "not a tar header, or damaged: its checksum is wrong")
    if (size := _number(block[124:136])) is None:
        raise _Damaged(at, f"damaged: its size is {block[124:136]!r}")
    name = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0" and block[345]:
        return _Header(block[345:500].partition(b"\0")[0] + b"/" + name, size, block[156:157])
    return _Header(name, size, block[156:157], at)


def _number(field: bytes) -> int | None:
    """Decode a number of octal digits, or of base 256 if the first bit is set; None if invalid or negative."""
    if field[0] & 0x80:
        return None if field[0] & 0x40 else int.from_bytes(field, "big") - (0x80 << 8 * (len(field) - 1))
    digits = _OCTAL.match(field)
    return int(digits[1] or b"0", 8) if digits else None


@dataclass(slots=True)
class _Extended:
    """The properties that extended headers state about the next member."""

    name: bytes | None = None
    name_at: int | None = None
    size: int | None = None
    sparse: bool = False

    def add(self, kind: bytes, body: bytes, at: int) -> None:
        """Add the properties of an extended header of this kind, whose data is at the offset `at`."""
        if kind == b"L":
            self.name, self.name_at = body.partition(b"\0")[0], at
        elif kind != b"K":
            for keyword, value, place in _records(body, at):
                if kind == b"g" and (keyword in (b"path", b"size") or keyword.startswith(b"GNU.sparse")):
                    raise _Refused(at, f"a header for all members may not give them a {_text(keyword)}")
                if keyword == b"path":
                    self.name, self.name_at = value.partition(b"\0")[0].rstrip(b"/"), at + place
                elif keyword == b"size":
                    if not re.fullmatch(rb"\d{1,19}", value):
                        raise _Damaged(at, f"damaged: a size of {value[:40]!r}")
                    self.size = int(value)
                self.sparse |= keyword.startswith(b"GNU.sparse")


def _records(body: bytes, at: int) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield the keyword, the value and its offset of each record of a pax header: `LENGTH KEYWORD=VALUE`, a newline."""
    place = 0
    while place < len(body) and body[place]:
        found = _PAX.match(body, place)
        end = place + int(found[1]) if found else 0
        if found is None or not found.end() < end <= len(body) or body[end - 1 : end] != b"\n":
            raise _Damaged(at + place, "damaged: not a record of a pax header")
        yield found[2], body[found.end() : end - 1], found.end()
        place = end


def _check_end(file: File, at: int) -> None:
    """Raise _Refused if anything but zeros follows the end mark: the samples of another archive would be lost."""
    while block := file.read(at, _KEEP):
        if rest := block.lstrip(b"\0"):
            raise _Refused(at + len(block) - len(rest), "there is more data after the tar's end mark")
        at += len(block)
