"""The CPU engine: decode only the crop, resize straight into the batch's slot.

JPEG goes through libjpeg-turbo in one call of compiled code where that was built (see `native`), else through
nvImageCodec where it is installed: both decode a region without the rest of the image. All else, and JPEG elsewhere,
goes through OpenCV. Orientation tags are not applied, as in torchvision's decoders.
"""

import math
import os
import threading
from collections.abc import Sequence
from functools import cache, cached_property
from types import ModuleType
from typing import Any, Literal, TypeAlias, final, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from .. import native
from ..errors import BadSample, ConfigError, MissingDependency
from ..format import images
from ..system.optional import load
from ..system.types import Buffer
from ..transforms.fuse import fuse
from ..transforms.recipe import Recipe
from ..transforms.steps import Crop, Erase, Flip, Scale, Sizes, Step
from .numbers import Lookup, Numbers
from .opencv import Action, Pixels, actions, crop
from .turbo import Turbo

Decoder: TypeAlias = Literal["auto", "turbo", "nvimgcodec", "opencv"]
_Box: TypeAlias = list[int]


@final
class CpuEngine:
    """Decodes and transforms the images of one field. Threads may share it: each has a decoder of its own.

    Args:
        recipe: the field's transforms.
        channels: 3 for RGB, 1 for grey.
        decoder: `"turbo"` (compiled), `"nvimgcodec"`, `"opencv"`, or `"auto"` for the fastest one that is there. What
            the first two refuse goes to OpenCV.
    """

    def __init__(
        self, recipe: Recipe, *, channels: int, decoder: Decoder = "auto", channels_last: bool = False
    ) -> None:
        self.numbers = Numbers(recipe, channels, channels_last)
        self.recipe = recipe
        self._channels = channels
        self._lookup = Lookup(self.numbers)
        if decoder not in get_args(Decoder):
            raise ConfigError(f"decoder must be one of {', '.join(get_args(Decoder))}, got {decoder!r}")
        if decoder == "turbo" and native.library() is None:
            raise MissingDependency("the decoder 'turbo' needs the compiled part of shardio: see docs/install.md")
        compiled = decoder in ("auto", "turbo") and native.library() is not None
        # It writes bytes by pixel, or float32 by channel.
        planes = recipe.dtype == "float32" and not channels_last
        self._turbo = Turbo(channels, None) if compiled else None
        self._turbo_planes = Turbo(channels, recipe.affine) if compiled and planes else None
        self._decoder_name = decoder
        if decoder == "nvimgcodec":
            _nvimgcodec(required=True)
        self._local = threading.local()

    def __call__(
        self, encoded: Sequence[Buffer], sizes: Sizes, steps: Sequence[Step], out: NDArray[Any] | None
    ) -> list[NDArray[Any]] | None:
        """Decodes and transforms some images.

        Args:
            encoded: the image files.
            sizes: their heights and widths in pixels, int32 [n, 2].
            steps: from `Recipe.steps`, with a row for each of them.
            out: `[len(encoded), *numbers.shape(size)]`, filled; None where sizes differ.

        Returns:
            None with `out`, else an array per image.

        Raises BadImage, which knows the image's place in `encoded`.
        """
        end = len(steps) - self.recipe.erasings
        way = _Way(steps[:end], steps[end:])
        left = list(range(len(encoded))) if out is None else self._at_once(encoded, sizes, way, out)
        results = []
        for place in left:
            try:
                data = bytes(encoded[place])
                made = self._one(place, data, sizes[place].tolist(), way, None if out is None else out[place])
            except (BadSample, cv2.error) as error:
                raise BadImage(place, str(error)) from error
            if out is None:
                results.append(made)
        return results if out is None else None

    def _at_once(self, encoded: Sequence[Buffer], sizes: Sizes, way: "_Way", out: NDArray[Any]) -> list[int]:
        """Makes those that compiled code takes; the places of the others."""
        size = self.recipe.size
        sized = not any(isinstance(step, Crop | Scale) for step in way.rest)
        fused = fuse(way.first, sizes) if sized and self._turbo is not None else None
        if fused is None or self._turbo is None or size is None:
            return list(range(len(encoded)))
        direct = self._turbo if self.recipe.affine is None else self._turbo_planes
        if direct is not None and not way.rest and not way.last:
            return direct(encoded, fused, out)
        pixels = self._scratch((len(encoded), *size, self._channels))
        left = self._turbo(encoded, fused, pixels)
        for place in sorted({*range(len(encoded))} - {*left}):
            self._finish(place, pixels[place], way, out[place])
        return left

    def _scratch(self, shape: tuple[int, ...]) -> Pixels:
        """Memory of this thread, with whatever is in it."""
        held = getattr(self._local, "scratch", None)
        if held is None or held.size < math.prod(shape):
            held = self._local.scratch = np.empty(math.prod(shape), np.uint8)
        pixels: Pixels = held[: math.prod(shape)].reshape(shape)
        return pixels

    def _one(self, place: int, data: bytes, size: list[int], way: "_Way", slot: NDArray[Any] | None) -> NDArray[Any]:
        before, target = way.before, slot if self.recipe.affine is None else None
        first = bool(before) and isinstance(before[0].step, Crop)
        pixels = self._decode(data, size, before[0].rows[place] if first else None)
        for action in before[first:]:
            pixels = action(pixels, place, target)
        return self._finish(place, pixels, way, slot)

    def _finish(self, place: int, pixels: Pixels, way: "_Way", slot: NDArray[Any] | None) -> NDArray[Any]:
        for action in way.after:
            pixels = action(pixels, place)
        made = self._lookup(pixels, slot)
        for step in way.last:
            self._erase(step, place, made)
        return made

    def _erase(self, step: Step, place: int, made: NDArray[Any]) -> None:
        """Sets a box of numbers."""
        if isinstance(step, Erase) and step.mask[place]:
            top, left, height, width = step.boxes[place].tolist()
            by_channel = made if self.numbers.channels_last else made.transpose(1, 2, 0)
            by_channel[top : top + height, left : left + width] = self.numbers.held(np.array(step.value, np.float32))

    def _decode(self, data: bytes, size: list[int], box: _Box | None) -> Pixels:
        """The pixels in `box`, or all of them; a view that holds until this thread decodes again."""
        if self._decoder_name in ("auto", "nvimgcodec") and data[:3] == b"\xff\xd8\xff":
            codec = _nvimgcodec(required=False)  # asked for here: with the compiled part it is hardly ever needed
            pixels = None if codec is None else self._decode_region(codec, data, size, box)
            if pixels is not None:
                return pixels
        whole = self._decode_whole(data)
        _check_size([*whole.shape[:2]], size)
        return whole if box is None else crop(whole, box)

    def _decode_region(self, codec: ModuleType, data: bytes, size: list[int], box: _Box | None) -> Pixels | None:
        decoder, params, image = self._decoder(codec)
        try:
            stream = codec.CodeStream(data)
            _check_size([stream.height, stream.width], size)
            if box is not None:
                top, left, height, width = box
                if top < 0 or left < 0 or top + height > stream.height or left + width > stream.width:
                    return None
                if height < stream.height or width < stream.width:
                    stream = stream.get_sub_code_stream(region=codec.Region(top, left, top + height, left + width))
            decoded = (
                decoder.decode(stream, params=params)
                if image is None
                else decoder.decode(stream, image=image, params=params)
            )
        except RuntimeError:
            return None  # a header that it does not take; OpenCV has the last word
        if decoded is None:
            return None
        # The next image is decoded into the same memory: it stays in the cache of this core.
        self._local.state = (os.getpid(), decoder, params, decoded)
        pixels: Pixels = np.asarray(decoded)
        return pixels

    def _decoder(self, codec: ModuleType) -> tuple[Any, Any, Any]:
        state = getattr(self._local, "state", None)
        if state is None or state[0] != os.getpid():
            decoder = codec.Decoder(
                device_id=codec.NVIMGCODEC_DEVICE_CPU_ONLY,
                backends=[codec.Backend(codec.BackendKind.CPU_ONLY)],
                max_num_cpu_threads=1,
                options=":fancy_upsampling=0",
            )
            color = codec.ColorSpec.SRGB if self._channels == 3 else codec.ColorSpec.GRAY
            params = codec.DecodeParams(apply_exif_orientation=False, color_spec=color)
            state = self._local.state = (os.getpid(), decoder, params, None)
        return state[1], state[2], state[3]

    def _decode_whole(self, data: bytes) -> Pixels:
        color = cv2.IMREAD_COLOR_RGB if self._channels == 3 else cv2.IMREAD_GRAYSCALE
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), color | cv2.IMREAD_IGNORE_ORIENTATION) if data else None
        if pixels is None:
            images.probe(data)  # says what is wrong, if the file's outside shows it
            raise BadSample(f"the {images.sniff(data)} image of {len(data)} bytes does not decode")
        whole: Pixels = np.asarray(pixels, np.uint8)
        return whole.reshape(*whole.shape[:2], self._channels)


def _check_size(found: list[int], stored: list[int]) -> None:
    """Crops are chosen by the sizes that were stored, which no checksum covers."""
    if found != stored:
        raise BadSample(f"the image is {found[0]} x {found[1]} pixels, {stored[0]} x {stored[1]} were stored")


class BadImage(BadSample):
    """An image that cannot be decoded, and its place among those that were handed over."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place


@cache
def _nvimgcodec(*, required: bool) -> ModuleType | None:
    try:
        return load("nvidia.nvimgcodec", purpose="the decoder 'nvimgcodec'", extra="cpu")
    except MissingDependency:
        if required:
            raise
        return None


class _Way:
    """A list of steps as an engine goes through it.

    Attributes:
        first, rest: the crops, resizes and mirrors that it begins with, and what comes behind the first other step.
        last: what comes behind the change to numbers.
    """

    def __init__(self, steps: Sequence[Step], last: Sequence[Step]) -> None:
        moves = [isinstance(step, Crop | Scale | Flip) for step in steps]
        cut = moves.index(False) if False in moves else len(steps)
        self.first, self.rest, self.last = steps[:cut], steps[cut:], last
        self._steps, self._cut = steps, cut

    @cached_property
    def _actions(self) -> list[Action]:  # compiled code mostly leaves nothing for them
        return actions(self._steps)

    @property
    def before(self) -> list[Action]:
        """What `first` comes to."""
        return self._actions[: self._cut]

    @property
    def after(self) -> list[Action]:
        """What `rest` comes to."""
        return self._actions[self._cut :]
