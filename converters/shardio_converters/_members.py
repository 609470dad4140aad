"""The files of a WebDataset sample as fields: the field that an extension names, and the value in a file.

=========================  ===========================================  ====================================
extension                  field                                        kind of the value
=========================  ===========================================  ====================================
`jpg jpeg png webp bmp`    `image`; the format may differ by sample     `image`, bytes untouched
`mp4 m4v mkv webm mov`     `video`; the format may differ by sample     `video`, bytes untouched
`cls`                      `label`                                      int64 scalar, from decimal digits; `text`
                                                                        if they hold names
`txt text`                 named after the extension                    `text`
`json`                     named after the extension                    `json`
`npy`                      named after the extension                    `array`, or a scalar if it is 0-d
`bin`                      `bytes`                                      `bytes`
`pth pt pkl pickle pyd`    none                                         refused: reading would unpickle them
others                     named after the extension                    `bytes`
=========================  ===========================================  ====================================

A name before the extension is the field's: `mask.png` is the image `mask`, `caption.txt` the text `caption`, and
`weight.json` the scalar `weight` if it holds numbers, as shardio writes them.
"""

from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardio.errors import BadSample, ConfigError, SourceError
from shardio.foreign.names import field_name
from shardio.source import Field, check_image
from shardio.system import npy

from ._fields import decode_utf8, shape_of_all
from ._files import parse_json

_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp")
_VIDEOS = ("mp4", "m4v", "mkv", "webm", "mov")
_PICKLES = ("pth", "pt", "pkl", "pickle", "pyd")
_TYPES = (*_IMAGES, *_VIDEOS, "cls", "txt", "text", "json", "npy", "bin")
_LARGEST_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class MemberField:
    """A field, and the files of a sample that it is read from.

    Attributes:
        extensions: the possible extensions of the file; the first one that a sample has counts.
        field: the field.
    """

    extensions: tuple[str, ...]
    field: Field

    def find(self, extensions: Collection[str]) -> str | None:
        """Return the extension of this field's file among a sample's extensions, or None."""
        return next((extension for extension in self.extensions if extension in extensions), None)

    def decode(self, data: bytes) -> Any:
        match self.field.kind:
            case "image":
                check_image(data)
                return data
            case "text":
                return decode_utf8(data)
            case "json":
                return _json(data, nan=False)
            case "bytes" | "video":
                return data
        type_ = self.extensions[0].rpartition(".")[2]
        if type_ == "npy":
            array = _array(data)
            return array.item() if self.field.kind == "scalar" and not array.shape else array
        if type_ == "json":
            return _number(data, str(self.field.dtype))
        try:
            return int(data.removeprefix(BOM_UTF8))
        except ValueError as error:
            raise BadSample(f"not an integer: {data[:40]!r}") from error

    def stored_span(self, data: bytes) -> tuple[int, int]:
        """Return where the stored bytes are in a file, offset and size: those of most arrays behind the .npy header."""
        if self.field.kind != "array" or not (self.field.fixed or self.field.ragged):
            return 0, len(data)
        array = _array(data)
        if not array.flags.c_contiguous:
            raise BadSample("its array is in Fortran's order")
        return len(data) - array.nbytes, array.nbytes


def field_names(extensions: Iterable[str]) -> dict[str, str]:
    """Name the fields of a sample by its files' extensions: `{field: extension}`, in order.

    Extensions that would give the same name give fields named after the whole extension instead. Raises ConfigError if
    two names are still the same.
    """
    given = list(extensions)
    names = [_name(extension) for extension in given]
    often = Counter(names)
    names = [name if often[name] == 1 else field_name(whole) for name, whole in zip(names, given, strict=True)]
    if clash := next((name for name, count in Counter(names).items() if count > 1), None):
        both = " and ".join(repr(extension) for name, extension in zip(names, given, strict=True) if name == clash)
        raise ConfigError(f"the files {both} would both be the field {clash!r}; rename one with fields")
    return dict(zip(names, given, strict=True))


def alternatives(extension: str, samples: Iterable[Collection[str]], taken: Collection[str]) -> tuple[str, ...]:
    """Return the extensions that may hold a field: of images and videos all formats, unless a sample has two of them.

    Args:
        extension: the field's own extension.
        samples: the extensions of some samples.
        taken: the extensions of all chosen fields.
    """
    stem, _, last = extension.rpartition(".")
    suffixes = next((kind for kind in (_IMAGES, _VIDEOS) if last in kind), ())
    formats = [f"{stem}.{suffix}" if stem else suffix for suffix in suffixes]
    if any(sum(other in sample for other in formats) > 1 for sample in samples):
        return (extension,)
    return (extension, *(other for other in formats if other not in taken and other != extension))


def field_of(extension: str, values: Sequence[bytes]) -> Field:
    """Return the field for files with this extension.

    Args:
        extension: the extension.
        values: the content of some of the files; an array's shape is fixed if they agree.

    Raises SourceError if the files are pickles, or arrays of a dtype that no field holds.
    """
    stem, _, last = extension.rpartition(".")
    if last in _IMAGES:
        return Field("image")
    if last in _VIDEOS:
        return Field("video")
    if last in _PICKLES:
        raise SourceError("a pickle, which is never loaded")
    if last == "cls":
        return Field("text") if values and all(map(_is_name, values)) else Field("scalar", dtype="int64")
    if last in ("txt", "text"):
        return Field("text")
    if last == "json":
        return _json_field(values) if stem else Field("json")
    return _array_field(values) if last == "npy" else Field("bytes")


def _name(extension: str) -> str:
    stem, _, last = extension.rpartition(".")
    if stem and last in _TYPES:
        return field_name(stem)
    if last in (*_IMAGES, *_VIDEOS):
        return "image" if last in _IMAGES else "video"
    return {"cls": "label", "bin": "bytes"}.get(extension) or field_name(extension)


def _is_name(data: bytes) -> bool:
    """Return whether a class is called by a word, rather than by a number or by nothing."""
    try:
        float(data.removeprefix(BOM_UTF8))
    except ValueError:
        return bool(data.strip())
    return False


def _json_field(values: Sequence[bytes]) -> Field:
    """Return a scalar field if all values are numbers or all are booleans, as shardio writes scalars; else json."""
    found = []
    for data in values:
        with suppress(BadSample):
            found.append(_json(data, nan=True))
    numbers = [value for value in found if value is not None]
    match {type(value) for value in numbers}:
        case kinds if kinds == {bool}:
            return Field("scalar", dtype="bool")
        case kinds if kinds == {int}:
            return Field("scalar", dtype="int64" if max(numbers) <= _LARGEST_INT64 else "uint64")
        case kinds if kinds and kinds <= {int, float}:
            return Field("scalar", dtype="float64")
    return Field("json")


def _array_field(values: Sequence[bytes]) -> Field:
    arrays = []
    for data in values:
        try:
            arrays.append(_array(data))
        except BadSample as error:
            reason = error
    if not arrays:
        raise SourceError(f"no array can be read: {reason}" if values else "there is no array to read")
    shapes = [array.shape for array in arrays]
    try:
        dtype = np.result_type(*(array.dtype for array in arrays)).name
        if not any(shapes):
            return Field("scalar", dtype=dtype)
        return Field("array", dtype=dtype, shape=shape_of_all(shapes))
    except (ConfigError, TypeError) as error:  # TypeError: dtypes without a common one
        raise SourceError(str(error)) from error


def _json(data: bytes, *, nan: bool) -> Any:
    try:
        return parse_json(data, nan=nan)
    except ValueError as error:
        raise BadSample(f"not JSON: {error}") from error


def _number(data: bytes, dtype: str) -> Any:
    value = _json(data, nan=True)  # NaN is a number of a scalar field
    if type(value) not in {"bool": (bool,), "float64": (int, float)}.get(dtype, (int,)):
        raise BadSample(f"expected {dtype}, got {data[:40]!r}")
    return value


def _array(data: bytes) -> np.ndarray[Any, np.dtype[Any]]:
    try:
        return npy.read_array(data)
    except ValueError as error:
        raise BadSample(f"not a .npy file: {error}") from error
