"""Frames of a video, decoded from its packets by bare decoders of libavcodec, without a demuxer and without a file."""

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import BadSample, ConfigError
from ..format.packets import CODECS
from ..system.types import Buffer

if TYPE_CHECKING:
    import av

DECODERS: Mapping[str, str] = {
    "h264": "h264",
    "hevc": "hevc",
    "av1": "libdav1d",
    "vp9": "vp9",
    "vp8": "vp8",
    "mjpeg": "mjpeg",
}
"""The decoder of each codec."""
_KEPT = 4  # decoders of a thread
_STRICT = {"err_detect": "crccheck+bitstream+buffer"}

_of_thread = threading.local()


def pyav() -> Any:
    """Return the module `av`; ConfigError if PyAV is missing."""
    try:
        import av
    except ImportError as error:
        raise ConfigError("videos need PyAV: pip install 'shardio-data[video]'") from error
    av.logging.set_level(None)
    return av


def decode(
    codec: int,
    extradata: bytes,
    packets: Sequence[Buffer],
    shown: Sequence[int],
    wanted: Collection[int],
    most_pixels: int,
) -> "dict[int, av.VideoFrame]":
    """Decode a run of packets, the first of which is a key frame's, and return the frames that are wanted.

    Args:
        codec: the number of the codec.
        extradata: the decoder's extradata.
        packets: their bytes.
        shown: the number of the frame that each shows, or -1.
        wanted: the numbers of the frames to return.
        most_pixels: the most pixels of a frame.

    Raises:
        BadSample: a packet is damaged, or a wanted frame doesn't come.
    """
    av = pyav()
    context = _decoder(codec, extradata, most_pixels)
    frames: dict[int, Any] = {}
    try:
        for data, number in zip(packets, shown, strict=True):
            packet = av.Packet(data)
            packet.pts = number if number >= 0 else None
            for frame in context.decode(packet):
                if frame.pts in wanted:
                    frames[frame.pts] = frame
        for frame in context.decode(None):
            if frame.pts in wanted:
                frames[frame.pts] = frame
        context.flush_buffers()
    except av.error.FFmpegError as error:
        _forget(codec, extradata, most_pixels)
        raise BadSample(f"libavcodec's decoder {context.name!r}: {error}") from error
    for number in wanted:
        if number not in frames or frames[number].is_corrupt:
            _forget(codec, extradata, most_pixels)
            raise BadSample(f"libavcodec's decoder {context.name!r} gives frame {number} damaged or not at all")
    return frames


def _decoder(codec: int, extradata: bytes, most_pixels: int) -> Any:
    kept: dict[tuple[int, bytes, int], Any] = _of_thread.__dict__.setdefault("kept", {})
    key = codec, extradata, most_pixels
    context = kept.pop(key, None)
    if context is None:
        if len(kept) >= _KEPT:
            del kept[next(iter(kept))]
        context = pyav().CodecContext.create(DECODERS[CODECS[codec]], "r")
        context.extradata = extradata
        context.thread_count = 1
        context.options = _STRICT | {"max_pixels": f"{most_pixels}"}
    kept[key] = context  # the newest last
    return context


def _forget(codec: int, extradata: bytes, most_pixels: int) -> None:
    _of_thread.kept.pop((codec, extradata, most_pixels), None)
