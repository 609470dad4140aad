"""LMDB files of images, which are Caffe's Datum messages or image files; `shardio.foreign.lmdb` reads them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.foreign import lmdb as foreign
from shardio.foreign.files import File
from shardio.foreign.names import bad_samples_at, printable
from shardio.source import Field, Sample, check_index, encode_png, probe_image, sniff_image

Layout: TypeAlias = Literal["auto", "datum", "image"]
_PROBES = 100


def lmdb(src: str | os.PathLike[str], *, layout: Layout = "auto", bgr: bool = True) -> "Lmdb":
    """An LMDB of Caffe's Datum messages or of image files: a directory that holds data.mdb, or the file itself.

    Samples are in the order of their keys, which become the text field `key`. A Datum becomes `label`, int64, 0 where
    it has none, and `image`: its encoded file as it is, or raw bytes of 1 or 3 channels as PNG, which is lossless. Raw
    values of any other number of channels, and float_data, become `array` [channels, height, width], uint8 or float32,
    of fixed shape if the first and the last sample agree.

    The file is read without a lock file: nobody may write to it meanwhile.

    Args:
        src: the directory or the file.
        layout: what the values are: `datum`, `image` (image files), or `auto`, to decide by the first value.
        bgr: raw pixels of 3 channels are in the order blue, green, red, as Caffe stores them; else red, green, blue.

    Example:
        shardio convert lmdb ilsvrc12_train_lmdb data/train
        shardio convert lmdb scenes_lmdb data/scenes --layout datum --no-bgr
        shardio convert lmdb ilsvrc12_train_lmdb data/small --resize-shorter 256 --quality 92

    Raises:
        SourceError: `src` does not exist, is not such an LMDB, is damaged or empty, or was written by shardio.
        ConfigError: `layout` is none of these.
    """
    if layout not in get_args(Layout):
        raise ConfigError("{layout} must be one of {}, got {!r}", ", ".join(get_args(Layout)), layout)
    if (Path(src) / "shardio.json").exists():
        raise _shardios(src)
    file = foreign.open_lmdb(src)
    places = foreign.scan(file)
    if not len(places):
        raise SourceError(f"{printable(file.path)} holds no entries")
    if foreign.read(file, int(places[-1]["key"]), int(places[-1]["key_size"])).startswith(foreign.SHARDIO_KEY_PREFIX):
        raise _shardios(file.path)
    source = Lmdb(file.path, places, Field("image"), datums=False, bgr=bgr)
    if layout == "image" or (layout == "auto" and _holds_images(source)):
        return source
    return Lmdb(file.path, places, _field(source), datums=True, bgr=bgr)


def _shardios(path: str | os.PathLike[str]) -> SourceError:
    return SourceError(f"{printable(path)} was written by shardio; its datasets are copied by `shardio reshard`")


@final
class Lmdb:
    """The entries of an LMDB file. It pickles with their locations; each worker opens the file itself."""

    threads = True
    container = "indexed"

    def __init__(self, path: Path, places: NDArray[Any], field: Field, *, datums: bool, bgr: bool) -> None:
        self._path, self._places, self._field, self._datums, self._bgr = path, places, field, datums, bgr
        self._file: File | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}

    @property
    def fields(self) -> Mapping[str, Field]:
        """`image` or `array`, `label` of a Datum, and `key`."""
        label = {"label": Field("scalar", dtype="int64")} if self._datums else {}
        return {self._field.kind: self._field, **label, "key": Field("text")}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The converter's name."""
        return {"source": "lmdb"}

    @property
    def files(self) -> Sequence[Path]:
        return (self._path,)

    @property
    def starts(self) -> NDArray[np.int64]:
        """0 and the number of entries, `[2]`."""
        return np.array([0, len(self._places)], np.int64)

    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each value, `[n]`."""
        return self._places["size"].astype(np.int64)

    def __getitem__(self, index: int) -> Sample:
        check_index(index, len(self._places))
        key, value, place = self.entry(index)
        with bad_samples_at(place):
            if not self._datums:
                probe_image(value)
                return {"image": value, "key": key}
            datum = foreign.parse_datum(value)
            return {self._field.kind: self._pixels(datum, value), "label": datum.label, "key": key}

    def places(self, index: int) -> dict[str, tuple[int, int]]:
        """See `shardio.source.HasPlaces`: image files and arrays lie there as shardio stores them, raw pixels not."""
        check_index(index, len(self._places))
        _, value, place = self.entry(index)
        at = self._places[index]
        start, size = int(at["offset"]), int(at["size"])
        with bad_samples_at(place):
            if self._datums:
                datum = foreign.parse_datum(value)
                span = datum.span
                if span is None or (self._field.kind == "image" and not datum.encoded):
                    raise BadSample("its Datum holds no image file, and no contiguous values")
                start, size = start + span[0], span[1]
        return {self._field.kind: (start, size), "key": (int(at["key"]), int(at["key_size"]))}

    def entry(self, index: int) -> tuple[str, bytes, str]:
        """The key and value of entry `index`, and its name in messages; BadSample if it cannot be read."""
        self._file = file = self._file or foreign.open_lmdb(self._path)
        at = self._places[index]
        with bad_samples_at(f"{printable(self._path)}, entry {index}"):
            key = foreign.read(file, int(at["key"]), int(at["key_size"])).decode("utf-8", "backslashreplace")
        with bad_samples_at(place := f"{printable(self._path)}, key {key!r}"):
            return key, foreign.read(file, int(at["offset"]), int(at["size"])), place

    def _pixels(self, datum: foreign.Datum, record: bytes) -> Any:
        """The image file or the array in a Datum; BadSample unless it is of the same kind as in the first Datum."""
        if (kind := _kind(datum)) != self._field.kind:
            raise BadSample(f"its Datum holds an {kind}, expected an {self._field.kind}")
        if datum.encoded:
            data = datum.bytes_of(record)
            probe_image(data)
            return data
        pixels = datum.array(record)
        if kind == "array":
            return pixels
        colors = pixels[::-1] if self._bgr else pixels
        return encode_png(
            colors[0] if len(colors) == 1 else np.ascontiguousarray(colors.transpose(1, 2, 0)), "its Datum"
        )


def _kind(datum: foreign.Datum) -> str:
    return "image" if datum.encoded or (datum.data is not None and datum.shape[0] in (1, 3)) else "array"


def _holds_images(source: Lmdb) -> bool:
    """Whether the first value is an image file rather than a Datum; SourceError if it is neither."""
    try:
        _, value, place = source.entry(0)
        if sniff_image(value):
            return True
        with bad_samples_at(place):
            datum = foreign.parse_datum(value)
            if datum.data is None and not datum.floats:
                raise BadSample("not a Datum: it has no values")
    except BadSample as error:
        raise SourceError(f"the first value is neither an image nor a Datum; {error}") from error
    return False


def _field(source: Lmdb) -> Field:
    """The field of the pixels, from the first and the last Datum that can be read."""
    count = len(source.sizes())
    first = _first_array(source, range(min(count, _PROBES)))
    if first is None:
        return Field("image")
    last = _first_array(source, range(count - 1, max(count - 1 - _PROBES, -1), -1))
    alike = last is not None and last.shape == first.shape
    return Field("array", dtype=first.dtype.name, shape=first.shape if alike else None)


def _first_array(source: Lmdb, numbers: range) -> NDArray[Any] | None:
    """The array in the first Datum of these that can be read; None if it holds an image."""
    wrong = None
    for number in numbers:
        try:
            _, value, place = source.entry(number)
            with bad_samples_at(place):
                datum = foreign.parse_datum(value)
                return None if _kind(datum) == "image" else datum.array(value)
        except BadSample as error:
            wrong = wrong or error
    raise SourceError(f"no Datum can be read; {wrong}") from wrong
