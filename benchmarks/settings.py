"""Compare `threads="auto"` and `prefetch="auto"` with fixed settings.

    python benchmarks/settings.py /tmp/photos --json settings.json

Photos (RandomResizedCrop(224) and flip), tensors of 2 MiB and records of 3 KB, from HDF5 in the page cache. All loaders
run some seconds before the first turn, which is when `auto` settles. The result is each setting's median rate, and the
rate of `auto` over that of the best.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import shardio
from benchmarks._results import finish, in_turns, options, rate
from shardio.conversion import source
from shardio.conversion.api import convert
from shardio.system import cpus
from shardio.transforms import Transform

SETTLE, TURN = 4.0, 1.5  # seconds


def arrays(path: Path, count: int, shape: tuple[int, ...], dtype: str) -> None:
    """A dataset of random arrays."""
    chance = np.random.default_rng(0)
    with shardio.create(path, container="hdf5", fields={"array": (dtype, shape)}, shard_size="256MB") as writer:
        for _ in range(count):
            writer.append({"array": chance.integers(0, 200, shape, dtype=dtype)})


def compare(make: Callable[..., shardio.Loader], rounds: int) -> dict[str, Any]:
    """Run all settings of one workload alternately."""
    most = cpus.usable()
    hands = [(threads, prefetch) for threads in sorted({1, max(1, most // 2), most}) for prefetch in (1, 2, 8)]
    loaders = {"auto": make()}
    loaders |= {
        f"{threads} threads, prefetch {ahead}": make(threads=threads, prefetch=ahead) for threads, ahead in hands
    }
    for loader in loaders.values():
        rate(loader, SETTLE)
    rates = in_turns({name: partial(rate, loader, TURN) for name, loader in loaders.items()}, rounds)
    best = max(value for name, value in rates.items() if name != "auto")
    settled = loaders["auto"].setting
    return {
        "samples_per_s": rates,
        "auto_over_best": rates["auto"] / best,
        "settled_on": {"threads": settled.threads, "prefetch": settled.prefetch},
    }


def workloads(folder: Path, photos: Path) -> dict[str, Callable[..., shardio.Loader]]:
    """Functions that create loaders of photos, tensors and records, packed in `folder` first."""
    convert(source.find("imagefolder")(photos), folder / "photos", container="hdf5", workers=2)
    arrays(folder / "tensors", 512, (16, 256, 256), "uint16")
    arrays(folder / "records", 200_000, (3072,), "uint8")
    crop: list[Transform] = [shardio.RandomResizedCrop(224), shardio.RandomHorizontalFlip()]
    return {
        "photos": partial(shardio.Loader, folder / "photos", 256, transforms=crop, fields=["image", "label"]),
        "tensors": partial(shardio.Loader, folder / "tensors", 16),
        "records": partial(shardio.Loader, folder / "records", 512),
    }


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__)
    parser.add_argument("photos", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        makes = workloads(Path(folder), args.photos)
        result = {name: compare(partial(make, world=shardio.World()), args.rounds) for name, make in makes.items()}
    finish(result, args.json)


if __name__ == "__main__":
    main()
