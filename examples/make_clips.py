"""Make a folder of clips to classify: a square moves in one of four directions, which no single frame shows.

python examples/make_clips.py actions

It writes 60 videos for each direction as actions/DIRECTION/NUMBER.mp4: H.264, 96 x 96 pixels, 25 frames per second,
64 frames, with a key frame every 12 frames.
"""

import argparse
from pathlib import Path

import av
import numpy as np

DIRECTIONS = {"down": (1, 0), "left": (0, -1), "right": (0, 1), "up": (-1, 0)}
SIDE, FRAMES = 96, 64


def frames(random: np.random.Generator, step: np.ndarray) -> np.ndarray:
    """Return a video of a square that moves by `step` pixels per frame, and comes back at the other edge."""
    video = np.repeat(random.integers(0, 110, (1, SIDE // 8, SIDE // 8, 3), np.uint8), FRAMES, axis=0)
    video = video.repeat(8, axis=1).repeat(8, axis=2)
    color, side = random.integers(140, 256, 3), int(random.integers(20, 36))
    begin, speed = random.integers(0, SIDE, 2), random.uniform(1.5, 3)
    for number, frame in enumerate(video):
        top, left = np.rint(begin + number * speed * step).astype(int)
        rows, columns = (top + np.arange(side)) % SIDE, (left + np.arange(side)) % SIDE
        frame[np.ix_(rows, columns)] = color
    return video


def write(path: Path, video: np.ndarray) -> None:
    """Encode a video, uint8 [frames, height, width, 3], as an MP4."""
    with av.open(path, "w") as file:
        stream = file.add_stream("libx264", rate=25, options={"g": "12"})
        stream.height, stream.width, stream.pix_fmt = *video.shape[1:3], "yuv420p"
        stream.codec_context.thread_count = 1  # so that the same video becomes the same file
        for pixels in video:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        file.mux(stream.encode(None))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--videos", type=int, default=60, help="of each direction")
    args = parser.parse_args()
    random = np.random.default_rng(0)
    for direction, step in DIRECTIONS.items():
        (args.folder / direction).mkdir(parents=True, exist_ok=True)
        for number in range(args.videos):
            write(args.folder / direction / f"{number:03}.mp4", frames(random, np.array(step)))


if __name__ == "__main__":
    main()
