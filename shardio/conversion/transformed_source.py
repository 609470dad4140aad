"""A source that changes the samples of another: arrays become images, images are re-encoded or stored as pixels."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ..engines import whole_images
from ..engines.orientation import TRANSPOSITIONS, make_upright, upright_sizes, upright_steps
from ..engines.resizing import resize
from ..errors import BadSample, ConfigError, Message, SourceError
from ..format.fields import Field, as_ragged, describe_fields, is_missing, label_as_int64, with_optional
from ..format.images import is_deep, orientation, probe
from ..output.shard_writer import Encoded
from ..system.types import Indices, Sample
from ..transforms.steps import Scale, Sizes
from ..transforms.validation import as_pair
from ..views.expression import Condition
from .image_counts import ROTATED
from .instances import moved
from .masks import as_mask, check_names
from .reencode import ReencodeOptions, as_pixels, encode_png
from .reencode_video import VideoOptions
from .shard_tasks import read_encoded, throughout
from .source import Source, Tally, WrappedSource

_Measure = TypeVar("_Measure")
_NO_VIDEOS = VideoOptions()
_LARGEST_BYTE = 255
_CAST_AT_ONCE = 1 << 16  # numbers

_PROBED_SAMPLES = 64
"""The number of samples that are read to estimate by how much all samples shrink."""
_PROBED_VIDEOS = 4
"""The same where videos are encoded anew, which takes seconds for each."""


@dataclass(frozen=True, slots=True)
class RawImages:
    """Images to be stored as pixels.

    Attributes:
        size: the (height, width) to resize all of them to, with Pillow's bilinear filter, masks to the nearest pixel;
            None if they have one size.
        alpha: whether to store arrays, uint8 [4, height, width], of red, green, blue and alpha; masks have none.

    Raises ConfigError unless `size` is two integers of at least 1.
    """

    size: tuple[int, int] | None = None
    alpha: bool = False

    def __post_init__(self) -> None:
        if self.size is not None:
            object.__setattr__(self, "size", as_pair(self.size, "resize"))


def image_options(
    *, store_pixels: bool, keep_alpha: bool, resize: tuple[int, int] | None, quality: int | None, **others: Any
) -> tuple[ReencodeOptions, RawImages | None]:
    """Return how a conversion re-encodes image files, and how it stores pixels instead, or None.

    Args:
        store_pixels, keep_alpha, resize, quality: as in `shardio.convert`.
        others: those of `ReencodeOptions`.

    Raises ConfigError for an option that breaks a rule, or does not go with another one.
    """
    files = ReencodeOptions(**others) if quality is None else ReencodeOptions(quality=quality, **others)
    re_encodes = files.resize_shorter or files.max_pixels or files.recompress != "never"
    restarts = files.jpeg_restarts
    for broken, rule in (
        (quality is not None and not re_encodes, "{quality} goes with {resize_shorter}, {max_pixels} or {recompress}"),
        (
            store_pixels and re_encodes,
            "{store_pixels} stores no image files: use {resize}, not {resize_shorter}, {max_pixels} or {recompress}",
        ),
        (store_pixels and restarts, "{store_pixels} stores no image files, which {jpeg_restarts} transcodes"),
        (keep_alpha and not store_pixels, "{keep_alpha} goes with {store_pixels}"),
        (
            resize is not None and not store_pixels,
            "{resize} goes with {store_pixels}; {resize_shorter} and {max_pixels} shrink image files",
        ),
    ):
        if broken:
            raise ConfigError(Message(rule))
    return files, RawImages(resize, keep_alpha) if store_pixels else None


@final
class TransformedSource(WrappedSource):
    """The samples of `source`, changed.

    Args:
        source: the original samples.
        images: how to re-encode images.
        dtypes: the dtype to cast a field's numbers to, by field name; `""` stands for all arrays that are not named.
        as_image: the fields of uint8 arrays to store as images, see `reencode.as_pixels`. Where their shapes differ,
            the first sample decides whether they are grey.
        squeeze: the fields of arrays of one element to store as scalars.
        raw: store the pixels of images instead of files; None stores files, PNGs of arrays.
        optional: the fields that samples may lack.
        masks: the fields of images, or of `as_image`, that are masks; the source's own stay masks.
        ragged: the fields of arrays whose shapes may differ, and whether in any axis, see `listed_ragged`. Where a
            field has no shape, the first sample decides the other axes.
        videos: how to encode videos anew.
        allow_rounding: whether casts of integers to floats may round them; otherwise such a sample is bad.

    Raises ConfigError for a field that holds no numbers, no arrays, no pixels, or more than one number, for a cast to
    another kind of number (float to int), and for images of several sizes whose pixels are to be stored without a
    resize. Where a field has no fixed shape, the first samples are read: BadSample if they are all bad, SourceError if
    there are none.
    """

    def __init__(
        self,
        source: Source,
        images: ReencodeOptions,
        dtypes: Mapping[str, str],
        as_image: Collection[str] = (),
        squeeze: Collection[str] = (),
        raw: RawImages | None = None,
        optional: Collection[str] = (),
        masks: Collection[str] = (),
        ragged: Mapping[str, bool] = MappingProxyType({}),
        *,
        videos: VideoOptions = _NO_VIDEOS,
        allow_rounding: bool = False,
    ) -> None:
        super().__init__(source)
        self._videos = videos if any(field.kind == "video" for field in source.fields.values()) else _NO_VIDEOS
        self._images, self._dtypes, self._as_image = images, dict(dtypes), frozenset(as_image)
        self._squeeze, self._raw, self._masks = frozenset(squeeze), raw, frozenset(masks)
        self._ragged, self._allow_rounding = dict(ragged), allow_rounding
        self.tally: Tally = source.tally or Tally()
        fields = source.fields
        check_names(fields, masks)
        arrays = {name for name, field in fields.items() if field.kind == "array"}
        single = {n for n in arrays if fields[n].fixed and math.prod(fields[n].row_shape) == 1}
        numbers = {name for name, field in fields.items() if field.kind in ("array", "scalar")}
        for given, fitting, rule in (
            (
                ragged,
                arrays - self._as_image - self._squeeze,
                "{ragged} takes fields of arrays that stay arrays",
            ),
            (squeeze, single, "{squeeze} takes fields of arrays of one element"),
            (as_image, arrays - dtypes.keys(), "{as_image} takes fields of arrays that {dtype} does not cast"),
            (dtypes.keys() - {""}, numbers, "{dtype} takes fields of numbers"),
        ):
            for name in sorted(set(given) - fitting):
                raise ConfigError(rule + ", got {!r}; there are {}", name, describe_fields(fields))
        if "" in self._dtypes and not arrays:
            raise ConfigError("{dtype}: there are no arrays to cast to {!r}; name a field", self._dtypes[""])
        self._optional = frozenset(optional)
        changed = {name: self._changed_field(name, field) for name, field in source.fields.items()}
        lacking = {name for name, field in source.fields.items() if field.optional}
        self.fields = with_optional(changed, self._optional | lacking)
        moves = not images.keeps_size or (raw is not None and raw.size is not None)
        self._lying = [name for name, field in self.fields.items() if field.on is not None and moves]
        if videos.every and self._videos.idle:
            told = "{keyframes}, {fps}, {codec} and {crf} are for videos; the fields are {}"
            raise ConfigError(told, describe_fields(source.fields))
        if raw is not None and not any(self._is_raw(name) for name in self.fields):
            raise ConfigError("{store_pixels}: there is no image; the fields are {}", describe_fields(source.fields))

    def _changed_field(self, name: str, field: Field) -> Field:
        if name in self._as_image:
            field = self._image_field(name, field)
        if name in self._masks:
            field = as_mask(name, field)
        if field.is_image and self._raw is not None:
            size = self._raw.size or field.image_size or self._common_size(name)
            if self._raw.alpha and field.role != "mask":
                return Field("array", "uint8", (4, *size))
            return Field("pixels", shape=size, channels=field.channels, role=field.role)
        if name in self._as_image:
            return field
        if name in self._squeeze:
            field = label_as_int64(name, replace(field, kind="scalar", shape=None))
        if name in self._ragged:
            in_all = self._ragged[name]
            shape = self._first_shape(name) if field.shape is None and not in_all else field.shape
            field = replace(field, shape=as_ragged(shape, in_all=in_all))
        wanted = self._dtypes.get(name, self._dtypes.get("") if field.kind == "array" else None)
        if wanted is not None and field.kind in ("array", "scalar"):
            cast = replace(field, dtype=wanted)
            if not np.can_cast(field.row_dtype, cast.row_dtype, "same_kind"):
                raise ConfigError("{dtype}: field {!r} is {}, which {} cannot hold", name, field.dtype, cast.dtype)
            return cast
        if field.kind == "image" and not self._images.keeps_size:
            return replace(field, shape=None)
        return field

    def _image_field(self, name: str, field: Field) -> Field:
        shape = field.row_shape if field.fixed else self._first_shape(name)
        try:
            pixels = as_pixels(np.broadcast_to(np.zeros((), field.row_dtype), shape), mask=name in self._masks)
            if pixels.ndim == 3 and name in self._masks:
                raise BadSample(f"a mask has one number per pixel, got {list(shape)}")
        except BadSample as error:
            raise ConfigError("{as_image}: field {!r}: {}", name, error) from error
        common_shape = pixels.shape[:2] if field.fixed and self._images.keeps_size else None
        return Field("image", shape=common_shape, channels=1 if pixels.ndim == 2 else 3)

    def _common_size(self, name: str) -> tuple[int, int]:
        """Return the (height, width) of a field's images; ConfigError if those of a few samples throughout differ."""
        sizes: dict[tuple[int, int], int] = {}
        for number, size in self._measures(
            name, throughout(len(self.source.sizes()), _PROBED_SAMPLES), partial(self._size_of, name)
        ):
            sizes.setdefault(size, number)
        if len(sizes) > 1:
            found = " and ".join(f"{h} x {w} (sample {number})" for (h, w), number in [*sizes.items()][:2])
            raise ConfigError(
                "{store_pixels}: the images of field {!r} differ in size, {}: give {resize}, one size for all",
                name,
                found,
            )
        return next(iter(sizes))

    def _size_of(self, name: str, value: Any) -> tuple[int, int]:
        if name in self._as_image:
            pixels = as_pixels(value, mask=name in self._masks)
            return pixels.shape[0], pixels.shape[1]
        info = probe(value)
        swaps = self._images.orient and TRANSPOSITIONS[orientation(value)][2]
        return (info.width, info.height) if swaps else (info.height, info.width)

    def _first_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the field in the first sample that is not bad."""
        first = range(min(_PROBED_SAMPLES, len(self.source.sizes())))
        return next(shape for _, shape in self._measures(name, first, np.shape))

    def _measures(
        self, name: str, numbers: Iterable[int], measure: Callable[[Any], _Measure]
    ) -> Iterator[tuple[int, _Measure]]:
        """Yield the numbers of those samples that have a value of the field, with what `measure` makes of it.

        Raises BadSample if all are bad, SourceError if there is none.
        """
        error: BadSample | None = None
        measured = False
        for number in numbers:
            try:
                value = self.source[number][name]
                if not is_missing(value):
                    yield number, measure(value)
                    measured = True
            except BadSample as met:
                error = error or met
        if not measured:
            raise error or SourceError("the source holds no samples")

    @property
    def changes(self) -> Mapping[str, Any]:
        """The changes as JSON values that distinguish a conversion's plan from others of the same source."""
        # A limit makes samples bad, as damage does, but no other bytes; and so does the refusal to round.
        # Options that the first conversions did not have are named where they are given.
        later = ("jpeg_restarts", "strip")
        images = {
            name: value
            for name, value in asdict(self._images).items()
            if name != "max_image_pixels" and (value or name not in later)
        }
        changes = {
            "images": None if self._images.idle else images,
            "dtype": self._dtypes or None,
            "as_image": sorted(self._as_image) or None,
            "squeeze": sorted(self._squeeze) or None,
            "store_pixels": None if self._raw is None else list(self._raw.size or ()),
            "keep_alpha": True if self._raw is not None and self._raw.alpha else None,
            "optional": sorted(self._optional) or None,
            "mask": sorted(self._masks) or None,
            "encoding": None if self._videos.idle else self._videos.made_by,
            "ragged": sorted(f"{name}=all" if in_all else name for name, in_all in self._ragged.items()) or None,
        }
        made = {name: value for name, value in changes.items() if value is not None}
        return {**self.source.changes, **made}

    def sizes(self) -> NDArray[np.int64]:
        """Return the source's sizes, scaled by how a few samples throughout it shrink or grow, int64 [n]."""
        sizes = self.source.sizes()
        changed = (self._dtypes, self._as_image, self._squeeze, self._raw, not self._images.idle, not self._videos.idle)
        if not any(changed):
            return sizes
        return sizes if self._size_ratio is None else np.maximum(1, sizes * self._size_ratio).astype(np.int64)

    @cached_property
    def _size_ratio(self) -> float | None:
        sizes = self.source.sizes()
        before = after = 0
        count = _PROBED_SAMPLES if self._videos.idle else _PROBED_VIDEOS
        for number, sample in read_encoded(self, np.array(throughout(len(sizes), count))):
            if isinstance(sample, Encoded):  # a bad one is reported when it is written
                before, after = before + int(sizes[number]), after + sum(map(len, sample.stored.values()))
        return after / before if before else None

    def column(self, name: str) -> NDArray[Any] | Sequence[str] | None:
        cast = name in self._dtypes or name in self._squeeze
        return None if cast else self.source.column(name)

    def holds(self, condition: Condition, numbers: Indices) -> NDArray[np.bool_] | None:
        """See `Source.holds`; None if a field that the condition names is changed."""
        fields = self.source.fields
        changed = any(self.fields[n] != fields[n] for n in condition.fields)
        return None if changed else self.source.holds(condition, numbers)

    def __getitem__(self, index: int) -> Sample:
        sample = self.source[index]
        changed: dict[str, Any] = {}
        for name, value in sample.items():
            field = self.fields[name]
            if is_missing(value):
                changed[name] = value
                continue
            try:
                if self._is_raw(name):
                    value = self._pixels(value, name, field)
                elif name in self._as_image:
                    value = self._image(encode_png(self._given_pixels(value, field), "pixels"), field)
                elif field.kind == "image":
                    value = self._image(bytes(value), field)
                elif field.kind == "video" and not self._videos.idle:
                    value = self._videos(bytes(value), self.tally.counts)
                elif field.dtype != self.source.fields[name].dtype or name in self._squeeze:
                    array = np.asarray(value)
                    if name in self._squeeze:
                        if array.size != 1 or array.dtype.kind not in "biufc":
                            raise BadSample(f"expected one number, got {list(array.shape)} of {array.dtype}")
                        array = array.reshape(())
                    value, change = _cast(array, field.row_dtype, self._allow_rounding)
                    if change > self.tally.rounded.get(name, 0):
                        self.tally.rounded[name] = change
            except BadSample as error:
                key = sample.get("key")
                named = f" (key {key})" if isinstance(key, str) else ""
                raise BadSample("sample {} of the source{}, field {!r}: {}", index, named, name, error) from error
            changed[name] = value
        for name in self._lying:
            image = self.fields[name].on or ""
            if not (is_missing(changed.get(name)) or is_missing(changed.get(image))):
                changed[name] = self._moved(self.fields[name], changed[name], sample[image], changed[image])
        return changed

    def _moved(self, field: Field, values: Any, before: Any, after: Any) -> NDArray[np.float32]:
        """Return boxes or points on an image as they lie on the one that it has become."""
        array = field.entries(field.encode(values))
        tag = orientation(before) if self._images.orient and not isinstance(before, np.ndarray) else 1
        tags, size, made = np.array([tag], np.uint8), _pixel_sizes(before), _pixel_sizes(after)
        steps = upright_steps(tags)
        if (upright_sizes(size, tags) != made).any():
            steps = (*steps, Scale(made, "bilinear", True))
        return moved(field, array, size, steps)

    def _image(self, data: bytes, field: Field) -> bytes:
        return self._images(data, mask=field.role == "mask", stayed=self.tally.counts)

    def _given_pixels(self, value: Any, field: Field) -> NDArray[Any]:
        """Return the pixels of an array, [h, w] or [h, w, 3]."""
        pixels = as_pixels(value, mask=field.role == "mask")
        if pixels.ndim == 3 and field.channels == 1:
            raise BadSample("expected grey pixels, as those of the first sample are")
        return pixels

    def _pixels(self, value: Any, name: str, field: Field) -> NDArray[np.uint8]:
        """Return the pixels of an image to store, [height, width, channels], or with alpha [4, height, width]."""
        mask = field.role == "mask"
        alpha = self._raw is not None and self._raw.alpha and not mask
        pixels: NDArray[Any]
        height, width = (field.shape or (0, 0))[-2:]
        if self.source.fields[name].kind == "pixels":
            pixels = np.asarray(value)
        elif name in self._as_image:
            pixels = self._given_pixels(value, field)
            channels = 3 if alpha else field.channels or 3
            pixels = np.repeat(pixels[:, :, None], channels, axis=2) if pixels.ndim == 2 else pixels
        else:
            data, most = bytes(value), self._images.max_image_pixels
            if not mask and is_deep(data):
                raise BadSample(
                    "{store_pixels} stores 8 bits, the image has {}: `shardio convert arrayfolder` keeps all bits",
                    16,
                )
            pixels = whole_images.decode(data, 4, most) if alpha else whole_images.decode_as(field, data, most)
            if self._images.orient:
                pixels = make_upright(pixels, orientation(value))
            else:
                self.tally.counts[ROTATED] += orientation(value) != 1
        if mask and pixels.size and int(pixels.max()) > _LARGEST_BYTE:
            raise BadSample("{store_pixels} stores numbers of a mask up to {}, got {}", _LARGEST_BYTE, pixels.max())
        pixels = pixels.astype(np.uint8, copy=False)
        if alpha:
            pixels = whole_images.with_alpha(pixels, None if self._raw is None else self._raw.size)
        elif self._raw is not None and self._raw.size is not None:
            return resize(np.ascontiguousarray(pixels), self._raw.size, "nearest" if mask else "bilinear", True)
        if pixels.shape[:2] != (height, width):
            found = " x ".join(map(str, pixels.shape[:2]))
            raise BadSample(
                "the image is {} pixels, others are {} x {}: give {resize}, one size for all", found, height, width
            )
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)) if alpha else pixels

    def _is_raw(self, name: str) -> bool:
        """Return whether a field's images are stored as pixels."""
        image = name in self._as_image or self.source.fields[name].is_image
        return self._raw is not None and image


def _pixel_sizes(image: Any) -> Sizes:
    """Return the height and width of an image file or of pixels, int32 [1, 2]."""
    if isinstance(image, np.ndarray):
        return np.array([image.shape[:2]], np.int32)
    info = probe(image)
    return np.array([[info.height, info.width]], np.int32)


def _cast(array: NDArray[Any], dtype: np.dtype[Any], allow_rounding: bool) -> tuple[NDArray[Any], float]:
    """Return `array` cast to `dtype`, and the largest change of a number.

    Floats are rounded. Raises BadSample for a number that overflows, and for an integer that would change, unless
    `allow_rounding` lets a float round it.
    """
    flat, cast, most = np.ascontiguousarray(array).reshape(-1), np.empty(array.size, dtype), 0.0
    for start in range(0, len(flat), _CAST_AT_ONCE):
        values, part = flat[start : start + _CAST_AT_ONCE], cast[start : start + _CAST_AT_ONCE]
        with np.errstate(over="ignore", invalid="ignore"):
            part[...] = values
            changes = _distance(values, part)
        fits = np.isfinite(values) == np.isfinite(part)
        rounds = dtype.kind in "fc" and (allow_rounding or values.dtype.kind in "fc")
        kept = fits if rounds else fits & (changes == 0)
        if not kept.all():
            advice = Message("; {allow_rounding:True} rounds it") if dtype.kind in "fc" and fits.all() else ""
            raise BadSample("{} cannot hold {}{}", dtype.name, values[~kept][0], advice)
        most = max(most, float(np.max(changes, initial=0, where=np.isfinite(values))))
    return cast.reshape(array.shape), most


def _distance(before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
    """Return the absolute differences of numbers, [n]: of integers 0 only if they stay the same."""
    if before.dtype.kind in "fc":
        return np.asarray(np.abs(after - before.astype(np.result_type(before, after, np.float64))))
    # A long double holds more integers than float64; beyond its 64 bits nothing is exact, but those are no floats.
    return np.asarray(np.abs(after.real.astype(np.longdouble) - before))
