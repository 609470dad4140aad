"""The file of a video as a browser asks for it: by ranges of bytes, of which only these are read."""

import re
from collections.abc import Iterator
from typing import final

import numpy as np

from ...containers.extents import Runs
from ...foreign.media import format_of
from ...format.fields import length_column
from ...views.readable import ReadableDataset

_PART = 1 << 20  # bytes that are read at a time
_HEAD = 64  # bytes within which Matroska says that it is WebM
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@final
class VideoFile:
    """The file of a sample's video.

    Args:
        dataset: the dataset.
        name: the field.
        index: the number of the sample.

    Attributes:
        size: its bytes.
        media_type: its type, such as `video/mp4`.

    Raises what reading raises.
    """

    def __init__(self, dataset: ReadableDataset, name: str, index: int) -> None:
        self._selection, self._name = dataset.selection(np.array([index])), name
        self.size = int(self._selection.column(length_column(name))[0])
        head = self._read(range(min(self.size, _HEAD)))
        matroska = "webm" if b"webm" in head else "x-matroska"
        self.media_type = f"video/{matroska if format_of(head, ('matroska',)) else 'mp4'}"

    def parts(self, part: range) -> Iterator[bytes]:
        """Yield some of its bytes, a few at a time."""
        for begin in range(part.start, part.stop, _PART):
            yield self._read(range(begin, min(begin + _PART, part.stop)))

    def _read(self, part: range) -> bytes:
        return self._selection.parts(self._name, Runs(np.array([part.start]), np.array([part.stop]))).tobytes()


def asked_bytes(header: str, size: int) -> range | None:
    """Return the bytes that a header `Range` asks for, of a file of `size`; None if it has none of these.

    All bytes are asked for without a header, and by one with several ranges, which servers need not understand.
    """
    found = _RANGE.fullmatch(header)
    if found is None or not any(found.groups()):
        return range(size)
    first, last = found.groups()
    if not first:
        return range(max(0, size - int(last)), size) if int(last) else None
    part = range(int(first), min(int(last) + 1, size) if last else size)
    return part if len(part) else None
