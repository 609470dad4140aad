"""Clips: which frames of a video a batch has, drawn before anything is read, so that only what shows them is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..system.rules import Positive, at_least_one, check_fields
from .random_generator import RandomGenerator, RandomKeys

T = TypeVar("T")

Short: TypeAlias = Literal["drop", "pad", "raise"]
"""How a video that is too short for a clip is treated: see RandomClip."""
_STREAM = (1 << 20) + 3  # larger than the place of any transform in its list

Frames: TypeAlias = NDArray[np.int64]
"""The numbers of frames, from 0 on, in the order in which a video shows them, [B, T]."""


@dataclass(frozen=True, slots=True)
class _EvenlySpaced(ABC):
    """Frames of a video that are as far apart as each other."""

    frames: int
    stride: int = 1
    stride_seconds: Positive | None = None
    short: Short = "drop"

    def __post_init__(self) -> None:
        at_least_one(self.frames, "frames")
        at_least_one(self.stride, "stride")
        if self.stride_seconds is not None and self.stride != 1:
            raise ConfigError(f"give stride or stride_seconds, got {self.stride} and {self.stride_seconds}")
        check_fields(self)

    @property
    def in_seconds(self) -> bool:
        """Whether `span` and what `choose` returns are seconds from the first frame on, and not numbers of frames."""
        return self.stride_seconds is not None

    @property
    def span(self) -> float:
        """How far the last frame of a clip is behind its first one."""
        return (self.frames - 1) * (self.stride if self.stride_seconds is None else self.stride_seconds)

    @abstractmethod
    def choose(self, lengths: NDArray[Any], generator: RandomGenerator) -> NDArray[Any]:
        """Return the frames, or the times in seconds, that clips of videos of some lengths have, [B, T].

        Those beyond the end of a video are at least its length.
        """

    def _from(self, begins: NDArray[Any]) -> NDArray[Any]:
        stride = self.stride if self.stride_seconds is None else self.stride_seconds
        return np.asarray(begins[:, None] + stride * np.arange(self.frames))


@final
@dataclass(frozen=True, slots=True)
class RandomClip(_EvenlySpaced):
    """Deliver `frames` frames of a video at even distances, from a random one on.

    It comes first of the transforms of a video, or of a list of images, and those behind it treat all frames of a clip
    alike. A batch also has `NAME_time`, float64 [B, T]: when each frame of a video is shown, in seconds.

    Examples:
        >>> import shardio
        >>> clip = shardio.RandomClip(16, stride=4)
        >>> transforms = [clip, shardio.RandomResizedCrop(224), shardio.ToFloat()]

    Args:
        frames: the number of frames of a clip.
        stride: the distance from one frame to the next, in frames.
        stride_seconds: the distance in seconds instead: a clip has the frames that are shown at these times, also if
            the rate varies. Lists of images have no times.
        short: what to do with videos in which the last frame of a clip would be beyond the end. `"drop"`: leave them
            out of all epochs, as a view does; `Loader.too_short` counts them. `"pad"`: repeat the last frame, and
            deliver `NAME_valid`, bool [B, T], which is False there. `"raise"`: they are bad samples.

    Raises:
        ConfigError: if an argument is out of range.
    """

    def choose(self, lengths: NDArray[Any], generator: RandomGenerator) -> NDArray[Any]:
        """Return the frames, or the times in seconds, that clips of videos of some lengths have, [B, T]."""
        drawn = generator.uniform(1)[:, 0] * np.maximum(lengths - self.span, 0 if self.in_seconds else 1)
        return self._from(drawn if self.in_seconds else drawn.astype(np.int64))


@final
@dataclass(frozen=True, slots=True)
class CenterClip(_EvenlySpaced):
    """Deliver `frames` frames of a video at even distances, as far from its beginning as from its end.

    Args:
        frames, stride, stride_seconds, short: see RandomClip.

    Raises:
        ConfigError: if an argument is out of range.
    """

    def choose(self, lengths: NDArray[Any], generator: RandomGenerator) -> NDArray[Any]:
        """Return the frames, or the times in seconds, that clips of videos of some lengths have, [B, T]."""
        if self.in_seconds:
            return self._from(np.maximum(lengths - self.span, 0) / 2)
        return self._from(np.maximum(lengths - self.span - 1, 0).astype(np.int64) // 2)


@final
@dataclass(frozen=True, slots=True)
class UniformFrames:
    """Deliver `frames` frames of a video, each in the middle of one of as many equal parts of it.

    Args:
        frames: how many; a video with fewer has some of its frames several times.

    Raises:
        ConfigError: if that is below 1.
    """

    frames: int
    in_seconds: ClassVar[bool] = False
    span: ClassVar[float] = 0
    short: ClassVar[Short] = "raise"

    def __post_init__(self) -> None:
        at_least_one(self.frames, "frames")

    def choose(self, lengths: NDArray[Any], generator: RandomGenerator) -> NDArray[Any]:
        """Return the frames of videos of some lengths, [B, T]."""
        return np.asarray(lengths[:, None] * (2 * np.arange(self.frames) + 1) // (2 * self.frames), np.int64)


@final
@dataclass(frozen=True, slots=True)
class FramesAt:
    """Deliver the frames of a video that are shown at given times.

    Args:
        seconds: the times, from the first frame on.
        short: see RandomClip.

    Raises:
        ConfigError: if there is no time, or one is negative or not finite.
    """

    seconds: Sequence[float]
    short: Short = "drop"
    in_seconds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        listed = isinstance(self.seconds, Sequence | np.ndarray) and not isinstance(self.seconds, str)
        if not listed or not len(self.seconds):
            raise ConfigError(f"seconds must be a list of times, such as [0, 0.5, 1], got {self.seconds!r}")
        object.__setattr__(self, "seconds", tuple(self.seconds))
        for value in self.seconds:
            number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if not number or not 0 <= value < math.inf:
                raise ConfigError(f"seconds must be finite and at least 0, got {value!r}")
        check_fields(self)

    @property
    def frames(self) -> int:
        """The number of frames."""
        return len(self.seconds)

    @property
    def span(self) -> float:
        """The last of the times."""
        return max(self.seconds)

    def choose(self, lengths: NDArray[Any], generator: RandomGenerator) -> NDArray[Any]:
        """Return the times for videos of some lengths in seconds, [B, T]."""
        return np.broadcast_to(np.array(self.seconds, np.float64), (len(lengths), self.frames))


Clip: TypeAlias = RandomClip | CenterClip | UniformFrames | FramesAt


def chosen(clip: Clip, lengths: NDArray[Any], keys: RandomKeys) -> NDArray[Any]:
    """Return what a clip has of videos, [B, T]: numbers of frames, or times in seconds if the clip is `in_seconds`.

    Args:
        clip: the clip.
        lengths: the lengths of the videos, [B]: in frames, or in seconds.
        keys: their random keys.
    """
    return clip.choose(lengths, keys.generator(_STREAM))


def split(transforms: Sequence[T]) -> tuple[Clip | None, Sequence[T]]:
    """Return the clip that some transforms begin with, None if they begin otherwise, and the others."""
    if transforms and isinstance(transforms[0], Clip):
        return transforms[0], transforms[1:]
    return None, transforms
