"""Builders of small videos and sounds, by PyAV."""

import functools
import io
import wave
from fractions import Fraction
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray


def video(
    frames: int = 24,
    *,
    size: tuple[int, int] = (32, 48),
    codec: str = "libx264",
    form: str = "mp4",
    rate: int = 25,
    group: int = 250,
    seed: int = 0,
    times: NDArray[np.int64] | None = None,
    sound: str | None = None,
) -> bytes:
    """A video of blocks that move, its colours chosen by `seed`.

    Args:
        frames: how many.
        size: their height and width.
        codec: the encoder.
        form: the muxer.
        rate: frames per second.
        group: frames from a key frame to the next.
        seed: chooses the colours.
        times: when each is shown, in units of 1 / `rate` seconds.
        sound: the encoder of a tone beside it; None for none.
    """
    file, random = io.BytesIO(), np.random.default_rng(seed)
    ground = np.kron(random.integers(0, 255, (4, 6, 3), np.uint8), np.ones((size[0] // 4, size[1] // 6, 1), np.uint8))
    ground = np.pad(ground, [(0, size[0] - ground.shape[0]), (0, size[1] - ground.shape[1]), (0, 0)], mode="edge")
    with av.open(file, "w", format=form) as made:
        stream = made.add_stream(codec, rate=rate, options={"threads": "1"})
        stream.height, stream.width = size
        stream.pix_fmt, stream.gop_size = ("yuvj420p" if codec == "mjpeg" else "yuv420p"), group
        stream.time_base = Fraction(1, rate)
        heard = made.add_stream(sound, rate=48000, layout="mono") if sound else None
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(np.roll(ground, 2 * number, axis=1), "rgb24")
            frame.pts, frame.time_base = int(number if times is None else times[number]), Fraction(1, rate)
            made.mux(stream.encode(frame))
        made.mux(stream.encode(None))
        if heard is not None:
            tone = av.AudioFrame.from_ndarray(_tone(48000, frames / rate)[None], "s16", "mono")
            tone.sample_rate = 48000
            made.mux(heard.encode(tone))
            made.mux(heard.encode(None))
    return file.getvalue()


@functools.cache  # encoding again may give other bytes, by x264's macroblock tree
def grey_video(
    frames: int = 40, *, height: int = 48, width: int = 64, key_frames: int = 10, seed: int = 0, **options: Any
) -> bytes:
    """Return an MP4 of H.264, 10 frames per second, whose grey levels grow from frame to frame by `seed + 2`."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        stream.codec_context.options = {"g": f"{key_frames}", "sc_threshold": "0"} | options
        stream.codec_context.thread_count = 1  # so that the same video is the same bytes
        for number in range(frames):
            level = (20 + (seed + 2) * number) % 256
            pixels = np.full((height, width, 3), level, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


def frames_of(file: bytes) -> list[Any]:
    """Return all frames of a video, as decoding the whole file gives them."""
    with av.open(io.BytesIO(file)) as container:
        return list(container.decode(video=0))


def shown(data: bytes) -> list[NDArray[np.uint8]]:
    """The frames of a video, RGB, by decoding the whole file."""
    return [frame.to_ndarray(format="rgb24") for frame in frames_of(data)]


def _tone(rate: int, seconds: float, pitch: float = 440) -> NDArray[np.int16]:
    return (8000 * np.sin(2 * np.pi * pitch * np.arange(round(rate * seconds)) / rate)).astype(np.int16)


def wav(seconds: float = 0.5, *, rate: int = 16000, channels: int = 1, pitch: float = 440) -> bytes:
    """A tone as a WAV file; channel c has 1 / (c + 1) of its amplitude."""
    tone = _tone(rate, seconds, pitch)
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setnchannels(channels)
        made.setsampwidth(2)
        made.setframerate(rate)
        made.writeframes(np.stack([tone // (c + 1) for c in range(channels)], axis=1).tobytes())
    return file.getvalue()


def encoded_sound(form: str, codec: str, seconds: float = 0.5, *, rate: int = 48000) -> bytes:
    """A tone in a file of another format."""
    file = io.BytesIO()
    with av.open(file, "w", format=form) as made:
        stream = made.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(_tone(rate, seconds)[None], "s16", "mono")
        frame.sample_rate = rate
        made.mux(stream.encode(frame))
        made.mux(stream.encode(None))
    return file.getvalue()
