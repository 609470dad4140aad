"""Measure the difference in pixels and in speed between `decode="fast"` and `decode="exact"`, by size of the photos.

    python benchmarks/photos.py /tmp/photos
    python benchmarks/photos.py /tmp/photos-2 --megapixels 2 --count 300
    python benchmarks/photos.py /tmp/photos-12 --megapixels 12 --count 60
    python -m benchmarks.pixels /tmp/photos /tmp/photos-2 /tmp/photos-12 --json pixels.json

For each folder and each list of transforms: how far the pixels of `decode="fast"` are from the exact ones (the mean
absolute difference, that of the image furthest apart, and the largest of all, of 255), and the rates of both beside a C
program that only decodes the same crops with the same settings, in turns.
"""

import json
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, get_args

import numpy as np

import shardio
from benchmarks._limits import compile_limit
from benchmarks._processes import run
from benchmarks._results import finish, options, rate, ratio, turns
from shardio.engines.fused_images import Decode
from shardio.transforms import Transform

TRANSFORMS: dict[str, list[Transform]] = {
    "random": [shardio.RandomResizedCrop(224), shardio.RandomHorizontalFlip()],
    "center": [shardio.Resize(256), shardio.CenterCrop(224)],
}
THREADS, SEED = 2, 7
MOST = 4000


def pack(folder: Path, out: Path) -> list[Path]:
    """Write a dataset of the photos; return their files."""
    files = sorted(folder.rglob("*.jpg"))[:MOST]
    with shardio.create(out, container="tar", fields={"image": "image"}) as writer:
        for file in files:
            writer.append({"image": file.read_bytes()})
    return files


def loader(dataset: Path, transforms: list[Transform], decode: Decode, batch_size: int) -> shardio.Loader:
    """A loader with the settings of all."""
    return shardio.Loader(
        dataset, batch_size, transforms=transforms, decode=decode, threads=THREADS, seed=SEED, world=shardio.World()
    )


def apart(loaders: dict[str, shardio.Loader]) -> dict[str, float]:
    """How far the pixels of both are from one another, over one epoch."""
    means, largest = [], 0
    for exact, fast in zip(*loaders.values(), strict=True):
        difference = (exact["image"].short() - fast["image"].short()).abs()
        means += difference.float().mean(dim=(1, 2, 3)).tolist()
        largest = max(largest, int(difference.max()))
    return {"mean": round(float(np.mean(means)), 3), "furthest image": round(max(means), 3), "largest": largest}


def measure(folder: Path, work: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """The figures of one folder."""
    dataset = work / folder.name
    files = pack(folder, dataset)
    names = work / f"{folder.name}.txt"
    names.write_text("".join(f"{file.absolute()}\n" for file in files))
    program = compile_limit("jpeg_crop", work)
    batch_size = min(256, max(8, len(files) // 8))
    figures: dict[str, Any] = {"photos": len(files), "bytes": sum(file.stat().st_size for file in files)}
    for name, transforms in TRANSFORMS.items():
        loaders = {decode: loader(dataset, transforms, decode, batch_size) for decode in get_args(Decode)}
        difference = apart(loaders)
        runs = {f"shardio {decode}": partial(rate, one, seconds) for decode, one in loaders.items()}
        for decode in loaders:
            command = [str(program), str(names), str(THREADS), str(seconds), decode, name]
            runs[f"limit {decode}"] = partial(_limit, command)
        rates = turns(runs, rounds)
        ratios = {
            "fast of exact": ("shardio fast", "shardio exact"),
            "exact of its limit": ("shardio exact", "limit exact"),
            "fast of its limit": ("shardio fast", "limit fast"),
        }
        figures[name] = {
            "fast to exact pixels": difference,
            "images per second": {key: round(median(values)) for key, values in rates.items()},
        } | {key: round(ratio(rates[one], rates[other]), 3) for key, (one, other) in ratios.items()}
    return figures


def _limit(command: list[str]) -> float:
    return float(json.loads(run(command))["images_per_s"])


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__)
    parser.add_argument("photos", type=Path, nargs="+", help="folders of JPEG photos")
    parser.add_argument("--seconds", type=float, default=1.5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        figures = {folder.name: measure(folder, Path(work), args.rounds, args.seconds) for folder in args.photos}
    finish({"threads": THREADS, "rounds": args.rounds, "pixels": figures}, args.json)


if __name__ == "__main__":
    main()
