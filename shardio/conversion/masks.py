"""Fields of a source that are masks: its user says which, as no file does."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample, ConfigError, Message, Option
from ..format.fields import Field, describe, describe_fields
from ..system.types import Sample
from .source import Adoption, Source, WrappedSource


def check_names(fields: Mapping[str, Field], masks: Collection[str]) -> None:
    """Raise ConfigError if `masks` names a field that there is not."""
    for name in sorted(set(masks) - fields.keys()):
        raise ConfigError("{mask}: there is no field {!r}; there are {}", name, describe_fields(fields))


def as_mask(name: str, field: Field) -> Field:
    """Return a field of images as one of masks. Raise ConfigError if it holds no images, or RGB pixels."""
    if not field.is_image:
        as_images = Message(": {} makes images of arrays", Option("as_image", [name]))
        advice = as_images if field.kind == "array" else ""
        raise ConfigError("{mask} takes fields of images, and {!r} is {}{}", name, describe(field), advice)
    if field.kind == "pixels" and field.channels != 1:
        raise ConfigError("{mask}: a mask has one number per pixel, and field {!r} is {}", name, describe(field))
    return replace(field, role="mask", channels=1)


@final
class MaskedFiles(WrappedSource):
    """A source of files some of whose fields are masks: no value changes. ConfigError for one that cannot be."""

    def __init__(self, source: Source, masks: Collection[str]) -> None:
        super().__init__(source)
        check_names(source.fields, masks)
        self.fields = {n: as_mask(n, field) if n in masks else field for n, field in source.fields.items()}

    @property
    def adoption(self) -> Adoption | None:
        return self.source.adoption

    def block(self, numbers: NDArray[np.int64]) -> Iterator[Sample | BadSample]:
        return self.source.block(numbers)

    def column(self, name: str) -> NDArray[Any] | Sequence[str] | None:
        return self.source.column(name)

    def __getitem__(self, index: int) -> Sample:
        return self.source[index]


def plan_of(fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return what a plan says of masks: the digest of the fields names content, and is that of images."""
    masks = [name for name, field in fields.items() if field.role == "mask"]
    return {"mask": masks} if masks else {}


def masked(source: Source, masks: Collection[str]) -> Source:
    """Return a source of files to adopt in place with these fields as masks."""
    return MaskedFiles(source, masks) if masks else source
