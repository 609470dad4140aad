"""Frames of a video, decoded from its packets by bare decoders of libavcodec, without a demuxer and without a file."""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import BadSample, ConfigError
from ..format.packets import CODECS, VideoFacts
from ..system.timing import stage_within
from ..system.types import Buffer
from .media import pyav

if TYPE_CHECKING:
    import av

DECODERS: Mapping[str, str] = {codec: codec for codec in CODECS if codec} | {"av1": "libdav1d"}
"""The decoder of each codec."""
_KEPT = 4  # decoders of a thread
_NEVER_KEPT = CODECS.index("mjpeg")  # its decoder goes on with the tables of the last picture, which others may lack
# By its standard, H.264 that states no depth of its reordering may have the greatest; a guess would lose frames.
_STRICT = {"err_detect": "crccheck+bitstream+buffer", "strict": "1"}

_of_thread = threading.local()

Run: TypeAlias = tuple[Sequence[Buffer], Sequence[int]]
"""The bytes of neighbouring packets, the first of which is a key frame's, and the number of the frame that each shows,
or -1."""


def decode(
    facts: VideoFacts, extradata: bytes, runs: Sequence[Run], wanted: Collection[int], most_pixels: int
) -> "dict[int, av.VideoFrame]":
    """Decode runs of packets one after the other, and return the frames that are wanted.

    Args:
        facts: what is known of the video.
        extradata: the decoder's extradata.
        runs: the runs.
        wanted: the numbers of the frames to return.
        most_pixels: the most pixels of a frame.

    Raises:
        BadSample: a packet is damaged, or a wanted frame doesn't come.
    """
    size, name = (facts.height, facts.width), DECODERS[CODECS[facts.codec]]
    frames, count = frames_of(facts, extradata, runs, most_pixels), sum(len(packets) for packets, _ in runs)
    with stage_within("libavcodec", decoded_frames=count, wanted_frames=len(wanted)):
        found = {number: frame for number, frame in frames if number is not None and number in wanted}
    for number in wanted:
        if number not in found or found[number].is_corrupt:
            raise BadSample(f"libavcodec's decoder {name!r} gives frame {number} damaged or not at all")
        if (found[number].height, found[number].width) != size:
            other = f"{found[number].height} x {found[number].width}"
            raise BadSample(f"frame {number} has {other} pixels, expected {size[0]} x {size[1]}")
    return found


def frames_of(
    facts: VideoFacts, extradata: bytes, runs: Sequence[Run], most_pixels: int
) -> "Iterator[tuple[int | None, av.VideoFrame]]":
    """Yield all frames that come of runs of packets, with their numbers; see `decode`."""
    av, kept = pyav(), _of_thread.__dict__.setdefault("kept", {})
    if facts.height * facts.width > most_pixels:
        told = "its frames have {} x {} pixels, {max_image_pixels} allows {}"
        raise BadSample(told, facts.height, facts.width, most_pixels)
    # libavcodec counts what it allocates: a side may be as long as the next multiple of 128.
    key = facts.codec, extradata, (facts.height + 127 & -128) * (facts.width + 127 & -128)
    # What is kept was never left in the middle of a run: not by an error, and not by an interrupt.
    context, intact = kept.pop(key, None) or _new_decoder(*key), True
    try:
        for place, (packets, shown) in enumerate(runs):
            if place and facts.codec == _NEVER_KEPT:
                context = _new_decoder(*key)
            for data, number in zip((*packets, None), (*shown, -1), strict=True):
                packet = None if data is None else av.Packet(data)
                if packet is not None and number >= 0:
                    packet.pts = number
                for frame in context.decode(packet):
                    intact = intact and not frame.is_corrupt
                    yield frame.pts, frame
            context.flush_buffers()
    except av.error.FFmpegError as error:
        raise BadSample(f"libavcodec's decoder {context.name!r}: {error}") from error
    if intact and facts.codec != _NEVER_KEPT:
        if len(kept) >= _KEPT:
            del kept[next(iter(kept))]
        kept[key] = context  # the newest last


def _new_decoder(codec: int, extradata: bytes, most_pixels: int) -> Any:
    name = DECODERS[CODECS[codec]]
    try:
        context = pyav().CodecContext.create(name, "r")
    except ValueError as error:  # of a build that somebody made
        raise ConfigError(f"the FFmpeg that PyAV was built with has no decoder {name!r}") from error
    context.extradata = extradata
    context.thread_count = 1
    context.options = _STRICT | {"max_pixels": f"{most_pixels}"}
    return context
