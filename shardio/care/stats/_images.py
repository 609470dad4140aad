"""The sizes and the pixels of images, counted."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ...format import images
from ._tally import Numbers, Spread, Tally, round_to_bits, spread_of
from .figures import LEVELS, Channel, Grid, ImageStats

COMMON = 10
_CELLS = 40
_PROGRESSIVE = 2


class ImageSizes:
    """Heights and widths of images, counted together: all else that is said of sizes follows from that."""

    def __init__(self) -> None:
        self._pairs = Tally(np.int64, _round_pairs)

    def add(self, sizes: NDArray[np.int32]) -> None:
        """Counts some: (height, width) in pixels, [n, 2]."""
        self._pairs.add(_pack(sizes[:, 0].astype(np.int64), sizes[:, 1].astype(np.int64)))

    def images(self, pixels: "PixelMoments") -> ImageStats | None:
        """What is said of them; None of none."""
        counts = self._pairs.counts
        if not len(counts):
            return None
        heights, widths = _unpack(self._pairs.values)
        most = np.lexsort((self._pairs.values, -counts))[:COMMON]
        return ImageStats(
            heights=_spread(heights, counts),
            widths=_spread(widths, counts),
            shorter_sides=_spread(np.minimum(heights, widths), counts),
            aspect_ratios=_spread(widths / np.maximum(heights, 1), counts),
            megapixels=_spread(heights * widths / 1e6, counts),
            sizes=len(counts),
            common=tuple((int(heights[i]), int(widths[i]), int(counts[i])) for i in most),
            grid=_grid(heights, widths, counts),
            encodings=dict(pixels.encodings.most_common()),
            jpeg_codings=dict(pixels.codings.most_common()),
            channels=pixels.channels(),
        )


@dataclass
class PixelMoments:
    """Decoded images, counted.

    Attributes:
        encodings, codings: how many there are of each encoding, and of the JPEGs of each coding.
        levels: the share of pixels that have each level, of all images added up, float64 [channels, 256].
        count: images.
    """

    encodings: Counter[str] = field(default_factory=Counter)
    codings: Counter[str] = field(default_factory=Counter)
    levels: NDArray[np.float64] | None = None
    count: int = 0

    def add(self, stored: bytes, pixels: NDArray[np.uint8]) -> None:
        """Counts one image: its file, and uint8 [height, width, channels]. BadSample if the file's headers are odd."""
        encoding = images.sniff(stored) or "other"
        codings = Counter([_coding(stored)] if encoding == "jpeg" else [])
        counted = [cv2.calcHist([pixels], [c], None, [LEVELS], [0, LEVELS]).reshape(-1) for c in range(pixels.shape[2])]
        shares = np.array(counted, np.float64) / (pixels.shape[0] * pixels.shape[1])
        self.merge(PixelMoments(Counter([encoding]), codings, shares, 1))

    def merge(self, other: "PixelMoments") -> None:
        """Adds what another has counted."""
        self.encodings += other.encodings
        self.codings += other.codings
        self.count += other.count
        if other.levels is not None:
            self.levels = other.levels if self.levels is None else self.levels + other.levels

    def channels(self) -> tuple[Channel, ...]:
        """What is said of them."""
        return () if self.levels is None else tuple(_channel(levels / self.count) for levels in self.levels)


def _coding(stored: bytes) -> str:
    coding = images.jpeg_coding(stored)
    return "baseline" if coding.baseline else "progressive" if coding.process == _PROGRESSIVE else "other"


def _channel(shares: NDArray[np.float64]) -> Channel:
    scale = np.arange(LEVELS) / (LEVELS - 1)
    mean = float(scale @ shares)
    return Channel(mean, float(np.sqrt((scale - mean) ** 2 @ shares)), tuple(shares.tolist()))


def _pack(heights: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.int64]:
    return heights << 32 | widths


def _unpack(pairs: Numbers) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    whole = pairs.astype(np.int64)
    return whole >> 32, whole & 0xFFFFFFFF


def _round_pairs(pairs: Numbers, bits: int) -> Numbers:
    heights, widths = (round_to_bits(sides, bits).astype(np.int64) for sides in _unpack(pairs))
    return _pack(heights, widths)


def _spread(values: NDArray[Any], counts: NDArray[np.int64]) -> Spread:
    spread = spread_of(values, counts, growing=True)
    if spread is None:
        raise ValueError("there are no values")
    return spread


def _grid(heights: NDArray[np.int64], widths: NDArray[np.int64], counts: NDArray[np.int64]) -> Grid:
    rows, columns = _cells(heights), _cells(widths)
    found, _, _ = np.histogram2d(heights, widths, bins=(rows, columns), weights=counts)
    whole: Sequence[Sequence[int]] = np.rint(found).astype(np.int64).tolist()
    return Grid(tuple(columns.tolist()), tuple(rows.tolist()), tuple(map(tuple, whole)))


def _cells(sides: NDArray[np.int64]) -> NDArray[np.int64]:
    low, high = int(sides.min()), int(sides.max())
    step = -(-(high - low + 1) // _CELLS)
    return np.arange(low, high + step + 1, step)
