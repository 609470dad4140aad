"""The nvImageCodec engine: whole batches decoded by NVIDIA's codecs and transformed by torch, on a GPU or on the CPU.

It is the lightweight GPU engine. nvImageCodec decodes only the region that is needed, with the GPU's hardware JPEG
decoder where there is one. Resizing, flipping and all changes of values are a few torch operations per batch.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ..errors import ConfigError
from ..system import cpus
from ..system.optional import load
from ..system.types import Buffer
from ..transforms.fuse import FusedSteps, fuse
from ..transforms.recipe import Recipe
from ..transforms.steps import Crop, Scale, Sizes, Step
from . import torch_steps
from .base import BatchEngine, clip_boxes, parse_hw_decoder_load, rows_of
from .fused_images import Decode


@dataclass(frozen=True, slots=True)
class _PendingBatch:
    """A batch that is finished or in progress.

    Attributes:
        images: the delivered images.
        failed: the rows that could not be made.
        done: the CUDA event that marks the end of the work; None on the CPU.
    """

    images: torch.Tensor
    failed: Sequence[int]
    done: Any


@final
class NvImageCodecEngine(BatchEngine):
    """Decodes and transforms the images of one field, a batch at a time.

    Args:
        recipe: the field's transforms; all results must have one size.
        channels: 3 for RGB, 1 for grey.
        device: a GPU or the CPU.
        threads: the number of the decoder's CPU threads.
        decode: `"exact"` asks the decoders for interpolated chroma.
        channels_last: whether floats are stored as HWC rather than CHW.
        options: `hw_decoder_load`, the fraction of images for a GPU's hardware JPEG decoder, in [0, 1].

    Raises:
        ConfigError: if results differ in size, or for another option.
        MissingDependency: if nvImageCodec is not installed.
    """

    name = "nvimgcodec"
    ahead = 1
    reason = "nvImageCodec could not decode them"

    def __init__(
        self,
        recipe: Recipe,
        *,
        channels: int,
        device: torch.device,
        threads: int,
        decode: Decode = "exact",
        channels_last: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if recipe.size is None:
            raise ConfigError("the engine 'nvimgcodec' needs transforms that give all images one size")
        self._size = recipe.size
        self._codec = load("nvidia.nvimgcodec", purpose="the engine 'nvimgcodec'", extra="cuda13")
        self._recipe, self._channels, self._channels_last = recipe, channels, channels_last
        self._options = f":fancy_upsampling={int(decode == 'exact')}"
        self._device, self._gpu = device, device.type == "cuda"
        color = self._codec.ColorSpec.SRGB if channels == 3 else self._codec.ColorSpec.GRAY
        self._params = self._codec.DecodeParams(apply_exif_orientation=False, color_spec=color)
        self._threads, self._hw_decoder_load = threads, parse_hw_decoder_load(options or {}, "nvimgcodec")
        self._decoder: Any = None
        self._stream = torch.cuda.Stream(device) if self._gpu else None  # type: ignore[no-untyped-call]
        self._pending: deque[_PendingBatch] = deque()

    def begin(self, encoded: Sequence[Buffer], sizes: Sizes, steps: Sequence[Step]) -> None:
        """Start on a batch; on a GPU, return before it is finished."""
        self.enter()
        if self._stream is None:
            self._pending.append(_PendingBatch(*self._make(encoded, sizes, steps), None))
            return
        with torch.cuda.stream(self._stream):
            images, failed = self._make(encoded, sizes, steps)
            self._pending.append(_PendingBatch(images, failed, self._stream.record_event()))

    def end(self) -> tuple[torch.Tensor, Sequence[int]]:
        """Return the oldest batch begun, `[n, ...]` on the device, and the rows of images that could not be made.

        The current CUDA stream waits for the batch.
        """
        if self.forked:
            return torch.empty(0), ()
        batch = self._pending.popleft()
        if batch.done is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(batch.done)
            batch.images.record_stream(current)
        return batch.images, batch.failed

    def close(self) -> None:
        self._pending.clear()

    def _make(
        self, encoded: Sequence[Buffer], sizes: Sizes, steps: Sequence[Step]
    ) -> tuple[torch.Tensor, Sequence[int]]:
        end = len(steps) - self._recipe.erasings
        cut = 1 + max((position for position, step in enumerate(steps) if isinstance(step, Crop | Scale)), default=-1)
        fused = fuse(steps[:cut], sizes)
        fused = fused if fused is not None and fused.inside else None
        first = steps[0].boxes if steps and isinstance(steps[0], Crop) else np.concatenate((sizes * 0, sizes), axis=1)
        # The regions to decode. A fused one is inside its image, others may not be.
        boxes = clip_boxes(first if fused is None else fused.regions, sizes)
        decoded, failed = self._decode(encoded, sizes, boxes)
        if fused is not None:
            starts = np.cumsum([0, *(image.numel() for image in decoded[:-1])])
            flat = torch.cat([image.reshape(-1) for image in decoded])
            images = torch_steps.resample(flat, starts, fused, self._size, self._channels)
        else:
            resizing = steps[:cut]
            images = torch.stack([_resized(image, resizing, row, boxes[row]) for row, image in enumerate(decoded)])
        for step in steps[cut:end]:
            if not isinstance(step, Crop | Scale):  # there is none after `cut`
                images = torch_steps.apply_step(images, step)
        images = torch_steps.convert_and_erase(images, self._recipe, steps[end:], channels_last=self._channels_last)
        return images, failed

    def _decode(
        self, encoded: Sequence[Buffer], sizes: Sizes, boxes: NDArray[np.int32]
    ) -> tuple[list[torch.Tensor], list[int]]:
        """Return the region of each image, uint8 [height, width, channels], and the rows that do not decode.

        The regions of those are zeros.
        """
        codec = self._codec
        streams: dict[int, Any] = {}
        for row, (data, box, size) in enumerate(zip(encoded, boxes.tolist(), sizes.tolist(), strict=True)):
            top, left, height, width = box
            with suppress(RuntimeError):
                stream = codec.CodeStream(np.frombuffer(data, np.uint8))  # a view: the caller keeps the file
                if [stream.height, stream.width] != size:
                    continue
                if [height, width] != size:
                    stream = stream.get_sub_code_stream(region=codec.Region(top, left, top + height, left + width))
                streams[row] = stream
        stream_of = {} if self._stream is None else {"cuda_stream": self._stream.cuda_stream}
        if self._decoder is None:
            self._decoder = _create_decoder(codec, self._device, self._threads, self._hw_decoder_load, self._options)
        decoded = self._decoder.decode([*streams.values()], params=self._params, **stream_of) if streams else []
        images, failed = [], []
        made = dict(zip(streams, decoded, strict=True))
        for row, (height, width) in enumerate(boxes[:, 2:].tolist()):
            if (image := made.get(row)) is None:
                failed.append(row)
                images.append(torch.zeros(height, width, self._channels, dtype=torch.uint8, device=self._device))
            else:
                from_codec = torch.utils.dlpack.from_dlpack(image) if self._gpu else torch.from_numpy(np.asarray(image))
                images.append(from_codec)
        return images, failed


def _create_decoder(
    codec: Any, device: torch.device, threads: int, hw_decoder_load: float | None, settings: str
) -> Any:
    if device.type != "cuda":
        backends = [codec.Backend(codec.BackendKind.CPU_ONLY)]
        options = {"device_id": codec.NVIMGCODEC_DEVICE_CPU_ONLY, "backends": backends}
        # It uses one thread less than there are processors, and warns if asked for more.
        threads = max(1, min(threads, len(cpus.affinity()) - 1))
        return codec.Decoder(max_num_cpu_threads=threads, options=settings, **options)
    options = {"device_id": device.index or 0, "max_num_cpu_threads": threads}
    if hw_decoder_load is not None:
        kinds = codec.BackendKind
        backends = [
            codec.Backend(kinds.HW_GPU_ONLY, load_hint=hw_decoder_load),
            *(codec.Backend(kind) for kind in (kinds.HYBRID_CPU_GPU, kinds.GPU_ONLY, kinds.CPU_ONLY)),
        ]
        options |= {"backends": backends}
    return codec.Decoder(options=settings, **options)


def _resized(image: torch.Tensor, steps: Sequence[Step], row: int, region: NDArray[np.int32]) -> torch.Tensor:
    """Carry out steps that change the size on the decoded `region` of one image."""
    planes = image.permute(2, 0, 1)
    top, left = region[:2].tolist()
    for step in steps:
        match step:
            case Crop(boxes):
                y, x, height, width = boxes[row].tolist()
                planes = _cropped(planes, y - top, x - left, height, width, step.fill)
                top = left = 0
            case Scale(targets, interpolation, antialias):
                shape, size = np.array([planes.shape[1:]], np.int32), targets[row : row + 1]
                fused = FusedSteps.of_resize(shape, size, interpolation, antialias)
                whole = planes.permute(1, 2, 0).reshape(-1)
                made = torch_steps.resample(whole, np.zeros(1, np.int64), fused, tuple(size[0].tolist()), len(planes))
                planes = made[0].permute(2, 0, 1)
            case _:
                step_of_row = rows_of(step, slice(row, row + 1))
                planes = torch_steps.apply_step(planes.permute(1, 2, 0)[None], step_of_row)[0].permute(2, 0, 1)
    return planes.permute(1, 2, 0)


def _cropped(image: torch.Tensor, top: int, left: int, height: int, width: int, fill: Sequence[float]) -> torch.Tensor:
    """Crop a box of an image [C, H, W], with `fill` outside of the image."""
    below, right = top + height - image.shape[1], left + width - image.shape[2]
    border = [max(pixels, 0) for pixels in (-left, right, -top, below)]
    padded = functional.pad(image, border) if any(border) else image
    if any(border) and any(fill):
        outside = functional.pad(torch.zeros_like(image[:1], dtype=torch.bool), border, value=True)
        pixel = torch.tensor(fill, dtype=image.dtype, device=image.device).expand(len(image))
        padded = torch.where(outside, pixel[:, None, None], padded)
    return padded[:, max(top, 0) :, max(left, 0) :][:, :height, :width]
