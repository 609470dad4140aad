"""Crops of a video's frames as RGB, in integers.

A pixel of brightness `l` and colours `u` and `v`, with samples of d bits, becomes

    red   = (F * (l - black) + R * v                + half) >> bits
    green = (F * (l - black) + G * u       + H * v  + half) >> bits
    blue  = (F * (l - black) + B * u                + half) >> bits

cut off to 0..255, where `u` and `v` count from the middle of their range, bits = d + 6, half = 2^(bits - 1), and the
factors are those of the matrix (BT.601, BT.709, BT.2020) and the range, rounded to integers. A colour that two or four
pixels share is repeated for each of them. So the conversion of a crop is the crop of the conversion.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample

if TYPE_CHECKING:
    import av

_WEIGHTS = {1: (0.2126, 0.0722), 5: (0.299, 0.114), 6: (0.299, 0.114), 9: (0.2627, 0.0593), 10: (0.2627, 0.0593)}
"""The shares of red and blue in the brightness, by the number of the matrix in ITU-T H.273."""
Matrix: TypeAlias = Literal["bt601", "bt709", "bt2020"]
"""The matrix of videos whose frames name none."""
_NUMBERS: dict[Matrix, int] = {"bt601": 5, "bt709": 1, "bt2020": 9}
_SHIFTS = {"gray": (0, 0), "yuv420p": (1, 1), "yuv422p": (1, 0), "yuv440p": (0, 1), "yuv444p": (0, 0)}
_FORMAT = re.compile(r"(gray|yuv(j?)4\d\dp)(10le|12le)?")
_UNTAGGED = 2, 0
_FULL = 2
FRAME = np.dtype(
    [("planes", "u8", 3), ("pitches", "i8", 3), ("size", "i4", 2), ("layout", "i4", 5), ("factors", "i4", 5)]
)
"""The struct `Frame` of `native/image.h`, as compiled code takes frames."""


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
        matrix: the number of the matrix in ITU-T H.273.
        color_range: 1 limited, 2 full; untagged is limited, unless the format's name says otherwise.

    Raises BadSample for formats and matrices that are not converted.
    """
    found = _FORMAT.fullmatch(pixel_format)
    shifts = _SHIFTS.get(found[1].replace("j", "")) if found else None
    weights = _WEIGHTS.get(matrix)
    if found is None or shifts is None or weights is None:
        converted = "gray, yuv420p, yuv422p, yuv440p and yuv444p of 8, 10 and 12 bits, BT.601, BT.709 and BT.2020"
        raise BadSample(f"its frames are {pixel_format} with matrix {matrix}: converted are {converted}")
    red, blue = weights
    green, bits = 1 - red - blue, int(found[3][:2]) if found[3] else 8
    light, colors, black = (1 << bits) - 1, (1 << bits) - 1, 0
    if color_range != _FULL and not found[2]:
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
    if found[1] == "gray":
        factors = (factors[0], 0, 0, 0, 0)
    return Planes(bits, *shifts, shift, black, tuple(map(round, factors)))


def _described(frame: "av.VideoFrame", untagged: Matrix) -> tuple[list[Any], Planes]:
    """Return the planes of a frame, and how they become RGB; grey has its brightness for colours that count nothing."""
    planes, matrix = list(frame.planes), int(frame.colorspace)
    matrix = _NUMBERS[untagged] if matrix in _UNTAGGED else matrix
    found = planes_of(frame.format.name, matrix, int(frame.color_range))
    return planes if len(planes) == 3 else planes * 3, found


def rgb(
    frame: "av.VideoFrame", top: int, left: int, height: int, width: int, untagged: Matrix = "bt601"
) -> NDArray[np.uint8]:
    """Return a crop of a frame as RGB, uint8 [height, width, 3]. Raises BadSample for frames that aren't converted."""
    planes, found = _described(frame, untagged)
    dtype = np.dtype("<u2" if found.bits > 8 else "u1")
    arrays = [np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size).view(dtype) for plane in planes]
    rows, columns = np.arange(top, top + height)[:, None], np.arange(left, left + width)
    light = arrays[0][rows, columns].astype(np.int32) - found.black
    u, v = (
        each[rows >> found.down, columns >> found.across].astype(np.int32) - (1 << found.bits - 1)
        for each in arrays[1:]
    )
    first, red_v, green_u, green_v, blue_u = found.factors
    base = light * first + (1 << found.shift - 1)
    mixed = np.stack([base + red_v * v, base + green_u * u + green_v * v, base + blue_u * u], axis=-1)
    return (mixed >> found.shift).clip(0, 255).astype(np.uint8)


@final
class VideoFrames(Sequence["av.VideoFrame"]):
    """Decoded frames of one size, of which engines take crops as RGB.

    Args:
        frames: the frames, at least one.
        untagged: the matrix of those that name none.
    """

    def __init__(self, frames: "Sequence[av.VideoFrame]", untagged: Matrix = "bt601") -> None:
        self._frames, self._untagged = frames, untagged

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of the frames in pixels."""
        return self._frames[0].height, self._frames[0].width

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, which: Any) -> Any:
        return VideoFrames(self._frames[which], self._untagged) if isinstance(which, slice) else self._frames[which]

    def pixels(self, number: int) -> NDArray[np.uint8]:
        """Return a whole frame as RGB, uint8 [height, width, 3]. Raises BadSample for frames that aren't converted."""
        frame = self._frames[number]
        return rgb(frame, 0, 0, frame.height, frame.width, self._untagged)

    def table(self) -> NDArray[Any]:
        """Return the frames as compiled code takes them, a `Frame` each; it holds as long as these frames are there."""
        rows = []
        for frame in self._frames:
            planes, found = _described(frame, self._untagged)
            rows.append(
                (
                    [plane.buffer_ptr for plane in planes],
                    [plane.line_size for plane in planes],
                    (frame.height, frame.width),
                    (found.bits, found.across, found.down, found.shift, found.black),
                    found.factors,
                )
            )
        return np.array(rows, FRAME)
