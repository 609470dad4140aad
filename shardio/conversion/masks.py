"""Fields of a source that are masks: its user says which, as no file does."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, final

from ..errors import ConfigError, Message, Option
from ..format.fields import Field, describe, describe_fields
from ..system.types import Sample


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
class MaskedFiles:
    """An `Adoptable` source some of whose fields are masks; ConfigError for a field that cannot be one."""

    def __init__(self, source: Any, masks: Collection[str]) -> None:
        check_names(source.fields, masks)
        self.source = source
        self.fields = {n: as_mask(n, field) if n in masks else field for n, field in source.fields.items()}

    def __getitem__(self, index: int) -> Sample:
        sample: Sample = self.source[index]
        return sample

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "source":  # not yet there while it is unpickled
            raise AttributeError(name)
        return getattr(self.source, name)


def plan_of(fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return what a plan says of masks: the digest of the fields names content, and is that of images."""
    masks = [name for name, field in fields.items() if field.role == "mask"]
    return {"mask": masks} if masks else {}


def masked(source: Any, masks: Collection[str]) -> Any:
    """Return a source of files to adopt in place with these fields as masks."""
    return MaskedFiles(source, masks) if masks else source
