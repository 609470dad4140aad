"""`FIXED` has the transforms that draw no random numbers, and no other."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import shardio
from shardio.transforms import FIXED

SIZES = np.array([[40, 30]], np.int32)
NO_DRAWS: Any = SimpleNamespace(indices=np.array([0]))
"""In the place of a generator: it knows its samples, and has no numbers."""
SHAPES = np.array([[40, 30]])
IMAGES: list[Any] = [
    shardio.CenterCrop(8), shardio.Resize(8), shardio.PadImages(size=(50, 50)),
    shardio.RandomCrop(8), shardio.RandomResizedCrop(8), shardio.RandomHorizontalFlip(), shardio.RandomVerticalFlip(),
    shardio.RandomRotation(10), shardio.RandomErasing(), shardio.RandomGrayscale(), shardio.ColorJitter(0.5),
    shardio.GaussianBlur(3), shardio.RandAugment(), shardio.TrivialAugmentWide(), shardio.RandomZoomOut(),
    shardio.ScaleJitter((32, 32)), shardio.RandomShortestSize(32),
    shardio.RandomApply([shardio.RandomGrayscale()]), shardio.RandomChoice([shardio.RandomGrayscale()]),
]  # fmt: skip
ARRAYS: list[Any] = [shardio.CenterSpatialCrop(8), shardio.RandomSpatialCrop(8), shardio.RandomAxisFlip()]
CLIPS: list[Any] = [shardio.CenterClip(4), shardio.UniformFrames(4), shardio.FramesAt([0, 3]), shardio.RandomClip(4)]


@pytest.mark.parametrize("transform", [*IMAGES, *ARRAYS, *CLIPS], ids=lambda each: type(each).__name__)
def test_fixed_transforms_ask_no_generator(transform: Any) -> None:
    """With a generator that has no numbers, a fixed transform does its work, and any other fails."""
    calls = (
        lambda: transform.steps(SIZES, NO_DRAWS),
        lambda: transform.moves(SHAPES, NO_DRAWS),
        lambda: transform.choose(np.array([10.0]), NO_DRAWS),
    )
    kind = 0 if transform in IMAGES else 1 if transform in ARRAYS else 2
    if isinstance(transform, FIXED):
        calls[kind]()
    else:
        with pytest.raises(AttributeError, match=r"'(uniform|child|beta)'"):
            calls[kind]()
