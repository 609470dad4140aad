"""The `transforms` argument of Loader and TorchDataset, and what to use for transforms in other forms."""

from collections.abc import Sequence
from typing import Any, get_args

from ...errors import ConfigError
from ...system.did_you_mean import OF_YOUR_OWN, did_you_mean
from ...transforms import Mixer, Transform

_MAP = "a Loader's map=, where it gets batches, or with map_by='sample' samples, as dicts"


def check_listed(listed: Any, whose: str = "") -> None:
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
    """Return the end of a message, which says what to use in place of something that is no transform of shardio."""
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
    return f": give a function of your own to {_MAP}" if callable(given) else ""
