"""Videos: where each packet stands in its file, when its frame is shown, and whether others refer to it.

libavformat finds the packets, once; every packet is then compared with the bytes at its place. It parses what may be
hostile: call it in the helper process (`system/helper_process.py`).
"""

import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadSample
from ..format.limits import MAX_IMAGE_PIXELS
from ..format.packets import CODECS, BadTable, Packets, VideoFacts, table_of
from ..system import helper_process
from ..system.types import Buffer
from .video_decoder import pyav

_FORMATS = {
    "mov": [(4, mark) for mark in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")],
    "matroska": [(0, b"\x1aE\xdf\xa3")],
}
"""The demuxers that are used, with the bytes that their files begin with, and where."""
_BEHIND = 64  # bytes that a packet of Matroska may begin behind the place that the demuxer reports
_CHECKED_EVERY = 50  # groups whose frames are decoded at conversion, besides the first and the last

REWRITE = "shardio convert rewrites it, without encoding it anew"


def format_of(head: bytes) -> str | None:
    """Return the demuxer for a file that begins with these bytes, at least 12; None if its packets aren't indexed."""
    for name, beginnings in _FORMATS.items():
        if any(head[at : at + len(mark)] == mark for at, mark in beginnings):
            return name
    return None


def described(value: Buffer) -> tuple[VideoFacts, bytes]:
    """Return what is known of a video file, and the table of its packets; the helper process finds it.

    Raises BadSample as `scan` does, or if that takes too long or ends the helper.
    """
    with tempfile.NamedTemporaryFile() as file:
        file.write(value)
        file.flush()
        try:
            found = helper_process.call(f"{__name__}:answer", {"path": file.name}, helper_process.current_limit())
        except helper_process.CallFailed as error:
            raise BadSample(f"libavformat does not get through it: {error}") from error
    return VideoFacts(*np.frombuffer(found[0], np.int64).tolist()), bytes(found[1])


def answer(path: str) -> Iterator[bytes]:
    """Yield what `scan` returns, in the helper process."""
    facts, table = scan(Path(path), MAX_IMAGE_PIXELS)
    yield np.array(facts, np.int64).tobytes()
    yield table


def scan(path: Path, most_pixels: int) -> tuple[VideoFacts, bytes]:
    """Return what is known of a video, and the table of its packets.

    Args:
        path: the file.
        most_pixels: the most pixels of a frame.

    Raises:
        BadSample: it is no such file, is damaged, or its packets are not in its bytes as they are.
    """
    av = pyav()
    with path.open("rb") as file:
        if (name := format_of(file.read(16))) is None:
            raise BadSample(f"it is no MP4, MOV, MKV or WebM file: {REWRITE}")
        file.seek(0)
        try:
            # The format is not probed, and no protocol opens anything: libavformat has the bytes of this file alone.
            with av.open(file, format=name, options={"protocol_whitelist": ""}, metadata_errors="replace") as container:
                return _scanned(container, path, most_pixels)
        except av.error.FFmpegError as error:
            raise BadSample(f"libavformat's demuxer {name!r}: {error}") from error


def _scanned(container: Any, path: Path, most_pixels: int) -> tuple[VideoFacts, bytes]:
    streams = [stream for stream in container.streams.video if not stream.disposition & stream.disposition.attached_pic]
    if not streams:
        raise BadSample("it has no video stream")
    stream, context = streams[0], streams[0].codec_context
    codec, height, width = context.codec.canonical_name, context.height, context.width
    if codec not in CODECS:
        raise BadSample(f"its codec is {codec!r}; decoded are {', '.join(CODECS[1:])}")
    if not 0 < height * width <= most_pixels:
        raise BadSample(f"its frames have {height} x {width} pixels, max_image_pixels allows {most_pixels}")
    extradata = _needed_extradata(codec, bytes(context.extradata or b""))
    found, layers = list[tuple[int, int, bool, int | None, bool, bool]](), list[int]()
    with path.open("rb") as file:
        for packet in container.demux(stream):
            if not packet.size:  # the last one, which only says that there are no more
                continue
            data = bytes(packet)
            place, (spare, layer) = _place(file, packet.pos, data, len(found)), _reference(codec, extradata, data)
            found.append((place, len(data), packet.is_keyframe, packet.pts, packet.is_discard, spare))
            layers.append(layer)
    if not found:
        raise BadSample("its video stream has no packets")
    offsets, sizes, keys, times, dropped, spared = zip(*found, strict=True)
    if None in times:
        raise BadSample(f"its packet {times.index(None)} has no time: {REWRITE}")
    when, kept = np.array(times, np.int64), np.flatnonzero(~np.array(dropped, np.bool_))
    order = np.argsort(when[kept], kind="stable")
    shown, ordered = np.full(len(when), -1, np.int64), when[kept][order]
    shown[kept[order]] = np.arange(len(order))
    steps = np.diff(ordered)
    if (steps == 0).any():
        raise BadSample(f"two of its frames are shown at once, at tick {ordered[np.argmin(steps)]}: {REWRITE}")
    span = int(ordered[-1] - ordered[0] + steps.mean()) if len(steps) else 0
    tick = Fraction(stream.time_base)
    facts = VideoFacts.of_none()._replace(
        frames=len(ordered),
        codec=CODECS.index(codec),
        height=height,
        width=width,
        ticks=tick.numerator,
        per=tick.denominator,
        start=int(ordered[0]) if len(ordered) else 0,
        span=span,
    )
    packets = Packets(
        np.array(offsets, np.int64),
        np.array(sizes, np.int64),
        np.array(keys, np.bool_),
        shown,
        when,
        np.array(spared, np.bool_) & (np.array(layers) == max(layers)),
    )
    try:
        return table_of(facts, packets, extradata)
    except BadTable as error:
        raise BadSample(f"{error}: {REWRITE}") from error


def _place(file: Any, place: int | None, data: bytes, number: int) -> int:
    """Return where a packet's bytes stand; BadSample if they don't stand near the place that the demuxer reports."""
    if place is not None and place >= 0:
        file.seek(place)
        found = file.read(len(data) + _BEHIND).find(data)
        if found >= 0:
            return int(place) + int(found)
    raise BadSample(f"the {len(data)} bytes of packet {number} don't stand in the file in one piece: {REWRITE}")


def _needed_extradata(codec: str, extradata: bytes) -> bytes:
    """Return extradata without the messages of encoders: hvcC with parameter sets alone."""
    if codec != "hevc" or len(extradata) < 23 or extradata[0] != 1:
        return extradata
    arrays, at = list[bytes](), 23
    for _ in range(extradata[22]):
        begin, kind = at, extradata[at] & 0x3F
        at += 3
        for _ in range(int.from_bytes(extradata[at - 2 : at], "big")):
            at += 2 + int.from_bytes(extradata[at : at + 2], "big")
        if kind in (32, 33, 34):  # parameter sets of video, sequence and picture
            arrays.append(extradata[begin:at])
    return extradata[:22] + bytes([len(arrays)]) + b"".join(arrays) if at == len(extradata) else extradata


def _reference(codec: str, extradata: bytes, data: bytes) -> tuple[bool, int]:
    """Return whether no other picture refers to a packet's, and its temporal layer."""
    if codec == "h264":
        heads = [head for head, _ in _units(data, extradata, 4) if 1 <= head & 0x1F <= 5]
        return bool(heads) and not any(head & 0x60 for head in heads), 0
    if codec == "hevc":
        pictures = [(head >> 1 & 0x3F, (after & 7) - 1) for head, after in _units(data, extradata, 21)]
        pictures = [(kind, layer) for kind, layer in pictures if kind < 32]
        spare = bool(pictures) and all(kind < 16 and kind % 2 == 0 for kind, _ in pictures)
        return spare, max((layer for _, layer in pictures), default=0)
    return False, 0


def _units(data: bytes, extradata: bytes, place: int) -> Iterator[tuple[int, int]]:
    """Yield the first two bytes of each unit of a packet of H.264 or HEVC; the place in extradata says their form."""
    if extradata[:1] != b"\1" or len(extradata) <= place:
        return  # units behind start codes, of which nothing is told here
    at, prefix = 0, (extradata[place] & 3) + 1
    while at + prefix + 2 <= len(data):
        size = int.from_bytes(data[at : at + prefix], "big")
        at += prefix
        yield data[at], data[at + 1]
        at += size
