"""Videos encoded anew for storage: smaller, with more key frames, at another rate, upright.

libavformat and libavcodec parse what may be hostile, so the helper process does it (`system/helper_process.py`).
"""

import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, final

from ..errors import BadSample, ConfigError, Message, Option
from ..foreign.media import build, in_helper_as_file, opened, pictures, pyav
from ..foreign.video import INDEXED, REWRITTEN, rotation_of
from ..format.limits import MAX_IMAGE_PIXELS
from ..system.rules import Count, Positive, Range, check_fields
from .shrink import shrunk

VideoCodec: TypeAlias = Literal["h264", "hevc", "vp9", "av1"]

KEYFRAMES = 12
"""Frames from a key frame to the next, where nothing else is asked for."""
VIDEOS, BEFORE, AFTER = "videos: re-encoded", "videos: bytes before", "videos: bytes after"
DROPPED, DOUBLED, SILENT = "videos: frames dropped", "videos: frames doubled", "videos: without their sound"
PACKETS_BEFORE, KEYS_BEFORE = "videos: packets before", "videos: key frames before"
"""Counted of videos that are encoded anew."""

_DEMUXERS = (*INDEXED, *REWRITTEN, "mpeg", "asf")
_BEAT = 16  # frames after which the helper shows that it works
_IN_MP4 = ("aac", "mp3", "opus", "flac", "ac3", "eac3", "alac")  # sound; a file with another becomes MKV
_FULL_RANGE, _BT601 = 2, 6  # libavutil's AVCOL_RANGE_JPEG and AVCOL_SPC_SMPTE170M
_UPRIGHT = {0: (), 90: (("transpose", "clock"),), 180: (("hflip", ""), ("vflip", "")), 270: (("transpose", "cclock"),)}
"""The filters that make a frame upright, by the degrees clockwise to turn it."""


class _Encoder(NamedTuple):
    name: str
    crf: int
    most: int  # of crf
    options: Mapping[str, str]


_ENCODERS: Mapping[str, _Encoder] = {
    # With its macroblock tree, x264's compiled code gives other bytes from one run to the next.
    "h264": _Encoder("libx264", 23, 51, {"preset": "medium", "x264-params": "mbtree=0"}),
    "hevc": _Encoder(
        "libx265",
        28,
        51,
        {"preset": "fast", "x265-params": "log-level=none:pools=none:frame-threads=1:open-gop=0:info=0"},
    ),
    "vp9": _Encoder("libvpx-vp9", 31, 63, {"b": "0", "deadline": "good", "cpu-used": "4"}),
    "av1": _Encoder("libsvtav1", 35, 63, {"preset": "8", "svtav1-params": "lp=1"}),
}


@final
@dataclass(frozen=True, slots=True)
class VideoOptions:
    """Options for encoding videos anew; the default changes nothing.

    With `keyframes`, `fps`, `codec` or `crf` every video is encoded anew, with `resize_shorter` and `max_pixels` alone
    those that have to shrink. The result is an MP4, or an MKV where sound that MP4 has no place for is kept; 8 bits,
    4:2:0, upright, with even sides: an odd one loses a row or column. Its matrix is that of the video, its range is
    limited. The encoder has one thread, so every run with the same build gives the same bytes.

    At another rate, frame k of the result is the one that is shown k / `fps` seconds after the first: frames between
    are dropped, those that are shown for longer are doubled. Otherwise each frame keeps its time.

    Args:
        resize_shorter: shrink videos whose shorter side has more pixels than this, to this.
        max_pixels: shrink videos whose frames have more pixels than this, to at most this many.
        keyframes: the most frames from a key frame to the next; None for 12.
        fps: frames per second; None keeps all frames and their times.
        codec: the codec; None for `"h264"`.
        crf: the encoder's constant rate factor, larger for smaller files, from 0 to 51 (`"h264"`, `"hevc"`) or 63
            (`"vp9"`, `"av1"`); None for 23 (`"h264"`), 28 (`"hevc"`), 31 (`"vp9"`) or 35 (`"av1"`).
        keep_audio: keep the first stream of sound as it is; otherwise a video that is encoded anew has none.
        max_image_pixels: the most pixels of a frame.

    Raises ConfigError for an argument that breaks a rule.
    """

    resize_shorter: Count | None = None
    max_pixels: Count | None = None
    keyframes: Count | None = None
    fps: Positive | None = None
    codec: VideoCodec | None = None
    crf: Annotated[int, Range(0, 64)] | None = None
    keep_audio: bool = False
    max_image_pixels: int = MAX_IMAGE_PIXELS

    def __post_init__(self) -> None:
        check_fields(self)
        if self.crf is not None and self.crf > self.encoder.most:
            codec = Option("codec", self.codec or "h264")
            raise ConfigError("{crf} must be at most {} with {}, got {}", self.encoder.most, codec, self.crf)
        if self.keep_audio and self.idle:
            told = "{keep_audio} goes with {keyframes}: videos that are not encoded anew keep their sound"
            raise ConfigError(Message(told))

    @property
    def every(self) -> bool:
        """Whether all videos are encoded anew."""
        return (self.keyframes, self.fps, self.codec, self.crf) != (None, None, None, None)

    @property
    def idle(self) -> bool:
        """Whether these options change no video."""
        return not self.every and self.resize_shorter is None and self.max_pixels is None

    @property
    def encoder(self) -> _Encoder:
        return _ENCODERS[self.codec or "h264"]

    @property
    def made_by(self) -> dict[str, Any]:
        """The options, with the encoder and its build, as JSON values; ConfigError if this PyAV lacks the encoder."""
        av = pyav()
        try:
            av.codec.Codec(self.encoder.name, "w")
        except av.codec.codec.UnknownCodecError as error:
            why = "{codec}: this PyAV has no encoder {!r}, which its wheels from PyPI have"
            raise ConfigError(why, self.encoder.name) from error
        chosen = {name: value for name, value in asdict(self).items() if name != "max_image_pixels"}
        return {
            **chosen,
            "encoder": f"{self.encoder.name}, {build('libavcodec')}",
            "encoder options": dict(self.encoder.options),
        }

    def __call__(self, data: bytes, counts: Counter[str]) -> bytes:
        """Return the video that `data` becomes, and count what that does; BadSample if it cannot be decoded."""
        *_, made, counted = in_helper_as_file(f"{__name__}:answer", data, options=asdict(self))
        if not made:
            return data
        counts.update(json.loads(counted) | {VIDEOS: 1, BEFORE: len(data), AFTER: len(made)})
        return bytes(made)


def answer(path: str, options: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield nothing from time to time, then the video anew and its counts as JSON, in the helper process.

    What is left as it is yields no bytes. Raises BadSample.
    """
    os.environ["SVT_LOG"] = "1"  # else each encoder of libsvtav1 prints a page
    counts, made = Counter[str](), io.BytesIO()
    with opened(path, _DEMUXERS, "it is no MP4, MOV, MKV, WebM, AVI, FLV, MPEG or WMV file") as source:
        yield from _Work(VideoOptions(**options), source, counts).into(made)
    yield made.getvalue()
    yield json.dumps(counts).encode()


class _Shown(NamedTuple):
    """A frame to encode, and when it is shown, in units of the result's time base."""

    frame: Any
    time: int


@final
class _Work:
    """One video that is encoded anew.

    Args:
        options: how.
        source: the open file.
        counts: what is counted of it.
    """

    def __init__(self, options: VideoOptions, source: Any, counts: Counter[str]) -> None:
        self._options, self._source, self._counts = options, source, counts
        self._stream = pictures(source)
        self._sound = next(iter(source.streams.audio), None)
        self._stream.codec_context.thread_count = 1
        self._rate = None if options.fps is None else Fraction(options.fps).limit_denominator(1001)
        self._unit = Fraction(self._stream.time_base) if self._rate is None else 1 / self._rate
        self._filters: Any = None
        self._packets: list[Any] = []  # of sound

    def into(self, file: io.BytesIO) -> Iterator[bytes]:
        """Write the video to a file, which stays empty where nothing has to change."""
        output: Any = None
        encoder: Any = None
        sound: Any = None
        size, packets = (0, 0), list[Any]()
        for number, (frame, time) in enumerate(self._chosen()):
            if output is None:
                size = (frame.height, frame.width)
                if not self._options.every and self._made_size(frame) == size:
                    return
                output, encoder, sound = self._opened(file, frame)
            if (frame.height, frame.width) != size:
                raise BadSample(f"its frames change from {size} to {(frame.height, frame.width)} pixels")
            self._filters.push(frame)
            made = self._filters.vpull()
            made.pts, made.time_base, made.pict_type = time, self._unit, 0
            packets += encoder.encode(made)
            if number % _BEAT == 0:
                yield b""
        if output is None:
            raise BadSample("it has no frames")
        packets += encoder.encode(None)
        # x265 gives the packets of a few frames no sound time of decoding: all get those of their order.
        times = sorted(packet.pts for packet in packets)
        late = max(time - packet.pts for time, packet in zip(times, packets, strict=True))
        for time, packet in zip(times, packets, strict=True):
            packet.dts = time - late
        for packet in self._packets:
            packet.stream = sound
        output.mux(self._packets + packets)
        output.close()

    def _chosen(self) -> Iterator[_Shown]:
        """Yield the frames of the result: all, or at another rate those that are shown then."""
        if self._rate is None:
            yield from self._decoded()
            return
        tick, frames = Fraction(self._stream.time_base) * self._rate, self._decoded()
        if (held := next(frames, None)) is None:
            return
        first, made, steps = held.time, 0, 0  # frames of the result, and from frame to frame of the source, so far
        for shown in frames:
            end = ceil((shown.time - first) * tick)
            yield from self._repeated(held, made, end)
            made, steps, held = max(made, end), steps + 1, shown
        # The last one is shown as long as one is in the mean.
        mean = Fraction(held.time - first, steps) if steps else Fraction(1) / tick
        yield from self._repeated(held, made, max(made, ceil((held.time - first + mean) * tick)))

    def _repeated(self, held: _Shown, begin: int, end: int) -> Iterator[_Shown]:
        for number in range(begin, end):
            yield _Shown(held.frame, number)
        self._counts[DROPPED] += end <= begin
        self._counts[DOUBLED] += max(0, end - begin - 1)

    def _decoded(self) -> Iterator[_Shown]:
        kept = [self._stream] + ([self._sound] if self._sound and self._options.keep_audio else [])
        orders = self._source.format.name == "avi"  # which states no times of frames: their order does
        last = None
        for packet in self._source.demux(kept):
            if packet.stream is self._sound:
                self._packets += [packet] if packet.dts is not None else []
                continue
            self._counts[PACKETS_BEFORE] += packet.size > 0
            self._counts[KEYS_BEFORE] += packet.size > 0 and packet.is_keyframe
            for frame in packet.decode():
                time = (0 if last is None else last + 1) if orders else frame.pts
                if frame.is_corrupt or time is None or (last is not None and time <= last):
                    raise BadSample(f"the frame at tick {time}, after tick {last}, is damaged or has no time")
                last = time
                yield _Shown(frame, last)

    def _made_size(self, frame: Any) -> tuple[int, int]:
        """Return the height and width that frames get before they are turned upright."""
        if (pixels := frame.height * frame.width) > self._options.max_image_pixels:
            most = self._options.max_image_pixels
            raise BadSample("its frames have {} pixels: {max_image_pixels} allows {}", pixels, most)
        return shrunk(frame.height, frame.width, self._options.resize_shorter, self._options.max_pixels)

    def _opened(self, file: io.BytesIO, first: Any) -> tuple[Any, Any, Any]:
        """Open the output, the filters and the encoder for frames like the first one."""
        av, options, sound = pyav(), self._options, self._sound if self._options.keep_audio else None
        self._counts[SILENT] += self._sound is not None and sound is None
        form = "mp4" if sound is None or sound.codec_context.name in _IN_MP4 else "matroska"
        output = av.open(file, "w", format=form, options={"fflags": "+bitexact"})
        rate = self._rate or self._stream.average_rate or Fraction(25)
        chosen = {**options.encoder.options, "crf": str(options.encoder.crf if options.crf is None else options.crf)}
        stream = output.add_stream(options.encoder.name, rate=rate, options=chosen)
        context = stream.codec_context
        turned = self._configure(first)
        stream.height, stream.width = turned
        stream.pix_fmt, context.gop_size, context.thread_count = "yuv420p", options.keyframes or KEYFRAMES, 1
        context.time_base = self._unit
        context.flags |= av.codec.context.Flags.bitexact
        context.color_range = 1  # limited
        context.colorspace = _BT601 if first.format.is_rgb else first.colorspace
        context.color_primaries, context.color_trc = first.color_primaries, first.color_trc
        return output, stream, None if sound is None else output.add_stream_from_template(sound)

    def _configure(self, frame: Any) -> tuple[int, int]:
        """Make the filters for frames like this one; return the height and width that come out of them."""
        height, width = (max(2, side - side % 2) for side in self._made_size(frame))
        degrees = rotation_of(frame)
        full = frame.color_range == _FULL_RANGE or frame.format.name.startswith("yuvj") or frame.format.is_rgb
        how = f"flags=bicubic+accurate_rnd+bitexact:in_range={'full' if full else 'limited'}:out_range=limited"
        graph = pyav().filter.Graph()
        graph.threads = 1
        graph.link_nodes(
            graph.add_buffer(
                width=frame.width, height=frame.height, format=frame.format, time_base=self._stream.time_base
            ),
            graph.add("crop", "trunc(iw/2)*2:trunc(ih/2)*2:0:0"),
            graph.add("scale", f"{width}:{height}:{how}"),
            *(graph.add(*each) for each in _UPRIGHT[degrees]),
            graph.add("format", "yuv420p"),
            graph.add("buffersink"),
        ).configure()
        self._filters = graph
        return (width, height) if degrees % 180 else (height, width)
