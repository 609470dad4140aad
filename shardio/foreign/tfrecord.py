"""TFRecord files: where each record is.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord: a record is its length as uint64, a checksum of the
length, the data, and a checksum of the data; both are masked CRC-32C, little-endian.
"""

import re
import struct
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadSample, SourceError
from ..system import optional as _optional
from .files import File, open_file, unreadable
from .locations import Spans
from .names import printable

_HEADER = struct.Struct("<QI")  # a record's length and its checksum
_BEFORE, _AFTER = _HEADER.size, 4
_MASK = 0xA282EAD8
_NAME = re.compile(r"\.tfrecords?\b|-\d+-of-\d+$")


def is_tfrecord_name(name: str) -> bool:
    """Return whether a file's name is that of a TFRecord file: `a.tfrecord`, `train-00003-of-00010`."""
    return _NAME.search(name) is not None


def is_record_header(head: bytes) -> bool:
    """Return whether a file that begins with `head` begins with a record, by the checksum of its length."""
    return len(head) >= _BEFORE and _framed(head[:_BEFORE], _crc32c_of_few)


def open_tfrecord(path: Path) -> File:
    """Open a TFRecord file, unpacked to a temporary file if it is compressed: see `files.open_file`."""
    checksum = _crc32c()
    return open_file(path, ("gzip", "zlib"), lambda head: len(head) == _BEFORE and _framed(head, checksum))


def scan(file: File, damage: list[str] | None = None) -> Spans:
    """Locate the data of each record by reading the lengths alone, whose checksums are verified.

    Raises SourceError where a length is damaged or the file was cut off, since no later record can be found; it names
    the byte and counts the complete records before it. Given a list as `damage`, it adds this text there instead.
    """
    checksum = _crc32c()
    offsets, sizes = array("q"), array("q")
    at = 0
    try:
        while at < file.size:
            size = _length(file, at, checksum)
            offsets.append(at + _BEFORE)
            sizes.append(size)
            at += _BEFORE + size + _AFTER
    except ValueError as error:
        text = f"{printable(file.path)}, byte {at}: {error}; {len(sizes)} complete records precede it"
        if damage is None:
            raise SourceError(text) from error
        damage.append(text)
    except OSError as error:
        raise unreadable(file.path, error) from error
    return np.array(offsets, np.int64), np.array(sizes, np.int64)


def _length(file: File, at: int, checksum: Any) -> int:
    """Return the size of the record at offset `at`; ValueError if that is damaged or exceeds the file."""
    head = file.read_buffered(at, _BEFORE)
    if len(head) == _BEFORE and not _framed(head, checksum):
        raise ValueError("not a TFRecord, or damaged: the checksum of its length is wrong")
    size: int = _HEADER.unpack(head)[0] if len(head) == _BEFORE else 0
    if at + _BEFORE + size + _AFTER > file.size:
        raise ValueError(f"the file ends at byte {file.size} within this record: it was cut off")
    return size


def read_record(file: File, offset: int, size: int, *, crc: bool = True) -> bytes:
    """Read the data of a record, `size` bytes at `offset`; with `crc`, BadSample if its checksum is wrong."""
    stored = file.read_exactly(offset, size + _AFTER)
    data = stored[:size]
    if crc and (found := _masked(_crc32c()(data))) != (expected := int.from_bytes(stored[size:], "little")):
        raise BadSample(f"damaged: its checksum is {found:08x}, it must be {expected:08x}")
    return data


def _framed(head: bytes, checksum: Any) -> bool:
    return _masked(checksum(head[:8])) == int.from_bytes(head[8:], "little")


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _crc32c_of_few(data: bytes) -> int:
    """Return the CRC-32C of a few bytes, without the library, which not everybody has who has other files."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _crc32c() -> Any:
    return _optional.load("google_crc32c", purpose="checking TFRecord files", extra="tfrecord").value
