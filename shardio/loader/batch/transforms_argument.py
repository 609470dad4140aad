"""The `transforms` argument of Loader and TorchDataset, and what to use for transforms in other forms."""

from collections.abc import Sequence
from typing import Any, get_args

from ...errors import ConfigError
from ...transforms import Mixer, Transform
from ...transforms.torchvision_names import COUNTERPARTS, GROUPS, NEEDLESS, OF_YOUR_OWN, instead_of

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
    if name in GROUPS and kind.__module__.startswith(("torchvision.", "torch.", "albumentations.")):
        return f": give what it holds one by one, as a list of shardio's; a function of your own goes to {_MAP}"
    if kind.__module__.startswith("torchvision.") and name != "Lambda":
        return _instead_of_torchvision(name)
    return f": give a function of your own to {_MAP}" if callable(given) else ""


def _instead_of_torchvision(name: str) -> str:
    if name in {known.__name__ for known in get_args(Transform)}:
        return f": shardio.{name} takes its place"
    if name in COUNTERPARTS or name in NEEDLESS:
        return f": {instead_of(name)}"
    return f": shardio has no {name}. {OF_YOUR_OWN}"
