"""Compare `threads="auto"` and `prefetch="auto"` with fixed settings.

    python benchmarks/settings.py /tmp/photos --json settings.json

Photos (RandomResizedCrop(224) and flip), tensors of 2 MiB and records of 3 KB, in the page cache. All loaders run
some seconds before the first turn, which is when `auto` settles. The result is each setting's median rate, and the
rate of `auto` over that of the best.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import shardio
from benchmarks._results import finish, in_turns, options, rate
from benchmarks.before_after import LOADED, loader_of, prepare
from shardio.system import cpus

SETTLE, TURN = 4.0, 1.5  # seconds


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
    prepare(folder, photos, LOADED)
    return {name: partial(loader_of, name, folder / name, threads="auto") for name in LOADED}


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__)
    parser.add_argument("photos", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        makes = workloads(Path(folder), args.photos)
        result = {name: compare(make, args.rounds) for name, make in makes.items()}
    finish(result, args.json)


if __name__ == "__main__":
    main()
