"""Crops of a video's frames as RGB, in integers.

A pixel of brightness `l` and colours `u` and `v`, with samples of d bits, becomes

    red   = (F * (l - black) + R * v                + half) >> bits
    green = (F * (l - black) + G * u       + H * v  + half) >> bits
    blue  = (F * (l - black) + B * u                + half) >> bits

cut off to 0..255, where `u` and `v` count from the middle of their range, bits = d + 6, half = 2^(bits - 1), and the
factors are those of the matrix (BT.601, BT.709, BT.2020) and the range, rounded to integers. A colour that two or four
pixels share is repeated for each of them. So the conversion of a crop is the crop of the conversion.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..errors import BadSample
from ..transforms.fuse import FusedSteps

if TYPE_CHECKING:
    import av

_WEIGHTS = {1: (0.2126, 0.0722), 5: (0.299, 0.114), 6: (0.299, 0.114), 9: (0.2627, 0.0593), 10: (0.2627, 0.0593)}
"""The shares of red and blue in the brightness, by the number of the matrix in ITU-T H.273."""
_SHIFTS = {"420p": (1, 1), "422p": (1, 0), "444p": (0, 0), "440p": (0, 1)}
_UNTAGGED = 2, 0
_FULL = 2


@final
@dataclass(frozen=True, slots=True)
class Planes:
    """How the samples of a frame's planes become RGB.

    Attributes:
        bits: the bits of a sample.
        across, down: the shifts of the places of colours, across and down.
        shift: the bits behind the point of the factors.
        black: the brightness of black.
        factors: of brightness, red of v, green of u and of v, blue of u.
    """

    bits: int
    across: int
    down: int
    shift: int
    black: int
    factors: tuple[int, ...]


@cache
def planes_of(pixel_format: str, matrix: int, color_range: int) -> Planes:
    """Return how frames become RGB.

    Args:
        pixel_format: its name in FFmpeg, such as `yuv420p10le`.
        matrix: the number of the matrix in ITU-T H.273; untagged is BT.601.
        color_range: 1 limited, 2 full; untagged is limited, unless the format's name says otherwise.

    Raises BadSample for formats and matrices that are not converted.
    """
    name = pixel_format.removesuffix("10le")
    bits = 8 if name == pixel_format else 10
    shifts = _SHIFTS.get(name.removeprefix("yuvj").removeprefix("yuv"))
    weights = _WEIGHTS[5] if matrix in _UNTAGGED else _WEIGHTS.get(matrix)
    if shifts is None or weights is None:
        converted = "yuv420p, yuv422p, yuv440p and yuv444p of 8 and 10 bits"
        raise BadSample(f"its frames are {pixel_format} with matrix {matrix}: converted are {converted}")
    red, blue = weights
    green, full = 1 - red - blue, color_range == _FULL or name.startswith("yuvj")
    light, colors = (1 << bits) - 1, (1 << bits) - 1
    black = 0
    if not full:
        light, colors, black = 219 << bits - 8, 224 << bits - 8, 16 << bits - 8
    shift = bits + 6
    scale = 255 * (1 << shift)
    factors = (
        scale / light,
        scale * 2 * (1 - red) / colors,
        -scale * 2 * blue * (1 - blue) / green / colors,
        -scale * 2 * red * (1 - red) / green / colors,
        scale * 2 * (1 - blue) / colors,
    )
    return Planes(bits, *shifts, shift, black, tuple(map(round, factors)))


def rgb(frame: "av.VideoFrame", top: int, left: int, height: int, width: int) -> NDArray[np.uint8]:
    """Return a crop of a frame as RGB, uint8 [height, width, 3]. Raises BadSample for frames that aren't converted."""
    if top < 0 or left < 0 or top + height > frame.height or left + width > frame.width:
        raise BadSample(f"frames have {frame.height} x {frame.width} pixels, which a crop exceeds")
    found = planes_of(frame.format.name, int(frame.colorspace), int(frame.color_range))
    out = np.empty((height, width, 3), np.uint8)
    planes = list(frame.planes)
    if (library := native.library()) is None:
        out[...] = _convert(planes, found, top, left, height, width)
        return out
    addresses = (ctypes.c_void_p * 3)(*(plane.buffer_ptr for plane in planes))
    pitches = (ctypes.c_int64 * 3)(*(plane.line_size for plane in planes))
    shape = (ctypes.c_int32 * 5)(found.bits, found.across, found.down, found.shift, found.black)
    factors, crop = (ctypes.c_int32 * 5)(*found.factors), (ctypes.c_int32 * 4)(top, left, height, width)
    library.shardio_planes_to_rgb(addresses, pitches, shape, factors, crop, out.ctypes.data_as(ctypes.c_void_p))
    return out


def _convert(planes: list[Any], found: Planes, top: int, left: int, height: int, width: int) -> NDArray[np.int32]:
    dtype = np.dtype("<u2" if found.bits > 8 else "u1")
    arrays = [
        np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size).view(dtype).astype(np.int32) for plane in planes
    ]
    rows, columns = np.arange(top, top + height)[:, None], np.arange(left, left + width)
    light = arrays[0][rows, columns] - found.black
    u, v = (each[rows >> found.down, columns >> found.across] - (1 << found.bits - 1) for each in arrays[1:])
    first, red_v, green_u, green_v, blue_u = found.factors
    base = light * first + (1 << found.shift - 1)
    mixed = np.stack([base + red_v * v, base + green_u * u + green_v * v, base + blue_u * u], axis=-1)
    return np.asarray((mixed >> found.shift).clip(0, 255), np.int32)


@final
class VideoFrames(Sequence["av.VideoFrame"]):
    """Decoded frames of one size, of which engines take crops as RGB.

    Args:
        frames: the frames, at least one.
    """

    def __init__(self, frames: "Sequence[av.VideoFrame]") -> None:
        self._frames = frames

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of the frames in pixels."""
        return self._frames[0].height, self._frames[0].width

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, which: Any) -> Any:
        return VideoFrames(self._frames[which]) if isinstance(which, slice) else self._frames[which]

    def pixels(self, number: int) -> NDArray[np.uint8]:
        """Return a whole frame as RGB, uint8 [height, width, 3]."""
        return rgb(self._frames[number], 0, 0, *self.size)

    def cropped(self, fused: FusedSteps) -> tuple[list[NDArray[np.uint8]], FusedSteps]:
        """Return what fused steps take of each frame, as RGB, and the steps that take all of it."""
        regions = fused.regions.tolist()
        # A clip often has one frame several times.
        known: dict[tuple[int, ...], NDArray[np.uint8]] = {}
        for frame, region in zip(self._frames, regions, strict=True):
            if (id(frame), *region) not in known:
                known[id(frame), *region] = rgb(frame, *region)
        crops = [known[id(frame), *region] for frame, region in zip(self._frames, regions, strict=True)]
        whole = fused.regions.copy()
        whole[:, :2] = 0
        return crops, replace(fused, images=whole[:, 2:].copy(), regions=whole)
