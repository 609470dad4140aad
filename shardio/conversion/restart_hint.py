"""A hint on photos without restart markers: what transcoding them would spare the decoding of random crops."""

import re

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..errors import BadSample, Message
from ..format.images import jpeg_coding, probe, sniff
from ..native import recode
from ..output.shard_writer import Encoded
from ..system.types import Indices
from ..transforms.geometry import random_boxes
from ..transforms.random_generator import RandomGenerator
from .runners import portable_errors
from .shard_tasks import encode_some
from .source import Source

_SAMPLES = 24
_CROPS = 32  # of each image
_SHORTEST_SIDE = 100
"""Smaller images decode in no time."""
_LEAST = 0.1
_MARGIN = 2  # pixels around a crop that decoding it needs


def restart_hint(source: Source, numbers: Indices | None) -> list[str]:
    """Return a hint if most of the source's images are photos that `jpeg_restarts` would make faster to crop.

    Args:
        source: the samples as they will be stored.
        numbers: those that will be, None for all. A few of them are read.
    """
    names = [name for name, field in source.fields.items() if field.kind == "image" and field.role != "mask"]
    chosen = range(len(source.sizes())) if numbers is None else numbers
    if not names or native.library() is None or not len(chosen):
        return []
    images: list[bytes] = []
    photos: list[bytes] = []
    for count in (1, _SAMPLES):  # the first sample spares others than photos the reading of more
        with portable_errors():
            samples = [one.stored for one in encode_some(source, chosen, count) if isinstance(one, Encoded)]
        images = [bytes(sample[name]) for sample in samples for name in names]
        photos = [data for data in images if _gains(data)]
        if 2 * len(photos) <= len(images):
            return []
    now, then = np.array([_bytes_read(data) for data in photos]).sum(axis=0).tolist()
    if now - then <= _LEAST * now:
        return []
    progressive = sum(jpeg_coding(data).process == 2 for data in photos)
    more = f"; {progressive} of {len(images)} are progressive, and decoded whole for any crop" if progressive else ""
    told = (
        "with {jpeg_restarts:True}, random crops would decode {:.0f} % fewer bytes of these JPEGs, to the same pixels{}"
    )
    return [Message(told, 100 - 100 * then / now, more)]


def _gains(data: bytes) -> bool:
    """Return whether an image is a JPEG without restart markers that is not small."""
    try:
        if sniff(data) != "jpeg" or jpeg_coding(data).restart_interval:
            return False
        info = probe(data)
    except BadSample:
        return False
    return min(info.height, info.width) >= _SHORTEST_SIDE


def _bytes_read(data: bytes) -> tuple[int, int]:
    """Return the bytes that some random crops of a JPEG decode as it is, and with restart markers."""
    try:
        made = recode.restart(data)
    except BadSample:
        made = None
    if made is None:
        return 0, 0
    info, coding = probe(made), jpeg_coding(made)
    rows, columns = (-(-side // unit) for side, unit in zip((info.height, info.width), coding.unit, strict=True))
    ends = [found.start() for found in re.finditer(rb"\xff[\xd0-\xd9]", made[coding.scan :])]
    lengths = np.diff(ends[: rows * columns // coding.restart_interval], prepend=0).reshape(rows, -1)
    sums = np.pad(lengths.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    sizes = np.full((_CROPS, 2), (info.height, info.width), np.int32)
    boxes = random_boxes(sizes, RandomGenerator(0, 0, 0, np.arange(_CROPS)), (0.08, 1.0), (3 / 4, 4 / 3))
    begin = np.maximum(boxes[:, :2] - _MARGIN, 0)
    end = np.minimum(boxes[:, :2] + boxes[:, 2:] + _MARGIN, sizes)
    step = np.array([coding.unit[0], coding.unit[1] * coding.restart_interval])
    (top, left), (bottom, right) = (begin // step).T, (-(-end // step)).T
    needed: NDArray[np.int64] = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
    front = sums[-1, -1] * _CROPS if jpeg_coding(data).process == 2 else sums[bottom, -1].sum()
    return int(front), int(needed.sum())
