"""Transforms for detection, as in torchvision.transforms.v2: resizes, padding and crops that look at the boxes.

Sources: Liu et al. 2016, "SSD: Single Shot MultiBox Detector" (RandomIoUCrop, RandomZoomOut); Ghiasi et al. 2021,
"Simple Copy-Paste is a Strong Data Augmentation Method for Instance Segmentation" (ScaleJitter).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..system.rules import at_least_one, check_switches
from .coordinates import Boxes, Owners, centers_inside
from .random_generator import RandomGenerator
from .steps import Crop, Interpolation, Mask, Scale, Sizes, Step
from .validation import as_pair, as_positive_range, check_probability, check_resize

Place: TypeAlias = Literal["topleft", "center"]


@dataclass(frozen=True, slots=True)
class ScaleJitter:
    """Resize an image to a random scale, as torchvision's ScaleJitter does; the aspect ratio stays.

    Args:
        target_size: the (height, width) in pixels into which the image fits at scale 1.
        scale_range: (min, max) of the scale, drawn uniformly.
        interpolation: Pillow's filter, as in RandomResizedCrop.
        antialias: as in RandomResizedCrop.

    Raises:
        ConfigError: if an argument is out of range.
    """

    target_size: int | tuple[int, int]
    scale_range: tuple[float, float] = (0.1, 2.0)
    interpolation: Interpolation | None = None
    antialias: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "target_size", as_pair(self.target_size, "target_size"))
        as_positive_range(self.scale_range, "scale_range")
        check_resize(self.interpolation, self.antialias)

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[Step, ...]:
        low, high = self.scale_range
        # As torchvision has it: the height goes with the target's width.
        fit = (np.array(self.target_size)[::-1] / sizes).min(axis=1)
        ratios = fit * (low + (high - low) * generator.uniform(1)[:, 0])
        return (scaled(sizes, ratios, self.interpolation, self.antialias),)

    def out_size(self, size: tuple[int, int] | None) -> None:
        return None


def scaled(sizes: Sizes, ratios: NDArray[np.float64], interpolation: Interpolation | None, antialias: bool) -> Scale:
    """Return the resize of images of these sizes by a ratio each, cut off to whole pixels, at least one."""
    targets = np.maximum(1, (sizes * ratios[:, None]).astype(np.int32))
    return Scale(targets, interpolation or "bilinear", antialias)


@dataclass(frozen=True, slots=True)
class RandomShortestSize:
    """Resize an image so that its shorter side has a random length, as torchvision's RandomShortestSize does.

    Args:
        min_size: the lengths in pixels to choose from, or one length.
        max_size: the most pixels of the longer side; the shorter one is then shorter. None: no limit.
        interpolation: Pillow's filter, as in RandomResizedCrop.
        antialias: as in RandomResizedCrop.

    Raises:
        ConfigError: if an argument is out of range.
    """

    min_size: int | Sequence[int]
    max_size: int | None = None
    interpolation: Interpolation | None = None
    antialias: bool = True

    def __post_init__(self) -> None:
        lengths = tuple(self.min_size) if isinstance(self.min_size, Iterable) else (self.min_size,)
        if not lengths:
            raise ConfigError("min_size must have at least one length")
        object.__setattr__(self, "min_size", tuple(at_least_one(length, "min_size") for length in lengths))
        if self.max_size is not None:
            at_least_one(self.max_size, "max_size")
        check_resize(self.interpolation, self.antialias)

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[Step, ...]:
        lengths = np.array(self.min_size)
        chosen = lengths[(generator.uniform(1)[:, 0] * len(lengths)).astype(np.intp)]
        ratios = chosen / sizes.min(axis=1)
        if self.max_size is not None:
            ratios = np.minimum(ratios, self.max_size / sizes.max(axis=1))
        return (scaled(sizes, ratios, self.interpolation, self.antialias),)

    def out_size(self, size: tuple[int, int] | None) -> None:
        return None


@dataclass(frozen=True, slots=True)
class RandomZoomOut:
    """Put an image at a random place on a larger canvas with probability `p`, as torchvision's RandomZoomOut does.

    Args:
        fill: the canvas: one number per channel, or one for all, integers from 0 to 255.
        side_range: (min, max) of the canvas's sides over the image's, at least 1, drawn uniformly.
        p: the probability, in [0, 1].

    Raises:
        ConfigError: if an argument is out of range.
    """

    fill: int | Sequence[int] = 0
    side_range: tuple[float, float] = (1.0, 4.0)
    p: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "fill", as_fill(self.fill, "fill"))
        if as_positive_range(self.side_range, "side_range")[0] < 1:
            raise ConfigError(f"side_range must be at least 1, got {self.side_range!r}")
        check_probability(self.p)

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[Step, ...]:
        random, (low, high) = generator.uniform(4), self.side_range
        applied = random[:, 0] < self.p
        canvas = (sizes * (low + (high - low) * random[:, 1:2])).astype(np.int32)
        corners = ((canvas - sizes) * random[:, :1:-1]).astype(np.int32)  # left is drawn before top
        boxes = np.where(applied[:, None], np.concatenate((-corners, canvas), axis=1), whole(sizes))
        return (Crop(boxes.astype(np.int32), mask=applied, fill=as_fill(self.fill, "fill")),)

    def out_size(self, size: tuple[int, int] | None) -> None:
        return None


def as_fill(value: int | Sequence[int], name: str) -> tuple[int, ...]:
    """Return the bytes of a filled pixel, one per channel or one for all; ConfigError for anything else."""
    numbers = tuple(value) if isinstance(value, Iterable) else (value,)
    if not numbers or any(not isinstance(number, int) or not 0 <= number <= 255 for number in numbers):
        raise ConfigError(f"{name} must be integers from 0 to 255, one per channel or one for all, got {value!r}")
    return numbers


def whole(sizes: Sizes) -> NDArray[np.int32]:
    """Return the boxes (top, left, height, width) of whole images, int32 [B, 4]."""
    return np.concatenate((np.zeros_like(sizes), sizes), axis=1)


_OPTIONS = 5
"""How many minimal overlaps are tried; if none of their crops is accepted, the image stays whole."""
_FIRST = 8
"""How many crops are compared with the boxes at first: mostly one of them is accepted."""


@dataclass(frozen=True, slots=True)
class RandomIoUCrop:
    """Crop to a random box that overlaps at least one box of the image enough, as torchvision's RandomIoUCrop does.

    Boxes whose centers are cut off become empty, so a SanitizeBoundingBoxes must follow. An image without boxes stays
    whole, and so does one for which five draws of `sampler_options` give no crop.

    Args:
        min_scale, max_scale: the range of the crop's sides over the image's.
        min_aspect_ratio, max_aspect_ratio: the range of the crop's width over its height.
        sampler_options: minimal overlaps (intersection over union) of the crop and a box, one of which is drawn; 1 or
            more leaves the image whole. None: 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
        trials: the number of crops that are drawn for a minimal overlap.

    Raises:
        ConfigError: if an argument is out of range.
    """

    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect_ratio: float = 0.5
    max_aspect_ratio: float = 2.0
    sampler_options: Sequence[float] | None = None
    trials: int = 40

    def __post_init__(self) -> None:
        as_positive_range((self.min_scale, self.max_scale), "(min_scale, max_scale)")
        as_positive_range((self.min_aspect_ratio, self.max_aspect_ratio), "(min_aspect_ratio, max_aspect_ratio)")
        if self.max_scale > 1:
            raise ConfigError(f"max_scale must be at most 1, got {self.max_scale!r}")
        usual = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
        options = usual if self.sampler_options is None else tuple(self.sampler_options)
        if not options or any(not isinstance(option, (int, float)) or not option >= 0 for option in options):
            raise ConfigError(f"sampler_options must be numbers of at least 0, got {self.sampler_options!r}")
        object.__setattr__(self, "sampler_options", options)
        at_least_one(self.trials, "trials")

    def steps(
        self, sizes: Sizes, generator: RandomGenerator, boxes: Boxes | None = None, owners: Owners | None = None
    ) -> tuple[Step, ...]:
        """Return the crops.

        Args:
            sizes: heights and widths of the images, int32 [B, 2].
            generator: the generator of the samples' random numbers.
            boxes: the boxes on the images at this point, float32 [N, 4].
            owners: the row of each box's image, in ascending order, [N].
        """
        crops, applied = whole(sizes), np.zeros(len(sizes), np.bool_)
        if boxes is None or owners is None or not len(boxes):
            return (Crop(crops, True, applied, True),)
        options = np.array(self.sampler_options)
        random = generator.uniform(_OPTIONS * (1 + 4 * self.trials))
        chosen = options[(random[:, :_OPTIONS] * len(options)).astype(np.intp)]
        trials = random[:, _OPTIONS:].reshape(-1, _OPTIONS, self.trials, 4)
        left = np.unique(owners)  # the rows that have no crop yet
        for attempt, tried in product(range(_OPTIONS), (slice(0, _FIRST), slice(_FIRST, self.trials))):
            left = left[chosen[left, attempt] < 1]
            if not len(left) or tried.start >= self.trials:
                continue
            candidates, possible = self._candidates(sizes[left], trials[left, attempt, tried])
            accepted = possible & _overlapping(candidates, chosen[left, attempt], left, boxes, owners)
            found = accepted.any(axis=1)
            crops[left[found]] = candidates[found, accepted.argmax(axis=1)[found]]
            applied[left[found]] = True
            left = left[~found]
        return (Crop(crops, True, applied, True),)

    def _candidates(self, sizes: Sizes, random: NDArray[np.float64]) -> tuple[NDArray[np.int32], Mask]:
        """Return boxes (top, left, height, width), int32 [n, trials, 4], and which of them have a wanted shape."""
        full = sizes[:, None]
        scale = self.min_scale + (self.max_scale - self.min_scale) * random[..., 1::-1]  # width is drawn before height
        sides = (full * scale).astype(np.int32)
        corners = ((full - sides) * random[..., :1:-1]).astype(np.int32)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = sides[..., 1] / sides[..., 0]
        possible = (self.min_aspect_ratio <= ratio) & (ratio <= self.max_aspect_ratio) & (sides > 0).all(axis=2)
        return np.concatenate((corners, sides), axis=2), possible

    def out_size(self, size: tuple[int, int] | None) -> None:
        return None


def _overlapping(
    crops: NDArray[np.int32], least: NDArray[np.float64], rows: NDArray[np.intp], boxes: Boxes, owners: Owners
) -> Mask:
    """Return which crops, [n, trials, 4], overlap enough a box whose center is in them, bool [n, trials].

    The n images are `rows`, ascending, each of which owns a box; `least` [n] is the least overlap.
    """
    positions = np.minimum(np.searchsorted(rows, owners), len(rows) - 1)
    wanted = rows[positions] == owners
    image, own = positions[wanted], boxes[wanted, None]
    low = crops[image][..., 1::-1].astype(np.float32)
    high = low + crops[image][..., :1:-1].astype(np.float32)
    sides = np.clip(np.minimum(own[..., 2:], high) - np.maximum(own[..., :2], low), np.float32(0), None)
    shared = sides[..., 0] * sides[..., 1]
    areas = (own[..., 2] - own[..., 0]) * (own[..., 3] - own[..., 1])
    areas = areas + (high[..., 0] - low[..., 0]) * (high[..., 1] - low[..., 1])
    with np.errstate(divide="ignore", invalid="ignore"):
        enough = ~(shared / (areas - shared) < least[image, None].astype(np.float32))
    found: Mask = np.logical_or.reduceat(
        enough & centers_inside(own, low, high), np.searchsorted(image, np.arange(len(rows))), axis=0
    )
    return found


@dataclass(frozen=True, slots=True)
class SanitizeBoundingBoxes:
    """Leave out boxes that are too small, and what is per box, as torchvision's SanitizeBoundingBoxes does.

    It acts on the boxes as they are delivered, wherever it is in the list of their image, or of their field.

    Args:
        min_size: the least width and height in delivered pixels.
        min_area: the least area in delivered pixels.
        min_visibility: the least share of a box's area that crops have left of it, 0 to 1. (torchvision has none.)
        kept: whether batches also have `NAME_kept`, int64, joined as the boxes `NAME` are: the number that each of them
            has among the stored boxes of its sample. (torchvision has none.)

    Raises:
        ConfigError: if an argument is out of range.
    """

    min_size: float = 1.0
    min_area: float = 1.0
    min_visibility: float = 0.0
    kept: bool = False

    def __post_init__(self) -> None:
        check_switches(kept=self.kept)
        for name in ("min_size", "min_area"):
            if not isinstance(value := getattr(self, name), (int, float)) or not value >= 1:
                raise ConfigError(f"{name} must be a number of at least 1, got {value!r}")
        if not isinstance(self.min_visibility, (int, float)) or not 0 <= self.min_visibility <= 1:
            raise ConfigError(f"min_visibility must be a share from 0 to 1, got {self.min_visibility!r}")

    def keeps(self, boxes: Boxes, unclamped: Boxes, sizes: Sizes) -> Mask:
        """Return which boxes stay, bool [N].

        Args:
            boxes: the delivered boxes, float32 [N, 4].
            unclamped: the same moved without clamping.
            sizes: the heights and widths of their delivered images, [N, 2].
        """
        (width, height), ends = (boxes[:, 2:] - boxes[:, :2]).T, sizes[:, [1, 0, 1, 0]]
        kept: Mask = (width >= self.min_size) & (height >= self.min_size) & (width * height >= self.min_area)
        kept &= ((boxes >= 0) & (boxes <= ends)).all(axis=1)
        if self.min_visibility:
            kept &= width * height >= self.min_visibility * np.prod(unclamped[:, 2:] - unclamped[:, :2], axis=1)
        return kept


@dataclass(frozen=True, slots=True)
class PadImages:
    """Pad the images of a batch to one size, so that the batch has one tensor of them.

    It comes last of the transforms that change sizes. `NAME_delivered_size` of `geometry=True` is that of the image
    within.

    Args:
        size: the (height, width) in pixels, or one number for both; None takes the greatest height and width of each
            batch. A larger image is a bad sample.
        multiple_of: the size is rounded up to multiples of this, as feature pyramids need it.
        value: the padding, before ToFloat and Normalize: one number per channel, or one for all, 0 to 255.
        place: the image's place: `"topleft"`, so that boxes stay as they are, or `"center"`, which needs `size`.

    Raises:
        ConfigError: if an argument is out of range.
    """

    size: int | tuple[int, int] | None = None
    multiple_of: int = 32
    value: int | Sequence[int] = 0
    place: Place = "topleft"

    def __post_init__(self) -> None:
        if self.size is not None:
            object.__setattr__(self, "size", as_pair(self.size, "size"))
        at_least_one(self.multiple_of, "multiple_of")
        object.__setattr__(self, "value", as_fill(self.value, "value"))
        if self.place not in get_args(Place):
            raise ConfigError(f"place must be {' or '.join(map(repr, get_args(Place)))}, got {self.place!r}")
        if self.place == "center" and self.size is None:
            raise ConfigError("place='center' needs size=, as boxes are moved before a batch's size is known")

    def steps(self, sizes: Sizes, generator: RandomGenerator) -> tuple[Step, ...]:
        """Return the padding to `size`, which must not be None."""
        canvas = np.broadcast_to(np.array(self.canvas(sizes), np.int32), sizes.shape)
        before = np.maximum(canvas - sizes, 0) // 2 if self.place == "center" else np.zeros_like(sizes)
        return (Crop(np.concatenate((-before, canvas), axis=1), fill=as_fill(self.value, "value")),)

    def out_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if self.size is None else self.canvas(np.empty((0, 2), np.int32))

    def canvas(self, sizes: Sizes) -> tuple[int, int]:
        """Return the (height, width) of a batch of images of these sizes, int32 [n, 2], in pixels."""
        greatest = sizes.max(axis=0, initial=1).tolist() if self.size is None else as_pair(self.size, "size")
        height, width = (-(-side // self.multiple_of) * self.multiple_of for side in greatest)
        return height, width
