"""Which frames of a video a batch has: drawn before anything is read, so that only what shows them is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..system.rules import at_least_one
from .random_generator import RandomGenerator, RandomKeys

T = TypeVar("T")

Short: TypeAlias = Literal["raise", "pad"]
"""What a video with too few frames for a clip is: a bad sample, or its last frame is repeated."""
_STREAM = (1 << 20) + 3  # larger than the place of any transform in its list

Frames: TypeAlias = NDArray[np.int64]
"""The numbers of frames, from 0 on, in the order in which a video shows them, [B, T]."""


@dataclass(frozen=True, slots=True)
class RandomClip:
    """Deliver `frames` frames of a video, `stride` apart, from a random one on.

    It comes first of a video's transforms, which treat all frames alike.

    Args:
        frames: the frames of a clip.
        stride: how many frames one is behind the one before.
        short: what to do with videos that have fewer than `(frames - 1) * stride + 1`: `"raise"`, so that they are bad
            samples, or `"pad"`: what is beyond the end is the last frame, and `NAME_valid`, bool [B, T], says where.

    Raises:
        ConfigError: if an argument is out of range.
    """

    frames: int
    stride: int = 1
    short: Short = "raise"

    def __post_init__(self) -> None:
        _check(self)

    @property
    def span(self) -> int:
        """The frames from the first to the last of a clip."""
        return (self.frames - 1) * self.stride + 1

    def choose(self, counts: NDArray[np.int64], generator: RandomGenerator) -> Frames:
        """Return the numbers of the frames for videos of `counts` frames; those beyond the end are too large."""
        room = np.maximum(counts - self.span, 0) + 1
        begins = (generator.uniform(1)[:, 0] * room).astype(np.int64)
        return _strided(begins, self.frames, self.stride)


@dataclass(frozen=True, slots=True)
class CenterClip:
    """Deliver `frames` frames of a video, `stride` apart, as far from its beginning as from its end.

    Args:
        frames, stride, short: as of RandomClip.

    Raises:
        ConfigError: if an argument is out of range.
    """

    frames: int
    stride: int = 1
    short: Short = "raise"

    def __post_init__(self) -> None:
        _check(self)

    @property
    def span(self) -> int:
        """The frames from the first to the last of a clip."""
        return (self.frames - 1) * self.stride + 1

    def choose(self, counts: NDArray[np.int64], generator: RandomGenerator) -> Frames:
        """Return the numbers of the frames for videos of `counts` frames; those beyond the end are too large."""
        return _strided(np.maximum(counts - self.span, 0) // 2, self.frames, self.stride)


@dataclass(frozen=True, slots=True)
class UniformFrames:
    """Deliver `frames` frames of a video, each in the middle of one of as many equal parts of it.

    Args:
        frames: how many; a video with fewer has some of its frames several times.

    Raises:
        ConfigError: if that is below 1.
    """

    frames: int

    def __post_init__(self) -> None:
        at_least_one(self.frames, "frames")

    @property
    def span(self) -> int:
        """The frames that a video needs."""
        return 1

    def choose(self, counts: NDArray[np.int64], generator: RandomGenerator) -> Frames:
        """Return the numbers of the frames for videos of `counts` frames."""
        return np.asarray(counts[:, None] * (2 * np.arange(self.frames) + 1) // (2 * self.frames), np.int64)


Clip: TypeAlias = RandomClip | CenterClip | UniformFrames


def chosen(clip: Clip, counts: NDArray[np.int64], keys: RandomKeys) -> Frames:
    """Return the numbers of the frames that a clip has of videos of `counts` frames, [B] of these keys."""
    return clip.choose(counts, keys.generator(_STREAM))


def _strided(begins: NDArray[np.int64], frames: int, stride: int) -> Frames:
    numbers: Frames = begins[:, None] + stride * np.arange(frames)
    return numbers


def _check(clip: RandomClip | CenterClip) -> None:
    at_least_one(clip.frames, "frames")
    at_least_one(clip.stride, "stride")
    if clip.short not in get_args(Short):
        raise ConfigError(f"short must be {' or '.join(map(repr, get_args(Short)))}, got {clip.short!r}")


def split(transforms: Sequence[T]) -> tuple[Clip, Sequence[T]]:
    """Return the clip that transforms of a video begin with, and the others; ConfigError if they begin otherwise."""
    if not transforms or not isinstance(transforms[0], Clip):
        raise ConfigError(
            "transforms of a video begin with what chooses its frames, such as RandomClip(16, stride=4), got "
            f"{[*transforms]}"
        )
    return transforms[0], transforms[1:]
