"""Videos for tests, made by Debian's `ffmpeg`, and what decoding a whole one gives."""

import struct
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import av
import numpy as np
from numpy.typing import NDArray

FRAMES = 75
_X264, _X265 = ("-c:v", "libx264"), ("-c:v", "libx265", "-x265-params")
_VARIABLE = ("-vf", r"select='not(mod(n\,7))+lt(mod(n\,5)\,2)'", "-fps_mode", "vfr")

CORPUS = {
    "h264.mp4": (*_X264, "-g", "12", "-bf", "2"),
    "h264_long.mp4": (*_X264, "-g", "300", "-bf", "3"),
    "h264_key.mp4": (*_X264, "-g", "1"),
    "h264_open.mp4": (*_X264, "-g", "9", "-bf", "3", "-x264-params", "open-gop=1"),
    "h264_open.mkv": (*_X264, "-g", "40", "-bf", "3", "-x264-params", "open-gop=1"),
    "h264_pieces.mp4": (*_X264, "-g", "12", "-movflags", "frag_keyframe+empty_moov"),
    "h264_odd.mov": (*_X264, "-g", "24", "-pix_fmt", "yuv444p", "-s", "97x61"),
    "h264_10.mkv": (*_X264, "-g", "24", "-pix_fmt", "yuv422p10le"),
    "h264_rate.mp4": (*_VARIABLE, *_X264, "-g", "12", "-bf", "2"),
    "h264_interlaced.mp4": (*_X264, "-g", "24", "-flags", "+ilme+ildct"),
    "hevc_open.mp4": (*_X265, "log-level=none:keyint=11", "-tag:v", "hvc1"),
    "hevc_10.mkv": (*_X265, "log-level=none:keyint=12:open-gop=0", "-pix_fmt", "yuv420p10le"),
    "hevc_layers.mp4": (*_X265, "log-level=none:keyint=40:temporal-layers=1:b-adapt=0:bframes=3"),
    "vp9.webm": ("-c:v", "libvpx-vp9", "-g", "24", "-deadline", "realtime", "-cpu-used", "8"),
    "vp9_hidden.webm": (
        "-c:v",
        "libvpx-vp9",
        "-g",
        "20",
        "-cpu-used",
        "5",
        "-auto-alt-ref",
        "1",
        "-lag-in-frames",
        "9",
    ),
    "vp8.webm": ("-c:v", "libvpx", "-g", "24", "-deadline", "realtime", "-auto-alt-ref", "1", "-lag-in-frames", "9"),
    "av1.mp4": ("-c:v", "libsvtav1", "-g", "24", "-preset", "12"),
    "av1_2.webm": ("-c:v", "libsvtav1", "-g", "2", "-preset", "12"),
    "mjpeg.mov": ("-c:v", "mjpeg", "-q:v", "4", "-pix_fmt", "yuvj420p"),
}
"""The options of `ffmpeg` for each video."""
CUTS = ("edited.mp4", "turned.mp4")


def ffmpeg(*options: str | Path) -> None:
    """Run `ffmpeg`, on one thread."""
    command = ["ffmpeg", "-v", "error", "-y", "-threads", "1", *map(str, options)]
    # SVT-AV1 tells of itself.
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make(path: Path, options: Sequence[str], *, frames: int = FRAMES, size: str = "96x64") -> Path:
    """Make a video of a moving test pattern with a tone, and return its path."""
    pictures = f"testsrc2=size={size}:rate=25:duration={frames / 25}"
    tone = () if path.suffix == ".webm" else ("-f", "lavfi", "-i", f"sine=duration={frames / 25}")
    pixels = () if "-pix_fmt" in options else ("-pix_fmt", "yuv420p")
    ffmpeg("-f", "lavfi", "-i", pictures, *tone, *pixels, *options, "-threads", "1", path)
    return path


@cache
def video(name: str) -> bytes:
    """The bytes of a video of the corpus, made once."""
    with TemporaryDirectory() as folder:
        path, whole = Path(folder, name), Path(folder, "whole.mp4")
        if name == "turned.mp4":
            return turned(video("h264_long.mp4"), (0, 1, -1, 0))
        if name == "edited.mp4":  # from the middle of a group: what decoding it takes before is dropped
            whole.write_bytes(video("h264_long.mp4"))
            ffmpeg("-ss", "0.7", "-i", whole, "-t", "1.5", "-c", "copy", path)
            return path.read_bytes()
        return make(path, CORPUS[name]).read_bytes()


def turned(value: bytes, matrix: Sequence[float]) -> bytes:
    """An MP4 that is to be shown by another matrix: a, b, c and d of its first track."""
    place, (a, b, c, d) = value.index(b"tkhd") + 44, (round(number * (1 << 16)) for number in matrix)
    return value[:place] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30) + value[place + 36 :]


@cache
def frames(name: str) -> list[NDArray[np.uint8]]:
    """The planes of all frames of a video of the corpus, as decoding the whole file gives them."""
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(video(name))
        return decoded(path)


def decoded(path: Path) -> list[NDArray[np.uint8]]:
    """The planes of all frames of a file, as decoding it whole gives them."""
    with av.open(str(path)) as container:
        return [planes(frame) for frame in container.decode(video=0)]


def planes(frame: av.VideoFrame) -> NDArray[np.uint8]:
    """The bytes of a frame's planes, without those that lines end with."""
    size = 2 if frame.format.name.endswith("10le") else 1  # PyAV's own to_ndarray takes few formats of 10 bits
    lines = [np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size) for plane in frame.planes]
    return np.concatenate(
        [each[:, : size * plane.width].reshape(-1) for each, plane in zip(lines, frame.planes, strict=True)]
    )
