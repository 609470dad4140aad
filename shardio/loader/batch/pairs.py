"""Fields that draw the same crops, such as an image and its mask: samples whose sizes don't fit are bad ones."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...errors import BadSample, Message
from ...format.pairs import FITS, TURNED, compare_sizes
from ...system.types import Indices
from ...transforms import RandomSpatialCrop
from ...transforms.arrays import Shapes
from ...transforms.steps import Sizes
from .field_warnings import Pair
from .rows import Rows

_MOST_AXES = 64  # of an array, as NumPy has them


def note_image_sizes(rows: Rows, names: Sequence[str], sizes: Sizes, of: Indices, numbers: Indices | int = 0) -> None:
    """Note the sizes of images, int32 [m, 2], and their rows; those of lists have numbers there."""
    for name in _paired(rows, names):
        image = rows.spec.images.get(name) or rows.spec.image_lists[name]
        rows.cropped[name] = np.zeros((len(rows), int(np.max(numbers, initial=0)) + 1, 2), np.int32)
        rows.cropped[name][of, numbers] = image.recipe.sizes_at_crop(sizes)


def note_array_sizes(rows: Rows, name: str, shapes: Shapes, of: Indices) -> None:
    """Note how long arrays of these shapes, int64 [m, axes], are along the axes that are cut, and their rows."""
    for each in _paired(rows, [name]):
        noted = rows.cropped.setdefault(each, np.zeros((len(rows), 1, _MOST_AXES), np.int64))
        recipe = rows.spec.arrays[each].recipe
        crop = next(each for each in recipe.transforms if isinstance(each, RandomSpatialCrop))
        axes = len(crop.block(shapes.shape[1] - recipe.takes_row))
        noted[of, 0, _MOST_AXES - axes :] = shapes[:, shapes.shape[1] - axes :]


def check_pairs(rows: Rows) -> None:
    """Leave samples whose sizes don't fit among `rows.failed`; raise BadSample for one that is made alone."""
    for pair in rows.spec.pairs:
        if not rows.cropped.keys() >= {*pair.names}:  # arrays of one shape, or no values in these rows
            continue
        one, other = (rows.cropped[name] for name in pair.names)
        both = min(one.shape[1], other.shape[1])
        one, other = one[:, :both], other[:, :both]
        found = compare_sizes(one, other, scaled=pair.scaled, rounding=int(pair.resized))
        found[~(one.any(axis=2) & other.any(axis=2))] = FITS
        if found.any() and len(rows) == 1:
            number = int(np.flatnonzero(found[0])[0])
            message = _message(rows, pair, one[0, number], other[0, number], turned=found[0, number] == TURNED)
            raise BadSample("{}: {}", rows.spec.place_of(rows.indices[0]), message)
        rows.failed.update(np.flatnonzero(found.any(axis=1)).tolist())


def _paired(rows: Rows, names: Sequence[str]) -> list[str]:
    return [name for name in names if any(name in pair.names for pair in rows.spec.pairs)]


def _message(rows: Rows, pair: Pair, one: NDArray[np.int64], other: NDArray[np.int64], *, turned: bool) -> Message:
    shown = [" x ".join(str(length) for length in size.tolist() if length) for size in (one, other)]
    advice = "{orient:True} turns images upright that have such an EXIF tag"
    if rows.spec.options.orient:
        advice = "without {orient} images stay as they are stored, whatever their EXIF tags say"
    told = (
        "fields {!r} and {!r} draw the same crops, and so must have the same {}, got {} and {}{}; see 'Fields that "
        "belong together' in docs/engines.md, also for fields that don't"
    )
    turn = Message(", each other's transpose; " + advice) if turned else ""
    return Message(told, *pair.names, "aspect ratio" if pair.scaled else "size", *shown, turn)
