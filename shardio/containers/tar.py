"""The `tar` container: a plain WebDataset tar with a side index that says where each value is.

Other programs read the tar alone. The index also holds scalars and hidden columns, so that shardio need not parse them.
Source: the WebDataset convention (the names of a sample's members agree up to the first dot), POSIX.1-1988 `ustar`.
"""

import json
import math
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import final

import numpy as np

from ..errors import BadSample, ConfigError
from ..format import images
from ..format.fields import Field, present_column
from ..system import npy
from ..system.types import Buffer, Stored
from . import side_index
from ._writing import Writer, size_of
from .indexed import IndexedContainer

_MOST_TEXTS = 4096
BLOCK = 512
PADDING = [bytes(size) for size in range(BLOCK)]
"""Runs of zeros by their length."""
KEY_DIGITS = 12
LARGEST_MEMBER = 8**11 - 1
"""Bytes: the size field of a ustar header has 11 octal digits."""

_LONGEST_NAME = 100
_EXTENSIONS = {
    "text": "txt", "json": "json", "bytes": "bin", "array": "npy", "pixels": "pixels.npy", "images": "mp",
    "video": "mp4",
}  # fmt: skip
_IMAGE_EXTENSIONS = (*images.SUFFIXES.values(), "bin")


def check_names(fields: Mapping[str, Field]) -> None:
    """Raise ConfigError if the members of two fields could have the same name, or a name is too long for ustar.

    WebDataset turns extensions into lower case, so names that differ only in case are the same.
    """
    owners: dict[str, str] = {}
    for name, field in side_index.located(fields).items():
        for extension in extensions(name, field):
            other = owners.setdefault(extension.lower(), name)
            if other != name:
                raise ConfigError(
                    f"fields {other!r} and {name!r} could both be the tar member KEY.{extension}: rename one"
                )
            if KEY_DIGITS + 1 + len(extension) > _LONGEST_NAME:
                raise ConfigError(f"a tar member's name has at most {_LONGEST_NAME} letters; too long: field {name!r}")


def extensions(name: str, field: Field) -> list[str]:
    """Return the extensions that members of a field may have; a member is named by its key, a dot and its extension."""
    possible = _IMAGE_EXTENSIONS if field.kind == "image" else (_plain_extension(name, field),)
    return [qualified(name, field, extension) for extension in possible]


def extension_of(name: str, field: Field, stored: Buffer) -> str:
    """Return the extension of the member that holds the value `stored`."""
    if field.kind == "image":
        return qualified(name, field, images.SUFFIXES.get(images.sniff(stored) or "", "bin"))
    return qualified(name, field, _plain_extension(name, field))


def qualified(name: str, field: Field, extension: str) -> str:
    """Return `extension` with the field's name before it, unless the extension alone implies the name."""
    implied = (
        name == extension or (name == "image" and field.kind == "image") or (name == "label" and extension == "cls")
    )
    return extension if implied else f"{name}.{extension}"


def member_text(field: Field, stored: Buffer) -> bytes:
    """Return a scalar as other readers of the tar see it: decimal digits in `.cls`, JSON elsewhere."""
    value = field.decode(stored)
    if isinstance(value, complex):
        value = [value.real, value.imag]
    elif not isinstance(value, (bool, int, float)):  # a long double has no Python counterpart
        value = float(value)
    return json.dumps(value).encode()


def member_bytes(field: Field, stored: Buffer) -> int:
    """Return the bytes that a member takes in a tar: a block for its header, and whole blocks for its content."""
    content = memoryview(member_text(field, stored) if field.kind == "scalar" else stored).nbytes
    return BLOCK + math.ceil((len(array_header(field, content)) + content) / BLOCK) * BLOCK


def array_header(field: Field, size: int) -> bytes:
    """Return the `.npy` header before the `size` raw bytes of an array; b"" if there is no header."""
    if field.ragged:
        return npy.header_of(field.row_dtype, (size // field.entry_bytes, *field.entry_shape))
    return npy.header_of(field.row_dtype, field.row_shape) if field.fixed and field.kind != "scalar" else b""


def member_header(name: str, size: int) -> bytes:
    """Return the 512 bytes before a member: mode 0644, owner 0, time 0, so that the same samples give the same tar."""
    encoded, digits = name.encode("ascii"), b"%011o" % size
    # The template's checksum is that of an empty name and a size of zero.
    total = _TEMPLATE_SUM + sum(encoded) + sum(digits) - 11 * ord("0")
    return b"%b%b%b%b%06o\0%b" % (encoded, _MODE[len(encoded) :], digits, _TIME, total, _REST)


def _plain_extension(name: str, field: Field) -> str:
    if field.kind == "scalar":
        return "cls" if name == "label" and np.dtype(field.dtype).kind in "iu" else "json"
    return _EXTENSIONS[field.kind]


def _template() -> tuple[bytes, int]:
    member = tarfile.TarInfo("")
    member.mode = 0o644
    header = member.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
    return header, int(header[148:154], 8)


_TEMPLATE, _TEMPLATE_SUM = _template()
_MODE, _TIME, _REST = _TEMPLATE[:124], _TEMPLATE[135:148], _TEMPLATE[155:]


@final
class TarWriter(Writer):
    """A `Writer` that writes tar and index side by side, so that memory stays bounded."""

    def __init__(self, path: Path, fields: Mapping[str, Field], first: int, rows: int | None) -> None:
        check_names(fields)
        side_index.dtype_of(fields)  # raises before anything is written
        super().__init__(path, fields, first, rows)
        self._members = side_index.located(fields)
        self._extensions = {n: extension_of(n, f, b"") for n, f in self._members.items() if f.kind != "image"}
        self._texts: dict[tuple[str, bytes], bytes] = {}
        self._tar, self._position = self._create(path), 0
        self._index = side_index.SideIndexWriter(self._create(side_index.path_of(path)), fields, self._spool)

    def _add(self, sample: Stored, index: int) -> None:
        # A value that the sample lacks is no member, as in tars that others write.
        contents = [
            None if sample.get(present_column(name)) == b"\0" else self._content(name, field, sample[name])
            for name, field in self._members.items()
        ]
        key = f"{index:0{KEY_DIGITS}d}"
        locations: list[int] = []
        parts: list[Buffer] = []
        position = self._position
        for content in contents:
            if content is None:
                locations += 0, 0
                continue
            extension, header, value, size = content
            member_size = len(header) + size
            padding = PADDING[-member_size % BLOCK]
            locations += position + BLOCK + len(header), size
            parts += member_header(f"{key}.{extension}", member_size) + header, value, padding
            position += BLOCK + member_size + len(padding)
        for part in parts:
            self._tar.write(part)
        self._position = position
        self._index.append(locations, sample)

    def _finish(self) -> None:
        self._tar.write(bytes(2 * BLOCK))
        self._index.finish(self._count)
        self._sync()

    def _content(self, name: str, field: Field, stored: Buffer) -> tuple[str, bytes, Buffer, int]:
        """Return a member's extension, its array header, its value, and the value's size in bytes."""
        value = self._text(name, field, bytes(stored)) if field.kind == "scalar" else stored
        size = size_of(value)
        header = array_header(field, size)
        if len(header) + size > LARGEST_MEMBER:
            raise BadSample(
                f"{self._path.name}, sample {self._first + self._count}, field {name!r}: "
                f"a tar member has at most {LARGEST_MEMBER} bytes, got {size}; use hdf5"
            )
        extension = self._extensions.get(name) or extension_of(name, field, stored)
        return extension, header, value, size

    def _text(self, name: str, field: Field, stored: bytes) -> bytes:
        """Return `member_text`, cached for recurring values such as labels."""
        text = self._texts.get((name, stored))
        if text is None:
            text = member_text(field, stored)
            if len(self._texts) < _MOST_TEXTS:
                self._texts[name, stored] = text
        return text


@final
class TarContainer(IndexedContainer):
    """WebDataset tars, each with a side index."""

    name = "tar"
    suffix = ".tar"
    writer_type = TarWriter
