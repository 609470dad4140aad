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
from ..system import helper_process
from ..system.regular_files import open_regular
from .video_decoder import pyav

_FORMATS = {
    "wav": [(0, b"RIFF"), (0, b"RF64")],
    "flac": [(0, b"fLaC")],
    "ogg": [(0, b"OggS")],
    "mp3": [(0, b"ID3"), *((0, bytes((0xFF, second))) for second in (0xFB, 0xFA, 0xF3, 0xF2, 0xE3, 0xE2))],
    "mov": [(4, b"ftyp")],
    "matroska": [(0, b"\x1aE\xdf\xa3")],
}
"""The demuxers that are used, with the bytes that their files begin with, and where."""
_TOGETHER = 1 << 20  # bytes of samples that the helper sends at once


class Sound(NamedTuple):
    """A sound: its samples, int16 [n, channels], and how many a second has."""

    samples: NDArray[np.int16]
    rate: int


def format_of(head: bytes) -> str | None:
    """Return the demuxer for a file of sound that begins with these bytes, at least 12; None for another file."""
    for name, beginnings in _FORMATS.items():
        if any(head[at : at + len(mark)] == mark for at, mark in beginnings):
            return name
    return None


def decoded(path: str, rate: int | None, *, mono: bool) -> Sound:
    """Decode the first sound of a file.

    Args:
        path: the file.
        rate: the samples per second to make of it; None keeps its own.
        mono: whether to mix all channels to one, each with the same weight.

    Raises BadSample if that is not possible.
    """
    arguments = {"path": path, "rate": rate, "mono": mono}
    try:
        head, *parts = helper_process.call(f"{__name__}:answer", arguments, helper_process.current_limit())
    except helper_process.CallFailed as error:
        raise BadSample(f"FFmpeg does not get through it: {error}") from error
    found, channels = np.frombuffer(head, np.int64).tolist()
    return Sound(np.frombuffer(b"".join(parts), np.int16).reshape(-1, channels), found)


def made_by() -> str:
    """Return the build of FFmpeg that decodes and resamples."""
    av = pyav()
    versions = (f"{name} {'.'.join(map(str, av.library_versions[name]))}" for name in ("libavcodec", "libswresample"))
    return f"{', '.join(versions)}, PyAV {av.__version__}"


def answer(path: str, rate: int | None, mono: bool) -> Iterator[bytes]:
    """Yield the rate and the number of channels, int64, then the samples, int16; in the helper process."""
    av = pyav()
    try:
        with open(path, "rb", opener=open_regular) as file:
            if (form := format_of(file.read(16))) is None:
                raise BadSample("it is no WAV, FLAC, Ogg, MP3, MP4 or MKV file")
            file.seek(0)
            with av.open(file, format=form, options={"protocol_whitelist": ""}, metadata_errors="replace") as source:
                if not source.streams.audio:
                    raise BadSample("it has no sound")
                stream = source.streams.audio[0]
                wanted, channels = rate or stream.rate, 1 if mono else stream.channels
                yield np.array((wanted, channels), np.int64).tobytes()
                yield from _samples(source, stream, wanted, "mono" if mono else stream.layout)
    except av.error.FFmpegError as error:
        raise BadSample(f"FFmpeg: {error}") from error
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
