"""The options of commands that show the batches of a job's ranks."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Literal

from ..bench.read_plan import read_plan
from ..errors import ConfigError, Option
from ..format.fields import Field
from ..transforms import Transform
from ._options import Shown, options_of

SHUFFLE = Shown(kind=Literal["global", "block", "none"], convert=lambda word: None if word == "none" else word)


def batch_options(heading: str) -> list[inspect.Parameter]:
    """Return the options of the order of a job and of its ranks, under a heading of the help."""
    return options_of(
        read_plan,
        {heading: "world batch_size epoch shuffle block window tail assign"},
        {
            "world": Shown(default=(1,)),
            "batch_size": Shown(default=(32,)),
            "shuffle": SHUFFLE,
        },
    )


def as_in_training(fields: Mapping[str, Field], place: str) -> dict[str, Sequence[Transform]]:
    """Return the transforms that `shardio train` has for images, by field; masks move with their images.

    Raises ConfigError for data without images.
    """
    from ..train.image_classification import ImageClassification  # loads torch

    images = {name: field for name, field in fields.items() if field.is_image}
    if not images:
        raise ConfigError("{} transforms images, and {} has none", Option("augment", True), place)
    listed = {}
    for name, field in images.items():
        size = next((image.image_size for image in images.values() if image.role is None), field.image_size)
        training, _ = ImageClassification(outputs=2, channels=field.channels or 3, stored_size=size).transforms()
        listed[name] = training if field.role is None else training[:-1]  # a mask's numbers aren't normalized
    return listed
