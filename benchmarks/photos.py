"""Create a folder of real JPEG photos of about 500x375, cut as tiles from Debian's wallpaper packages.

    apt-get install gnome-backgrounds lomiri-wallpapers mate-backgrounds ukui-wallpapers plasma-workspace-wallpapers
    python benchmarks/photos.py /tmp/photos --count 4000
    python benchmarks/photos.py /tmp/photos-12 --megapixels 12 --count 60

The tiles are in one folder per source photo (`OUT/<photo>/<number>.jpg`), so the result is a class-per-folder tree.
With `--megapixels` they are larger, and only photos that are large enough give some. Wallpapers have much plain sky and
drawn gradients, unlike photo datasets, so a tile of under 0.15 bytes per pixel is replaced by another one, and a
picture without enough detail gives none. The same packages and seed give the same files.
"""

import argparse
import hashlib
import math
import os
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

import cv2
import numpy as np

SOURCES = (Path("/usr/share/backgrounds"), Path("/usr/share/wallpapers"))
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
DETAIL = 0.15  # bytes per pixel, at quality 90 to 96; ImageNet has about 0.5
ATTEMPTS = 40
LEAST_SCALE = 0.9
SMALLEST = 1200  # pixels on the longer side: smaller files are thumbnails and screenshots
SHAPES = ((375, 500), (375, 500), (375, 500), (333, 500), (500, 375), (400, 500), (500, 500), (281, 500))  # (h, w)


def sources(roots: tuple[Path, ...] = SOURCES) -> list[Path]:
    """The distinct image files below `roots`, in a stable order (a package may ship one photo in many sizes)."""
    found: dict[str, Path] = {}
    for path in sorted(p for root in roots for p in root.rglob("*") if p.suffix.lower() in SUFFIXES):
        if path.is_file():
            found.setdefault(hashlib.sha256(path.read_bytes()).hexdigest(), path)
    return sorted(found.values())


def tiles(path: Path, seed: int, megapixels: float | None = None) -> Iterator[bytes]:
    """Yield encoded tiles of one photo, reduced 1 to 2.2 times, without end; stop where no detail is left."""
    sides = 1.0 if megapixels is None else math.sqrt(megapixels * 1e6 / (SHAPES[0][0] * SHAPES[0][1]))
    photo = cv2.imread(str(path), cv2.IMREAD_COLOR)
    rng = np.random.default_rng([seed, *path.as_posix().encode()])
    failures = 0
    while photo is not None and max(photo.shape[:2]) >= SMALLEST and failures < ATTEMPTS:
        shape = (np.array(SHAPES[rng.integers(len(SHAPES))]) * sides).astype(int)
        scale = min(rng.uniform(1.0, 2.2), *(np.array(photo.shape[:2]) / shape))
        if megapixels is not None and scale < LEAST_SCALE:  # an enlarged tile would have no fine detail
            failures += 1
            continue
        height, width = (shape * scale).astype(int)
        y, x = rng.integers(photo.shape[0] - height + 1), rng.integers(photo.shape[1] - width + 1)
        tile = cv2.resize(photo[y : y + height, x : x + width], shape[::-1].tolist(), interpolation=cv2.INTER_AREA)
        data = cv2.imencode(".jpg", tile, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(90, 97))])[1].tobytes()
        failures = failures + 1 if len(data) < DETAIL * shape.prod() else 0
        if not failures:
            yield data


def has_detail(path: Path, seed: int, megapixels: float | None) -> bool:
    """Whether `path` has enough detail for 50 tiles, or for two large ones."""
    enough = 50 if megapixels is None else 2
    return sum(1 for _ in islice(tiles(path, seed, megapixels), enough)) == enough


def cut(path: Path, out: Path, count: int, seed: int, megapixels: float | None) -> int:
    """Write up to `count` tiles of `path` below `out`, and return their number."""
    label = hashlib.sha256(path.as_posix().encode()).hexdigest()[:6]
    folder = out / f"{re.sub(r'[^A-Za-z0-9]+', '-', path.stem)}-{label}"
    made = 0
    for made, data in enumerate(islice(tiles(path, seed, megapixels), count), start=1):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{made:04d}.jpg").write_bytes(data)
    return made


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--megapixels", type=float, help="the size of the tiles (default: about 500x375)")
    args = parser.parse_args()
    photos = sources()
    if not photos:
        parser.error(f"no photo below {', '.join(map(str, SOURCES))}: install the packages named in --help")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rich = pool.map(has_detail, photos, [args.seed] * len(photos), [args.megapixels] * len(photos))
        usable = [photo for photo, yes in zip(photos, rich, strict=True) if yes]
        shares = [args.count * (i + 1) // len(usable) - args.count * i // len(usable) for i in range(len(usable))]
        same = [[value] * len(usable) for value in (args.out, args.seed, args.megapixels)]
        made = sum(pool.map(cut, usable, same[0], shares, *same[1:]))
    print(f"{made} tiles of {len(usable)} photos in {args.out}")


if __name__ == "__main__":
    main()
