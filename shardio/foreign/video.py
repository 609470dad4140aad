"""Videos: where each packet stands in its file, when its frame is shown, and whether others refer to it.

libavformat finds the packets, once; every packet is then compared with the bytes at its place. Formats whose packets
have no place in their file are rewritten to MP4, with the same pictures. What is parsed may be hostile: the helper
process does it (`system/helper_process.py`).
"""

import os
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadSample
from ..format.limits import MAX_IMAGE_PIXELS
from ..format.packets import (
    CODECS,
    LEAST,
    BadTable,
    Directory,
    Packets,
    VideoFacts,
    packets_of,
    runs_to_decode,
    sum_of,
    table_of,
)
from ..system.types import Buffer
from .media import HEAD, format_of, in_helper_as_file, opened, pictures, pyav
from .video_decoder import Run, decode

INDEXED = ("mov", "matroska")
"""The demuxers of formats whose packets are indexed."""
REWRITTEN = ("mpegts", "avi", "flv")
"""The demuxers of formats that are rewritten."""
_BEHIND = 64  # bytes that a packet of Matroska may begin behind the place that the demuxer reports
_HALF = 1 << 15  # of the one of a display matrix
_CHECKED_EVERY = 50  # groups whose frames are decoded at conversion, besides the first and the last

_TURNS = {(1, 0, 0, 1): 0, (0, 1, -1, 0): 90, (-1, 0, 0, -1): 180, (0, -1, 1, 0): 270}
"""Degrees clockwise, by the numbers of a display matrix that rotate."""
_UNREAD = {
    "new_extradata": "changes its parameters in the middle",
    "param_change": "changes its size in the middle",
    "encryption_init_info": "is encrypted",
    "encryption_info": "is encrypted",
}
"""Side data of packets that tables have no place for."""
_SETS = {"h264": (7, 8), "hevc": (32, 33, 34)}
"""The kinds of units that are parameter sets."""

_SAME = {"fflags": "+bitexact", "movflags": "+faststart", "avoid_negative_ts": "make_zero"}

_OTHER = (
    "its first bytes are not those of MP4, MOV, MKV or WebM; `shardio convert` rewrites MPEG-TS, AVI and FLV with "
    "the same packets, and with --keyframes 12 also takes MPEG-PS and WMV"
)
ENCODE = "encode it anew, as `shardio convert --keyframes 12` does"


def indexable(value: Buffer) -> Buffer:
    """Return a video whose packets can be indexed: itself, or an MP4 with the same packets, made by the helper.

    Files of formats that are not rewritten are returned as they are. Raises BadSample as `described` does, and if its
    packets cannot stand in an MP4.
    """
    return value if format_of(value[:HEAD], REWRITTEN) is None else in_helper_as_file(f"{__name__}:rewritten", value)[0]


def described(value: Buffer, *, whole: bool = False) -> tuple[VideoFacts, bytes]:
    """Return what is known of a video file, and the table of its packets; the helper process finds it.

    Args:
        value: the file's bytes.
        whole: whether to decode all of it.

    Raises BadSample as `scan` does, or if that takes too long or ends the helper.
    """
    found = in_helper_as_file(f"{__name__}:answer", value, whole=whole)
    return VideoFacts.of(found[0]), bytes(found[1])


def rewritten(path: str) -> Iterator[bytes]:
    """Yield an MP4 with the packets of a video and its sound, in the helper process."""
    with tempfile.NamedTemporaryFile(suffix=".mp4") as made:
        with (
            opened(path, REWRITTEN, "it is no MPEG-TS, AVI or FLV file", f": {ENCODE}") as source,
            pyav().open(made.name, "w", format="mp4", options=_SAME) as output,
        ):
            kept = [pictures(source), *(each for each in source.streams.audio if each.codec_context is not None)]
            streams = {stream.index: output.add_stream_from_template(stream) for stream in kept}
            before = list[list[bytes]]()
            for packet in source.demux(kept):
                if not packet.size:
                    continue
                if packet.dts is None or packet.pts is None or packet.is_corrupt:
                    raise BadSample(f"packet {len(before)} has no time, or is cut short: {ENCODE}")
                if packet.stream.index == kept[0].index:
                    before.append(_pictures_in(kept[0], packet))
                packet.stream = streams[packet.stream.index]
                output.mux(packet)
        with opened(made.name, ("mov",), "libav made no MP4 of it", f": {ENCODE}") as source:
            stream = pictures(source)
            if [_pictures_in(stream, packet) for packet in source.demux(stream) if packet.size] != before:
                raise BadSample(f"its packets are others in an MP4: {ENCODE}")
        yield made.read()


def answer(path: str, whole: bool) -> Iterator[bytes]:
    """Yield what `scan` returns, in the helper process."""
    facts, table = scan(Path(path), MAX_IMAGE_PIXELS, whole=whole)
    yield facts.stored
    yield table


def scan(path: Path, most_pixels: int, *, whole: bool = False) -> tuple[VideoFacts, bytes]:
    """Return what is known of a video, and the table of its packets.

    The first group and the last one, and every 50th between, are decoded as for clips: each packet must give the frame
    that is to have its number. And libav, which decodes the file from its beginning, must show the first frames when
    the table says.

    Args:
        path: the file.
        most_pixels: the most pixels of a frame.
        whole: whether to decode all groups.

    Raises:
        BadSample: it is no such file, is damaged, or its packets are not in its bytes as they are.
    """
    with opened(path, INDEXED, _OTHER) as container:
        return _scanned(container, path, most_pixels, whole)


def _scanned(container: Any, path: Path, most_pixels: int, whole: bool) -> tuple[VideoFacts, bytes]:
    stream = pictures(container)
    context = stream.codec_context
    codec, height, width = context.codec.canonical_name, context.height, context.width
    if codec not in CODECS:
        raise BadSample(f"its codec is {codec!r}, decoded are {', '.join(CODECS[1:])}: {ENCODE}")
    if not 0 < height * width <= most_pixels:
        raise BadSample(f"its frames have {height} x {width} pixels, max_image_pixels allows {most_pixels}")
    extradata = _needed_extradata(codec, bytes(context.extradata or b""))
    found, layers, sums = list[tuple[int, int, bool, int | None, bool, bool]](), list[int](), list[int]()
    delivered, rotation, decodes, longest = list[int | None](), 0, True, 1
    with path.open("rb") as file:
        for packet in container.demux(stream):
            decodes = whole or len(found) < LEAST or not delivered
            for frame in packet.decode() if decodes else ():
                rotation = rotation if delivered else rotation_of(frame)
                delivered.append(frame.pts)
            if not packet.size:  # the last one, which only says that there are no more
                continue
            if told := _unread(packet):
                raise BadSample(f"packet {len(found)} {told}: {ENCODE}")
            data = bytes(packet)
            if _other_sets(codec, extradata, data):
                raise BadSample(f"packet {len(found)} has parameters that its head lacks: {ENCODE}")
            place, (spare, layer) = _place(file, packet.pos, data, len(found)), _reference(codec, extradata, data)
            found.append((place, len(data), packet.is_keyframe, packet.pts, packet.is_discard, spare))
            layers.append(layer)
            longest = max(longest, packet.duration or 0)
            sums.append(sum_of(data))
    if not found:
        raise BadSample("its video stream has no packets")
    offsets, sizes, keys, times, dropped, spared = zip(*found, strict=True)
    if None in times:
        raise BadSample(f"its packet {times.index(None)} has no time: {ENCODE}")
    when, kept = np.array(times, np.int64), np.flatnonzero(~np.array(dropped, np.bool_))
    if not len(kept):
        raise BadSample("none of its frames is shown")
    order = np.argsort(when[kept], kind="stable")
    shown, ordered = np.full(len(when), -1, np.int64), when[kept][order]
    shown[kept[order]] = np.arange(len(order))
    steps = np.diff(ordered)
    if (steps == 0).any():
        raise BadSample(f"two of its frames are shown at once, at tick {ordered[np.argmin(steps)]}: {ENCODE}")
    if delivered != ordered[: len(delivered)].tolist() or (decodes and len(delivered) < len(ordered)):
        raise BadSample(f"its packets are not its frames, one to one, as decoding it shows: {ENCODE}")
    tick = Fraction(stream.time_base)
    facts = VideoFacts(
        frames=len(ordered),
        codec=CODECS.index(codec),
        height=height,
        width=width,
        rotation=rotation,
        ticks=tick.numerator,
        per=tick.denominator,
        start=int(ordered[0]),
        span=int(ordered[-1] - ordered[0] + steps.mean()) if len(steps) else longest,
    )
    key, spare = np.array(keys, np.bool_), np.array(spared, np.bool_) & (np.array(layers) == max(layers))
    packets = Packets(np.array(offsets, np.int64), np.array(sizes, np.int64), key, shown, when, spare)
    try:
        facts, table = table_of(facts, packets, extradata, sums)
        facts.check(len(table))
        _check_frames(path, facts, table, most_pixels, whole)
        return facts, table
    except BadTable as error:
        raise BadSample(f"{error}: {ENCODE}") from error


def _check_frames(path: Path, facts: VideoFacts, table: bytes, most_pixels: int, whole: bool) -> None:
    """Raise BadSample unless some groups, or all, give each of their frames once when they are decoded as for clips."""
    size = path.stat().st_size
    directory = Directory.of(facts, table[: facts.head], size)
    groups = range(facts.groups)
    with path.open("rb") as file:
        for number in groups if whole else sorted({*groups[::_CHECKED_EVERY], facts.groups - 1}):
            wanted = np.arange(directory.first[number], directory.first[number + 1])
            if not len(wanted):
                continue
            touched = directory.touched(wanted).tolist()
            blocks = b"".join(table[directory.blocks[each] : directory.blocks[each + 1]] for each in touched)
            packets = packets_of(facts, directory, touched, blocks, size)
            extradata = table[facts.head - facts.extradata : facts.head]
            own = packets.shown[np.maximum.accumulate(np.where(packets.keys, np.arange(len(packets)), 0))]
            leads = np.isin(wanted, packets.shown[(packets.shown < own) | (own < 0)])
            # Apart, as decoding those that lead begins earlier, which could hide that others lack something.
            for part in (wanted[~leads], wanted[leads]):
                runs = list[Run]()
                for run in runs_to_decode(packets, part):
                    places = zip(packets.sizes[run].tolist(), packets.offsets[run].tolist(), strict=True)
                    data = [os.pread(file.fileno(), length, offset) for length, offset in places]
                    runs.append((data, packets.shown[run].tolist()))
                decode(facts, extradata, runs, {*part.tolist()}, most_pixels)


def _unread(packet: Any) -> str | None:
    """Return what a packet states that tables don't; None if it states no such thing."""
    if packet.is_corrupt:
        return "is cut short"
    return next((told for kind, told in _UNREAD.items() if packet.has_sidedata(kind)), None)


def rotation_of(frame: Any) -> int:
    """Return the degrees by which a frame's display matrix turns it clockwise; BadSample if it does anything else."""
    if (stated := frame.side_data.get("DISPLAYMATRIX")) is None:
        return 0
    matrix = np.frombuffer(stated, np.int32).reshape(3, 3)[:2, :2].astype(np.int64)
    turn = tuple((np.sign(matrix) * (np.abs(matrix) >= _HALF)).flatten().tolist())
    if turn not in _TURNS:
        raise BadSample(f"its frames are to be shown by the matrix {matrix.tolist()}, which is no quarter turn")
    return _TURNS[turn]


def _place(file: Any, place: int | None, data: bytes, number: int) -> int:
    """Return where a packet's bytes stand; BadSample if they don't stand near the place that the demuxer reports."""
    if place is not None and place >= 0:
        file.seek(place)
        found = file.read(len(data) + _BEHIND).find(data)
        if found >= 0:
            return int(place) + int(found)
    raise BadSample(f"the {len(data)} bytes of packet {number} don't stand in the file in one piece: {ENCODE}")


def _needed_extradata(codec: str, extradata: bytes) -> bytes:
    """Return extradata without the messages of encoders: hvcC with parameter sets alone."""
    if codec != "hevc" or len(extradata) < 23 or extradata[0] != 1:
        return extradata
    arrays, at = list[bytes](), 23
    for _ in range(extradata[22]):
        if at >= len(extradata):
            return extradata
        begin, kind = at, extradata[at] & 0x3F
        at += 3
        for _ in range(int.from_bytes(extradata[at - 2 : at], "big")):
            at += 2 + int.from_bytes(extradata[at : at + 2], "big")
        if kind in (32, 33, 34):  # parameter sets of video, sequence and picture
            arrays.append(extradata[begin:at])
    return extradata[:22] + bytes([len(arrays)]) + b"".join(arrays) if at == len(extradata) else extradata


def _other_sets(codec: str, extradata: bytes, data: bytes) -> bool:
    """Return whether a packet has parameter sets other than those of the extradata.

    Later packets may be decoded without this one; and a decoder that is kept would use them for other videos.
    """
    if codec not in _SETS:
        return False
    units = _units(data, extradata, 4 if codec == "h264" else 21)
    kinds = ((unit[0] & 0x1F if codec == "h264" else unit[0] >> 1 & 0x3F, unit) for unit in units)
    return any(kind in _SETS[codec] and unit.rstrip(b"\0") not in extradata for kind, unit in kinds)


def _reference(codec: str, extradata: bytes, data: bytes) -> tuple[bool, int]:
    """Return whether no other picture refers to a packet's, and its temporal layer; False, 0 if nothing tells that."""
    units = _picture_units(codec, extradata, data)
    if codec == "h264":
        return bool(units) and not any(unit[0] & 0x60 for unit in units), 0
    if codec == "hevc":
        spare = bool(units) and all(unit[0] >> 1 & 0x3F in range(0, 16, 2) for unit in units)
        return spare, max(((unit[1] & 7) - 1 for unit in units), default=0)
    # VP8 and VP9 never say so. AV1 does, behind a dozen fields of its frame headers, which depend on each other.
    return False, 0


def _pictures_in(stream: Any, packet: Any) -> list[bytes]:
    """Return the pictures of a packet, whatever separates its units."""
    codec, data = stream.codec_context.codec.canonical_name, bytes(packet)
    return _picture_units(codec, bytes(stream.codec_context.extradata or b""), data)


def _picture_units(codec: str, extradata: bytes, data: bytes) -> list[bytes]:
    """Return the units of a packet of H.264 or HEVC that are pictures; the whole packet of other codecs."""
    if codec == "h264":
        return [unit for unit in _units(data, extradata, 4) if 1 <= unit[0] & 0x1F <= 5]
    return [unit for unit in _units(data, extradata, 21) if unit[0] >> 1 & 0x3F < 32] if codec == "hevc" else [data]


def _units(data: bytes, extradata: bytes, place: int) -> Iterator[bytes]:
    """Yield the units of a packet of H.264 or HEVC, of at least two bytes; the place in extradata says their form."""
    if extradata[:1] != b"\1" or len(extradata) <= place:  # behind start codes
        yield from (unit for each in data.split(b"\0\0\1")[1:] if len(unit := each.rstrip(b"\0")) > 1)
        return
    at, prefix = 0, (extradata[place] & 3) + 1
    while at + prefix + 2 <= len(data):
        size = int.from_bytes(data[at : at + prefix], "big")
        at += prefix
        yield data[at : at + max(size, 2)]
        at += size
