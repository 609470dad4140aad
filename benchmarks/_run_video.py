"""Read clips of videos with torchcodec, or with PyAV by seeking; video.py runs it.

    python benchmarks/_run_video.py FOLDER

Each line of standard input is answered with a number, `SIDE` being `torchcodec-approximate`, `torchcodec-exact` or
`pyav`, and `KIND` a folder below FOLDER:

    rate SIDE KIND      clips per second of two threads, over the clips of the kind's clips.json
    greatest SIDE KIND  the greatest difference of the pixels of its first clip from reference.npy
    mean SIDE KIND      the mean of these differences
    used                the seconds of processor time that this process has used
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from torchcodec.decoders import VideoDecoder

SIDE, THREADS = 224, 2
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def by_torchcodec(video: str, frames: Sequence[int], mode: str) -> Pixels:
    """The middle of some frames, [T, height, width, 3]."""
    decoder = VideoDecoder(video, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode=mode)
    return middle(decoder.get_frames_at([*frames]).data.numpy())


def by_pyav(video: str, frames: Sequence[int]) -> Pixels:
    """The same, of a video with 25 frames per second."""
    found: dict[int, Pixels] = {}
    with av.open(video) as container:
        stream: Any = container.streams.video[0]
        stream.thread_type, stream.codec_context.thread_count = "NONE", 1
        tick = 1 / (25 * float(stream.time_base))
        begin = stream.start_time or 0
        container.seek(begin + round(frames[0] * tick), stream=stream)
        frames_from_there: Any = container.decode(stream)
        for frame in frames_from_there:
            number = round((frame.pts - begin) / tick)
            if number in frames:
                found[number] = middle(frame.to_ndarray(format="rgb24"))
            if number >= frames[-1]:
                break
    return np.stack([found[number] for number in frames])


def middle(pixels: Pixels) -> Pixels:
    """The middle of images, [..., height, width, 3]."""
    top, left = (pixels.shape[-3] - SIDE) // 2, (pixels.shape[-2] - SIDE) // 2
    return np.ascontiguousarray(pixels[..., top : top + SIDE, left : left + SIDE, :])


SIDES: dict[str, Callable[[str, Sequence[int]], Pixels]] = {
    "torchcodec-approximate": partial(by_torchcodec, mode="approximate"),
    "torchcodec-exact": partial(by_torchcodec, mode="exact"),
    "pyav": by_pyav,
}


def answer(folder: Path, what: str, side: str, kind: str) -> float:
    """The answer to a question."""
    clips = [(video, range(frames[0], frames[-1] + 1, frames[1] - frames[0])) for video, frames in read(folder, kind)]
    make = SIDES[side]
    if what == "rate":
        begun = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(lambda clip: make(*clip).shape, clips):
                pass
        return len(clips) / (time.perf_counter() - begun)
    reference = np.load(folder / kind / "reference.npy").reshape(-1, SIDE, SIDE, 3)
    differences = np.abs(make(*clips[0]).astype(int) - reference)
    return float(differences.max() if what == "greatest" else differences.mean())


def read(folder: Path, kind: str) -> list[tuple[str, list[int]]]:
    """The clips of a kind."""
    clips: list[tuple[str, list[int]]] = json.loads((folder / kind / "clips.json").read_text())
    return clips


def main() -> None:
    """Answer questions."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        words = line.split()
        print(time.process_time() if words == ["used"] else answer(Path(sys.argv[1]), *words), flush=True)


if __name__ == "__main__":
    main()
