"""Images of several sizes padded to one for their batch, and converted to what it delivers, in one pass over them."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from ... import native
from ...engines.fused_images import FusedImages
from ...engines.output_format import OutputFormat, OutputWriter
from ...engines.resizing import cropped
from ...transforms import PadImages
from ...transforms.detection import as_fill, whole
from ...transforms.fuse import FusedSteps
from .memory import BufferPool


@final
class ImagePadder:
    """Pads the images of a batch. Threads may share it.

    Args:
        rule: how to pad.
        output: what the batch delivers.

    Attributes:
        output: the same.
    """

    def __init__(self, rule: PadImages, output: OutputFormat) -> None:
        self.output, self._rule, self._fill = output, rule, as_fill(rule.value, "value")
        self._write, self._fused = None if output.recipe.is_mask else OutputWriter(output), None
        if native.library() is not None and output.recipe.dtype in ("uint8", "float32") and not output.channels_last:
            self._fused = FusedImages(output.channels, output.recipe.normalization)
        self._memory = BufferPool((0,), np.dtype(np.uint8))  # of the greatest batch until now

    def __call__(self, images: Sequence[NDArray[Any] | None]) -> torch.Tensor:
        """Return the batch of images, uint8 [height, width, channels] or levels of masks; None is blank."""
        blank = np.zeros((0, 0, self.output.channels), np.uint8)
        given = [blank if image is None else image for image in images]
        sizes = np.array([image.shape[:2] for image in given], np.int32)
        canvas = self._rule.canvas(sizes)
        shape, dtype = (len(given), *self.output.shape(canvas)), self.output.dtype
        out = self._memory.lend(int(np.prod(shape)) * dtype.itemsize).view(dtype).reshape(shape)
        if self._fused is not None:
            zeros, results = np.zeros_like(sizes), np.broadcast_to(np.array(canvas, np.int32), sizes.shape)
            unflipped = np.zeros(len(sizes), np.uint8)
            steps = FusedSteps(sizes, whole(sizes), sizes, zeros, results, unflipped, fill=self._fill)
            # It makes none of an image without pixels, which is blank.
            if any(sizes[row].all() for row in self._fused.resize(given, steps, out)):
                raise MemoryError("there is no memory to pad images")
        else:
            for image, slot in zip(given, out, strict=True):
                self._pad(image, canvas, slot)
        out[~sizes.all(axis=1)] = 0
        return self.output.tensor(out)

    def _pad(self, image: NDArray[Any], canvas: tuple[int, int], slot: NDArray[Any]) -> None:
        if self._write is None:
            slot[...] = self._fill[0]
            slot[: image.shape[0], : image.shape[1]] = image
        else:
            self._write(cropped(image, [0, 0, *canvas], self._fill), slot)
