"""Create `examples/fashion-mnist`: a small part of Fashion-MNIST, with the same number of images of every class.

    python examples/make_fashion_mnist.py [SOURCE] [OUT]

SOURCE is a folder with the four gzipped IDX files of Fashion-MNIST; Debian's package dataset-fashion-mnist has them.
It takes the first images of each class, in the order of the source. The same source always gives the same bytes.
"""

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SOURCE = Path("/usr/share/datasets/fashion-mnist")
OUT = Path(__file__).parent / "fashion-mnist"
PER_CLASS = {"train": ("train", 500), "test": ("t10k", 100)}


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped IDX file of type uint8, in the shape of its header."""
    data = gzip.decompress(path.read_bytes())
    if data[:3] != b"\0\0\x08":
        raise SystemExit(f"{path} is not an IDX file of bytes: it begins with {data[:4]!r}")
    dimensions = data[3]
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    """Write a gzipped IDX file without a date or name in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">4B{array.ndim}I", 0, 0, 0x08, array.ndim, *array.shape)
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(header + array.tobytes())


def first_of_each(labels: NDArray[np.uint8], count: int) -> NDArray[np.int64]:
    """The numbers of the first `count` samples of every class, in ascending order."""
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:count] for label in np.unique(labels)]))


def main(source: Path = SOURCE, out: Path = OUT) -> None:
    """Write both parts and print a summary."""
    for part, (prefix, count) in PER_CLASS.items():
        images = read_idx(source / f"{prefix}-images-idx3-ubyte.gz")
        labels = read_idx(source / f"{prefix}-labels-idx1-ubyte.gz")
        chosen = first_of_each(labels, count)
        write_idx(out / part / "images-idx3-ubyte.gz", images[chosen])
        write_idx(out / part / "labels-idx1-ubyte.gz", labels[chosen])
        print(f"{out / part}: {len(chosen)} images, {count} of each class")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
