"""Write whole inputs for `sanitize.c`: `python sanitize_seeds.py FOLDER`, a folder for each target.

An input is 32 int32 numbers, which `sanitize.c` takes as its target's arguments, and then a file or a table.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import lmdb
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _builders import (
    CMYK_JPEG,
    DHT,
    encode,
    jpeg,
    png,
    sampled_jpegs,
    segments,
    tiff,
    with_exif,
    with_thumbnail,
    without,
)

PARAMETERS = 32


def block(numbers: Sequence[int]) -> bytes:
    """Arguments, padded with zeros."""
    return np.array([*numbers, *[0] * (PARAMETERS - len(numbers))], np.int32).tobytes()


def jpegs() -> Iterator[tuple[int, int, bytes]]:
    """Height, width and file: baseline, progressive, grey, of each sampling, with restarts, with EXIF, and others."""
    for height, width in ((60, 80), (33, 17), (1, 1), (16, 16)):
        yield height, width, jpeg(height, width)
        yield height, width, jpeg(height, width, 1)
        yield height, width, jpeg(height, width, progressive=True, quality=50)
    yield from ((45, 70, data) for data in sampled_jpegs(45, 70))
    yield 24, 32, with_thumbnail(jpeg(24, 32), jpeg(8, 8))
    yield 24, 32, with_exif(jpeg(24, 32), tiff(6))
    yield 24, 32, without(jpeg(24, 32), DHT)
    for interval in (1, 3, 5, 65535):
        yield 90, 160, jpeg(90, 160, restarts=interval)
        yield 70, 60, jpeg(70, 60, 1, restarts=interval)
    parts = segments(jpeg(90, 160, restarts=1))
    yield 90, 160, b"".join(parts[:20])
    for marker in (b"", b"\xff\xd0", parts[19][-2:] * 2, b"\xff\xd9", b"\xff" * 9 + parts[19][-2:]):
        yield 90, 160, b"".join([*parts[:19], parts[19][:-2], marker, *parts[20:]])
    yield 2, 3, CMYK_JPEG
    yield 24, 32, png(24, 32)


def inputs(target: str) -> Iterator[bytes]:
    """The inputs of one target."""
    random = np.random.default_rng(0)
    if target == "jpeg":
        for number, (height, width, data) in enumerate(jpegs()):
            whole, corner = (0, 0, height, width), (height // 2, width // 3, (height + 1) // 2, (width + 1) // 2)
            other = (height // 3, width // 3, (height + 2) // 3, (width + 2) // 3, 9, 9, 0, 0)
            for box in (whole, corner, other[:4]):
                ends = [3, 4, 32, 32, 1, number, number // 2, number % 8, *other]
                yield block([height, width, *box, 40, 50, *ends]) + data
                ends = [0, 0, 9, 9, 0, number // 2, number, number // 2 % 8, *other]
                yield block([height, width, *box, 9, 9, *ends]) + data
    elif target in ("headers", "damage", "restart"):
        for height, width, data in jpegs():
            yield block([height, width]) + data
    elif target == "recode":
        for number, (height, width, data) in enumerate(jpegs()):
            yield block([(height + 1) // 2, (width + 2) // 3, number, 90, 0]) + data
            yield block([height, width, number // 2, 40, 0]) + data
            yield block([height, width, 0, 90, 1]) + data
        noise = random.integers(0, 256, (200, 240, 3), np.uint8)  # a result that outgrows the first room for it
        yield block([200, 240, 0, 100]) + encode("jpg", noise, cv2.IMWRITE_JPEG_QUALITY, 100)
    elif target == "lmdb":
        for size in (0, 9, 30, 150):
            yield from lmdb_files(size)
    elif target == "rows":
        for size in (48, 5000, 30_000):
            offsets = np.arange(6, dtype=np.int64) * (size // 8)
            table = np.concatenate([offsets, offsets + size // 6]).view(np.int32).tolist()
            for flags in range(4):
                yield block([size // 6, flags, size // 2, 0, *table]) + random.bytes(size)
    elif target == "resize":
        for number in range(16):
            height, width, rows, columns = random.integers(1, 97, 4).tolist()
            ends = [height, width, 0, 0, height, width, rows + 3, columns + 5, number % 4, number % 5]
            yield block([*ends, rows, columns, number, number // 2, number // 4, number % 8]) + random.bytes(500)
    elif target == "steps":
        for kind in range(11):
            yield block([17, 23, kind, kind, 2, 3, kind, 60000, 5000, 90000, -3000, 65536, 200000])
    elif target == "area":
        for number in range(16):
            sides = random.integers(1, 300, 2).tolist()
            yield block([number % 6, number, *sides, 0, number % 3, *random.integers(1, 60, 2).tolist(), number // 2])
    elif target == "permute":
        for n in (1, 2, 3, 1000, 2**32, 2**62):
            yield block(np.concatenate([[n], random.integers(0, 2**62, 8)]).astype(np.int64).view(np.int32).tolist())
    elif target == "bits":
        for number in (1, 3, 256, 511):
            yield block([number]) + random.bytes(64 * number)
    elif target == "png":
        for number in range(10):
            width, channels = int(random.integers(1, 40)), (1, 3)[number % 2]
            rows = random.integers(0, 256, (30, 1 + width * channels), dtype=np.uint8)
            rows[:, 0] = number // 2 if number < 8 else random.integers(0, 5, 30)
            yield block([width, number % 2]) + rows.tobytes()
    elif target == "shuffle":
        for number in range(8):
            yield block([number]) + random.bytes(int(random.integers(0, 3000)))


def lmdb_files(size: int) -> Iterator[bytes]:
    """LMDB files of `size` entries with values of many sizes, and 6 of their keys (of 9 bytes) each."""
    random = np.random.default_rng(size)
    keys = [number.to_bytes(8, "big") + b"a" for number in range(size)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.lmdb"
        with lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 24) as environment:
            for _ in range(2):  # the second transaction reuses pages of the first, out of order
                with environment.begin(write=True) as transaction:
                    for key in random.permutation(keys).tolist():
                        transaction.put(
                            key, random.bytes(int(random.choice([0, 1, 50, 400, 2100], p=[0.1, 0.2, 0.4, 0.25, 0.05])))
                        )
        data = path.read_bytes()
    for length in (9, 8):
        chosen = [keys[number][:length] for number in random.integers(0, max(size, 1), 6).tolist() if keys]
        yield b"".join(chosen).ljust(4 * PARAMETERS - 4, b"\0") + np.int32(length).tobytes() + data


def main() -> None:
    """Write all inputs."""
    for target in (
        "jpeg",
        "lmdb",
        "rows",
        "resize",
        "headers",
        "recode",
        "damage",
        "area",
        "permute",
        "bits",
        "shuffle",
        "png",
        "steps",
        "restart",
    ):
        folder = Path(sys.argv[1]) / target
        folder.mkdir(parents=True)
        for number, data in enumerate(inputs(target)):
            (folder / f"{number:03d}").write_bytes(data)


if __name__ == "__main__":
    main()
