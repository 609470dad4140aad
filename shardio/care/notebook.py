"""A dataset as HTML, which notebooks show: its fields, and a few samples with small pictures.

Nothing that a sample holds can make this fail: what cannot be read or decoded is said in its place. All text is
escaped, and pictures are data within the HTML.
"""

import time
from typing import Any

import numpy as np

from ..dataset.dataset import Dataset
from ..format.fields import Field, describe
from ..system import helper_process
from ..system.html import escaped
from ..system.units import format_size
from ..views.classes import class_name
from ..views.readable import decoded
from ..views.view import BaseDataset
from .values import MOST_PIXELS, inline, missing, stored_value, thumbnail, video_facts, video_text

_SAMPLES = 4
_MOST_TEXT = 100  # characters
_SIDE = 96  # pixels of a picture's longer side
_MOST_BYTES = 1 << 16  # of a value that is no image
_SECONDS = 3.0  # after which no further value is read


def to_html(dataset: BaseDataset) -> str:
    """Return a dataset as HTML: its path, some facts, and a table of its fields with a few samples.

    At most four samples are read, spread over it, and of these no large arrays.
    """
    count, deadline = len(dataset), time.monotonic() + _SECONDS
    chosen = np.unique(np.linspace(0, max(0, count - 1), min(_SAMPLES, count)).astype(np.int64)).tolist()
    rows = [["field", "kind", *(f"sample {index}" for index in chosen)]]
    for name, field in dataset.fields.items():
        cells = [_cell(dataset, name, field, index, deadline) for index in chosen]
        rows.append([escaped(name), escaped(describe(field)), *cells])
    table = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<div><strong>{escaped(dataset.path)}</strong><br>{escaped(_facts(dataset))}<table>{table}</table></div>"


def _facts(dataset: BaseDataset) -> str:
    if not isinstance(dataset, Dataset):
        return repr(dataset)
    shards, size = dataset.manifest.shards, format_size(int(dataset.manifest.shards.bytes.sum()))
    return f"{len(dataset):,} samples in {len(shards):,} {dataset.manifest.container} shards, {size}"


def _cell(dataset: BaseDataset, name: str, field: Field, index: int, deadline: float) -> str:
    """Return one value as HTML, or the reason why it cannot be shown; "…" for what may take long."""
    most = MOST_PIXELS if field.is_image else _MOST_BYTES
    if field.kind == "bytes" or (field.fixed and field.row_bytes > most) or time.monotonic() > deadline:
        return "…"
    try:
        if field.kind == "video":
            return _video(dataset, name, index)
        with helper_process.time_limit(_SECONDS):
            value: Any = stored_value(dataset, name, index, most)
            if not field.fixed:
                (value,) = decoded(dataset, name, [value], np.array([index]))
        if field.is_image:
            return _picture(value, field)
        if field.kind == "images":
            return "".join(_picture(file, Field("image")) for file in value[:_SAMPLES])
        if name == "label" and (known := class_name(value, dataset.classes or ())) is not None:
            value = f"{value} ({known})"
        return escaped(value, _MOST_TEXT)
    except Exception as error:  # noqa: BLE001  # a notebook shows its cell's result whatever a sample holds
        return f"<em>cannot be shown: {escaped(f'{type(error).__name__}: {error}', _MOST_TEXT)}</em>"


def _video(dataset: BaseDataset, name: str, index: int) -> str:
    """Return a frame of a video, and what is known of it, as HTML."""
    from .video_frames import frames_of  # loads torch

    if missing(dataset, name, index):
        return escaped(None)
    (frame,) = frames_of(dataset, name, index, 1)
    text = escaped(video_text(video_facts(dataset, name, index)), _MOST_TEXT)
    return f"{_picture(frame, Field('image'))}<br>{text}"


def _picture(value: Any, field: Field) -> str:
    """Return an image as HTML with a small JPEG."""
    return inline("jpeg", thumbnail(value, field, _SIDE))
