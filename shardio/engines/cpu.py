"""The CPU engine: it decodes only the crop and resizes it straight into the batch.

Compiled code decodes JPEG files with libjpeg-turbo, many per call, where it was built (see `native`). Otherwise
nvImageCodec decodes them where it is installed. Both decode a region without the rest of the image. OpenCV decodes all
else. Orientation tags are not applied, as in torchvision's decoders.
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
from ..format.images import check_pixels
from ..format.limits import MAX_IMAGE_PIXELS
from ..system.optional import load
from ..system.types import Buffer
from ..transforms.fuse import fuse
from ..transforms.recipe import Recipe
from ..transforms.steps import Crop, Erase, Flip, Scale, Sizes, Step
from . import image_decoding
from .libjpeg_turbo import JpegDecoder
from .opencv_steps import PixelArray, PreparedStep, crop, prepare
from .output_format import OutputFormat, OutputWriter

Decoder: TypeAlias = Literal["auto", "turbo", "nvimgcodec", "opencv"]


@final
class CpuEngine:
    """Decodes and transforms the images of one field. Threads may share it: each has a decoder of its own.

    Args:
        recipe: the field's transforms.
        channels: 3 for RGB, 1 for grey.
        decoder: `"turbo"` (compiled), `"nvimgcodec"`, `"opencv"`, or `"auto"` for the fastest available one. OpenCV
            decodes what the first two reject.
        channels_last: whether floats are stored as HWC rather than CHW.
        max_pixels: the most pixels that decoding an image may hold at once, see `Limits.max_image_pixels`.

    Raises:
        ConfigError: for another decoder.
        MissingDependency: if the decoder is not available.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        channels: int,
        decoder: Decoder = "auto",
        channels_last: bool = False,
        max_pixels: int = MAX_IMAGE_PIXELS,
    ) -> None:
        self.output_format = OutputFormat(recipe, channels, channels_last)
        self.recipe = recipe
        self._channels, self._max_pixels = channels, max_pixels
        self._write = OutputWriter(self.output_format)
        if decoder not in get_args(Decoder):
            raise ConfigError(f"decoder must be one of {', '.join(get_args(Decoder))}, got {decoder!r}")
        if decoder == "turbo" and native.library() is None:
            raise MissingDependency("the decoder 'turbo' needs the compiled part of shardio: see docs/install.md")
        compiled = decoder in ("auto", "turbo") and native.library() is not None
        # It writes uint8 as HWC, or float32 as CHW.
        float_planes = recipe.dtype == "float32" and not channels_last
        self._jpeg_decoder = JpegDecoder(channels, None, max_pixels) if compiled else None
        self._float_jpeg_decoder = (
            JpegDecoder(channels, recipe.affine, max_pixels) if compiled and float_planes else None
        )
        self._decoder_name = decoder
        if decoder == "nvimgcodec":
            _nvimgcodec(required=True)
        self._local = threading.local()

    def __call__(
        self, encoded: Sequence[Buffer], sizes: Sizes, steps: Sequence[Step], out: NDArray[Any] | None
    ) -> list[NDArray[Any]] | None:
        """Decode and transform some images.

        Args:
            encoded: the image files.
            sizes: their heights and widths in pixels, int32 [n, 2].
            steps: the steps of `Recipe.steps`, with a row per image.
            out: the array to fill, `[n, *output_format.shape(size)]`; None if results differ in size.

        Returns:
            None with `out`, else a list of one array per image.

        Raises:
            BadImage: for the first image that cannot be decoded; `place` is its place in `encoded`.
        """
        end = len(steps) - self.recipe.erasings
        sequence = _StepSequence(steps[:end], steps[end:])
        left = list(range(len(encoded))) if out is None else self._decode_fused(encoded, sizes, sequence, out)
        results = []
        for row in left:
            try:
                slot = None if out is None else out[row]
                result = self._make_one(row, bytes(encoded[row]), sizes[row].tolist(), sequence, slot)
            except (BadSample, cv2.error) as error:
                raise BadImage(row, str(error)) from error
            if out is None:
                results.append(result)
        return results if out is None else None

    def _decode_fused(
        self, encoded: Sequence[Buffer], sizes: Sizes, sequence: "_StepSequence", out: NDArray[Any]
    ) -> list[int]:
        """Make the images that compiled code can make; return the rows of the others."""
        size = self.recipe.size
        resized_later = any(isinstance(step, Crop | Scale) for step in sequence.rest)
        fused = fuse(sequence.leading, sizes) if not resized_later and self._jpeg_decoder is not None else None
        if fused is None or self._jpeg_decoder is None or size is None:
            return list(range(len(encoded)))
        direct = self._jpeg_decoder if self.recipe.affine is None else self._float_jpeg_decoder
        if direct is not None and not sequence.rest and not sequence.erasings:
            return direct(encoded, fused, out)
        pixels = self._scratch((len(encoded), *size, self._channels))
        left = self._jpeg_decoder(encoded, fused, pixels)
        for row in sorted({*range(len(encoded))} - {*left}):
            self._finish(row, pixels[row], sequence, out[row])
        return left

    def _scratch(self, shape: tuple[int, ...]) -> PixelArray:
        """Return uninitialized memory of this thread, valid until its next call."""
        held = getattr(self._local, "scratch", None)
        if held is None or held.size < math.prod(shape):
            held = self._local.scratch = np.empty(math.prod(shape), np.uint8)
        pixels: PixelArray = held[: math.prod(shape)].reshape(shape)
        return pixels

    def _make_one(
        self, row: int, data: bytes, size: list[int], sequence: "_StepSequence", slot: NDArray[Any] | None
    ) -> NDArray[Any]:
        leading, target = sequence.prepared_leading, slot if self.recipe.affine is None else None
        crops_first = bool(leading) and isinstance(leading[0].step, Crop)
        pixels = self._decode(data, size, leading[0].rows[row] if crops_first else None)
        for step in leading[crops_first:]:
            self._check_scale(step, row)
            pixels = step(pixels, row, target)
        return self._finish(row, pixels, sequence, slot)

    def _finish(
        self, row: int, pixels: PixelArray, sequence: "_StepSequence", slot: NDArray[Any] | None
    ) -> NDArray[Any]:
        for step in sequence.prepared_rest:
            self._check_scale(step, row)
            pixels = step(pixels, row)
        result = self._write(pixels, slot)
        for erasing in sequence.erasings:
            self._erase(erasing, row, result)
        return result

    def _check_scale(self, step: PreparedStep, row: int) -> None:
        """Raise BadSample if an image of one row and many columns, or the other way round, would grow beyond limits."""
        if isinstance(step.step, Scale) and math.prod(step.rows[row]) > self._max_pixels:
            height, width = step.rows[row]
            raise BadSample(f"the image is resized to {height} x {width}: max_image_pixels allows {self._max_pixels}")

    def _erase(self, step: Step, row: int, result: NDArray[Any]) -> None:
        """Set a box of the converted image to the step's value."""
        if isinstance(step, Erase) and step.mask[row]:
            top, left, height, width = step.boxes[row].tolist()
            by_pixel = result if self.output_format.channels_last else result.transpose(1, 2, 0)
            by_pixel[top : top + height, left : left + width] = self.output_format.cast(
                np.array(step.value, np.float32)
            )

    def _decode(self, data: bytes, size: list[int], box: list[int] | None) -> PixelArray:
        """Return the pixels in `box`, or all pixels: a view that is valid until this thread decodes again."""
        if self._decoder_name in ("auto", "nvimgcodec") and data[:3] == b"\xff\xd8\xff":
            codec = _nvimgcodec(required=False)  # loaded on demand: the compiled part hardly ever leaves it anything
            if codec is not None:
                height, width = size if box is None else box[2:]
                check_pixels(data, self._max_pixels, (height, width))
                pixels = self._decode_region(codec, data, size, box)
                if pixels is not None:
                    return pixels
        image = image_decoding.decode(data, self._channels, self._max_pixels)
        image_decoding.check_size(image.shape[:2], size)
        return image if box is None else crop(image, box)

    def _decode_region(
        self, codec: ModuleType, data: bytes, size: list[int], box: list[int] | None
    ) -> PixelArray | None:
        decoder, params, image = self._codec_decoder(codec)
        try:
            stream = codec.CodeStream(data)
            image_decoding.check_size([stream.height, stream.width], size)
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
            return None  # it rejects the header; OpenCV may accept it
        if decoded is None:
            return None
        # The next image is decoded into the same memory, which stays in this core's cache.
        self._local.codec_state = (os.getpid(), decoder, params, decoded)
        pixels: PixelArray = np.asarray(decoded)
        return pixels

    def _codec_decoder(self, codec: ModuleType) -> tuple[Any, Any, Any]:
        state = getattr(self._local, "codec_state", None)
        if state is None or state[0] != os.getpid():
            decoder = codec.Decoder(
                device_id=codec.NVIMGCODEC_DEVICE_CPU_ONLY,
                backends=[codec.Backend(codec.BackendKind.CPU_ONLY)],
                max_num_cpu_threads=1,
                options=":fancy_upsampling=0",
            )
            color = codec.ColorSpec.SRGB if self._channels == 3 else codec.ColorSpec.GRAY
            params = codec.DecodeParams(apply_exif_orientation=False, color_spec=color)
            state = self._local.codec_state = (os.getpid(), decoder, params, None)
        return state[1], state[2], state[3]


class BadImage(BadSample):
    """An image that cannot be decoded.

    Attributes:
        place: its place among the files that the engine was given.
    """

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


class _StepSequence:
    """A list of steps, divided by how the engine carries them out.

    Attributes:
        leading: the crops, resizes and flips at the beginning.
        rest: the first other step and all that follow it, on uint8.
        erasings: the steps after the conversion to floats.
    """

    def __init__(self, steps: Sequence[Step], erasings: Sequence[Step]) -> None:
        moves = [isinstance(step, Crop | Scale | Flip) for step in steps]
        cut = moves.index(False) if False in moves else len(steps)
        self.leading, self.rest, self.erasings = steps[:cut], steps[cut:], erasings
        self._steps, self._cut = steps, cut

    @cached_property
    def _prepared(self) -> list[PreparedStep]:  # on demand: compiled code mostly leaves no image to them
        return prepare(self._steps)

    @property
    def prepared_leading(self) -> list[PreparedStep]:
        """The prepared steps of `leading`."""
        return self._prepared[: self._cut]

    @property
    def prepared_rest(self) -> list[PreparedStep]:
        """The prepared steps of `rest`."""
        return self._prepared[self._cut :]
