"""TFRecord files, and the `tf.train.Example` messages that their records usually are.

Sources: https://www.tensorflow.org/tutorials/load_data/tfrecord (a record is its length as uint64, a checksum of the
length, the data, and a checksum of the data; both are masked CRC-32C, little-endian),
tensorflow/core/example/feature.proto and example.proto.
"""

import re
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample, SourceError
from ..system import optional as _optional
from . import protobuf
from .files import File, open_file, unreadable
from .locations import Spans
from .names import printable
from .protobuf import BYTES, FIXED32, VARINT, Record, Span

_HEADER = struct.Struct("<QI")  # a record's length and its checksum
_BEFORE, _AFTER = _HEADER.size, 4
_MASK = 0xA282EAD8
_NAME = re.compile(r"\.tfrecords?\b|-\d+-of-\d+$")

Kind: TypeAlias = Literal["bytes", "float", "int64"]
_KINDS: dict[int, Kind] = {1: "bytes", 2: "float", 3: "int64"}  # by the field's number in Feature
_LONE = {"float": FIXED32, "int64": VARINT}  # wire types of numbers that are not packed


@final
@dataclass(frozen=True, slots=True)
class Feature:
    """One feature of an Example: its kind, and the spans of its values in the record.

    Attributes:
        kind: `bytes`, `float` or `int64`.
        spans: the span of each bytes value, or of each run of packed numbers or lone number, in order.
    """

    kind: Kind
    spans: tuple[Span, ...]

    @property
    def span(self) -> Span | None:
        """The span of a single bytes value or of packed floats (float32, little-endian); None for other values."""
        return self.spans[0] if len(self.spans) == 1 and self.kind != "int64" else None

    def values(self, data: bytes) -> "list[bytes] | NDArray[Any]":
        """Return the values, possibly none: a list of bytes, or float32 or int64 `[n]`; BadSample if damaged."""
        if self.kind == "bytes":
            return [data[start : start + size] for start, size in self.spans]
        packed = protobuf.joined(data, self.spans)
        try:
            return protobuf.floats(packed) if self.kind == "float" else protobuf.int64s(packed)
        except ValueError as error:
            raise BadSample(str(error)) from error


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
    stored = file.read(offset, size + _AFTER)
    if len(stored) < size + _AFTER:
        raise BadSample(f"the file ends within it, after {len(stored)} of {size + _AFTER} bytes")
    data = stored[:size]
    if crc and (found := _masked(_crc32c()(data))) != (expected := int.from_bytes(stored[size:], "little")):
        raise BadSample(f"damaged: its checksum is {found:08x}, it must be {expected:08x}")
    return data


def parse_example(data: bytes) -> dict[str, Feature]:
    """Parse a serialized `tf.train.Example` into the features that are set, by name.

    As protobuf prescribes, the last of two features with the same name counts, and a message in parts is merged. Raises
    BadSample if the record is damaged or a `tf.train.SequenceExample`.
    """
    found: dict[str, Feature] = {}
    try:
        for top in protobuf.records(data):
            if top.wire == BYTES and top.number == 2:
                raise BadSample("a tf.train.SequenceExample; only tf.train.Example is supported")
            if top.wire != BYTES or top.number != 1:
                continue
            for entry in protobuf.records(data, top.start, top.end):
                if entry.wire == BYTES and entry.number == 1:
                    name, feature = _entry(data, entry)
                    found.pop(name, None)
                    if feature:
                        found[name] = feature
    except ValueError as error:
        raise BadSample(f"not a tf.train.Example: {error}") from error
    return found


def _entry(data: bytes, entry: Record) -> tuple[str, Feature | None]:
    """Return the name and the value of an entry in the map of features."""
    name, values = b"", []
    for part in protobuf.records(data, entry.start, entry.end):
        if part.wire == BYTES and part.number == 1:
            name = data[part.start : part.end]
        elif part.wire == BYTES and part.number == 2:
            values.append(part)
    return name.decode(), _feature(data, values)


def _feature(data: bytes, parts: list[Record]) -> Feature | None:
    """Merge messages into one feature, of the kind that the last states; None if none states a kind."""
    kind: Kind | None = None
    spans: list[Span] = []
    for part in parts:
        for record in protobuf.records(data, part.start, part.end):
            if record.wire != BYTES or record.number not in _KINDS:
                continue
            if kind != _KINDS[record.number]:
                kind, spans = _KINDS[record.number], []
            wanted = (BYTES, _LONE.get(kind, BYTES))
            values = protobuf.records(data, record.start, record.end)
            spans += [value.span for value in values if value.number == 1 and value.wire in wanted]
    return Feature(kind, tuple(spans)) if kind else None


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
