"""Sounds: files decoded to 16-bit samples, once, when they are converted.

FFmpeg decodes and resamples them. It parses what may be hostile, so the helper process calls it
(`system/helper_process.py`).
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample
from .media import in_helper, opened, pyav

DEMUXERS = ("wav", "flac", "ogg", "mp3", "mov", "matroska")
"""The demuxers of files of sound."""
_TOGETHER = 1 << 20  # bytes of samples that the helper sends at once


class Sound(NamedTuple):
    """A sound: its samples, int16 [n, channels], and how many a second has."""

    samples: NDArray[np.int16]
    rate: int


def decoded(path: str, rate: int | None, *, mono: bool) -> Sound:
    """Decode the first sound of a file.

    Args:
        path: the file.
        rate: the samples per second to make of it; None keeps its own.
        mono: whether to mix all channels to one, each with the same weight.

    Raises BadSample if that is not possible.
    """
    head, *parts = in_helper(f"{__name__}:answer", path, rate=rate, mono=mono)
    found, channels = np.frombuffer(head, np.int64).tolist()
    return Sound(np.frombuffer(b"".join(parts), np.int16).reshape(-1, channels), found)


def answer(path: str, rate: int | None, mono: bool) -> Iterator[bytes]:
    """Yield the rate and the number of channels, int64, then the samples, int16; in the helper process."""
    try:
        with opened(path, DEMUXERS, "it is no WAV, FLAC, Ogg, MP3, MP4 or MKV file") as source:
            if not source.streams.audio:
                raise BadSample("it has no sound")
            stream = source.streams.audio[0]
            wanted, channels = rate or stream.rate, 1 if mono else stream.channels
            yield np.array((wanted, channels), np.int64).tobytes()
            yield from _samples(source, stream, wanted, "mono" if mono else stream.layout)
    except OSError as error:
        raise BadSample(f"cannot be read: {error.strerror}") from error


def _samples(source: Any, stream: Any, rate: int, layout: Any) -> Iterator[bytes]:
    resampler, waiting, size = pyav().AudioResampler("s16", layout, rate), list[bytes](), 0
    for frame in chain(source.decode(stream), [None]):  # None: there are no more
        for made in resampler.resample(frame):
            waiting.append(made.to_ndarray().tobytes())
            size += len(waiting[-1])
        if size >= _TOGETHER or frame is None:
            yield b"".join(waiting)
            waiting, size = [], 0
