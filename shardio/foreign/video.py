"""Videos: where each packet stands in its file, when its frame is shown, and whether others refer to it.

libavformat finds the packets, once; every packet is then compared with the bytes at its place. It parses what may be
hostile: call it in the helper process (`system/helper_process.py`).
"""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadSample
from ..format.packets import CODECS, BadTable, Packets, VideoFacts, packets_of, runs_to_decode, table_of, Directory
from .video_decoder import decode, pyav

_FORMATS = {"mov": ((4, b"ftyp"), (4, b"moov"), (4, b"mdat"), (4, b"wide"), (4, b"free"), (4, b"skip")), "matroska": ((0, b"\x1aE\xdf\xa3"),)}
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
    streams = [stream for stream in container.streams.video if "ATTACHED_PIC" not in f"{stream.disposition}".upper()]
    if not streams:
        raise BadSample("it has no video stream")
    stream = streams[0]
    context = stream.codec_context
    codec = "av1" if context.codec.canonical_name == "av1" else context.codec.canonical_name
    if codec not in CODECS:
        raise BadSample(f"its codec is {codec!r}; decoded are {', '.join(CODECS[1:])}")
    if not 0 < context.height * context.width <= most_pixels:
        raise BadSample(f"its frames have {context.height} x {context.width} pixels, max_image_pixels allows {most_pixels}")
    extradata = _needed_extradata(codec, bytes(context.extradata or b""))
    columns, number = list[tuple[int, int, bool, int | None, bool, bool, int]](), 0
    with path.open("rb") as file:
        for packet in container.demux(stream):
            if not packet.size:
                continue
            data = bytes(packet)
            columns.append((_place(file, packet.pos, data, number), len(data), packet.is_keyframe, packet.pts, packet.is_discard, *_reference(codec, extradata, data)))
            number += 1
    if not columns:
        raise BadSample("its video stream has no packets")
    offsets, sizes, keys, times, drops, spare, layers = (list(column) for column in zip(*columns, strict=True))
    if any(time is None for time in times):
        raise BadSample(f"its packet {times.index(None)} has no time: {REWRITE}")
    when, dropped = np.array(times, np.int64), np.array(drops, np.bool_)
    order = np.argsort(when[~dropped], kind="stable")
    shown = np.full(len(when), -1, np.int64)
    shown[np.flatnonzero(~dropped)[order]] = np.arange(len(order))
    ordered = when[~dropped][order]
    if len(ordered) > 1 and (np.diff(ordered) == 0).any():
        raise BadSample(f"two of its frames are shown at once, at {ordered[:-1][np.diff(ordered) == 0][0]} ticks: {REWRITE}")
    step = int(ordered[-1] - ordered[0]) // max(1, len(ordered) - 1) if len(ordered) else 0
    tick = Fraction(stream.time_base)
    facts = VideoFacts(
        frames=len(ordered),
        groups=0,
        extradata=0,
        table=0,
        codec=CODECS.index(codec),
        height=context.height,
        width=context.width,
        rotation=0,
        ticks=tick.numerator,
        per=tick.denominator,
        start=int(ordered[0]) if len(ordered) else 0,
        span=int(ordered[-1] - ordered[0]) + step if len(ordered) else 0,
    )
    top = max(layers)
    spared = np.array([flag and layer == top for flag, layer in zip(spare, layers, strict=True)], np.bool_)
    packets = Packets(np.array(offsets, np.int64), np.array(sizes, np.int64), np.array(keys, np.bool_), shown, when, spared)
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
        slices = [unit[0] for unit in _units(data, (extradata[4] & 3) + 1 if extradata[:1] == b"\1" else 0) if 1 <= unit[0] & 0x1F <= 5]
        return bool(slices) and not any(head & 0x60 for head in slices), 0
    if codec == "hevc":
        heads = [unit[:2] for unit in _units(data, (extradata[21] & 3) + 1 if extradata[:1] == b"\1" else 0) if len(unit) > 1 and unit[0] >> 1 & 0x3F < 32]
        layers = [(head[1] & 7) - 1 for head in heads]
        return bool(heads) and all(head[0] >> 1 & 0x3F in range(0, 16, 2) for head in heads), max(layers, default=0)
    return False, 0


def _units(data: bytes, prefix: int) -> Iterator[bytes]:
    """Yield the beginnings of the units of a packet of H.264 or HEVC, whose sizes stand before them in `prefix` bytes."""
    at = 0
    while prefix and at + prefix < len(data):
        size = int.from_bytes(data[at : at + prefix], "big")
        at += prefix
        yield data[at : at + min(size, 2)]
        at += size
