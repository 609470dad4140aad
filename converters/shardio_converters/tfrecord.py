"""TFRecord files whose records are `tf.train.Example` messages; `shardio.foreign.tfrecord` finds the records.

Source: tensorflow/core/example/feature.proto and example.proto.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, final

from numpy.typing import NDArray

from shardio.errors import BadSample, Message, SourceError
from shardio.foreign.files import Sort, check_uncompressed, find_files, order_hints, other_files, within_folders
from shardio.foreign.locations import ValueLocations, scan_damaged_files
from shardio.foreign.names import Paths, bad_samples_at, printable
from shardio.foreign.tfrecord import is_tfrecord_name, open_tfrecord, read_record, scan
from shardio.source import Field, Missing, Places, Sample, check_image, check_index, sniff_image, with_optional

from . import _protobuf
from ._fields import choose_fields, decode_utf8, readable, rename_remarks, shortened
from ._protobuf import BYTES, FIXED32, VARINT, Record, Span
from ._source_base import LocatedSource

Kind: TypeAlias = Literal["bytes", "float", "int64"]
_KIND_OF: dict[int, Kind] = {1: "bytes", 2: "float", 3: "int64"}  # by the field's number in Feature
_LONE = {"float": FIXED32, "int64": VARINT}  # wire types of numbers that are not packed

_CONTROL = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")
_DTYPES = {"float": "float32", "int64": "int64"}
_KINDS = {dtype: kind for kind, dtype in _DTYPES.items()}


def tfrecord(
    src: Paths,
    *,
    fields: str | Mapping[str, str] | None = None,
    crc: bool = True,
    optional: str | Collection[str] | None = None,
    on_error: str = "raise",
    sort: Sort = "name",
    files: str | None = None,
) -> "TFRecord":
    """TFRecord files of tf.train.Example: one, a directory of them, or a pattern such as `train-*-of-01024`.

    The fields are inferred from the first 100 records and the last. A feature with one bytes value becomes an image if
    most begin like one, else text if all are UTF-8 without control characters, else bytes; several values become a
    list of texts, as JSON. One number becomes a scalar, int64 or float32; several become an array, of fixed shape if
    their count is always the same. A record without a chosen feature, or without values for it, is a bad sample, unless
    the field is optional.

    Each process that reads a file compressed with GZIP or ZLIB unpacks it to an unnamed temporary file in TMPDIR, and
    keeps up to eight of these. In any other order than that of the files, they are unpacked again and again.

    Args:
        src: a file, a directory (its files called `*.tfrecord*` or `*-00000-of-00001` are taken), or a pattern with
            `*`, `?`, `[...]` or ranges `{a..b}`; in Python also a list of these.
        fields: the features to take, with names for their fields, as in "image=image/encoded,label=image/class/label".
            Without it: all that the first record has values for, with `/` replaced by `.` in their names. A note names
            those that only others of the first 100 records and the last have.
        crc: verify the checksums of records; those of their lengths are always verified.
        optional: the fields that records may lack, as in "caption,score".
        on_error: `"skip"` takes the records before the place where a file is damaged between records or was cut off;
            one bad sample then stands for all that follow.
        sort: `natural` sorts files by the numbers in their names, so that s_2 comes before s_10.
        files: a pattern for the names of the files to take from a directory, such as "train-*". Without it: all.

    Example:
        shardio convert tfrecord 'train-*-of-00002' data/train --fields image=image/encoded,label=image/class/label
        shardio convert tfrecord old.tfrecord data/old --no-crc
        shardio convert tfrecord old.tfrecord data/small --resize-shorter 256

    Raises:
        SourceError: `src` does not exist, holds no records, is damaged between records or truncated (unless `on_error`
            is `"skip"`), or a feature has several bytes values in one record.
        ConfigError: `fields` names a feature that none of the first records has.
    """
    src = within_folders(src, files)
    paths = find_files(src, is_tfrecord_name, "TFRecord files (*.tfrecord* or *-00000-of-00001)", sort)
    spans, damage = scan_damaged_files(paths, lambda path, damage: scan(open_tfrecord(path), damage), on_error)
    places = ValueLocations(paths, spans, open_tfrecord, damage)
    if not len(places):
        raise SourceError(f"{printable(src)} holds no records")
    probed = [found for _, found in readable(places.probes().tolist(), partial(_seen, places, crc), "record")]
    if not (first := next((seen for _, seen in probed if seen), None)):
        raise SourceError(
            f"{printable(src)}: its records have no features: they are not tf.train.Example, or are empty"
        )
    available = sorted(first if fields is None else {name for _, seen in probed for name in seen})
    chosen = choose_fields(fields, available, printable(src))
    kinds = {}
    for field, name in chosen.items():
        try:
            kinds[field] = _field([seen[name] for _, seen in probed if name in seen])
        except SourceError as error:
            raise SourceError(
                "{}, feature {!r}: {}; leave it out with {fields}", printable(src), name, error
            ) from error
    lost = [] if fields is not None else _left_out(chosen.values(), probed)
    remarks = (
        *other_files(src, paths, "TFRecord files"),
        *shortened(lost, "features are left out"),
        *rename_remarks(fields, chosen),
    )
    return TFRecord(places, chosen, with_optional(kinds, optional), crc, remarks, order_hints(paths))


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
        packed = _protobuf.joined(data, self.spans)
        try:
            return _protobuf.floats(packed) if self.kind == "float" else _protobuf.int64s(packed)
        except ValueError as error:
            raise BadSample(str(error)) from error


def parse_example(data: bytes) -> dict[str, Feature]:
    """Parse a serialized `tf.train.Example` into the features that are set, by name.

    As protobuf prescribes, the last of two features with the same name counts, and a message in parts is merged. Raises
    BadSample if the record is damaged or a `tf.train.SequenceExample`.
    """
    found: dict[str, Feature] = {}
    try:
        for top in _protobuf.records(data):
            if top.wire == BYTES and top.number == 2:
                raise BadSample("a tf.train.SequenceExample; only tf.train.Example is supported")
            if top.wire != BYTES or top.number != 1:
                continue
            for entry in _protobuf.records(data, top.start, top.end):
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
    for part in _protobuf.records(data, entry.start, entry.end):
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
        for record in _protobuf.records(data, part.start, part.end):
            if record.wire != BYTES or record.number not in _KIND_OF:
                continue
            if kind != _KIND_OF[record.number]:
                kind, spans = _KIND_OF[record.number], []
            wanted = (BYTES, _LONE.get(kind, BYTES))
            values = _protobuf.records(data, record.start, record.end)
            spans += [value.span for value in values if value.number == 1 and value.wire in wanted]
    return Feature(kind, tuple(spans)) if kind else None


@final
@dataclass(frozen=True, eq=False)
class TFRecord(LocatedSource):
    """The records of TFRecord files: `fields` are the chosen features, and `names` what the files call them."""

    names: Mapping[str, str]
    fields: Mapping[str, Field]
    crc: bool
    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    source = "tfrecord"

    @property
    def adoption(self) -> Places:
        return Places(self.places.starts, self._spans, self.names)

    def _spans(self, index: int) -> dict[str, tuple[int, int]]:
        """See `Places.at`: lone bytes values and lists of floats are there as shardio stores them."""
        check_index(index, len(self.places))
        _, features, place = _read(self.places, index, self.crc)
        record = self.places.locate(index)
        check_uncompressed(record.file)
        found = {}
        for name, own in self.names.items():
            if self.fields[name].kind == "scalar":
                continue
            feature = features.get(own)
            if self.fields[name].optional and (feature is None or not len(feature.spans)):
                continue
            span = feature.span if feature is not None else None
            if span is None:
                raise BadSample(f"{place}, feature {own!r}: several values of its kind are not contiguous")
            found[name] = record.offset + span[0], span[1]
        return found

    def __getitem__(self, index: int) -> Sample:
        check_index(index, len(self.places))
        data, features, place = _read(self.places, index, self.crc)
        sample: dict[str, Any] = {}
        for name, own in self.names.items():
            with bad_samples_at(f"{place}, feature {own!r}"):
                value = _value(data, features.get(own), self.fields[name])
                lacks = f"{place}, feature {own!r}: the record lacks it, or it has no values"
                sample[name] = Missing(lacks) if value is None else value
        return sample


@final
@dataclass(frozen=True, slots=True)
class _Seen:
    """A feature of one record: its kind, the number of its values, and whether all begin like an image or are text."""

    kind: Kind
    count: int
    image: bool
    text: bool


def _read(places: ValueLocations, index: int, crc: bool) -> tuple[bytes, dict[str, Feature], str]:
    """Return a record's bytes, its features, and its name in messages."""
    file, row, offset, size = places.locate(index)
    place = f"{printable(file.path)}, record {row}"
    with bad_samples_at(place):
        data = read_record(file, offset, size, crc=crc)
        return data, parse_example(data), place


def _left_out(taken: Collection[str], probed: Sequence[tuple[str, Mapping[str, _Seen]]]) -> list[str]:
    """Return a remark for each feature that some of the probed records have and no field takes."""
    remarks: dict[str, str] = {}
    for place, seen in probed:
        for name in seen:
            if name not in taken and name not in remarks:
                why = f"which the first record lacks: {place} is the first that has values for it"
                remarks[name] = Message("left out the feature {!r}, {}; {fields} takes it", name, why)
    return list(remarks.values())


def _seen(places: ValueLocations, crc: bool, index: int) -> tuple[str, dict[str, _Seen]]:
    """Return a record's name in messages, and its features."""
    data, features, place = _read(places, index, crc)
    found = {}
    for name, feature in features.items():
        with bad_samples_at(f"{place}, feature {name!r}"):
            values = feature.values(data)
        texts = values if isinstance(values, list) else []
        if len(values):
            image = all(sniff_image(value) is not None for value in texts)
            found[name] = _Seen(feature.kind, len(values), image, all(_is_text(v, len(texts)) for v in texts))
    return place, found


def _is_text(value: bytes, count: int) -> bool:
    """Return whether one of `count` values is UTF-8; a lone one, which may be any bytes, without control characters."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return count > 1 or not _CONTROL.search(value)


def _field(seen: Sequence[_Seen]) -> Field:
    """Return the field for a feature, from its values in some records."""
    kind = Counter(feature.kind for feature in seen).most_common(1)[0][0]
    seen = [feature for feature in seen if feature.kind == kind]  # others are bad samples
    counts = {feature.count for feature in seen}
    alike, lone = len(counts) == 1, counts == {1}
    if kind != "bytes":
        if lone:
            return Field("scalar", dtype=_DTYPES[kind])
        return Field("array", dtype=_DTYPES[kind], shape=(counts.pop() if alike else None,))
    # Most, not all: the first images may be damaged, and a text may begin as an image does ("BMW ...").
    if lone and 2 * sum(feature.image for feature in seen) > len(seen):
        return Field("image")
    if all(feature.text for feature in seen):
        return Field("text" if lone else "json")
    if not lone:
        raise SourceError(f"it has {max(counts)} bytes values in one record, and not all are strings")
    return Field("bytes")


def _value(data: bytes, feature: Feature | None, field: Field) -> Any:
    """Return the value of a feature; None if there is none, BadSample if it does not fit the field."""
    values = feature.values(data) if feature else []
    if feature is None or not len(values):
        return None
    if feature.kind != (wanted := _KINDS.get(str(field.dtype), "bytes")):
        raise BadSample(f"expected {wanted}, got {feature.kind}")
    if field.kind == "array":
        return values
    if field.kind == "json":
        return [decode_utf8(value) for value in values]
    if len(values) > 1:
        raise BadSample(f"expected one value, got {len(values)}")
    value: Any = values[0]
    if field.kind == "image":
        check_image(value)
    return value.item() if field.kind == "scalar" else decode_utf8(value) if field.kind == "text" else value
