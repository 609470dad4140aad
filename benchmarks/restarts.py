"""Compare JPEGs with restart markers, as `shardio convert --jpeg-restarts` writes them, with the same photos without.

    python benchmarks/photos.py /tmp/photos
    python benchmarks/photos.py /tmp/photos-12 --megapixels 12 --count 60
    python -m benchmarks.restarts /tmp/photos /tmp/photos-12 --json restarts.json

A Loader reads both in turns, from the page cache: random resized crops to 224 (`random`), and Resize(256) with
CenterCrop(224) (`center`). `gain` is its rate with restart markers divided by that without, `gain_cpu` the same per
second of processor time, `of_limit` its rate with markers divided by that of a C program that only decodes the crops of
the files without them, `limit_gain` what markers bring to that program. `pair` delivers two random crops of each photo,
in one Loader (`fields={"a": "image", "b": "image"}`) against two of one each. With `--progressive`, photos are first
encoded as progressive JPEGs, of which no part can be decoded. All are medians over rounds.
"""

import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from PIL import Image

import shardio
from benchmarks._limits import compile_limit
from benchmarks._processes import run
from benchmarks._results import finish, options, turns
from benchmarks.pixels import MOST, SEED, THREADS, TRANSFORMS

Rate = tuple[float, float]
"""Photos per second, and per second of processor time."""


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__)
    parser.add_argument("photos", type=Path, nargs="+", help="folders of JPEG photos")
    parser.add_argument("--progressive", action="store_true", help="encode them as progressive JPEGs first")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    args = parser.parse_args()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as work:
        for folder in args.photos:
            result[folder.name] = measure(folder, Path(work), args.progressive, args.rounds, args.seconds)
    finish({"threads": THREADS, "rounds": args.rounds, "progressive": args.progressive, "restarts": result}, args.json)


def measure(folder: Path, work: Path, progressive: bool, rounds: int, seconds: float) -> dict[str, Any]:
    """The figures of one folder."""
    files = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))[:MOST]]
    if progressive:
        files = [_progressive(file) for file in files]
    plain, marked = work / f"{folder.name}-plain", work / f"{folder.name}-marked"
    _write(plain, files)
    shardio.convert(plain, marked, jpeg_restarts=True, workers=2)
    sides = {"plain": plain, "marked": marked}
    lists = {side: _list_of_files(path, work / f"{path.name}.files") for side, path in sides.items()}
    program = compile_limit("jpeg_crop", work)
    sizes = {
        side: sum(Path(name).stat().st_size for name in names.read_text().split()) for side, names in lists.items()
    }
    figures: dict[str, Any] = {"photos": len(files), "size": round(sizes["marked"] / sizes["plain"], 4)}
    batch_size = min(256, max(8, len(files) // 8))
    for name, transforms in TRANSFORMS.items():
        for decode in ("exact", "fast"):
            kept: dict[str, Any] = {"transforms": transforms, "decode": decode}
            runs = {side: partial(_rate, _epochs(path, batch_size, **kept), seconds) for side, path in sides.items()}
            for side in sides:
                command = [str(program), str(lists[side]), str(THREADS), str(seconds), decode, name]
                runs[f"limit {side}"] = partial(_limit, command)
            figures[f"{name} {decode}"] = _compared(runs, rounds)
    crop = TRANSFORMS["random"]
    pair: dict[str, Any] = {"transforms": {"a": crop, "b": crop}, "fields": {"a": "image", "b": "image"}}
    for side, path in sides.items():
        one, two = _epochs(path, batch_size, **pair), _epochs(path, batch_size, transforms=crop)
        rates: dict[str, list[float]] = {"pair": [], "alone": []}
        for _ in range(rounds):
            rates["pair"].append(_rate(one, seconds)[0])
            rates["alone"].append(_rate(two, seconds)[0] / 2)
        ratios = [a / b for a, b in zip(rates["pair"], rates["alone"], strict=True)]
        figures[f"pair {side}"] = {"photos_per_second": round(median(rates["pair"])), "gain": round(median(ratios), 3)}
    print(folder.name, json.dumps(figures), file=sys.stderr)
    return figures


def _compared(runs: Mapping[str, Callable[[], Rate]], rounds: int) -> dict[str, Any]:
    rates = turns(runs, rounds)

    def ratio(one: str, other: str, which: int = 0) -> float:
        pairs = zip(rates[one], rates[other], strict=True)
        return round(median(a[which] / b[which] for a, b in pairs), 3)

    return {
        "photos_per_second": {side: round(median(rate for rate, _ in found)) for side, found in rates.items()},
        "gain": ratio("marked", "plain"),
        "gain_cpu": ratio("marked", "plain", 1),
        "of_limit": ratio("marked", "limit plain"),
        "plain_of_limit": ratio("plain", "limit plain"),
        "limit_gain": ratio("limit marked", "limit plain"),
    }


def _epochs(path: Path, batch_size: int, **given: Any) -> shardio.Loader:
    return shardio.Loader(path, batch_size, threads=THREADS, seed=SEED, world=shardio.World(), **given)


def _rate(one: shardio.Loader, seconds: float) -> Rate:
    begun, used, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() < begun + seconds:
        count += sum(len(batch["index"]) for batch in one)
    return count / (time.perf_counter() - begun), count / (time.process_time() - used)


def _limit(command: list[str]) -> Rate:
    printed = json.loads(run(command))
    return printed["images_per_s"], 1000 / printed["cpu_s_per_1000"]


def _progressive(file: bytes) -> bytes:
    out = io.BytesIO()
    Image.open(io.BytesIO(file)).save(out, "jpeg", quality="keep", progressive=True)
    return out.getvalue()


def _write(path: Path, files: Iterable[bytes]) -> None:
    with shardio.create(path, container="tar", fields={"image": "image"}) as writer:
        for file in files:
            writer.append({"image": file})


def _list_of_files(dataset: Path, folder: Path) -> Path:
    """Write the images of a dataset to files; return a file with their paths."""
    folder.mkdir()
    data = shardio.open(dataset)
    for number in range(len(data)):
        (folder / f"{number:05d}.jpg").write_bytes(data[number]["image"])
    names = folder.with_suffix(".txt")
    names.write_text("".join(f"{file.absolute()}\n" for file in sorted(folder.iterdir())))
    return names


if __name__ == "__main__":
    main()
