"""The size to which an image or the frames of a video shrink."""

import math


def shrunk(height: int, width: int, shorter: int | None, most: int | None) -> tuple[int, int]:
    """Return the new height and width, at least 1, of `height` x `width` pixels.

    Args:
        height, width: the size.
        shorter: the most pixels of the shorter side; None for no limit.
        most: the most pixels of all; None for no limit. With both the smaller result counts.
    """
    sides = sorted((height, width))
    scale = 1.0 if shorter is None else min(1.0, shorter / sides[0])
    if most is not None:
        scale = min(scale, math.sqrt(most / (height * width)))
    less, more = (max(1, round(side * scale)) for side in sides)
    if most is not None:  # rounding up a side may exceed it
        more = min(more, most // less)
    return (less, more) if height <= width else (more, less)
