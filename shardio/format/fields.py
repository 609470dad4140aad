"""Fields: the named parts of a sample, and how their values are encoded to bytes and decoded.

The stored bytes of a value are the same in every container:

=========  ==============================================================
kind       stored bytes
=========  ==============================================================
`image`    the encoded file (JPEG, PNG, WebP or BMP), untouched
`images`   a list of such files, as a MessagePack array of binaries
`pixels`   the pixels of an image, uint8 [height, width, channels], C order
`array`    fixed or ragged shape: little-endian, C order; otherwise a `.npy` file
`scalar`   little-endian
`text`     UTF-8
`bytes`    the bytes themselves
`json`     JSON in UTF-8, keys sorted, no spaces
=========  ==============================================================

Names that begin with an underscore are reserved for the columns that shardio adds to every shard: see `with_hidden`.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample, ConfigError
from ..system import npy, strict_json
from ..system.did_you_mean import did_you_mean
from ..system.types import Buffer, Sample
from . import images
from .packets import VideoFacts

Kind: TypeAlias = Literal["image", "images", "pixels", "array", "scalar", "text", "bytes", "json", "video"]
Role: TypeAlias = Literal["mask", "segments", "boxes", "points"]

_IMAGES = ("image", "pixels")
CLIPS = ("video", "images")
"""The kinds whose values have frames, of which a batch may have clips."""
_BYTES = (bytes, bytearray, memoryview)
_PLAIN_KINDS = ("image", "images", "text", "bytes", "json", "video")  # which need no dtype and no shape

CHECKSUM = "_checksum"
"""The hidden column that holds each sample's checksum, uint64; no container compresses it."""

CHECKSUM_BYTES = 8

_INT64 = 1 << 63
_MOST_DIMENSIONS = 31  # NumPy 1 has 32, and a batch has one more than its samples
_MOST_BYTES = 1 << 40
Shape: TypeAlias = tuple[int | None, ...]
"""A shape of arrays, in which None stands for an axis of any length."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Field:
    """One named part of a sample.

    Attributes:
        kind: `image`, `images`, `pixels`, `array`, `scalar`, `text`, `bytes`, `json` or `video`.
        dtype: NumPy's name of the element type of an array or a scalar, such as `int64`; None for other kinds.
        shape: the shape of all arrays, or the (height, width) in pixels of all images; None where they differ, which
            those of kind `pixels` may not. In a shape of arrays None stands for an axis of any length. (frames,) of
            the clips that a view makes of videos or lists of images.
        channels: 3 if images are delivered as RGB (the default), 1 if as grey; None for other kinds.
        role: `mask` for images whose pixels are numbers of classes and not colours: they have one channel and are
            never interpolated. `segments` for the lengths of a row's segments, int32 of shape (None,); a batch
            has their boundaries. `boxes` for float32 (None, 4), the left, top, right and bottom edges of boxes in
            pixels of the stored image; `points` for float32 (None, K, 2), (x, y) of K points each, or (None, K, 3)
            with COCO's visibility. None for all other fields.
        optional: whether samples may lack the value: it is then None.
        attributes: what the source states about an array or a scalar, as JSON values, such as its `units`; None if it
            states nothing. They describe values and change none, so they are no part of the digest, but for
            `flip_pairs` of points.
        window: whether the first axis of the arrays is the rows of a window, which transforms leave in place and treat
            alike; or a sample is a clip of the video or list of images, whose frames a view has chosen.
        on: the image field that boxes or points lie on; None for other fields.
        per: the field of boxes or points whose first axis this field shares, such as the labels of boxes; None for
            other fields.

    Raises ConfigError if these contradict each other.
    """

    kind: Kind
    dtype: str | None = None
    shape: Shape | None = None
    channels: Literal[1, 3] | None = None
    role: Role | None = None
    optional: bool = False
    attributes: Mapping[str, Any] | None = field(default=None, hash=False)
    window: bool = False
    on: str | None = None
    per: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            known = ", ".join(get_args(Kind))
            raise ConfigError(f"a field's kind must be one of {known}, got {self.kind!r}{_nearest_kind(self.kind)}")
        if self.kind in ("array", "scalar"):
            object.__setattr__(self, "dtype", _dtype_name(self.dtype))
        elif self.dtype is not None:
            raise ConfigError(f"a field of kind {self.kind!r} takes no dtype, got {self.dtype!r}")
        if self.shape is not None:
            if self.kind not in ("array", *_IMAGES) and not (self.window and self.kind in CLIPS):
                raise ConfigError(f"a field of kind {self.kind!r} takes no shape, got {self.shape!r}")
            object.__setattr__(self, "shape", _checked_shape(self.kind, self.shape, self.dtype))
        elif self.kind == "pixels":
            raise ConfigError("a field of kind 'pixels' needs a shape: the (height, width) of all images")
        if self.role not in (None, *get_args(Role)):
            raise ConfigError(f"role must be {', '.join(map(repr, get_args(Role)))} or None, got {self.role!r}")
        if self.role == "mask" and not self.is_image:
            raise ConfigError(f"role='mask' is for images, got a field of kind {self.kind!r}")
        if self.role == "segments" and (self.dtype, self.shape) != ("int32", (None,)):
            raise ConfigError(f"role='segments' is for int32 of shape (None,), got {describe(self)}")
        if self.role == "mask" and self.channels not in (None, 1):
            raise ConfigError(f"a mask has 1 channel, got channels={self.channels!r}")
        self._check_attributes()
        self._check_geometry()
        if not isinstance(self.optional, bool):
            raise ConfigError(f"optional must be True or False, got {self.optional!r}")
        cuts = (self.kind == "array" and self.row_shape) or (self.kind in CLIPS and len(self.shape or ()) == 1)
        if not isinstance(self.window, bool) or (self.window and not cuts):
            raise ConfigError(f"window must be False, or True for arrays of one shape or clips, got {self.window!r}")
        if self.is_image:
            usual = 1 if self.role == "mask" else 3
            object.__setattr__(self, "channels", usual if self.channels is None else self.channels)
        if isinstance(self.channels, bool) or self.channels not in ((1, 3) if self.is_image else (None,)):
            raise ConfigError(f"channels must be 1 or 3 for an image and None otherwise, got {self.channels!r}")

    def _check_attributes(self) -> None:
        if self.attributes is None:
            return
        if self.kind not in ("array", "scalar") or not isinstance(self.attributes, Mapping):
            raise ConfigError(f"attributes must be a dict, for an array or a scalar, got {self.attributes!r}")
        try:
            json.dumps(self.attributes, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"attributes must be JSON: {error}") from error
        object.__setattr__(self, "attributes", dict(self.attributes) or None)

    def _check_geometry(self) -> None:
        lies = self.role in ("boxes", "points")
        if other := [name for name in (self.on, self.per) if not isinstance(name, str | None)]:
            raise ConfigError(f"on= and per= take the name of a field, got {other[0]!r:.200}")
        if lies != (self.on is not None):
            rule = "names the image that it lies on" if lies else "is for role='boxes' and role='points'"
            raise ConfigError(f"on= {rule}, got on={self.on!r} with role={self.role!r}")
        if self.role == "boxes" and (self.dtype, self.shape, self.per) != ("float32", (None, 4), None):
            raise ConfigError(f"role='boxes' is for float32 of shape (None, 4), without per=, got {describe(self)}")
        if self.role == "points" and (self.dtype != "float32" or not _holds_points(self.shape)):
            raise ConfigError(
                f"role='points' is for float32 of shape (None, K, 2) or (None, K, 3), got {describe(self)}"
            )
        if self.per is not None and not (self.ragged and self.role in (None, "points")):
            raise ConfigError(f"per= is for arrays whose first axis has any length, got {describe(self)}")
        if self.flip_pairs is None:
            return
        pairs, count = self.flip_pairs, self.entry_shape[0] if self.role == "points" else 0
        named = [n for pair in pairs for n in pair] if isinstance(pairs, list) and all(map(_is_pair, pairs)) else [-1]
        if self.role != "points" or len({*named}) < len(named) or any(not 0 <= n < count for n in named):
            raise ConfigError(f"flip_pairs are pairs of different numbers of points below {count}, got {pairs!r:.200}")

    @property
    def flip_pairs(self) -> Any:
        """The pairs of points that a flip exchanges, such as the eyes: pairs of integers; None if unstated."""
        return (self.attributes or {}).get("flip_pairs")

    @property
    def is_image(self) -> bool:
        """Whether the values are images, as files or as pixels, which image transforms take."""
        return self.kind in _IMAGES

    @property
    def fixed(self) -> bool:
        """Whether the stored bytes of all samples have the same size and dtype."""
        is_array = self.kind == "array" and self.shape is not None and None not in self.shape
        return is_array or self.kind in ("scalar", "pixels")

    @property
    def ragged(self) -> bool:
        """Whether the values are arrays whose first axis has any length, and no other axis has.

        They are stored without a header: a hidden column holds their lengths.
        """
        return self.kind == "array" and is_ragged(self.shape)

    @property
    def has_lengths(self) -> bool:
        """Whether a hidden column holds how many entries each value has: of ragged fields, lists of images, videos."""
        return self.has_runs or self.kind == "images"

    @property
    def has_runs(self) -> bool:
        """Whether runs of entries can be read: of ragged fields; of videos, whose entries are bytes."""
        return self.ragged or self.kind == "video"

    def length_of(self, stored: Buffer) -> int:
        """Return how many entries a stored value has, from its size or its header; 0 for the blank of a missing one.

        Raises ValueError if its bytes aren't a multiple of an entry's, or begin no list.
        """
        if self.kind != "images":
            return len(self.entries(stored))
        first = stored[0] if len(stored) else 0x90
        if 0x90 <= first <= 0x9F:
            return first - 0x90
        if first not in (0xDC, 0xDD):
            raise ValueError(f"a list of images does not begin with byte {first:#04x}")
        return int.from_bytes(stored[1 : 3 if first == 0xDC else 5], "big")

    @property
    def entry_shape(self) -> tuple[int, ...]:
        """The shape of one entry along the first axis of a ragged field."""
        return cast(tuple[int, ...], (self.shape or ())[1:])

    @property
    def entry_bytes(self) -> int:
        """The number of stored bytes of one entry of a ragged field, at least 1."""
        return math.prod(self.entry_shape) * self.row_dtype.itemsize

    @property
    def vocabulary(self) -> int | None:
        """The number that all tokens must be below, as the attribute `vocabulary` says; None if these are no tokens."""
        known = (self.attributes or {}).get("vocabulary")
        return known if type(known) is int and not self.fixed and self.row_dtype.kind in "iu" else None

    def entries(self, stored: Buffer) -> NDArray[Any]:
        """Return a ragged field's value as a view of its stored bytes.

        Raises ValueError if these aren't a multiple of an entry's bytes.
        """
        if len(stored) % self.entry_bytes:
            raise ValueError(f"{len(stored)} bytes are no multiple of the {self.entry_bytes} bytes of an entry")
        return np.frombuffer(stored, self.row_dtype).reshape(-1, *self.entry_shape)

    @property
    def image_size(self) -> tuple[int, int] | None:
        """The (height, width) in pixels of all images, if they have one size."""
        return cast(tuple[int, int], self.shape) if self.is_image and self.shape is not None else None

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one sample's value in a fixed field; () for a scalar."""
        shape = cast(tuple[int, ...], self.shape if self.fixed and self.shape else ())
        return (*shape, self.channels or 3) if self.kind == "pixels" else shape

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """The stored element type: little-endian."""
        return np.dtype(np.uint8) if self.kind in ("pixels", "video") else np.dtype(self.dtype).newbyteorder("<")

    @property
    def row_bytes(self) -> int:
        """The number of stored bytes per sample in a fixed field."""
        return math.prod(self.row_shape) * self.row_dtype.itemsize

    @property
    def blank(self) -> bytes:
        """The stored bytes of a value that a sample lacks: zeros in a fixed field, else none."""
        return bytes(self.row_bytes) if self.fixed else b""

    def probe(self, stored: Buffer) -> images.ImageInfo:
        """Read the header of a stored image file.

        Raises BadSample if it is no image or not whole, or no mask although the field is one.
        """
        info = images.probe(stored)
        if self.role == "mask":
            images.check_mask(stored)
        return info

    def check_images(self, stored: Buffer, check: Callable[[bytes], object]) -> None:
        """Call `check` for each image file of a stored list; its BadSample says which one is bad."""
        for number, file in enumerate(self.decode(stored)):
            try:
                check(file)
            except BadSample as error:
                raise BadSample(f"image {number}: {error}") from error

    def encode(self, value: Any) -> Buffer:
        """Return the stored bytes of `value`.

        Raises BadSample if `value` has another kind, dtype or shape and cannot be converted without loss.
        """
        match self.kind:
            case "image" | "bytes" | "video":
                if not isinstance(value, _BYTES):
                    raise BadSample(f"expected bytes, got {type(value).__name__}")
                # A memoryview may have elements of several bytes, or gaps.
                return bytes(value) if isinstance(value, memoryview) else value
            case "images":
                if not isinstance(value, (list, tuple)) or not all(isinstance(v, _BYTES) for v in value):
                    raise BadSample(f"expected a list of bytes, got {type(value).__name__}")
                return msgspec.msgpack.encode(value)
            case "text":
                if not isinstance(value, str):
                    raise BadSample(f"expected str, got {type(value).__name__}")
                try:
                    return value.encode()
                except UnicodeEncodeError as error:
                    raise BadSample(f"not text: {error}") from error
            case "json":
                try:
                    text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
                    return text.encode()
                except (TypeError, ValueError, RecursionError) as error:
                    raise BadSample(f"not JSON: {error}") from error
            case "scalar":
                if type(value) is int and self.dtype == "int64" and -_INT64 <= value < _INT64:  # fast path for labels
                    return value.to_bytes(8, "little", signed=True)
                return self._array(value, ()).tobytes()
            case "array" | "pixels":
                array = self._array(value, self.row_shape if self.fixed else self.shape)
                if self.fixed or self.ragged:
                    return array.reshape(-1).view(np.uint8).data
                return npy.header_of(array.dtype, array.shape) + array.tobytes()

    def encode_rows(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of n samples in a fixed field as they are stored, [n, *row_shape] in C order.

        Raises BadSample as `encode`; only a single value of Python is rounded to a float, arrays are not.
        """
        return self._array(values, (None, *self.row_shape))

    def decode(self, stored: Buffer) -> Any:
        """Return the value of stored bytes; arrays are writable copies, scalars are Python numbers.

        Raises ValueError for damaged text, JSON or `.npy` files, and JSON that is nested too deeply or holds NaN or an
        infinity; checksums detect the rest.
        """
        match self.kind:
            case "image" | "bytes" | "video":
                return bytes(stored)
            case "images":
                try:
                    return msgspec.msgpack.decode(stored, type=list[bytes])
                except msgspec.DecodeError as error:
                    raise ValueError(f"{error}") from error
            case "text":
                return bytes(stored).decode()
            case "json":
                return strict_json.parse_stored(bytes(stored))
            case "scalar":
                return np.frombuffer(stored, self.row_dtype)[0].item()
            case "array" | "pixels":
                if self.fixed:
                    return np.frombuffer(stored, self.row_dtype).reshape(self.row_shape).copy()
                if self.ragged:
                    return self.entries(stored).copy()
                return self.checked(npy.read_array(stored, self.row_dtype))

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether the shape of an array is one that the field's arrays may have."""
        return _fits(shape, self.shape)

    def checked(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array of a `.npy` that was stored; ValueError if it has another shape than the field."""
        if not self.fits(array.shape):
            raise ValueError(f"expected shape {self.shape}, got {array.shape}")
        return array

    def _array(self, value: Any, shape: Shape | None) -> NDArray[Any]:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise BadSample(f"not an array: {error}") from error
        if not _fits(array.shape, shape):
            raise BadSample(f"expected shape {shape}, got {array.shape}")
        if array.dtype == self.row_dtype or array.dtype == self.row_dtype.newbyteorder("="):
            return np.ascontiguousarray(array, self.row_dtype).reshape(array.shape)
        if array.dtype.kind not in "biufc":
            raise BadSample(f"expected {self.row_dtype.name}, got {array.dtype} ({str(value)[:40]!r})")
        converted = _convert(array, self.row_dtype)
        if converted is None:
            unheld = str(_first_unheld(array, self.row_dtype) if array.ndim else value)[:40]
            rounds = self.row_dtype.kind == array.dtype.kind == "f"
            advice = f": array.astype({self.row_dtype.name!r}) rounds" if rounds else ""
            raise BadSample(f"{self.row_dtype.name} cannot hold {unheld} ({array.dtype}){advice}")
        return converted


@dataclass(frozen=True, slots=True)
class Missing:
    """What a source gives for a value that a sample lacks: None in an optional field, a bad sample in any other.

    Attributes:
        reason: where the value is missing, for the message: `"a.parquet, row 3, column 'caption': null"`.
    """

    reason: str


def is_missing(value: Any) -> bool:
    """Return whether a source gives no value."""
    return value is None or isinstance(value, Missing)


def _holds_points(shape: Shape | None) -> bool:
    return is_ragged(shape) and shape is not None and len(shape) == 3 and (shape[1] or 0) > 0 and shape[2] in (2, 3)


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(number) is int for number in value)


def is_ragged(shape: Shape | None) -> bool:
    """Return whether the first axis of arrays of this shape, and no other, has any length."""
    return bool(shape) and shape is not None and shape[0] is None and None not in shape[1:]


def _fits(shape: tuple[int, ...], expected: Shape | None) -> bool:
    """Return whether a shape fits the expected one, where None is any length; every shape fits if none is expected."""
    if expected is None or shape == expected:
        return True
    return len(shape) == len(expected) and all(e in (None, n) for n, e in zip(shape, expected, strict=True))


def _checked_shape(kind: Kind, sizes: Any, dtype: str | None) -> Shape:
    try:
        if isinstance(sizes, (str, bytes, Mapping)) or any(isinstance(size, bool) for size in sizes):
            raise TypeError(sizes)
        shape = tuple(None if size is None and kind == "array" else operator.index(size) for size in sizes)
    except TypeError as error:
        such_as = f", such as ({sizes},)" if isinstance(sizes, int) and not isinstance(sizes, bool) else ""
        raise ConfigError(f"a shape must be a tuple of integers{such_as}, got {sizes!r}") from error
    least = int(kind == "pixels" or None in shape)  # the number of entries of no bytes could not be known
    if any(size is not None and size < least for size in shape) or (kind in _IMAGES and len(shape) != 2):
        raise ConfigError(f"not a shape for a field of kind {kind!r}: {sizes!r}")
    if len(shape) > _MOST_DIMENSIONS:
        raise ConfigError(f"a shape must have at most {_MOST_DIMENSIONS} dimensions, got {len(shape)}")
    item = np.dtype(dtype or np.uint8)
    if math.prod(size or 1 for size in shape) * item.itemsize > _MOST_BYTES:  # NumPy also counts 0 as 1 there
        raise ConfigError(f"a value must have at most 2^40 bytes, got {list(shape)} of {item}")
    return shape


DTypeLike: TypeAlias = str | np.dtype[Any] | type[np.generic]
FieldLike: TypeAlias = Field | DTypeLike | tuple[DTypeLike, Shape] | Mapping[str, Any]


def as_field(value: FieldLike) -> Field:
    """Return the Field for a short form: a kind (`"image"`), a dtype (`"int64"`), (dtype, shape), or a mapping.

    A dtype may also be an `np.dtype` or a type such as `np.float32`.

    Raises ConfigError for anything else.
    """
    if isinstance(value, Field):
        return value
    if isinstance(value, str):
        if value in _PLAIN_KINDS:
            return Field(cast(Kind, value))
        try:
            return Field("scalar", dtype=value)
        except ConfigError:
            raise _no_field(value) from None
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return Field("scalar", dtype=_dtype_name(value))
    if value == ("image", (None,)):
        return Field("images")
    if isinstance(value, tuple) and len(value) == 2:
        return Field("array", dtype=_dtype_name(value[0]), shape=value[1])
    if isinstance(value, Mapping):
        known = set(Field.__dataclass_fields__)
        if unknown := set(value) - known:
            raise ConfigError(f"a field takes only {', '.join(sorted(known))}; got {', '.join(sorted(unknown))}")
        if "kind" not in value:
            raise ConfigError(f"a field needs a kind, got {dict(value)!r}")
        return Field(**value)
    raise _no_field(value)


def _no_field(value: object) -> ConfigError:
    near = _nearest_kind(value.__name__ if isinstance(value, type) else value)
    return ConfigError(
        f"a field must be a kind ({', '.join(_PLAIN_KINDS)}), a dtype such as 'int64' for a scalar, (dtype, shape) "
        f"such as ('float32', (4, 64, 64)) for an array, or a Field, got {value!r}{near}"
    )


def _nearest_kind(value: object) -> str:
    """Return the kind that a wrong one may mean, as the end of a message; "" if none is near."""
    near = did_you_mean(str(value).lower(), "kind of field", get_args(Kind), cutoff=0.7)
    return f"; did you mean the kind {near!r}?" if near else ""


def as_fields(values: Mapping[str, FieldLike]) -> dict[str, Field]:
    """Return fields by name, in the order given, from their short forms (see `as_field`).

    A name consists of ASCII letters, digits, `_`, `-` and `.`, and begins with a letter or a digit.

    Raises ConfigError if there are no fields, or for an invalid name or field.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"fields must be a dict by name, as in {{'label': 'int64'}}, got {values!r}")
    if not values:
        raise ConfigError("a dataset needs at least one field")
    fields: dict[str, Field] = {}
    for name, given in values.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            rule = "a field's name must be letters, digits, '_', '-' and '.', and begin with a letter or a digit"
            raise ConfigError(f"{rule}: got {name!r}")
        try:
            fields[name] = as_field(given)
        except ConfigError as error:
            raise ConfigError(f"field {name!r}: {error}") from error
    for name, value in fields.items():
        if value.on is not None and not (value.on in fields and _bears(fields[value.on])):
            raise ConfigError(f"field {name!r} lies on {value.on!r}, which must be an image among the fields")
        if value.per is not None and not (value.per in fields and fields[value.per].on and not fields[value.per].per):
            raise ConfigError(f"field {name!r} is per={value.per!r}, which must be boxes, or points without per=")
        if value.optional and presence(name) in fields:
            raise ConfigError(
                f"field {presence(name)!r} is what a batch calls the column that says where the optional field "
                f"{name!r} has values: rename one"
            )
    return fields


def _bears(field: Field) -> bool:
    """Return whether boxes and points may lie on a field: it is an image, and no mask."""
    return field.is_image and field.role is None


def listed_names(names: str | Iterable[str] | None) -> list[str]:
    """Return names of fields that were given as a list, or as text such as `"caption,score"`; none for None."""
    given = names.split(",") if isinstance(names, str) else names or ()
    return [name for part in given if (name := part.strip())]


def listed_ragged(names: str | Iterable[str] | None) -> dict[str, bool]:
    """Return the fields whose shapes may differ, and whether in any axis: of those given as NAME it is the first alone.

    Args:
        names: see `listed_names`; a name may be followed by `=all`.

    Raises ConfigError for another word behind a name.
    """
    pairs = [(name, *name.partition("=")) for name in listed_names(names)]
    for given, _, equals, axes in pairs:
        if equals and axes.strip() != "all":
            raise ConfigError("{ragged} takes a field as NAME, or as NAME=all, got {!r}", given)
    return {field.strip(): bool(equals) for _, field, equals, _ in pairs}


def as_ragged(shape: Shape | None, *, in_all: bool = False) -> Shape | None:
    """Return a shape with any length along the first axis; None, for any shape, with `in_all`."""
    return None if in_all or shape is None else (None, *shape[1:])


def with_optional(fields: Mapping[str, Field], names: str | Iterable[str] | None) -> dict[str, Field]:
    """Return `fields` with those called `names` optional; ConfigError if one does not exist.

    Args:
        fields: the fields.
        names: see `listed_names`.
    """
    chosen = frozenset(listed_names(names))
    if unknown := sorted(chosen - fields.keys()):
        raise ConfigError("{optional}: there is no field {!r}; there are {}", unknown[0], ", ".join(fields))
    return as_fields({n: replace(field, optional=field.optional or n in chosen) for n, field in fields.items()})


def fields_to_json(fields: Mapping[str, Field]) -> dict[str, dict[str, Any]]:
    """Return fields as JSON values, which `as_fields` accepts."""
    parts = Field.__dataclass_fields__
    return {n: {part: v for part in parts if (v := getattr(f, part)) not in (None, False)} for n, f in fields.items()}


def infer_fields(sample: Sample) -> dict[str, Field]:
    """Return fields that fit one sample: numbers become scalars, arrays keep their shape, bytes may be images.

    Raises ConfigError for a value that no kind of field holds.
    """
    return as_fields({name: _infer(name, value) for name, value in sample.items()})


def _infer(name: str, value: Any) -> Field:
    match value:
        case bytes() | bytearray() | memoryview():
            return Field("image" if images.sniff(value) else "bytes")
        case str():
            return Field("text")
        case bool() | int() | float() | np.generic():
            return Field("scalar", dtype=np.asarray(value).dtype.name)
        case np.ndarray():
            return Field("array", dtype=value.dtype.name, shape=value.shape)
        case Mapping() | list() | None:
            return Field("json")
    raise ConfigError(f"field {name!r}: no kind of field holds a {type(value).__name__}; give fields=")


def shape_column(name: str) -> str:
    """Return the name of the hidden column that holds the height and width of an image field."""
    return f"_shape.{name}"


def present_column(name: str) -> str:
    """Return the name of the hidden column that says which samples have a value of an optional field."""
    return f"_present.{name}"


def facts_column(name: str) -> str:
    """Return the name of the hidden column that holds what is known of each video of a field, its `VideoFacts`."""
    return f"_video.{name}"


def packets_column(name: str) -> str:
    """Return the name of the hidden column that holds the table of packets of each video of a field."""
    return f"_packets.{name}"


def table_columns(name: str) -> tuple[str, ...]:
    """Return the names of the hidden columns that say where the packets of a field's videos are, and their lengths."""
    packets = packets_column(name)
    return facts_column(name), packets, length_column(name), length_column(packets)


def sum_column(name: str) -> str:
    """Return the name of the hidden column that holds the checksums of the videos of a field."""
    return f"_sum.{name}"


def frames_column(name: str) -> str:
    """Return the name of the hidden column that holds the numbers of the frames that a view has of each value."""
    return f"_frames.{name}"


def length_column(name: str) -> str:
    """Return the name of the hidden column that holds how many entries each value of a ragged field or a list has."""
    return f"_length.{name}"


def presence(name: str) -> str:
    """Return the name of the column of a batch that says which samples have a value of an optional field."""
    return f"{name}_present"


def with_hidden(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return `fields` and the hidden columns of every shard.

    These are the checksum of each sample, uint64; the (height, width) in pixels of each image, int32 [2], (0, 0) where
    there is none; how many entries each value of a ragged field or list of images has, int64, 0 where there is none;
    whether a sample has a value of an optional field, bool; and of videos what is known of them, int64, the tables of
    their packets, ragged uint8, and their checksums, uint64.
    """
    videos = [name for name, field in fields.items() if field.kind == "video"]
    facts = {facts_column(n): Field("array", dtype="int64", shape=(len(VideoFacts._fields),)) for n in videos}
    packets = {packets_column(n): Field("array", dtype="uint8", shape=(None,)) for n in videos}
    sums = {name: Field("scalar", dtype="uint64") for name in (*map(sum_column, videos), CHECKSUM)}
    shapes = {
        shape_column(n): Field("array", dtype="int32", shape=(2,)) for n, f in fields.items() if f.kind == "image"
    }
    long = {**fields, **packets}
    lengths = {length_column(n): Field("scalar", dtype="int64") for n, f in long.items() if f.has_lengths}
    present = {present_column(n): Field("scalar", dtype="bool") for n, f in fields.items() if f.optional}
    return {**fields, **shapes, **lengths, **present, **facts, **packets, **sums}


def content_columns(fields: Mapping[str, Field]) -> list[str]:
    """Return the columns that a sample's checksum covers, in its order.

    They are the fields, the checksums of videos instead of these, and where optional fields have values.
    """
    covered = [sum_column(name) if field.kind == "video" else name for name, field in fields.items()]
    return sorted([*covered, *(present_column(name) for name, field in fields.items() if field.optional)])


def _convert(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return `array` in C order as `dtype`, or None if the conversion loses something.

    A single number may be rounded to a float: a Python number carries no dtype of its own.
    """
    if array.dtype.kind == "c" and dtype.kind != "c":
        return None
    with np.errstate(all="ignore"):
        converted = array.astype(dtype, order="C")
        # Also convert back, because NumPy compares int64 with float64 as float64, where 2**53 + 1 equals 2**53.
        back = converted.real.astype(array.dtype) if array.dtype.kind in "iu" else array
    if array.shape == () and dtype.kind in "fc":
        return converted if np.isfinite(converted) or not np.isfinite(array) else None
    nan = dtype.kind in "fc" and array.dtype.kind in "fc"
    same = np.array_equal(converted, array, equal_nan=nan) and np.array_equal(back, array, equal_nan=nan)
    return converted if same else None


def _first_unheld(array: NDArray[Any], dtype: np.dtype[Any]) -> Any:
    """Return the first value of an array that `_convert` does not take."""
    values = array.reshape(-1)
    while len(values) > 1:
        half = values[: len(values) // 2]
        values = half if _convert(half, dtype) is None else values[len(half) :]
    return values[0]


def _dtype_name(dtype: DTypeLike | None) -> str:
    try:
        element = np.dtype(dtype) if isinstance(dtype, str | type | np.dtype) else None
    except (TypeError, ValueError, SyntaxError):  # a text may describe several fields, and be damaged
        element = None
    if element is not None and element.char in "gG":
        held = "complex128" if element.kind == "c" else "float64"
        rule = f"a dtype cannot be a long double, which differs from machine to machine: give {held!r}"
        raise ConfigError(f"{rule}, got {dtype!r}")
    if element is None or element.kind not in "biufc":
        raise ConfigError(f"a dtype must be one of NumPy's bool, int, uint, float or complex types, got {dtype!r}")
    return element.name


def describe(field: Field) -> str:
    """Return a field in words: `array, float32, [3, 2]`."""
    words: str = field.kind
    match field.kind:
        case "image" | "pixels":
            color = "mask" if field.role == "mask" else "RGB" if field.channels == 3 else "grey"
            size = " x ".join(map(str, field.shape)) if field.shape else "sizes differ"
            words = f"image, {color}, {size}" + (", stored as pixels" if field.kind == "pixels" else "")
        case "array":
            sizes = ", ".join("any" if size is None else str(size) for size in field.shape or ())
            words = f"array, {field.dtype}, {'shapes differ' if field.shape is None else f'[{sizes}]'}"
        case "scalar":
            words = f"scalar, {field.dtype}"
        case "video" | "images" if field.window:
            words = f"clips of {(field.shape or (0,))[0]} frames, {field.kind}"
    lies = f", {field.role} on {field.on}" if field.on else ""
    return words + lies + (f", one per {field.per}" if field.per else "") + (", optional" if field.optional else "")


def describe_fields(fields: Mapping[str, Field]) -> str:
    """Return fields in words, for messages."""
    return ", ".join(f"{name} ({describe(field)})" for name, field in fields.items())


def label_as_int64(name: str, field: Field) -> Field:
    """Return `field`, or an int64 scalar if it is an integer scalar called `label`.

    Loss functions expect int64, whatever the source stores. A uint64, which int64 cannot hold, stays as it is.
    """
    if name != "label" or field.kind != "scalar" or np.dtype(field.dtype).kind not in "iu" or field.dtype == "uint64":
        return field
    return replace(field, dtype="int64")
