"""A source that changes the samples of another: pixels become images, images are shrunk or re-encoded, numbers cast."""

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..dataset.shard_writer import encode
from ..errors import BadSample, ConfigError, SourceError
from ..format.fields import Field, describe_fields, label_as_int64
from ..system.types import Sample
from .reencode import ReencodeOptions, as_pixels, png
from .source import HasColumns, Source

_PROBED_SAMPLES = 64
"""The number of samples that are read to estimate by how much all samples shrink."""


@final
class TransformedSource:
    """The samples of `source`, changed.

    Args:
        source: the original samples.
        images: how to re-encode images.
        dtypes: the dtype to cast a field's numbers to, by field name; `""` stands for all arrays that are not named.
        pixels: the fields of uint8 arrays to store as PNGs, see `reencode.as_pixels`. Where their shapes differ, the
            first sample decides whether they are grey.
        squeeze: the fields of arrays of one element to store as scalars.

    Raises ConfigError for a field that holds no numbers, no pixels, or more than one number, and for a cast to another
    kind of number (float to int). Where a field has no fixed shape, the first samples are read: BadSample if they are
    all bad, SourceError if there are none.
    """

    def __init__(
        self,
        source: Source,
        images: ReencodeOptions,
        dtypes: Mapping[str, str],
        pixels: Collection[str] = (),
        squeeze: Collection[str] = (),
    ) -> None:
        self._source, self._images, self._dtypes, self._pixels = source, images, dict(dtypes), frozenset(pixels)
        self._squeeze = frozenset(squeeze)
        for name in sorted(self._squeeze):
            field = source.fields.get(name)
            if field is None or field.kind != "array" or field.shape is None or math.prod(field.shape) != 1:
                raise ConfigError(
                    f"squeeze takes fields of arrays of one element, got {name!r}; "
                    f"there are {describe_fields(source.fields)}"
                )
        for name in sorted(self._pixels):
            if name not in source.fields or source.fields[name].kind != "array" or name in self._dtypes:
                arrays = ", ".join(n for n, field in source.fields.items() if field.kind == "array") or "none"
                raise ConfigError(
                    f"pixels takes fields of arrays that dtype does not cast (arrays here: {arrays}), got {name!r}"
                )
        for name in self._dtypes:
            if name and (name not in source.fields or source.fields[name].kind not in ("array", "scalar")):
                raise ConfigError(f"dtype: {name!r} is not a field of numbers; there are {', '.join(source.fields)}")
        if "" in self._dtypes and not any(field.kind == "array" for field in source.fields.values()):
            raise ConfigError(f"dtype: there are no arrays to cast to {self._dtypes['']!r}; name a field")
        self._fields = {name: self._changed_field(name, field) for name, field in source.fields.items()}

    def _changed_field(self, name: str, field: Field) -> Field:
        if name in self._pixels:
            return self._image_field(name, field)
        if name in self._squeeze:
            field = label_as_int64(name, Field("scalar", field.dtype))
        wanted = self._dtypes.get(name, self._dtypes.get("") if field.kind == "array" else None)
        if wanted is not None and field.kind in ("array", "scalar"):
            cast = replace(field, dtype=wanted)
            if not np.can_cast(field.row_dtype, cast.row_dtype, "same_kind"):
                raise ConfigError(f"dtype: field {name!r} is {field.dtype}, which {cast.dtype} cannot hold")
            return cast
        if field.kind == "image" and not self._images.idle:
            return replace(field, shape=None)
        return field

    def _image_field(self, name: str, field: Field) -> Field:
        shape = self._first_shape(name) if field.shape is None else field.shape
        try:
            pixels = as_pixels(np.broadcast_to(np.zeros((), field.row_dtype), shape))
        except BadSample as error:
            raise ConfigError(f"pixels: field {name!r}: {error}") from error
        common_shape = pixels.shape[:2] if field.shape is not None and self._images.idle else None
        return Field("image", shape=common_shape, channels=1 if pixels.ndim == 2 else 3)

    def _first_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the field in the first sample that is not bad."""
        error: BadSample | None = None
        for number in range(min(_PROBED_SAMPLES, len(self._source.sizes()))):
            try:
                return np.shape(self._source[number][name])
            except BadSample as met:
                error = error or met
        raise error or SourceError("the source holds no samples")

    @property
    def changes(self) -> Mapping[str, Any]:
        """The changes as JSON values for a conversion's plan, which distinguish it from others of the same source."""
        # A limit makes samples bad, as damage does, but no other bytes.
        options = {name: value for name, value in asdict(self._images).items() if name != "max_image_pixels"}
        images = {} if self._images.idle else {"images": options}
        pixels = {"pixels": sorted(self._pixels)} if self._pixels else {}
        squeeze = {"squeeze": sorted(self._squeeze)} if self._squeeze else {}
        return {**images, **({"dtype": self._dtypes} if self._dtypes else {}), **pixels, **squeeze}

    @property
    def threads(self) -> bool:
        return bool(getattr(self._source, "threads", False))

    @property
    def fields(self) -> Mapping[str, Field]:
        return self._fields

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._source.metadata

    def sizes(self) -> NDArray[np.int64]:
        """Return the source's sizes, scaled by how a few samples throughout it shrink or grow, int64 [n]."""
        sizes = self._source.sizes()
        return sizes if self._size_ratio is None else np.maximum(1, sizes * self._size_ratio).astype(np.int64)

    @cached_property
    def _size_ratio(self) -> float | None:
        sizes = self._source.sizes()
        before = after = 0
        for number in (
            np.unique(np.linspace(0, len(sizes) - 1, _PROBED_SAMPLES).astype(np.int64)).tolist() if len(sizes) else ()
        ):
            try:
                stored = encode(self[number], self._fields).stored
            except BadSample:  # reported when it is written
                continue
            before, after = before + int(sizes[number]), after + sum(map(len, stored.values()))
        return after / before if before else None

    @property
    def files(self) -> Any:
        """The source's files, see `source.file_states`."""
        return getattr(self._source, "files", ())

    def column(self, name: str) -> NDArray[Any] | None:
        return self._source.column(name) if isinstance(self._source, HasColumns) else None

    def __getitem__(self, index: int) -> Sample:
        sample = self._source[index]
        changed: dict[str, Any] = {}
        for name, value in sample.items():
            field = self._fields[name]
            try:
                if name in self._pixels:
                    value = self._as_png(value, field)
                if field.kind == "image":
                    value = self._images(bytes(value))
                elif field != self._source.fields[name]:
                    value = _squeezed(value) if name in self._squeeze else value
                    value = _cast(np.asarray(value), field.row_dtype)
            except BadSample as error:
                key = sample.get("key")
                named = f" (key {key})" if isinstance(key, str) else ""
                raise BadSample(f"sample {index} of the source{named}, field {name!r}: {error}") from error
            changed[name] = value
        return changed

    def _as_png(self, value: Any, field: Field) -> bytes:
        pixels = as_pixels(value)
        if pixels.ndim == 3 and field.channels == 1:
            raise BadSample("expected grey pixels, as those of the first sample are")
        return png(pixels, "pixels")


def _squeezed(value: Any) -> NDArray[Any]:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biufc":
        raise BadSample(f"expected one number, got {list(array.shape)} of {array.dtype}")
    return array.reshape(())


def _cast(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `array` cast to `dtype`; raise BadSample for a number that overflows or would change."""
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    kept = np.isfinite(array) == np.isfinite(cast) if dtype.kind in "fc" else array == cast
    if not kept.all():
        raise BadSample(f"{dtype.name} cannot hold {array[~kept].reshape(-1)[0] if array.ndim else array}")
    return cast
