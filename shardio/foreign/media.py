"""Files of videos and sounds: their formats by their first bytes, and libav, which opens them.

libav parses what may be hostile: the helper process calls it (`system/helper_process.py`). No format is probed, and no
protocol opens anything: libav has the bytes of the file alone.
"""

import contextlib
import errno
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ..errors import BadSample, ConfigError
from ..system import helper_process
from ..system.regular_files import open_regular
from ..system.types import Buffer

_Marks: TypeAlias = Sequence[tuple[int, bytes]]
_MARKS: Mapping[str, Sequence[_Marks]] = {
    "mov": [[(4, mark)] for mark in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")],
    "matroska": [[(0, b"\x1aE\xdf\xa3")]],
    "mpegts": [[(0, b"G"), (188, b"G")], [(4, b"G"), (196, b"G")]],
    "avi": [[(0, b"RIFF"), (8, b"AVI ")]],
    "flv": [[(0, b"FLV\1")]],
    "mpeg": [[(0, b"\0\0\1\xba")]],
    "asf": [[(0, b"\x30\x26\xb2\x75")]],
    "wav": [[(0, b"RIFF"), (8, b"WAVE")], [(0, b"RF64"), (8, b"WAVE")]],
    "flac": [[(0, b"fLaC")]],
    "ogg": [[(0, b"OggS")]],
    "mp3": [[(0, b"ID3")], *([(0, bytes((0xFF, second)))] for second in (0xFB, 0xFA, 0xF3, 0xF2, 0xE3, 0xE2))],
}
"""For each demuxer the bytes that one of its files has at some places: one of several such lists."""
HEAD = 256
"""The bytes that tell the format."""
ALONE = {"protocol_whitelist": ""}
"""The options of libav with which it opens nothing but the file it is given."""
_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENOMEM)
_BYTES_AT_ONCE = 8 << 20  # that are given the time of one call


def pyav() -> Any:
    """Return the module `av`; ConfigError if PyAV is missing."""
    try:
        import av
    except ImportError as error:
        raise ConfigError("videos and sounds need PyAV: pip install 'shardio-data[video]'") from error
    av.logging.set_level(None)
    return av


def build(*libraries: str) -> str:
    """Return the versions of some libraries of FFmpeg, and of PyAV, as text."""
    versions = (f"{name} {'.'.join(map(str, pyav().library_versions[name]))}" for name in libraries)
    return f"{', '.join(versions)}, PyAV {pyav().__version__}"


def format_of(head: Buffer, demuxers: Collection[str]) -> str | None:
    """Return the one of these demuxers that reads a file which begins with `HEAD` bytes or fewer; None if none does."""
    for name in demuxers:
        if any(all(head[at : at + len(mark)] == mark for at, mark in marks) for marks in _MARKS[name]):
            return name
    return None


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], demuxers: Collection[str], otherwise: str, advice: str = "") -> Iterator[Any]:
    """Open a file with the demuxer that its first bytes name.

    Args:
        path: the file.
        demuxers: the demuxers that may read it.
        otherwise: why it is a bad sample if none of them does.
        advice: the end of messages on errors of libav.

    Raises BadSample, also for errors of libav within the `with` block; those of this machine stay as they are.
    """
    with open(path, "rb", opener=open_regular) as file:
        head = file.read(HEAD)
        if (name := format_of(head, demuxers)) is None:
            raise BadSample(otherwise if head else "it is an empty file")
        file.seek(0)
        # IndexError is for streams that appear on the way, OSError for places that no file has.
        try:
            with pyav().open(file, format=name, options=ALONE, metadata_errors="replace") as container:
                yield container
        except (pyav().error.FFmpegError, ValueError, IndexError, OSError) as error:
            number = error.errno if isinstance(error, OSError) else None
            if number in _OF_THE_MACHINE:
                raise OSError(number, os.strerror(number)) from error
            reason = getattr(error, "strerror", None) or error  # without the path of a temporary file
            told = f"libav cannot read it as {name!r}, it may be cut short or damaged: {reason}{advice}"
            raise BadSample(told) from error


def pictures(container: Any) -> Any:
    """Return the first stream of pictures that is no cover; BadSample if there is none."""
    for stream in container.streams.video:
        if not stream.disposition & stream.disposition.attached_pic:
            if stream.codec_context is None:
                raise BadSample("libav knows no codec of its video stream")
            return stream
    raise BadSample("it has no video stream")


def in_helper(function: str, path: str, *, size: int = 0, **arguments: Any) -> list[bytearray]:
    """Call a function with a file of `size` bytes in the helper process; BadSample if that does not come to its end."""
    limit = helper_process.current_limit() * (1 + size // _BYTES_AT_ONCE)
    try:
        return helper_process.call(function, {"path": path, **arguments}, limit)
    except helper_process.CallFailed as error:
        raise BadSample(f"libav does not get through it: {error}") from error


def in_helper_as_file(function: str, value: Buffer, **arguments: Any) -> list[bytearray]:
    """Call a function with a file of these bytes, see `in_helper`."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(value)
        file.flush()
        return in_helper(function, file.name, size=len(value), **arguments)
