"""The format of delivered images: dtype, layout and the conversion of uint8 pixels to them by lookup tables."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import BadSample
from ..native.pixels import look_up
from ..transforms.recipe import Recipe

PixelArray: TypeAlias = NDArray[np.uint8]
"""One image, uint8 [height, width, channels]."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of arrays in memory; uint16 for the bits of bfloat16, which NumPy lacks."""
    return np.dtype(np.uint16 if name == "bfloat16" else name)


def as_tensor(array: NDArray[Any], name: str) -> torch.Tensor:
    """Return a view of an array of `numpy_dtype(name)` as a tensor of the dtype `name`."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if name == "bfloat16" else tensor


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The dtype and layout of a field's delivered images.

    Attributes:
        recipe: the field's transforms.
        channels: 3 for RGB, 1 for grey.
        channels_last: whether floats are stored as HWC rather than CHW; uint8 always is.
    """

    recipe: Recipe
    channels: int
    channels_last: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the arrays; uint16 for the bits of bfloat16."""
        return numpy_dtype(self.recipe.dtype)

    def shape(self, size: tuple[int, int]) -> tuple[int, ...]:
        """Return the shape in memory, HWC or CHW, of one image of (height, width) pixels; HW of a mask."""
        if self.recipe.is_mask:
            return size
        by_pixel = self.recipe.normalization is None or self.channels_last
        return (*size, self.channels) if by_pixel else (self.channels, *size)

    def tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """Return a view of one or more images as a tensor.

        It is uint8 `[..., H, W, C]`, floats `[..., C, H, W]`, or of masks int64 `[..., H, W]`.
        """
        tensor = as_tensor(array, self.recipe.dtype)
        return tensor.movedim(-1, -3) if self.channels_last and self.recipe.normalization is not None else tensor

    def lookup_table(self) -> NDArray[Any]:
        """Return the results for pixels 0..255 of each channel, [256, channels]."""
        pixels = np.repeat(np.arange(256, dtype=np.uint8)[:, None], self.channels, axis=1)
        return pixels if self.recipe.normalization is None else self.cast(self.recipe.to_floats(pixels))

    def cast(self, values: NDArray[np.float32]) -> NDArray[Any]:
        """Return values in the arrays' dtype."""
        if self.recipe.dtype == "bfloat16":
            return torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16).view(torch.uint16).numpy()
        return values.astype(self.dtype)


class OutputWriter:
    """Converts pixels to an output format. Threads may share it."""

    def __init__(self, output: OutputFormat) -> None:
        self._output = output
        self._tables = np.ascontiguousarray(output.lookup_table().T)

    def __call__(self, pixels: PixelArray, out: NDArray[Any] | None) -> NDArray[Any]:
        """Convert an image, into `out` if there is one. Raise BadSample if that has another shape."""
        shape = self._output.shape((pixels.shape[0], pixels.shape[1]))
        if out is not None and out.shape != shape:
            raise BadSample(f"the image is {shape}, the batch's images are {out.shape}")
        result = np.empty(shape, self._output.dtype) if out is None else out
        self.convert(pixels[None], result[None])
        return result

    def convert(self, pixels: NDArray[np.uint8], out: NDArray[Any]) -> None:
        """Convert images of one size, uint8 [n, height, width, channels], into `out`."""
        last = self._output.channels_last
        if self._output.recipe.normalization is None:
            out[...] = pixels
        elif not look_up(np.ascontiguousarray(pixels), self._tables, out, planes=not last):
            for channel, table in enumerate(self._tables):
                plane = out[..., channel] if last else out[:, channel]
                np.take(table, pixels[..., channel], out=plane, mode="clip")
