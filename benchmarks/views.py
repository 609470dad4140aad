"""Compare the rate of a Loader through a view with that of the dataset itself.

    python benchmarks/photos.py /tmp/photos
    python -m benchmarks.views --photos /tmp/photos --json views.json

`half` is a view of a random half of the samples; `weighted` draws by a weight of each sample.
Both are read from the page cache with two threads, in turns. Figures are samples per second of the view divided by
those of the dataset; medians.

    photos      random resized crop to 224 and flip, uint8, batch 256, of a tar
    tensors     uint16 arrays of 2 MiB as they are, batch 16, of HDF5
    records     3,072 bytes each, batch 512, of HDF5
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import shardio
from benchmarks._results import finish, options, rate, ratio, turns
from benchmarks.before_after import LEAST_SECONDS, LOADED, loader_of, prepare


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, rounds=9, photos=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/before-after"), help="folder for the datasets")
    parser.add_argument("--only", nargs="+", choices=LOADED, default=list(LOADED), metavar="NAME")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    prepare(args.work, args.photos, args.only)
    result: dict[str, Any] = {}
    for name in args.only:
        dataset = shardio.open(args.work / name)
        half = np.random.default_rng(0).random(len(dataset)) < 0.5
        runs = {
            "dataset": _rate(name, dataset),
            "half": _rate(name, dataset.select(half)),
            "weighted": _rate(name, dataset.weighted(np.random.default_rng(1).random(len(dataset)))),
        }
        rates = turns(runs, args.rounds)
        ratios = {side: ratio(rates[side], rates["dataset"]) for side in runs}
        result[name] = {"samples_per_second": {side: median(found) for side, found in rates.items()}, "ratio": ratios}
        print(name, {side: round(found, 3) for side, found in ratios.items()}, flush=True)
    finish(result, args.json)


def _rate(name: str, dataset: Any) -> Callable[[], float]:
    loader = loader_of(name, dataset)
    sum(1 for _ in loader)  # warm up
    return partial(rate, loader, LEAST_SECONDS)


if __name__ == "__main__":
    main()
