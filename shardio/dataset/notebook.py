"""A dataset as HTML, which notebooks show: its fields, and a few samples with small pictures.

Nothing that a sample holds can make this fail: what cannot be read or decoded is said in its place. All text is
escaped, and pictures are data within the HTML.
"""

import base64
import html
import io
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from ..format import images
from ..format.fields import Field, describe
from ..format.mask_colors import colored
from ..system import helper_process
from .readable import ReadableDataset

_SAMPLES = 4
_MOST_FIELDS = 30
_MOST_CLASSES = 10
_MOST_TEXT = 100  # characters
_MOST_NUMBERS = 8  # of an array that is shown
_SIDE = 96  # pixels of a picture's longer side
_MOST_PIXELS = 1 << 25  # of an image that is decoded
_MOST_BYTES = {"image": 1 << 25, "pixels": 1 << 25, "text": 1 << 16, "json": 1 << 16}
"""The largest stored values that are read, by kind."""
_SECONDS = 3.0
"""Time after which no further value is read."""
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP")


def to_html(dataset: ReadableDataset, facts: Mapping[str, str], classes: Sequence[str] | None) -> str:
    """Return a dataset as HTML: its path, some facts, and a table of its fields with a few samples.

    Args:
        dataset: the dataset. At most four samples are read, spread over it, and of these no large arrays.
        facts: what to say of the dataset, by name.
        classes: the names of the classes by `label`, if they are known.
    """
    count = len(dataset)
    chosen = np.unique(np.linspace(0, max(0, count - 1), min(_SAMPLES, count)).astype(np.int64)).tolist()
    facts = dict(facts)
    if classes:
        more = f" and {len(classes) - _MOST_CLASSES:,} more" if len(classes) > _MOST_CLASSES else ""
        facts["classes"] = f"{len(classes):,}: {', '.join(map(_shortened, classes[:_MOST_CLASSES]))}{more}"
    head = "".join(f"<br>{_escaped(name)}: {_escaped(value)}" for name, value in facts.items())
    titles = "".join(f"<th>{_escaped(title)}</th>" for title in ("field", "kind", *(f"sample {n}" for n in chosen)))
    deadline = time.monotonic() + _SECONDS
    rows = []
    for name, field in list(dataset.fields.items())[:_MOST_FIELDS]:
        cells = (_cell(dataset, name, field, index, classes, deadline) for index in chosen)
        first = f"<th>{_escaped(name)}</th><td>{_escaped(describe(field))}</td>"
        rows.append(f"<tr>{first}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    hidden = len(dataset.fields) - len(rows)
    rest = f"<p>and {hidden:,} more fields</p>" if hidden else ""
    table = f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<div><strong>{_escaped(dataset.path)}</strong>{head}{table}{rest}</div>"


def _cell(
    dataset: ReadableDataset, name: str, field: Field, index: int, classes: Sequence[str] | None, deadline: float
) -> str:
    """Return one value as HTML, or the reason why it cannot be shown."""
    if not _is_shown(field) or time.monotonic() > deadline:
        return "…"
    try:
        with helper_process.time_limit(_SECONDS):
            selection = dataset.select(np.array([index]), _MOST_BYTES.get(field.kind, 1 << 16))
            if field.fixed:
                value: Any = selection.column(name)[0]
            else:
                (value,) = dataset.decode(name, selection.values(name), np.array([index]))
        if field.is_image:
            return _picture(value, field)
        if field.kind == "scalar" and name == "label" and classes and 0 <= value < len(classes):
            return f"{_escaped(value)} ({_escaped(_shortened(classes[value]))})"
        return _escaped(_shortened(value))
    except Exception as error:  # noqa: BLE001  # a notebook shows its cell's result whatever a sample holds
        return f"<em>cannot be shown: {_escaped(_shortened(f'{type(error).__name__}: {error}'))}</em>"


def _is_shown(field: Field) -> bool:
    """Return whether values of a field are read: those of large or unknown size may take long."""
    match field.kind:
        case "array":
            return field.fixed and int(np.prod(field.row_shape, dtype=np.float64)) <= _MOST_NUMBERS
        case "pixels":
            return field.row_bytes <= _MOST_BYTES["pixels"]
    return field.kind != "bytes"


def _picture(value: Any, field: Field) -> str:
    """Return an image, an encoded file or pixels [height, width, channels], as HTML that holds it as a small JPEG.

    Masks are shown in colours.
    """
    is_mask = field.role == "mask"
    mode = "RGB" if field.channels == 3 or is_mask else "L"
    if isinstance(value, np.ndarray):
        image = Image.fromarray(value if field.channels == 3 else value[..., 0])
    else:
        images.check_pixels(value, _MOST_PIXELS)
        image = Image.open(io.BytesIO(value), formats=_FORMATS)
        image.draft(mode, (_SIDE, _SIDE))  # has libjpeg decode fewer pixels; other formats ignore it
    if is_mask:
        image = Image.fromarray(colored(np.asarray(image).astype(np.uint16)))
    image = image.convert(mode)
    image.thumbnail((_SIDE, _SIDE), Image.Resampling.NEAREST if is_mask else Image.Resampling.BICUBIC)
    zoom = max(1, _SIDE // max(image.size))
    width, height = (side * zoom for side in image.size)
    encoded = io.BytesIO()
    image.save(encoded, "JPEG", quality=90)
    data = base64.b64encode(encoded.getvalue()).decode()
    return (
        f'<img src="data:image/jpeg;base64,{data}" width="{width}" height="{height}" style="image-rendering:pixelated">'
    )


def _shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"


def _escaped(value: object) -> str:
    """Return text for HTML. Halves of characters, which JSON may hold and UTF-8 does not, become question marks."""
    return html.escape(str(value).encode(errors="replace").decode())
