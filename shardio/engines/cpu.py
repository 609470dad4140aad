"""The CPU engine: it decodes only the crop and resizes it straight into the batch.

Compiled code decodes JPEG files with libjpeg-turbo, many per call and only the region that a crop shows, and resizes
all images, where it was built (see `native`). Pillow decodes all else, and does everything where the compiled part is
missing. EXIF orientations are applied only where they are given.
"""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, final, get_args

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..errors import BadSample, ConfigError
from ..format.limits import MAX_IMAGE_PIXELS
from ..system.types import Buffer
from ..transforms.fuse import EngineStep, FusedSteps, fuse
from ..transforms.recipe import Recipe
from ..transforms.steps import Crop, Erase, Flip, Scale, Sizes
from . import whole_images
from .base import rows_of
from .fused_images import Decode, FusedImages, Refused, Wanted
from .orientation import Orientations, make_upright
from .output_format import OutputFormat, OutputWriter, PixelArray
from .resizing import cropped, resize
from .size_preserving_steps import carry_out
from .video_frames import VideoFrames

Images: TypeAlias = Sequence[Buffer] | NDArray[np.uint8] | VideoFrames
"""Image files, the pixels of images of one size, [n, height, width, channels], or frames of videos."""
Failed: TypeAlias = dict[int, BadSample] | None
"""Receives the errors of images that cannot be decoded, by position; with None the first of these errors is raised."""


@dataclass(frozen=True, slots=True)
class Given:
    """The images of one call, as `CpuEngine.__call__` takes them."""

    stored: Images
    sizes: Sizes
    orientations: Orientations | None

    def row(self, row: int) -> "Given":
        rows = slice(row, row + 1)
        own = None if self.orientations is None else self.orientations[rows]
        stored = self.stored[rows] if isinstance(self.stored, np.ndarray | VideoFrames) else [self.stored[row]]
        return Given(stored, self.sizes[rows], own)

    def pixels(self, row: int, decode: Callable[[bytes], NDArray[Any]]) -> NDArray[Any]:
        """Return the pixels of an image, upright if its orientation is given; BadSample for another size."""
        pixels: NDArray[Any]
        if isinstance(self.stored, np.ndarray):
            pixels = self.stored[row]
            return pixels
        if isinstance(self.stored, VideoFrames):
            pixels = self.stored.pixels(row)
        else:
            pixels = decode(bytes(self.stored[row]))
        if self.orientations is not None:
            pixels = make_upright(pixels, self.orientations[row])
        whole_images.check_size(pixels.shape[:2], self.sizes[row].tolist())
        return pixels

    def make(self, wanted: Sequence[Wanted]) -> list[Refused]:
        """Let compiled code carry out leading steps; return the rows that it leaves, for each that is wanted."""
        if isinstance(self.stored, VideoFrames):
            return wanted[0][0].make(self.stored.table(), wanted, self.orientations, encoded=False, frames=True)
        encoded = not isinstance(self.stored, np.ndarray)
        return wanted[0][0].make(self.stored, wanted, self.orientations, encoded=encoded) if wanted else []


@final
class CpuEngine:
    """Decodes and transforms the images of one field. Threads may share it: each has a decoder of its own.

    Args:
        recipe: the field's transforms.
        channels: 3 for RGB, 1 for grey.
        decode: how JPEG files are decoded, see `FusedImages`.
        channels_last: whether floats are stored as HWC rather than CHW.
        max_pixels: the most pixels that decoding an image may hold at once, see `Limits.max_image_pixels`.

    Raises:
        ConfigError: for another way to decode.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        channels: int,
        decode: Decode = "exact",
        channels_last: bool = False,
        max_pixels: int = MAX_IMAGE_PIXELS,
    ) -> None:
        self.output_format = OutputFormat(recipe, channels, channels_last)
        self.recipe = recipe
        self._channels, self._max_pixels = channels, max_pixels
        self._write = OutputWriter(self.output_format)
        if decode not in get_args(Decode):
            raise ConfigError("{decode} must be {}, got {!r}", " or ".join(map(repr, get_args(Decode))), decode)
        self._decode = partial(whole_images.decode, channels=channels, max_pixels=max_pixels)
        self._local = threading.local()
        self._fused = self._fused_floats = None
        if native.library() is not None:  # it writes uint8 as HWC, or float32 as CHW
            self._fused = FusedImages(channels, decode=decode, max_pixels=max_pixels)
            if recipe.dtype == "float32" and not channels_last:
                normalization = recipe.normalization
                self._fused_floats = FusedImages(channels, normalization, decode=decode, max_pixels=max_pixels)

    @property
    def keeps_pixels(self) -> bool:
        """Whether images that are given as pixels come out as they are."""
        return not self.recipe.transforms and self.recipe.normalization is None

    def __call__(
        self,
        stored: Images,
        sizes: Sizes,
        steps: Sequence[EngineStep],
        out: NDArray[Any] | None,
        orientations: Orientations | None = None,
        failed: Failed = None,
    ) -> list[NDArray[Any]] | None:
        """Decode and transform some images.

        Args:
            stored: the images, as they are stored.
            sizes: their heights and widths in pixels, int32 [n, 2]; of upright images with `orientations`.
            steps: the steps of `Recipe.steps`, with a row per image.
            out: the array to fill, `[n, *output_format.shape(size)]`; None if results differ in size.
            orientations: the EXIF orientations of image files, to rotate them upright; None keeps all as stored.
            failed: receives the errors of images that cannot be decoded, by position; their results mean nothing.

        Returns:
            None with `out`, else a list of one array per image.

        Raises:
            BadSample: without `failed`, for the first image that cannot be decoded.
        """
        given, steps = Given(stored, sizes, orientations), self.fuse(steps, sizes)
        if (batch := self.begin(given, steps, out)) is not None:
            self.complete(batch, given.make([batch.wanted])[0], failed)
            return None
        fused, rest, erasings = self._divided(steps, sizes)
        results = []
        for row in range(len(stored)):
            slot = None if out is None else out[row]
            try:
                if fused is None or self._fused is None:
                    pixels = given.pixels(row, self._decode)
                else:
                    size = fused.results[row].tolist()
                    if math.prod(size) > self._max_pixels:
                        given.pixels(row, self._decode)  # says that the image claims so many pixels, if it does
                        self._check_scale(size)
                    pixels = np.empty((*size, self._channels), np.uint8)
                    one, wanted = given.row(row), (self._fused, rows_of(fused, [row]), pixels[None])
                    self._make_refused(one, wanted, one.make([wanted])[0], None)
                result = self._finish(row, pixels, rest, erasings, slot)
            except BadSample as error:
                result = failed_image(row, error, failed)
            if out is None:
                results.append(result)
        return results if out is None else None

    def fuse(self, steps: Sequence[EngineStep], sizes: Sizes) -> Sequence[EngineStep]:
        """Return the steps with as many leading crops, resizes and flips as one as compiled code carries out."""
        if self._fused is None or any(isinstance(step, FusedSteps) for step in steps):
            return steps
        moves = [isinstance(step, Crop | Scale | Flip) for step in steps[: len(steps) - self.recipe.erasings]]
        cut = moves.index(False) if False in moves else len(moves)
        while (fused := fuse(steps[:cut], sizes)) is None:
            cut -= 1
        return fused, *steps[cut:]

    def _divided(
        self, steps: Sequence[EngineStep], sizes: Sizes
    ) -> tuple[FusedSteps | None, Sequence[EngineStep], list[Erase]]:
        """Return the leading steps, if compiled code carries them out, all others, and those after the conversion."""
        steps = self.fuse(steps, sizes)
        end = len(steps) - self.recipe.erasings
        erasings = [step for step in steps[end:] if isinstance(step, Erase)]
        first = steps[0] if steps else None
        return (first, steps[1:end], erasings) if isinstance(first, FusedSteps) else (None, steps[:end], erasings)

    def begin(self, given: Given, steps: Sequence[EngineStep], out: NDArray[Any] | None) -> "_Batch | None":
        """Return how compiled code makes images of one size in `out`; None if it cannot."""
        fused, rest, erasings = self._divided(steps, given.sizes)
        if out is None or fused is None or self._fused is None or any(isinstance(each, Crop | Scale) for each in rest):
            return None
        as_bytes = self.recipe.normalization is None
        last = self._fused if as_bytes else self._fused_floats
        if last is not None and (as_bytes or not rest):
            return _Batch(given, (last, fused, out), rest, erasings, out)
        pixels = self._scratch((len(given.stored), *fused.results[0].tolist(), self._channels))
        return _Batch(given, (self._fused, fused, pixels), rest, erasings, out)

    def complete(self, batch: "_Batch", refused: Refused, failed: Failed) -> None:
        """Make what compiled code refused, and carry out the steps that it does not know."""
        _, fused, pixels = batch.wanted
        self._make_refused(batch.given, batch.wanted, refused, failed)
        carry_out(pixels, [step for step in batch.rest if not isinstance(step, Crop | Scale | FusedSteps)])
        if pixels is not batch.out:
            self._convert(pixels, fused.results, batch.out)
        for erasing in batch.erasings:
            for row in np.flatnonzero(erasing.mask).tolist():
                self._erase(erasing, row, batch.out[row])

    def _convert(self, pixels: PixelArray, sizes: Sizes, out: NDArray[Any]) -> None:
        if self._fused_floats is None:
            self._write.convert(pixels, out)
        elif self._fused_floats.resize(pixels, FusedSteps.of_resize(sizes, sizes, "nearest", antialias=True), out):
            raise MemoryError("there is no memory to convert images")

    def _make_refused(self, given: "Given", wanted: Wanted, refused: Refused, failed: Failed) -> None:
        """Carry out fused steps on images that compiled code does not decode, which Pillow does."""
        images, fused, out = wanted
        for row, late in refused.items():
            try:
                whole_images.check_time(late=late)
                pixels = given.pixels(row, self._decode)
                self._check_scale(fused.resized[row].tolist())
            except BadSample as error:
                failed_image(row, error, failed)
                continue
            if images.resize([pixels], rows_of(fused, [row]), out[row : row + 1]):
                raise MemoryError("there is no memory to resize an image")

    def _scratch(self, shape: tuple[int, ...]) -> PixelArray:
        """Return uninitialized memory of this thread, valid until its next call."""
        held = getattr(self._local, "scratch", None)
        if held is None or held.size < math.prod(shape):
            held = self._local.scratch = np.empty(math.prod(shape), np.uint8)
        pixels: PixelArray = held[: math.prod(shape)].reshape(shape)
        return pixels

    def _finish(
        self,
        row: int,
        pixels: PixelArray,
        steps: Sequence[EngineStep],
        erasings: Sequence[Erase],
        slot: NDArray[Any] | None,
    ) -> NDArray[Any]:
        """Carry out all steps on an image, one by one, and convert it."""
        for step in steps:
            match step:
                case Crop(boxes):
                    pixels = cropped(pixels, boxes[row].tolist(), step.fill)
                case Scale(sizes, interpolation, antialias):
                    height, width = sizes[row].tolist()
                    self._check_scale((height, width))
                    pixels = resize(pixels, (height, width), interpolation, antialias)
                case _ if not isinstance(step, FusedSteps) and step.mask[row]:
                    pixels = pixels.copy()
                    carry_out(pixels[None], [rows_of(step, [row])])
        result = self._write(pixels, slot)
        for erasing in erasings:
            if erasing.mask[row]:
                self._erase(erasing, row, result)
        return result

    def _check_scale(self, size: Sequence[int]) -> None:
        """Raise BadSample if an image of one row and many columns, or the other way round, would grow beyond limits."""
        height, width = size
        if height * width > self._max_pixels:
            raise BadSample(
                "the image is resized to {} x {}: {max_image_pixels} allows {}", height, width, self._max_pixels
            )

    def _erase(self, step: Erase, row: int, result: NDArray[Any]) -> None:
        """Set a box of the converted image to the step's value."""
        top, left, height, width = step.boxes[row].tolist()
        by_pixel = result if self.output_format.channels_last else result.transpose(1, 2, 0)
        by_pixel[top : top + height, left : left + width] = self.output_format.cast(np.array(step.value, np.float32))


@dataclass(frozen=True, slots=True)
class _Batch:
    """Images of one size that compiled code makes.

    Attributes:
        given: the images.
        wanted: the leading steps, and the array for what they make: `out`, or pixels for the other steps.
        rest: the other steps, on uint8, which preserve sizes.
        erasings: the steps after the conversion to floats.
        out: the array for the results.
    """

    given: Given
    wanted: Wanted
    rest: Sequence[EngineStep]
    erasings: Sequence[Erase]
    out: NDArray[Any]


def make_images(
    engines: Sequence[Callable[..., list[NDArray[Any]] | None]],
    stored: Images,
    sizes: Sizes,
    steps: Sequence[Sequence[EngineStep]],
    outs: Sequence[NDArray[Any] | None],
    orientations: Orientations | None = None,
    failed: Failed = None,
) -> list[list[NDArray[Any]] | None]:
    """Make images as each of several engines does, CPU engines or others, with its own steps into its own array.

    CPU engines decode each file once for all of them, where that takes less time. Returns what each engine returns, and
    raises what it raises; `failed` receives the errors of what one of them could not make.
    """
    given = Given(stored, sizes, orientations)
    begun = [
        (engine, batch)
        for engine, own, out in zip(engines, steps, outs, strict=True)
        if isinstance(engine, CpuEngine) and (batch := engine.begin(given, own, out)) is not None
    ]
    for (engine, batch), refused in zip(begun, given.make([batch.wanted for _, batch in begun]), strict=True):
        engine.complete(batch, refused, failed)
    done = [engine for engine, _ in begun]
    return [
        None if engine in done else engine(stored, sizes, own, out, orientations, failed)
        for engine, own, out in zip(engines, steps, outs, strict=True)
    ]


def failed_image(row: int, error: BadSample, failed: Failed) -> NDArray[Any]:
    """Raise the error of the image at a place, or add it to `failed`, and return what stands for the image."""
    if failed is None:
        raise error
    failed[row] = error.with_traceback(None)  # whose frames refer to `failed`
    return np.empty(0, np.uint8)
