"""The nvImageCodec engine: whole batches decoded by NVIDIA's codecs, the rest by torch, on a GPU or on the CPU.

It is the light way to a GPU: nvImageCodec decodes on the GPU's JPEG engine where there is one, only the region that is
wanted; resizing, mirroring and all that changes values are a few torch operations for the whole batch.
"""

import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ..errors import ConfigError
from ..system.optional import load
from ..system.types import Buffer
from ..transforms.fuse import fuse
from ..transforms.recipe import Recipe
from ..transforms.steps import Crop, Scale, Sizes, Step
from . import tensors
from .base import Home, decoder_share, inside, rows_of


@dataclass(frozen=True, slots=True)
class _Made:
    """A batch that is made or being made, and what must be waited for."""

    images: torch.Tensor
    failed: Sequence[int]
    done: Any


@final
class NvImageCodecEngine:
    """Decodes and transforms the images of one field, a batch at a time.

    Args:
        recipe: the field's transforms; all its results must be of one size.
        channels: 3 for RGB, 1 for grey.
        device: a GPU, or the CPU.
        threads: of the decoder, for what is not decoded by the GPU.
        channels_last: floats by pixel, not by channel.
        options: `hw_decoder_load`, the share of images for a GPU's JPEG engine, 0 to 1.
    """

    ahead = 1

    def __init__(
        self,
        recipe: Recipe,
        *,
        channels: int,
        device: torch.device,
        threads: int,
        channels_last: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if recipe.size is None:
            raise ConfigError("the engine 'nvimgcodec' needs transforms that give all images one size")
        self._size = recipe.size
        self._codec = load("nvidia.nvimgcodec", purpose="the engine 'nvimgcodec'", extra="cpu")
        self._recipe, self._channels, self._channels_last = recipe, channels, channels_last
        self._device, self._gpu = device, device.type == "cuda"
        color = self._codec.ColorSpec.SRGB if channels == 3 else self._codec.ColorSpec.GRAY
        self._params = self._codec.DecodeParams(apply_exif_orientation=False, color_spec=color)
        self._threads, self._load = threads, decoder_share(options or {}, "nvimgcodec")
        self._decoder: Any = None
        self.reason = "nvImageCodec made nothing of them"
        self._home = Home("nvimgcodec")
        self._stream = torch.cuda.Stream(device) if self._gpu else None  # type: ignore[no-untyped-call]
        self._made: deque[_Made] = deque()

    def begin(self, encoded: Sequence[Buffer], sizes: Sizes, steps: Sequence[Step]) -> None:
        """Starts on a batch; on a GPU it returns before that is made."""
        self._home.enter()
        if self._stream is None:
            self._made.append(_Made(*self._make(encoded, sizes, steps), None))
            return
        with torch.cuda.stream(self._stream):
            images, failed = self._make(encoded, sizes, steps)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
        self._made.append(_Made(images, failed, done))

    def end(self) -> tuple[torch.Tensor, Sequence[int]]:
        """The oldest batch begun: `[n, ...]` on the device, and the places of the images that could not be made. The
        current stream waits for it."""
        if self._home.left:
            return torch.empty(0), ()
        made = self._made.popleft()
        if made.done is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(made.done)
            made.images.record_stream(current)
        return made.images, made.failed

    def close(self) -> None:
        """Lets go of memory."""
        self._made.clear()

    def _make(
        self, encoded: Sequence[Buffer], sizes: Sizes, steps: Sequence[Step]
    ) -> tuple[torch.Tensor, Sequence[int]]:
        end = len(steps) - self._recipe.erasings
        last = steps[end:]
        cut = 1 + max((place for place, step in enumerate(steps) if isinstance(step, Crop | Scale)), default=-1)
        fused = fuse(steps[:cut], sizes)
        first = steps[0].boxes if steps and isinstance(steps[0], Crop) else np.concatenate((sizes * 0, sizes), axis=1)
        # What of the image is decoded; a fused region is inside of it, others may not be.
        boxes = inside(first if fused is None else fused.regions, sizes)
        decoded, failed = self._decode(encoded, sizes, boxes)
        if fused is not None:
            starts = np.cumsum([0, *(image.numel() for image in decoded[:-1])])
            flat = torch.cat([image.reshape(-1) for image in decoded])
            images = tensors.resample(flat, starts, fused, self._size, self._channels)
        else:
            rest = steps[:cut]
            images = torch.stack([_placed(image, rest, row, boxes[row]) for row, image in enumerate(decoded)])
        for step in steps[cut:end]:
            if not isinstance(step, Crop | Scale):  # none is left behind `cut`
                images = tensors.change(images, step)
        return tensors.delivered(images, self._recipe, last, channels_last=self._channels_last), failed

    def _decode(
        self, encoded: Sequence[Buffer], sizes: Sizes, boxes: NDArray[np.int32]
    ) -> tuple[list[torch.Tensor], list[int]]:
        """The regions of all images, uint8 [height, width, channels]; zeros where one does not decode."""
        codec, failed = self._codec, []
        streams: list[Any] = []
        places: list[int] = []
        for place, (data, box, size) in enumerate(zip(encoded, boxes.tolist(), sizes.tolist(), strict=True)):
            top, left, height, width = box
            try:
                stream = codec.CodeStream(bytes(data))
                if [stream.height, stream.width] != size:
                    failed.append(place)
                    continue
                if [height, width] != size:
                    stream = stream.get_sub_code_stream(region=codec.Region(top, left, top + height, left + width))
            except RuntimeError:
                failed.append(place)
                continue
            streams.append(stream)
            places.append(place)
        stream_of = {} if self._stream is None else {"cuda_stream": self._stream.cuda_stream}
        if self._decoder is None:
            self._decoder = _decoder(codec, self._device, self._threads, self._load)
        found = self._decoder.decode(streams, params=self._params, **stream_of) if streams else []
        images: list[torch.Tensor | None] = [None] * len(encoded)
        for place, image in zip(places, found, strict=True):
            if image is None:
                failed.append(place)
            else:
                images[place] = (
                    torch.utils.dlpack.from_dlpack(image) if self._gpu else torch.from_numpy(np.asarray(image))
                )
        blank = (
            torch.zeros(*box[2:], self._channels, dtype=torch.uint8, device=self._device) for box in boxes.tolist()
        )
        return [empty if image is None else image for image, empty in zip(images, blank, strict=True)], sorted(failed)


def _decoder(codec: Any, device: torch.device, threads: int, share: float | None) -> Any:
    if device.type != "cuda":
        backends = [codec.Backend(codec.BackendKind.CPU_ONLY)]
        chosen = {"device_id": codec.NVIMGCODEC_DEVICE_CPU_ONLY, "backends": backends}
        # It takes one processor less than there are, and says so if asked for more.
        threads = max(1, min(threads, len(os.sched_getaffinity(0)) - 1))
        return codec.Decoder(max_num_cpu_threads=threads, options=":fancy_upsampling=0", **chosen)
    chosen = {"device_id": device.index or 0, "max_num_cpu_threads": threads}
    if share is not None:
        kinds = codec.BackendKind
        backends = [
            codec.Backend(kinds.HW_GPU_ONLY, load_hint=share),
            *(codec.Backend(kind) for kind in (kinds.HYBRID_CPU_GPU, kinds.GPU_ONLY, kinds.CPU_ONLY)),
        ]
        chosen |= {"backends": backends}
    return codec.Decoder(options=":fancy_upsampling=0", **chosen)


def _placed(image: torch.Tensor, steps: Sequence[Step], row: int, region: NDArray[np.int32]) -> torch.Tensor:
    """One image through steps that change its size. `region` is what of it has been decoded."""
    now = image.permute(2, 0, 1)
    top, left = region[:2].tolist()
    for step in steps:
        match step:
            case Crop(boxes):
                y, x, height, width = boxes[row].tolist()
                now = _cropped(now, y - top, x - left, height, width)
                top = left = 0
            case Scale(targets, interpolation, antialias):
                options = {} if interpolation == "nearest" else {"antialias": antialias, "align_corners": False}
                made = functional.interpolate(now[None].float(), targets[row].tolist(), mode=interpolation, **options)
                now = made[0].round().clamp(0, 255).to(torch.uint8)
            case _:
                one = rows_of(step, slice(row, row + 1))
                now = tensors.change(now.permute(1, 2, 0)[None], one)[0].permute(2, 0, 1)
    return now.permute(1, 2, 0)


def _cropped(image: torch.Tensor, top: int, left: int, height: int, width: int) -> torch.Tensor:
    """A box of an image [C, H, W]; black where there is none."""
    part = image[:, max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    if part.shape[1:] == (height, width):
        return part
    before_y, before_x = min(max(-top, 0), height), min(max(-left, 0), width)
    after = (width - before_x - part.shape[2], height - before_y - part.shape[1])
    return functional.pad(part, (before_x, after[0], before_y, after[1]))
