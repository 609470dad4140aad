"""Bytes to numbers: the last thing that becomes of an image, looked up in tables of 256 results per channel."""

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import BadSample
from ..transforms.recipe import Recipe
from .opencv import Pixels

# NumPy has no bfloat16: its bits are kept.
_HELD_AS = {"uint8": np.uint8, "float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


@dataclass(frozen=True, slots=True)
class Numbers:
    """How the pixels of a field's images are delivered.

    Attributes:
        recipe: the field's transforms.
        channels: 1 or 3.
        channels_last: floats stand in memory by pixel, not by channel; bytes always do.
    """

    recipe: Recipe
    channels: int
    channels_last: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """What they are held as: bfloat16 as uint16."""
        return np.dtype(_HELD_AS[self.recipe.dtype])

    def shape(self, size: tuple[int, int]) -> tuple[int, ...]:
        """The shape of one result of (height, width) pixels in memory: HWC or CHW."""
        by_pixel = self.recipe.affine is None or self.channels_last
        return (*size, self.channels) if by_pixel else (self.channels, *size)

    def tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """An array of one or many results as a tensor: bytes `[..., H, W, C]`, floats `[..., C, H, W]`."""
        tensor = torch.from_numpy(array)
        if self.recipe.dtype == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        return tensor.movedim(-1, -3) if self.channels_last and self.recipe.affine is not None else tensor

    def table(self) -> NDArray[Any]:
        """The results of 0..255 for each channel, [256, channels]."""
        affine = self.recipe.affine
        if affine is None:
            return np.repeat(np.arange(256, dtype=np.uint8)[:, None], self.channels, axis=1)
        return self.held(np.arange(256, dtype=np.float32)[:, None] * affine[:, 0] + affine[:, 1])

    def held(self, values: NDArray[np.float32]) -> NDArray[Any]:
        """Numbers as they are held in memory."""
        if self.recipe.dtype == "bfloat16":
            return torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16).view(torch.uint16).numpy()
        return values.astype(self.dtype)


class Lookup:
    """Writes pixels as numbers. Threads may share it."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._table = numbers.table()
        self._columns = [np.ascontiguousarray(column) for column in self._table.T]

    def __call__(self, pixels: Pixels, slot: NDArray[Any] | None) -> NDArray[Any]:
        """The results of an image, in `slot` if there is one. BadSample if that has another shape."""
        numbers = self._numbers
        shape = numbers.shape((pixels.shape[0], pixels.shape[1]))
        if slot is not None and slot.shape != shape:
            raise BadSample(f"the image is {shape}, the batch's images are {slot.shape}")
        out = np.empty(shape, numbers.dtype) if slot is None else slot
        if numbers.recipe.affine is None:
            if pixels is not out:  # OpenCV gives back the very array that it was told to write into
                out[...] = pixels
        elif numbers.channels_last and len(self._columns) > 1:
            cv2.LUT(pixels, self._bits(self._table)[:, None], dst=self._bits(out))
        else:
            for channel, column in enumerate(self._columns):
                plane = out[..., channel] if numbers.channels_last else out[channel]
                cv2.LUT(cv2.extractChannel(pixels, channel), self._bits(column), dst=self._bits(plane))
        return out

    def _bits(self, array: NDArray[Any]) -> NDArray[Any]:
        """OpenCV's tables hold no half-precision numbers; the bits are looked up as they are."""
        return array.view(np.uint16) if array.dtype.itemsize == 2 else array
