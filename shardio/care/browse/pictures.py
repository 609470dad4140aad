"""Pictures of values for a page: small ones for the grid, images as they are, and numbers as grey levels."""

import io
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...engines.whole_images import decode_mask
from ...errors import BadSample
from ...format import images
from ...format.fields import Field, describe
from ...format.mask_colors import colored
from ...system import helper_process
from ...system.html import escaped
from ...views.readable import ReadableDataset
from ..marks import Mark
from ..show import stretched
from ..values import MOST_PIXELS, inline, missing, stored_marks, stored_value, thumbnail
from ..video_frames import frames_of
from .arrays import read, usual_cut

SIDE = 160  # pixels of a small picture's longer side
FRAMES = 8
"""Frames of a video that its page shows."""
LARGEST = 1024  # and of a picture of numbers
_LETTERS = 12  # pixels
_LONGEST = 60  # characters of a name
SECONDS = 10.0  # that reading one value may take in the library of HDF5


def picturable(field: Field) -> bool:
    """Return whether values of a field come as a small picture; boxes and points come on that of their image."""
    slices = field.kind == "array" and len(field.shape or ()) > 1 and field.on is None
    return field.is_image or field.kind in ("images", "video") or slices


def small(dataset: ReadableDataset, name: str, index: int) -> bytes:
    """Return a sample's value as a JPEG of at most `SIDE` pixels.

    It shows the first image of a list, the frame in the middle of a video, a slice of an array. Boxes and points are
    drawn on their image.

    Raises what reading and decoding raises, BadSample for a value that is missing or too large.
    """
    field = dataset.field(name)
    if not picturable(field):
        raise BadSample(f"field {name!r} has no pictures: {describe(field)}")
    if field.kind == "array":
        shown = read(dataset, name, index, usual_cut)
        numbers = shown.values if shown.values.ndim == 2 else shown.values.reshape(1, -1)
        return thumbnail(grey(numbers, SIDE)[..., None], Field("image", channels=1), SIDE)
    if field.kind == "video":
        return thumbnail(strip(dataset, name, index, 1), Field("image"), SIDE)
    value = image(dataset, name, index)
    return thumbnail(value, field if field.is_image else Field("image"), SIDE, stored_marks(dataset, name, index))


def strip(dataset: ReadableDataset, name: str, index: int, count: int) -> NDArray[np.uint8]:
    """Return frames of all of a sample's video side by side, uint8 [height, count * width, 3].

    Raises what reading and decoding raises, BadSample for a video that is missing.
    """
    if missing(dataset, name, index):
        raise BadSample("no value")
    return np.concatenate([*frames_of(dataset, name, index, count)], axis=1)


def image(dataset: ReadableDataset, name: str, index: int, number: int = 0) -> Any:
    """Return an image: its file, or its pixels [height, width, channels]; of a list that of some number.

    Raises what reading raises, BadSample for one that is missing.
    """
    field = dataset.field(name)
    with helper_process.time_limit(SECONDS):
        if missing(dataset, name, index):
            raise BadSample("no value")
        if field.fixed and field.row_bytes > 3 * MOST_PIXELS:
            raise BadSample(f"its pixels take {field.row_bytes} bytes, too many to show")
        stored = stored_value(dataset, name, index, MOST_PIXELS)
    if field.fixed:
        return stored
    if field.kind == "images":
        listed = field.decode(stored)
        if not 0 <= number < len(listed):
            raise BadSample(f"no image {number} in a list of {len(listed)}")
        return listed[number]
    return bytes(stored)


def whole(value: Any, field: Field) -> tuple[bytes, str]:
    """Return an image in full size as a file that a browser shows, and its type; masks in colours.

    Raises BadSample for a file that is no image, or of too many pixels.
    """
    if isinstance(value, np.ndarray):
        return png(colored(value[..., 0].astype(np.uint16)) if field.role == "mask" else value), "image/png"
    images.check_pixels(value, MOST_PIXELS)
    if field.role == "mask":
        with suppress(BadSample):  # what is no mask is shown as it is
            return png(colored(decode_mask(value, MOST_PIXELS)[..., 0].astype(np.uint16))), "image/png"
    return value, f"image/{images.sniff(value)}"


def grey(numbers: NDArray[Any], most: int = LARGEST) -> NDArray[np.uint8]:
    """Return numbers [height, width] as grey levels from the smallest to the largest, of at most so many a side."""
    rows, columns = (max(1, -(-size // most)) for size in numbers.shape)
    return stretched(numbers[::rows, ::columns])


def png(pixels: NDArray[Any]) -> bytes:
    """Return pixels, uint8 [height, width] or [height, width, 1 or 3] of RGB, as a PNG."""
    encoded = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels).save(encoded, "PNG")
    return encoded.getvalue()


def inline_png(pixels: NDArray[Any], label: str, kind: str = "") -> str:
    """Return pixels as an `img` whose data are within the HTML."""
    height, width = pixels.shape[:2]
    return inline("png", png(pixels), f' class="{kind}" width="{width}" height="{height}" alt="{escaped(label, 200)}"')


def with_marks(picture: str, marks: Sequence[Mark], size: tuple[int, int]) -> str:
    """Return the HTML of a picture with marks above it, as SVG; `size` is the (height, width) that marks are in."""
    if not marks:
        return picture
    (height, width), shapes, names = size, list[str](), list[str]()
    for mark in marks:
        color = "#{:02x}{:02x}{:02x}".format(*mark.color)
        x, y, *ends = (f"{number + 0:.7g}" for number in mark.place)  # no -0
        if not ends:
            shapes.append(f'<path d="M{x} {y}h.001" stroke="{color}"/>')
            continue
        across, down = (max(0.0, mark.place[axis + 2] - mark.place[axis]) for axis in (0, 1))
        title = f"<title>{escaped(mark.name, _LONGEST)}</title>" if mark.name else ""
        shapes.append(f'<rect x="{x}" y="{y}" width="{across:.7g}" height="{down:.7g}" stroke="{color}">{title}</rect>')
        if mark.name:
            names.append(f'<g fill="{color}"><text x="{x}" y="{y}" dy="1em">{escaped(mark.name, _LONGEST)}</text></g>')
    side = max(height, width)
    letters = min(side / 20, max(_LETTERS, side / 80))  # small images are enlarged, and large ones shrunk
    return (
        f'<span class="bears">{picture}<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" '
        f'font-size="{letters:.4g}">{"".join(shapes)}{"".join(names)}</svg></span>'
    )


def as_error(text: str) -> bytes:
    """Return a text as a picture, SVG, to show where a small picture cannot be made."""
    words = escaped(" ".join(text.split()), 220)
    style = "font:11px sans-serif;color:#c2410c;overflow-wrap:anywhere;padding:6px"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIDE}" height="{SIDE}"><foreignObject width="100%" '
        f'height="100%"><div xmlns="http://www.w3.org/1999/xhtml" style="{style}">{words}</div></foreignObject></svg>'
    ).encode()


def colored_levels(picture: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the picture of a card: an image as it is, the integers of a mask, [height, width], in colours."""
    return colored(picture.astype(np.int64)) if picture.ndim == 2 else picture.astype(np.uint8, copy=False)
