"""Fields of a source that are masks: its user says which, as no file does."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from ..errors import ConfigError, Message, Option
from ..format.fields import Field, describe, describe_fields
from .source import Delegated, Source


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


def masked(source: Source, masks: Collection[str]) -> Source:
    """Return a source of files to adopt in place with these fields as masks: no value changes.

    Raises ConfigError for a field that cannot be a mask.
    """
    check_names(source.fields, masks)
    fields = {n: as_mask(n, field) if n in masks else field for n, field in source.fields.items()}
    return Delegated(source, fields=fields) if masks else source
