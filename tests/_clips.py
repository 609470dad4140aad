"""Small videos for tests of clips, made by Debian's `ffmpeg`, datasets of them, and the frames that clips must have."""

import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import _datasets
import av
import numpy as np
from numpy.typing import NDArray

import shardio
from shardio.engines.video_frames import rgb

LENGTHS = (40, 12, 57, 25, 30, 8, 44, 33)
"""The frames of each video; those of video 3 come at a variable rate."""
_KEYS = ("12", "6", "100", "10", "100", "4", "15", "12")
FIELDS = {"video": "video", "label": "int64", "key": "text"}


@cache
def video(number: int, *more: str) -> bytes:
    """A video of 64 x 48 pixels in H.264 with frames that refer to later ones, whose frames all differ."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "v.mp4"
        rate = ["-vf", r"select='not(mod(n\,7))+lt(mod(n\,5)\,2)'", "-fps_mode", "vfr"] if number == 3 else []
        hue = f"hue=h={40 * number}"
        options = ["-f", "lavfi", "-i", f"testsrc2=size=64x48:rate=25,{hue}", *rate, "-frames:v", f"{LENGTHS[number]}"]
        options += ["-c:v", "libx264", "-g", _KEYS[number], "-bf", "2", "-pix_fmt", "yuv420p", *more, str(path)]
        subprocess.run(["ffmpeg", "-v", "error", "-y", *options], check=True, stdin=subprocess.DEVNULL)
        return path.read_bytes()


@cache
def whole(number: int) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """The frames of a video, [n, height, width, 3], by decoding all of it, and when each is shown, in seconds."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "v.mp4"
        path.write_bytes(video(number))
        with av.open(str(path)) as container:
            frames = list(container.decode(video=0))
    times = np.array([float((frame.pts - frames[0].pts) * frame.time_base) for frame in frames])
    return np.stack([rgb(frame, 0, 0, frame.height, frame.width) for frame in frames]), times


def sample(number: int) -> dict[str, Any]:
    """A sample with a video."""
    return {"video": video(number % len(LENGTHS)), "label": number % len(LENGTHS), "key": f"v{number}"}


def videos(place: Path | None = None, count: int = len(LENGTHS), **options: Any) -> shardio.Dataset:
    """A dataset of videos, in a few shards."""
    options = {"shard_size": "60KB", "shard_samples": 3} | options
    return _datasets.packed(place, map(sample, range(count)), FIELDS, **options)


def check(batch: dict[str, Any], number_of: Callable[[int], int] = int, name: str = "video") -> list[list[int]]:
    """Return the numbers of the frames that clips of a batch have, by their times; their pixels must be these."""
    shown = []
    for row, index in enumerate(batch["index"].tolist()):
        frames, times = whole(number_of(index) % len(LENGTHS))
        numbers = [int(np.argmin(np.abs(times - time))) for time in batch[f"{name}_time"][row].tolist()]
        np.testing.assert_allclose(times[numbers], np.asarray(batch[f"{name}_time"][row]), rtol=0, atol=1e-9)
        np.testing.assert_array_equal(np.asarray(batch[name][row]), frames[numbers])
        shown.append(numbers)
    return shown


def at(seconds: Sequence[float], number: int) -> list[int]:
    """The frames of a video that are shown at some times."""
    times = whole(number)[1]
    return [max(int((times <= second + 1e-6).sum()) - 1, 0) for second in seconds]
