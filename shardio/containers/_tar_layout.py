"""Where things are in a tar shard: the members' names and headers.

Source: the WebDataset convention (a sample's members share what stands before the first dot), POSIX.1-1988 `ustar`.
"""

import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..format import images
from ..format.fields import Field
from ..system.types import Buffer
from . import indexed

BLOCK = 512
PADDING = [bytes(size) for size in range(BLOCK)]
"""Zeros, by their number."""
KEY_DIGITS = 12
LARGEST_MEMBER = 8**11 - 1
"""Bytes: the size field of a ustar header has 11 octal digits."""

_LONGEST_NAME = 100
_EXTENSIONS = {"text": "txt", "json": "json", "bytes": "bin", "array": "npy"}
_IMAGE_EXTENSIONS = (*images.SUFFIXES.values(), "bin")


def check_names(fields: Mapping[str, Field]) -> None:
    """Raises ConfigError where two fields' members would, or could, have one name, or a name is too long for ustar.

    WebDataset makes extensions lower case, so names that differ in case only are one.
    """
    owners: dict[str, str] = {}
    for name, field in indexed.visible(fields).items():
        for full in extensions(name, field):
            other = owners.setdefault(full.lower(), name)
            if other != name:
                raise ConfigError(f"fields {other!r} and {name!r} could both be the tar member KEY.{full}: rename one")
            if KEY_DIGITS + 1 + len(full) > _LONGEST_NAME:
                raise ConfigError(f"a tar member's name has at most {_LONGEST_NAME} letters; too long: field {name!r}")


def extensions(name: str, field: Field) -> list[str]:
    """What may follow the key in the member's name."""
    possible = _IMAGE_EXTENSIONS if field.kind == "image" else (_extension(name, field),)
    return [qualified(name, field, extension) for extension in possible]


def extension_of(name: str, field: Field, stored: Buffer) -> str:
    """What follows the key in the member's name."""
    if field.kind == "image":
        return qualified(name, field, images.SUFFIXES.get(images.sniff(stored) or "", "bin"))
    return qualified(name, field, _extension(name, field))


def qualified(name: str, field: Field, extension: str) -> str:
    """`extension` alone where the field's name says no more than it does, else with the name before it."""
    plain = name == extension or (name == "image" and field.kind == "image") or (name == "label" and extension == "cls")
    return extension if plain else f"{name}.{extension}"


def member_text(field: Field, stored: Buffer) -> bytes:
    """A scalar as other readers of the tar see it: decimal digits in `.cls`, JSON elsewhere."""
    value = field.decode(stored)
    if isinstance(value, complex):
        value = [value.real, value.imag]
    elif not isinstance(value, (bool, int, float)):  # a long double has no Python number of its own
        value = float(value)
    return json.dumps(value).encode()


def array_header(field: Field) -> bytes:
    """The `.npy` header before the raw bytes of a fixed array."""
    descr = np.lib.format.dtype_to_descr(field.row_dtype)
    return npy_header({"descr": descr, "fortran_order": False, "shape": field.row_shape})


def npy_header(description: dict[str, Any]) -> bytes:
    """A `.npy` header; those of 1-D arrays that differ in length only have the same size."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, description)
    return stream.getvalue()


def member_header(name: str, size: int) -> bytes:
    """The 512 bytes before a member: mode 0644, owner 0, time 0, so that the same samples give the same tar."""
    encoded, digits = name.encode("ascii"), b"%011o" % size
    # The template was summed with an empty name and a size of zeros.
    total = _TEMPLATE_SUM + sum(encoded) + sum(digits) - 11 * ord("0")
    return b"%b%b%b%b%06o\0%b" % (encoded, _MODE[len(encoded) :], digits, _TIME, total, _REST)


def _extension(name: str, field: Field) -> str:
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
