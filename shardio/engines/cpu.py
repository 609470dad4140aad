"""The CPU engine: decode only the crop, resize straight into the batch's slot.

JPEG goes through libjpeg-turbo in one call of compiled code where that was built (see `native`), else through
nvImageCodec where it is installed: both decode a region without the rest of the image. All else, and JPEG elsewhere,
goes through OpenCV. Orientation tags are not applied, as in torchvision's decoders.
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Literal, TypeAlias, final, get_args

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from .. import images, native
from .._optional import load
from ..augment import Crop, Flip, Interpolation, Scale, Sizes, Step
from ..errors import BadSample, ConfigError, MissingDependency
from ..fuse import fuse
from ..recipe import Recipe
from ..types import Buffer
from .turbo import Turbo

Decoder: TypeAlias = Literal["auto", "turbo", "nvimgcodec", "opencv"]
Pixels: TypeAlias = NDArray[np.uint8]
_Box: TypeAlias = list[int]

_INTERPOLATIONS = {"nearest": cv2.INTER_NEAREST, "bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}


@final
class CpuEngine:
    """Decodes and transforms the images of one field. Threads may share it: each has a decoder of its own.

    Args:
        recipe: the field's transforms.
        channels: 3 for RGB, 1 for grey.
        decoder: `"turbo"` (compiled), `"nvimgcodec"`, `"opencv"`, or `"auto"` for the fastest one that is there. What
            the first two refuse goes to OpenCV.
    """

    def __init__(self, recipe: Recipe, *, channels: int, decoder: Decoder = "auto") -> None:
        self._recipe = recipe
        self._channels = channels
        if decoder not in get_args(Decoder):
            raise ConfigError(f"decoder must be one of {', '.join(get_args(Decoder))}, got {decoder!r}")
        if decoder == "turbo" and native.library() is None:
            raise MissingDependency("the decoder 'turbo' needs the compiled part of shardio: see docs/install.md")
        wanted = decoder in ("auto", "turbo") and native.library() is not None
        self._turbo = Turbo(channels, recipe.affine) if wanted else None
        self._decoder_name = decoder
        if decoder == "nvimgcodec":
            _nvimgcodec(required=True)
        self._local = threading.local()

    @property
    def out_dtype(self) -> np.dtype[Any]:
        """uint8, or float32 after ToFloat or Normalize."""
        return np.dtype(np.uint8 if self._recipe.affine is None else np.float32)

    def out_shape(self, size: tuple[int, int]) -> tuple[int, ...]:
        """The shape of one result of (height, width) pixels: HWC for uint8, CHW for float32."""
        return (*size, self._channels) if self._recipe.affine is None else (self._channels, *size)

    def __call__(
        self, encoded: Sequence[Buffer], sizes: Sizes, steps: Sequence[Step], out: NDArray[Any] | None
    ) -> list[NDArray[Any]] | None:
        """Decodes and transforms some images.

        Args:
            encoded: the image files.
            sizes: their heights and widths in pixels, int32 [n, 2].
            steps: from `Recipe.steps`, with a row for each of them.
            out: `[len(encoded), *out_shape]`, filled; None where sizes differ.

        Returns:
            None with `out`, else an array per image.

        Raises BadImage, which knows the image's place in `encoded`.
        """
        if out is not None and self._turbo is not None and (fused := fuse(steps, sizes)) is not None:
            left = self._turbo(encoded, fused, out)
            if not left:
                return None
        else:
            left = list(range(len(encoded)))
        actions = _actions(steps)
        results = []
        for place in left:
            try:
                made = self._one(
                    place, bytes(encoded[place]), sizes[place].tolist(), actions, None if out is None else out[place]
                )
            except (BadSample, cv2.error) as error:
                raise BadImage(place, str(error)) from error
            if out is None:
                results.append(made)
        return results if out is None else None

    def _one(
        self, place: int, data: bytes, size: list[int], actions: list["_Action"], slot: NDArray[Any] | None
    ) -> NDArray[Any]:
        affine = self._recipe.affine
        target = slot if affine is None else None
        first = bool(actions) and actions[0].kind is Crop
        pixels = self._decode(data, size, actions[0].rows[place] if first else None)
        for action in actions[first:]:
            if action.kind is Crop:
                pixels = _crop(pixels, action.rows[place])
            elif action.kind is Scale:
                pixels = _resize(pixels, action, action.rows[place], target if action.final else None)
            elif action.rows[place]:
                pixels = _keep_channels(cv2.flip(pixels, 1, dst=target if action.final else None), pixels)
        if affine is not None:
            return _to_float(pixels, affine, slot)
        if slot is None:
            return pixels.copy()
        if pixels.shape != slot.shape:
            raise BadSample(
                f"the image is {pixels.shape}, the batch's images are {slot.shape} (height, width, channels)"
            )
        if pixels is not slot:  # OpenCV gives back the very array that it was told to write into
            slot[...] = pixels
        return slot

    def _decode(self, data: bytes, size: list[int], box: _Box | None) -> Pixels:
        """The pixels in `box`, or all of them; a view that holds until this thread decodes again."""
        if self._decoder_name in ("auto", "nvimgcodec") and data[:3] == b"\xff\xd8\xff":
            codec = _nvimgcodec(required=False)  # asked for here: with the compiled part it is hardly ever needed
            pixels = None if codec is None else self._decode_region(codec, data, size, box)
            if pixels is not None:
                return pixels
        whole = self._decode_whole(data)
        _check_size([*whole.shape[:2]], size)
        return whole if box is None else _crop(whole, box)

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


@dataclass(frozen=True, slots=True)
class _Action:
    """A step as plain Python values: reading NumPy scalars one by one costs more than the work that they steer.

    Attributes:
        kind: of the step.
        rows: for each image its box, its size, or whether to flip it.
        interpolation: how to resize.
        antialias: whether to average over the source area when shrinking.
        final: whether the result may be written into the slot. A later step that changes the size would read what it
            overwrites.
    """

    kind: type[Step]
    rows: list[Any]
    final: bool
    interpolation: Interpolation = "bilinear"
    antialias: bool = False


def _actions(steps: Sequence[Step]) -> list[_Action]:
    last = max((place for place, step in enumerate(steps) if not isinstance(step, Flip)), default=-1)
    return [_action(step, place >= last) for place, step in enumerate(steps)]


def _action(step: Step, final: bool) -> _Action:
    match step:
        case Crop(boxes):
            return _Action(Crop, boxes.tolist(), final)
        case Scale(sizes, interpolation, antialias):
            return _Action(Scale, sizes.tolist(), final, interpolation, antialias)
        case Flip(mask):
            return _Action(Flip, mask.tolist(), final)


def _crop(pixels: Pixels, box: _Box) -> Pixels:
    top, left, height, width = box
    inside = pixels[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    if inside.shape[:2] == (height, width):
        return inside
    padded = np.zeros((height, width, pixels.shape[2]), np.uint8)
    y, x = max(-top, 0), max(-left, 0)
    padded[y : y + inside.shape[0], x : x + inside.shape[1]] = inside
    return padded


def _resize(pixels: Pixels, action: _Action, size: list[int], target: Pixels | None) -> Pixels:
    height, width = size
    if action.antialias and action.interpolation != "nearest" and (height < pixels.shape[0] or width < pixels.shape[1]):
        return _shrink(pixels, size, action.interpolation)
    # A target of another size is none: OpenCV then makes an array of its own.
    made = cv2.resize(pixels, (width, height), dst=target, interpolation=_INTERPOLATIONS[action.interpolation])
    return _keep_channels(made, pixels)


def _shrink(pixels: Pixels, size: list[int], interpolation: str) -> Pixels:
    """With a filter as wide as the step between pixels. OpenCV has none but the plain average, which is slower, too."""
    source = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1).unsqueeze(0)
    made = torch.nn.functional.interpolate(source, size, mode=interpolation, antialias=True)
    result: Pixels = made[0].permute(1, 2, 0).numpy()
    return result


def _keep_channels(made: Any, source: Pixels) -> Pixels:
    """OpenCV drops a last axis of one; put it back."""
    result: Pixels = made if made.ndim == 3 else made.reshape(*made.shape, source.shape[2])
    return result


def _to_float(pixels: Pixels, affine: NDArray[np.float32], slot: NDArray[Any] | None) -> NDArray[np.float32]:
    shape = (pixels.shape[2], *pixels.shape[:2])
    if slot is not None and slot.shape != shape:
        raise BadSample(f"the image is {shape}, the batch's images are {slot.shape} (channels, height, width)")
    out = np.empty(shape, np.float32) if slot is None else slot
    for channel, (factor, offset) in enumerate(affine):
        np.multiply(pixels[:, :, channel], factor, out=out[channel])
        if offset:
            out[channel] += offset
    return out
