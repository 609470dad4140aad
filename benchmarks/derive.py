"""Compare a derive by a function that computes nothing with the Loader alone, and with a plain copy of its bytes.

    python benchmarks/photos.py /tmp/photos
    python -m benchmarks.derive --photos /tmp/photos --json derive.json
    python -m benchmarks.derive --only rows --work /mnt/disk

`photos` are resized and cropped, and the function returns what it gets, uint8 [224, 224, 3]: `loader` takes the same
batches and drops them. `rows` are float32 [1024] in HDF5: `copy` is `cp` of the shards that the derive has written, and
fsync of each. They run in turns; `ratio` is the median of the rates of `derive` divided by the other
side's in the same round. `cpu_seconds` are those of all processors, which other programs change little.
"""

import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import shardio
from benchmarks._results import finish, options, ratio, turns
from benchmarks.writing import _copy, _timed

BATCH = {"photos": 256, "rows": 1024}
CROP = [shardio.Resize(256), shardio.CenterCrop(224)]


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, photos=True)
    parser.add_argument("--work", type=Path, help="folder to write in (default: that of temporary files)")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, help="of both (default: 256 photos, 1,024 rows)")
    parser.add_argument("--only", nargs="+", choices=("photos", "rows"), default=["photos", "rows"])
    args = parser.parse_args()
    made: dict[str, Callable[[], Iterable[dict[str, Any]]]] = {
        "photos": lambda: ({"x": path.read_bytes()} for path in sorted(args.photos.rglob("*.jpg"))),
        "rows": lambda: ({"x": np.full(1024, number, np.float32)} for number in range(args.rows)),
    }
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=args.work) as work:
        for name in args.only:
            batches = {"batch_size": args.batch_size or BATCH[name], "transforms": CROP if name == "photos" else None}
            result[name] = _compare(Path(work, name), made[name](), batches, args.rounds)
            print(name, result[name], flush=True)
    finish(result, args.json)


def _compare(work: Path, samples: Iterable[dict[str, Any]], batches: dict[str, Any], rounds: int) -> dict[str, Any]:
    data, kept = work / "data", work / "kept"
    with shardio.create(data, container="tar" if batches["transforms"] else "hdf5") as writer:
        for sample in samples:
            writer.append(sample)
    count = len(shardio.open(data))
    derive = partial(_derive, data, batches)
    derive(kept)
    sides: dict[str, Any] = {"derive": derive}
    sides |= {"loader": partial(_load, data, batches)} if batches["transforms"] else {"copy": partial(_copy, kept)}
    measured = turns({side: partial(_timed, run, work / "target") for side, run in sides.items()}, rounds)
    walls = {side: [wall for wall, _ in found] for side, found in measured.items()}
    (other,) = sides.keys() - {"derive"}
    return {
        "samples": count,
        "batch_size": batches["batch_size"],
        "samples_per_second": {side: round(count / median(found)) for side, found in walls.items()},
        "ratio": round(ratio(walls[other], walls["derive"]), 3),
        "cpu_seconds": {side: round(median(cpu for _, cpu in found), 2) for side, found in measured.items()},
    }


def _derive(data: Path, batches: dict[str, Any], out: Path) -> None:
    def same(batch: dict[str, Any]) -> Any:
        return batch["x"]

    shardio.derive(data, same, out, version="1", world=shardio.World(), **batches)


def _load(data: Path, batches: dict[str, Any], out: Path) -> None:
    for _ in shardio.Loader(data, **batches, shuffle=None, tail="pad", world=shardio.World()):
        pass


if __name__ == "__main__":
    main()
