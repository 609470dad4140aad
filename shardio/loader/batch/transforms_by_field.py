"""The transforms that a user gave to a loader, by field; errors say what takes the place of anything else."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, get_args

from ...errors import ConfigError
from ...format.fields import Field
from ...system.did_you_mean import OF_YOUR_OWN, did_you_mean
from ...transforms import Mixer, RandomItem, ToInt64, Tokenize, Transform
from ...views.readable import ReadableDataset
from .field_names import FieldNames

Transforms: TypeAlias = Sequence[Transform] | Mapping[str, Sequence[Transform]] | None
"""A list for the one image field, or a list for each field."""


def transforms_by_field(
    dataset: ReadableDataset, fields: Mapping[str, Field], names: FieldNames, transforms: Transforms
) -> Mapping[str, Sequence[Transform]]:
    """Return the transforms that a user gave, by the name of the field.

    Whether they suit their field is for the recipe to say. Raises ConfigError for names and kinds of fields that have
    none, and for what is no list of transforms.
    """
    if transforms is None:
        return {}
    images = [name for name, kind in fields.items() if kind.is_image or kind.kind in ("images", "video")]
    arrays = [name for name, kind in fields.items() if kind.kind == "array"]
    if isinstance(transforms, Mapping):
        for name, listed in transforms.items():
            if name not in fields and name in dataset.fields:
                others = [delivered for delivered, stored in names.stored.items() if stored == name]
                how = f"delivers as {others}: give each a list" if others else "leaves out"
                raise ConfigError(f"transforms for {name!r}, which fields={list(fields)} {how}")
            kind = fields[name].kind if name in fields else None
            only = {"scalar": (ToInt64,), "text": (Tokenize,), "json": (RandomItem, Tokenize)}.get(kind or "")
            if name not in images + arrays and not (only and _are_all(listed, only)):
                raise ConfigError(
                    f"transforms for {name!r}, but the image fields of {dataset.path} are {images}, and its fields of "
                    f"arrays are {arrays}; scalars take only ToInt64, and texts only "
                    "Tokenize, as in [Tokenize('tokenizer.json', PadTo())], behind RandomItem() for lists of texts"
                )
            _check_listed(listed, f" for {name!r}")
        return transforms
    _check_listed(transforms)
    candidates = images or arrays
    if len(candidates) != 1:
        raise ConfigError(
            f"a list of transforms needs exactly one image or array field, but {dataset.path} has {candidates}: "
            "give a dict of lists by field"
        )
    return {candidates[0]: transforms}


def _are_all(listed: Any, kinds: tuple[type, ...]) -> bool:
    """Return whether a list holds transforms of some kinds, and no others."""
    return isinstance(listed, Sequence) and len(listed) > 0 and all(isinstance(each, kinds) for each in listed)


def _check_listed(listed: Any, whose: str = "") -> None:
    """Raise ConfigError unless `listed` is a list of transforms; say what to use for another library's, or a function.

    `whose`, such as ` for 'image'`, names the field in messages, if a dict does. Whether the transforms suit
    their field is for the recipe to say.
    """
    if not isinstance(listed, Sequence):
        rule = f"transforms{whose} must be a list{'' if whose else ', or a dict of lists by field'}"
        raise ConfigError(f"{rule}, got {listed!r}{_instead_of(listed)}")
    for position, transform in enumerate(listed):
        if not isinstance(transform, Transform | Mixer):
            rule = f"transform {position}{whose} must be one of shardio's"
            raise ConfigError(f"{rule}, got {transform!r}{_instead_of(transform)}")


def _instead_of(given: Any) -> str:
    """Return the end of a message: what to use instead of something that is no transform of shardio."""
    kind = given if isinstance(given, type) else type(given)
    name = kind.__name__
    if isinstance(given, Transform):
        return ": put it into a list"
    if kind in get_args(Transform):
        return f", a class: give an instance of it, as in {name}(...)"
    library = kind.__module__.partition(".")[0]
    if library == "torchvision" and name in {known.__name__ for known in get_args(Transform)}:
        return f": shardio.{name} takes its place"
    is_list = name in ("Compose", "Sequential") and library in ("torch", "torchvision", "albumentations")
    if is_list or (library == "torchvision" and name != "Lambda"):
        return f": {did_you_mean(name, 'transform') or f'shardio has no {name}. {OF_YOUR_OWN}'}"
    if not callable(given):
        return ""
    return (
        ": give a function of your own to a Loader's map=, where it gets batches, or with map_by='sample' samples, as "
        "dicts"
    )
