"""Making lists of images: decodes and transforms the images of each sample one by one."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...engines.cpu import make_images
from ...engines.jpeg_headers import orientations_of
from ...engines.orientation import upright_sizes
from ...errors import BadSample
from ...format import images
from ...transforms import PadTo
from ...transforms.steps import Crop, Scale
from .make_arrays import fitted, place_of
from .pairs import note_image_sizes
from .rows import Rows


def make_image_lists(rows: Rows, names: Sequence[str], lists: Sequence[Sequence[bytes] | None]) -> None:
    """Make the images of a stored field of lists under all its names; None stands for a missing list.

    Transforms draw for each image: for the first one of a list what they draw for a field of one image.
    """
    spec = rows.spec
    if not names:
        return
    specs = [spec.image_lists[name] for name in names]
    counts = np.array([len(files or ()) for files in lists], np.int64)
    files = [file for listed in lists for file in listed or ()]
    row_of = np.repeat(np.arange(len(rows)), counts)
    numbers = np.arange(len(files)) - np.repeat(np.cumsum(counts) - counts, counts)
    sizes = np.empty((len(files), 2), np.int32)
    for place, file in enumerate(files):
        try:
            info = images.probe(file)
        except BadSample as error:
            raise BadSample(_message(rows, names[0], row_of[place], numbers[place], error)) from error
        sizes[place] = info.height, info.width
    orientations = orientations_of(files) if spec.options.orient else None
    if orientations is not None:
        sizes = upright_sizes(sizes, orientations)
    note_image_sizes(rows, names, sizes, row_of, numbers)
    steps = [
        each.recipe.steps(sizes, rows.field_keys(name).within(row_of, numbers))
        for name, each in zip(names, specs, strict=True)
    ]
    most = spec.options.limits.max_value_bytes
    for each, own in zip(specs, steps, strict=True):
        shown = sizes
        for step in own:
            shown = step.boxes[:, 2:] if isinstance(step, Crop) else step.sizes if isinstance(step, Scale) else shown
        numbers_each = shown.astype(np.int64).prod(axis=1) * math.prod(each.cpu_engine.output_format.shape((1, 1)))
        held = np.bincount(row_of, numbers_each, len(rows))
        for row in np.flatnonzero(held > most).tolist():
            of = "" if each.recipe.size is None else f" of {each.recipe.size} pixels"
            raise BadSample(
                f"{place_of(rows, names[0], row)}: {counts[row]} images{of} are more than max_value_bytes={most} allows"
            )
    formats = [each.cpu_engine.output_format for each in specs]
    outs = [
        None if each.recipe.size is None else np.empty((len(files), *form.shape(each.recipe.size)), form.dtype)
        for each, form in zip(specs, formats, strict=True)
    ]
    made: Sequence[Sequence[NDArray[np.uint8]] | None] = [[]] * len(names)
    if files:
        failed: dict[int, BadSample] = {}
        made = make_images([each.cpu_engine for each in specs], files, sizes, steps, outs, orientations, failed)
        for place, why in failed.items():
            raise BadSample(_message(rows, names[0], row_of[place], numbers[place], why)) from why
    ends = np.cumsum(counts).tolist()
    for name, each, out, pixels in zip(names, specs, outs, made, strict=True):
        for row, (end, count) in enumerate(zip(ends, counts.tolist(), strict=True)):
            if lists[row] is None:
                continue
            made_of = slice(end - count, end)
            rows.lists[name][row] = list((pixels or ())[made_of]) if out is None else out[made_of]
            if isinstance(each.collation, PadTo) and not rows.mapped:
                rows.lists[name][row] = fitted(rows, name, row, rows.lists[name][row], each.collation)


def _message(rows: Rows, name: str, row: int, number: int, error: BadSample) -> str:
    return f"{place_of(rows, name, int(row))}, image {number}: {error}"
