"""Compare the rate of a Loader through a join with that of the same samples without one.

    python benchmarks/photos.py /tmp/photos
    python -m benchmarks.joins --photos /tmp/photos --json joins.json

    photos      random resized crop to 224 and flip, batch 256, of a tar, with a label and a score: beside one tar that
                holds all fields, whose rate divides the join's
    records     12 numbers each in two datasets of HDF5, batch 4096, shuffled: beside the two read one after the other
                by the same plan, whose time together divides

Both joins are by key, with the rows in another order, and by position. All is read from the page cache with two
threads, in turns; figures are ratios of medians. `bytes_per_sample` is the size of the join's table on disk.
"""

import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import shardio
from benchmarks._results import finish, options, rate, ratio, turns

RECORDS = 200_000
LEAST_SECONDS = 2.0


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, rounds=9, photos=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/joins"), help="folder for the datasets")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--only", nargs="+", choices=("photos", "records"), default=["photos", "records"])
    args = parser.parse_args()
    shutil.rmtree(args.work, ignore_errors=True)
    result = {name: globals()[f"_{name}"](args) for name in args.only}
    print(result)
    finish(result, args.json)


def _written(place: Path, rows: Iterable[Any], container: str) -> Any:
    with shardio.create(place, container=container, shard_size="1GB") as writer:
        for row in rows:
            writer.append(row)
    return shardio.open(place)


def _photos(args: Any) -> dict[str, Any]:
    files = sorted(args.photos.rglob("*.jpg"))
    images = [{"image": path.read_bytes(), "key": f"{number}"} for number, path in enumerate(files)]
    labels = [{"label": number % 10, "score": number / 7} for number in range(len(files))]
    shuffled = np.random.default_rng(0).permutation(len(files)).tolist()
    alone = _written(args.work / "photos", images, "tar")
    keyed = _written(args.work / "keyed", [labels[n] | {"key": f"{n}"} for n in shuffled], "hdf5")
    ordered = _written(args.work / "ordered", labels, "hdf5")
    whole = _written(args.work / "whole", [one | two for one, two in zip(images, labels, strict=True)], "tar")
    transforms = [shardio.RandomResizedCrop(224), shardio.RandomHorizontalFlip()]
    views = {"whole": whole, "key": alone.join(keyed, "key"), "position": alone.join(ordered)}
    given: dict[str, Any] = {"transforms": transforms, "fields": ["image", "label", "score"]}
    rates = turns({name: _rate(view, 256, **given) for name, view in views.items()}, args.rounds)
    return {name: ratio(rates[name], rates["whole"]) for name in ("key", "position")} | _medians(rates)


def _records(args: Any) -> dict[str, Any]:
    count, numbers = args.records, np.random.default_rng(0)
    values = numbers.random((count, 12), np.float32)
    shuffled = numbers.permutation(count)
    base = _written(args.work / "base", ({"id": n, "x": values[n]} for n in range(count)), "hdf5")
    keyed = _written(args.work / "rows", ({"id": int(n), "y": values[n]} for n in shuffled), "hdf5")
    ordered = _written(args.work / "other", ({"y": values[n]} for n in range(count)), "hdf5")
    order = np.argsort(shuffled)
    by_key = base.join(keyed, "id", fields=["y"])
    (table,) = (args.work / "base").glob("shardio.join-*.bin")
    given: dict[str, Any] = {"fields": ["x", "y"]}
    runs = {
        "key": _rate(by_key, 4096, **given),
        "position": _rate(base.join(ordered), 4096, **given),
        "base": _rate(base, 4096, fields=["x"]),
        "by key": _rate(keyed.select(order), 4096, fields=["y"]),
        "by position": _rate(ordered, 4096, fields=["y"]),
    }
    rates = turns(runs, args.rounds)

    def both(other: str) -> list[float]:
        return [1 / (1 / one + 1 / two) for one, two in zip(rates["base"], rates[other], strict=True)]

    ratios = {name: ratio(rates[name], both(f"by {name}")) for name in ("key", "position")}
    return ratios | {"bytes_per_sample": table.stat().st_size / count} | _medians(rates)


def _rate(view: Any, batch: int, **given: Any) -> Callable[[], float]:
    loader = shardio.Loader(view, batch, threads=2, seed=0, world=shardio.World(), **given)
    sum(1 for _ in loader)  # warm up
    return partial(rate, loader, LEAST_SECONDS)


def _medians(rates: dict[str, list[float]]) -> dict[str, Any]:
    return {"samples_per_second": {side: median(found) for side, found in rates.items()}}


if __name__ == "__main__":
    main()
