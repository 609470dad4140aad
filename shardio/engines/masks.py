"""The engine of masks: it decodes the numbers of classes that their pixels are, and moves them without changing them.

A level of up to 16 bits is moved as two planes of bytes, because crops, flips, rotations and resizes to the nearest
pixel take bytes from the same places whatever they hold: so the pixels are those that `CpuEngine` makes, Pillow's.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample
from ..format.limits import MAX_IMAGE_PIXELS
from ..transforms.fuse import EngineStep
from ..transforms.recipe import Recipe
from ..transforms.steps import Erase, Sizes
from . import whole_images
from .base import rows_of
from .cpu import CpuEngine, Failed, Given, Images, failed_image
from .orientation import Orientations
from .output_format import OutputFormat
from .whole_images import Levels

_BYTE = 0xFF


@final
class MaskEngine:
    """Decodes masks and carries out their steps. Threads may share it.

    Args:
        recipe: the transforms, see `Recipe.of`.
        max_pixels: the most pixels of one mask.

    Attributes:
        recipe: the same recipe.
        output_format: how masks are delivered: int64, or uint16 to a device that widens them, [height, width].
    """

    keeps_pixels = False
    """Whether masks that are given as pixels come out as they are: never, as they are widened."""

    def __init__(self, recipe: Recipe, *, max_pixels: int = MAX_IMAGE_PIXELS) -> None:
        self.recipe, self.output_format = recipe, OutputFormat(recipe, 1)
        self._decode = partial(whole_images.decode_mask, max_pixels=max_pixels)
        self._bytes = CpuEngine(replace(recipe, dtype="uint8"), channels=1, max_pixels=max_pixels)

    def __call__(
        self,
        stored: Images,
        sizes: Sizes,
        steps: Sequence[EngineStep],
        out: NDArray[Any] | None,
        orientations: Orientations | None = None,
        failed: Failed = None,
    ) -> list[NDArray[Any]] | None:
        """Decode and transform some masks; see `CpuEngine`."""
        results, given = [], Given(stored, sizes, orientations)
        for row in range(len(stored)):
            try:
                levels = given.pixels(row, self._decode)
                own = slice(row, row + 1)
                moved = self._moved(levels, sizes[own], [rows_of(step, own) for step in steps])
                if out is not None and out[row].shape != moved.shape:
                    raise BadSample(f"the mask is {moved.shape}, the batch's masks are {out[row].shape}")
            except BadSample as error:
                moved = failed_image(row, error, failed)
                if out is not None:
                    continue
            if out is None:
                results.append(moved.astype(self.output_format.dtype))
            else:
                out[row] = moved
        return results if out is None else None

    def fuse(self, steps: Sequence[EngineStep], sizes: Sizes) -> Sequence[EngineStep]:
        """Return the steps with the leading ones as one, see `CpuEngine`; none stay none."""
        return self._bytes.fuse(steps, sizes) if steps else steps

    def _moved(self, levels: Levels, size: Sizes, steps: Sequence[EngineStep]) -> Levels:
        """Carry out the steps of one mask; return its levels, [height, width]."""
        if not steps:
            return levels[..., 0]
        erased = max((int(step.value[0]) for step in steps if isinstance(step, Erase)), default=0)
        low = self._moved_bytes(levels, 0, size, steps)
        if max(int(levels.max()), erased) <= _BYTE:
            return low
        both: Levels = low | self._moved_bytes(levels, 8, size, steps).astype(np.uint16) << 8
        return both

    def _moved_bytes(self, levels: Levels, shift: int, size: Sizes, steps: Sequence[EngineStep]) -> NDArray[np.uint8]:
        """Carry out the steps on the bytes of levels that begin at bit `shift`."""
        plane = (levels.astype(np.uint16) >> shift & _BYTE).astype(np.uint8)
        of_bytes = [
            replace(step, value=(int(step.value[0]) >> shift & _BYTE,)) if isinstance(step, Erase) else step
            for step in steps
        ]
        made = self._bytes(plane[None], size, of_bytes, None)
        assert made is not None
        moved: NDArray[np.uint8] = made[0][..., 0]
        return moved
