"""Stored values as people see them: read one by one, numbers as text, labels by name, images as small pictures.

The cost is bounded, whatever a file claims.
"""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from ..format import images
from ..format.fields import Field, facts_column, present_column
from ..format.mask_colors import colored
from ..format.packets import CODECS, VideoFacts
from ..system.units import counted
from ..views.classes import names_by_field
from ..views.readable import ReadableDataset
from .marks import Mark, draw, marking_fields, marks_of

MOST_PIXELS = 1 << 25
"""The most pixels of an image that is decoded, and the most bytes of a stored one."""

_MOST_MARKING = 1 << 22  # bytes of the boxes of one image, of its points and of their labels
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")


def stored_value(dataset: ReadableDataset, name: str, index: int, most: int) -> Any:
    """Return a sample's value in stored form: a number or an array of one shape, else bytes, of at most `most`.

    Raises what reading raises.
    """
    return dataset.selection(np.array([index]), most).stored(name)[0]


def missing(dataset: ReadableDataset, name: str, index: int) -> bool:
    """Return whether a sample lacks the value of an optional field."""
    if not dataset.field(name).optional:
        return False
    return not dataset.selection(np.array([index])).column(present_column(name))[0]


def video_facts(dataset: ReadableDataset, name: str, index: int) -> VideoFacts:
    """Return what is known of a sample's video, which is not read. Raises what reading the shard's index raises."""
    return VideoFacts(*dataset.selection(np.array([index])).column(facts_column(name))[0].tolist())


def video_text(facts: VideoFacts) -> str:
    """Return what is known of a video as text: `h264, 240 x 320, 150 frames, 6 s, 25 frames/s`."""
    codec = CODECS[facts.codec] if 0 < facts.codec < len(CODECS) else "unknown codec"
    words = [codec, f"{facts.height} x {facts.width}", counted(facts.frames, "frame", ",")]
    if seconds := facts.span * facts.ticks / max(1, facts.per):
        words += [f"{number_text(seconds, 4)} s", f"{number_text(facts.frames / seconds, 4)} frames/s"]
    return ", ".join(words + ([f"turned by {facts.rotation} degrees to be shown"] if facts.rotation else []))


def stored_marks(dataset: ReadableDataset, image: str, index: int) -> list[Mark]:
    """Return the boxes and points that lie on a sample's image, in stored pixels.

    Raises what reading raises.
    """
    fields, classes = dataset.fields, names_by_field(dataset.metadata, dataset.fields)
    values = {
        name: fields[name].entries(stored_value(dataset, name, index, _MOST_MARKING))
        for name in marking_fields(fields, classes, image)
        if not missing(dataset, name, index)
    }
    return marks_of(values, fields, classes)


def number_text(value: Any, digits: int = 6) -> str:
    """Return a number as text: floats with so many digits, others as they are."""
    return f"{value:.{digits}g}" if isinstance(value, float | complex) else f"{value}"


def inline(kind: str, file: bytes, attributes: str = "") -> str:
    """Return an image file as an `img` whose data are within the HTML."""
    return f'<img{attributes} src="data:image/{kind};base64,{base64.b64encode(file).decode()}">'


def thumbnail(value: Any, field: Field, side: int, marks: Sequence[Mark] = ()) -> bytes:
    """Return an image, a file or pixels [height, width, channels], as a JPEG; a mask in colours.

    Args:
        value: the image.
        field: the field that holds it.
        side: the most pixels of the longer side.
        marks: what lies on the image, to be drawn.

    Raises BadSample for a file of more pixels than `MOST_PIXELS`; what Pillow raises for one that it cannot decode.
    """
    mode = "L" if field.channels == 1 and field.role is None else "RGB"
    if isinstance(value, np.ndarray):
        image = Image.fromarray(value if field.channels == 3 else value[..., 0])
        width, height = image.size
    else:
        images.check_pixels(value, MOST_PIXELS)
        image = Image.open(io.BytesIO(value), formats=_FORMATS)
        width, height = image.size
        image.draft(mode, (side, side))  # has libjpeg decode fewer pixels; other formats ignore it
    if field.role == "mask":
        image = Image.fromarray(colored(np.asarray(image).astype(np.uint16)))
    image = image.convert(mode)
    image.thumbnail((side, side), Image.Resampling.BICUBIC if field.role is None else Image.Resampling.NEAREST)
    if marks:
        image = image.convert("RGB")
        draw(image, marks, (image.width / width, image.height / height))
    encoded = io.BytesIO()
    image.save(encoded, "JPEG", quality=90)
    return encoded.getvalue()
