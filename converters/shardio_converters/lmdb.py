"""LMDB files of images, which are Caffe's Datum messages or image files.

Source: src/caffe/proto/caffe.proto of https://github.com/BVLC/caffe. `shardio.containers.lmdb_pages` reads the pages.
"""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np
from numpy.lib.recfunctions import repack_fields
from numpy.typing import NDArray

from shardio.containers.lmdb_pages import DamagedPages, Pages, Tree
from shardio.errors import BadSample, ConfigError, Option, SourceError
from shardio.foreign.files import File, unreadable
from shardio.foreign.locations import ValueLocations
from shardio.foreign.names import bad_samples_at, printable
from shardio.source import Field, Places, Sample, check_index, encode_png, local_path, probe_image, sniff_image
from shardio.system.units import counted

from . import _protobuf
from ._fields import decode_utf8, readable, shape_of_all
from ._protobuf import BYTES, FIXED32, VARINT, Record, Span
from ._source_base import LocatedSource

Layout: TypeAlias = Literal["auto", "datum", "image"]
_SHARDIOS = b"\xff" * 8 + b"_"  # how the last keys in a shard of shardio begin
_COUNTS = ("__keys__", "__len__", "length", "num-samples")
"""Keys of entries that count or list the others."""


def lmdb(
    src: str | os.PathLike[str], *, layout: Layout = "auto", bgr: bool = True, database: str | None = None
) -> "Lmdb":
    """An LMDB of Caffe's Datum messages or of image files: a directory that holds data.mdb, or the file itself.

    Samples are in the order of their keys, which become the text field `key`. A Datum becomes `label`, int64, 0 where
    it has none, and `image`: its encoded file as it is, or raw bytes of 1 or 3 channels as PNG, which is lossless. Raw
    values of any other number of channels, and float_data, become `array` [channels, height, width], uint8 or float32,
    of fixed shape if the first and the last sample agree.

    Entries that count or list the others, such as `__len__`, are no samples. A pair `image-000000001` and
    `label-000000001`, as in text recognition, is one sample, and the label becomes `text`.

    The file is read without a lock file: nobody may write to it meanwhile.

    Args:
        src: the directory or the file.
        layout: what the values are: `datum`, `image` (image files), or `auto`, to decide by the first value.
        bgr: raw pixels of 3 channels are in the order blue, green, red, as Caffe stores them; else red, green, blue.
        database: the named database to read; by default the main one, or the only named one.

    Example:
        shardio convert lmdb ilsvrc12_train_lmdb data/train
        shardio convert lmdb scenes_lmdb data/scenes --layout datum --no-bgr
        shardio convert lmdb splits_lmdb data/val --database val
        shardio convert lmdb ilsvrc12_train_lmdb data/small --resize-shorter 256 --quality 92

    Raises:
        SourceError: `src` does not exist, is not such an LMDB, is damaged or empty, or was written by shardio.
        ConfigError: `layout` is none of these.
    """
    if layout not in get_args(Layout):
        raise ConfigError("{layout} must be one of {}, got {!r}", ", ".join(get_args(Layout)), layout)
    root, own = local_path(src).absolute(), "was written by shardio; its datasets are copied by `shardio reshard`"
    if (root / "shardio.json").exists():
        raise SourceError(f"{printable(root)} {own}")
    file = open_lmdb(root)
    pages = _choose(file, database)
    entries = scan(file, pages)
    counts = {name: span[0] for name in _COUNTS if (span := pages.find(name.encode())) is not None}
    entries = entries[~np.isin(entries["offset"], list(counts.values()))]
    if not len(entries):
        raise SourceError(f"{printable(file.path)} holds no entries")
    last = file.read_exactly(int(entries[-1]["key"]), int(entries[-1]["key_size"]))
    if last.startswith(_SHARDIOS):
        raise SourceError(f"{printable(file.path)} {own}")
    images, texts = _pairs(file, pages, entries)
    spans = images["offset"].copy(), images["size"].astype(np.int64)
    places, keys = ValueLocations([file.path], [spans], open_lmdb), repack_fields(images[["key", "key_size"]])
    source = Lmdb(places, keys, Field("image"), False, pages.tree.has_integers, bgr, texts)
    if layout == "datum" or (layout == "auto" and not _holds_images(source)):
        source = replace(source, field=_field(source, places), datums=True)
    left = len(entries) - len(images) - (0 if texts is None else len(texts))
    remarks = (f"left out {counted(left, 'value')} beside those of pairs of an image and a label",) if left else ()
    told = f"taken for counts or lists of the others, and no samples: {', '.join(map(repr, counts))}"
    return replace(source, remarks=remarks, hints=(told,) if counts else ())


def open_lmdb(path: Path) -> File:
    """Open the data file of an environment: `path` itself, or `data.mdb` in it; SourceError if that fails."""
    try:
        if path.is_dir():
            path /= "data.mdb"
        return File(path)
    except (OSError, ValueError) as error:
        reason = f"{printable(path)} cannot be read: {getattr(error, 'strerror', 0) or error}"
        raise SourceError(f"lmdb takes a directory that holds data.mdb, or a file; {reason}") from error


def _choose(file: File, database: str | None) -> Pages:
    """Return pages whose tree is the named database that is asked for, or the only one."""
    pages, named, path = Pages(file.fileno(), file.size), dict[str, Tree](), printable(file.path)
    with contextlib.suppress(DamagedPages):  # which `scan` tells
        named = pages.named()
    if database is not None and database not in named:
        there = f"its named databases are {', '.join(map(repr, named))}" if named else "it has no named databases"
        raise ConfigError("{}: {}, got {}", path, there, Option("database", database))
    if database is None and len(named) > 1:
        told = "{} holds named databases: {database} takes one of {}"
        raise SourceError(told, path, ", ".join(map(repr, named)))
    pages.tree = named.get(database or "", next(iter(named.values()), pages.tree))
    return pages


def _pairs(file: File, pages: Pages, entries: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """The entries of images, and those of their labels if these are pairs as text recognition has them; else None."""
    begins = [pages.find(b"%s-%09d" % (kind, 1)) for kind in (b"image", b"label")]
    if pages.find(b"num-samples") is None or None in begins:
        return entries, None
    image, label = (int(np.flatnonzero(entries["offset"] == one[0])[0]) for one in begins if one is not None)
    count = label - image
    for kind, first in ((b"image", image), (b"label", label)):
        last = entries[first + count - 1 : first + count]  # keys are sorted: with it all before it are there
        name = b"".join(file.read_exactly(*one[["key", "key_size"]].tolist()) for one in last)
        if name != (wanted := b"%s-%09d" % (kind, count)):
            raise SourceError(
                f"{printable(file.path)}: its keys must pair, image-000000001 with label-000000001 and so on: expected "
                f"{wanted!r}, got {name!r}"
            )
    return entries[image:label], entries[label : label + count]


def scan(file: File, pages: Pages | None = None) -> NDArray[Any]:
    """Locate all entries, `[n]` of `lmdb_pages.ENTRY_DTYPE`, in the order of their keys.

    Raises SourceError if the pages are damaged, or hold anything but one value for each key.
    """
    try:
        return (pages or Pages(file.fileno(), file.size)).scan()
    except DamagedPages as error:
        raise SourceError(f"{printable(file.path)}: {error}") from error
    except OSError as error:
        raise unreadable(file.path, error) from error


@final
@dataclass(frozen=True, slots=True)
class Datum:
    """A Datum, Caffe's message for one image.

    Attributes:
        shape: (channels, height, width) as the message states them.
        label: the label; 0 if the message has none, as in Caffe.
        encoded: whether `data` is an image file.
        data: the span of the `data` bytes in the record, or None.
        floats: the spans of the float values in the record, which may replace `data`.
    """

    shape: tuple[int, int, int]
    label: int
    encoded: bool
    data: Span | None
    floats: tuple[Span, ...]

    @property
    def span(self) -> Span | None:
        """The span of the image's bytes or float values in the record; None unless they are contiguous."""
        if self.data is not None and self.data[1]:
            return self.data
        return self.floats[0] if len(self.floats) == 1 else None

    def array(self, record: bytes) -> NDArray[Any]:
        """Return the values, uint8 or float32 `[channels, height, width]`; BadSample if they do not fill that shape."""
        if self.data is not None and self.data[1]:
            values: NDArray[Any] = np.frombuffer(record, np.uint8, self.data[1], self.data[0])
        else:
            try:
                values = _protobuf.floats(_protobuf.joined(record, self.floats))
            except ValueError as error:
                raise BadSample(f"its float_data is damaged: {error}") from error
        channels, height, width = self.shape
        if min(self.shape) < 1 or channels * height * width != len(values):
            raise BadSample(f"a Datum of {channels} x {height} x {width} holds {len(values)} values")
        return values.reshape(self.shape)


def parse_datum(record: bytes) -> Datum:
    """Parse a Datum; BadSample if it is damaged.

    Field numbers: channels 1, height 2, width 3, data 4, label 5, float_data 6, encoded 7.
    """
    numbers = dict.fromkeys((1, 2, 3, 5, 7), 0)
    data: Span | None = None
    floats: list[Span] = []
    try:
        for part in _protobuf.records(record):
            match part:
                case Record(number=1 | 2 | 3 | 5 | 7 as number, wire=wire) if wire == VARINT:
                    numbers[number] = _protobuf.int32(record, part)
                case Record(number=4, wire=wire) if wire == BYTES:
                    data = part.span
                case Record(number=6, wire=wire) if wire in (BYTES, FIXED32):
                    floats.append(part.span)
    except ValueError as error:
        raise BadSample(f"not a Datum: {error}") from error
    shape = (numbers[1], numbers[2], numbers[3])
    return Datum(shape, numbers[5], bool(numbers[7]), data, tuple(floats))


@final
@dataclass(frozen=True, eq=False)
class Lmdb(LocatedSource):
    """The entries of an LMDB file.

    Attributes:
        keys: the offset and the bytes of each key, `[n]`.
        field: of the images or arrays.
        datums: whether values are Datums, not image files.
        integers: whether keys are integers in native order.
        bgr: whether raw pixels of 3 channels are blue, green, red.
        texts: the entry of each sample's text, `[n]` of ENTRY_DTYPE; None without texts.
    """

    keys: NDArray[Any]
    field: Field
    datums: bool
    integers: bool
    bgr: bool
    texts: NDArray[Any] | None
    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    source = "lmdb"

    @property
    def fields(self) -> Mapping[str, Field]:
        label = {"label": Field("scalar", dtype="int64")} if self.datums else {}
        text = {} if self.texts is None else {"text": Field("text")}
        return {self.field.kind: self.field, **label, **text, "key": Field("text")}

    def __getitem__(self, index: int) -> Sample:
        check_index(index, len(self.places))
        key, value, place = self.entry(index)
        with bad_samples_at(place):
            read = self.places.locate(index).file.read_exactly
            text = {name: decode_utf8(read(*span)) for name, span in self._text(index).items()}
            if not self.datums:
                probe_image(value)
                return {"image": value, **text, "key": key}
            datum = parse_datum(value)
            return {self.field.kind: self._pixels(datum, value), "label": datum.label, **text, "key": key}

    @property
    def adoption(self) -> Places:
        return Places(self.places.starts, self._spans)

    def _spans(self, index: int) -> dict[str, Span]:
        """See `Places.at`: image files and arrays are there as shardio stores them, raw pixels are not."""
        check_index(index, len(self.places))
        _, value, place = self.entry(index)
        _, _, start, size = self.places.locate(index)
        with bad_samples_at(place):
            if self.datums:
                datum = parse_datum(value)
                span = datum.span
                if span is None or (self.field.kind == "image" and not datum.encoded):
                    raise BadSample("its Datum holds no image file, and no contiguous values")
                start, size = start + span[0], span[1]
        if self.integers:
            raise BadSample("the keys are integers, which the file doesn't hold as strings: convert it")
        return {self.field.kind: (start, size), **self._text(index), "key": self.keys[index].tolist()}

    def entry(self, index: int) -> tuple[str, bytes, str]:
        """Return the key and value of entry `index`, and its name in messages; BadSample if it cannot be read."""
        file, _, offset, size = self.places.locate(index)
        with bad_samples_at(f"{printable(file.path)}, entry {index}"):
            raw = file.read_exactly(*self.keys[index].tolist())
            integer = self.integers
            key = str(int.from_bytes(raw, "little")) if integer else raw.decode("utf-8", "backslashreplace")
        with bad_samples_at(place := f"{printable(file.path)}, key {key!r}"):
            return key, file.read_exactly(offset, size), place

    def _text(self, index: int) -> dict[str, Span]:
        """Return the offset and size of a sample's text, if there is one."""
        return {} if self.texts is None else {"text": self.texts[["offset", "size"]][index].tolist()}

    def _pixels(self, datum: Datum, record: bytes) -> Any:
        """The image file or the array in a Datum; BadSample unless it is of the same kind as in the first Datum."""
        if (kind := _kind(datum)) != self.field.kind:
            raise BadSample(f"its Datum holds an {kind}, expected an {self.field.kind}")
        if datum.encoded:
            start, size = datum.data or (0, 0)
            probe_image(data := record[start : start + size])
            return data
        pixels = datum.array(record)
        if kind == "array":
            return pixels
        colors = pixels[::-1] if self.bgr else pixels
        return encode_png(
            colors[0] if len(colors) == 1 else np.ascontiguousarray(colors.transpose(1, 2, 0)), "its Datum"
        )


def _kind(datum: Datum) -> str:
    return "image" if datum.encoded or (datum.data is not None and datum.shape[0] in (1, 3)) else "array"


def _holds_images(source: Lmdb) -> bool:
    """Return whether the first value is an image file rather than a Datum; SourceError if it is neither."""
    try:
        _, value, place = source.entry(0)
        if sniff_image(value):
            return True
        with bad_samples_at(place):
            datum = parse_datum(value)
            if datum.data is None and not datum.floats:
                raise BadSample("not a Datum: it has no values")
    except BadSample as error:
        raise SourceError(f"the first value is neither an image nor a Datum; {error}") from error
    return False


def _field(source: Lmdb, places: ValueLocations) -> Field:
    """Return the field of the pixels, from the first and the last Datum that can be read."""

    def array(number: int) -> NDArray[Any] | None:
        _, value, place = source.entry(number)
        with bad_samples_at(place):
            datum = parse_datum(value)
            return None if _kind(datum) == "image" else datum.array(value)

    _, first = readable(places.probes().tolist(), array, "Datum")[0]
    if first is None:
        return Field("image")
    _, last = readable(range(max(0, len(places) - 100), len(places)), array, "Datum")[-1]
    shape = None if last is None else shape_of_all([first.shape, last.shape])
    return Field("array", dtype=first.dtype.name, shape=shape)
