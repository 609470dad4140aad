"""Compare the time to pack data with that of other writers with as many worker processes.

    python benchmarks/photos.py /tmp/photos
    python -m benchmarks.convert --task photos --work /tmp/shardio-compare --json convert-photos.json

Tasks: `photos` copies 4,000 JPEG files, `small` makes them smaller (shorter side 256, quality 92), `tensors` packs 1
GiB of arrays. Each peer has an environment of its own, as in `compare.py`, and its turns in fresh processes; timed is
the packing itself, and then until the system has everything on the disk, for which shardio waits itself and others do
not. `shardio-restarts` is `shardio-tar` with `jpeg_restarts`. `disk` is the time to write as many bytes as shardio
wrote, by `dd conv=fsync`. With `--out` in a file system in memory (/dev/shm) no disk stands in the way of the programs.
"""

import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._environments import environment
from benchmarks._pack import WORKERS
from benchmarks._peers import load
from benchmarks._processes import ask, environ
from benchmarks._results import finish, in_round, options
from benchmarks._summary import median_ratio
from benchmarks._workloads import WORKLOADS, make_arrays

PEERS = {
    "photos": (
        "shardio-tar",
        "shardio-restarts",
        "shardio-hdf5",
        "shardio-lmdb",
        "webdataset",
        "streaming",
        "litdata",
        "ffcv",
    ),
    "small": ("shardio-tar", "webdataset", "streaming", "litdata", "ffcv"),
    "tensors": ("shardio-tar", "shardio-hdf5", "shardio-lmdb", "webdataset", "streaming", "litdata", "ffcv"),
}


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, photos=True)
    parser.add_argument("--task", choices=sorted(PEERS), required=True)
    parser.add_argument("--peers", help="comma-separated names (default: all)")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("/tmp/shardio-compare"),
        help="folder for environments and data, kept between runs",
    )
    parser.add_argument("--out", type=Path, help="folder for shards, removed at the end (default: WORK)")
    args = parser.parse_args()
    target: Path = (args.out or args.work).absolute() / "packed"
    workload = WORKLOADS["tensors" if args.task == "tensors" else "exact"]
    source: Path = args.photos.absolute()
    if args.task == "tensors":
        source = args.work.absolute() / "source" / f"tensors-{workload.count}.npy"
        make_arrays(workload, source)
    names = tuple(args.peers.split(",")) if args.peers else PEERS[args.task]
    pythons = {name: environment(name.partition("-")[0], args.work.absolute()) for name in names}
    rounds: list[dict[str, Any]] = []
    for number in range(args.rounds):
        found = {}
        for name in in_round(list(names), number):
            order = {"task": args.task, "source": str(source), "workload": asdict(workload)}
            found[name] = _pack(pythons[name], name, order, args.work.absolute(), target)
            print(f"round {number}: {name}: {found[name]}", file=sys.stderr)
        disk = _disk(target.parent, found[names[0]]["bytes"])
        rounds.append({"disk": disk, **found})
    finish(
        {
            "task": args.task,
            "out": str(target.parent),
            "peers": _summary(rounds, names, workload.count),
            "rounds": rounds,
        },
        args.json,
    )


def _pack(python: Path, name: str, order: dict[str, Any], work: Path, out: Path) -> dict[str, Any]:
    library, _, variant = name.partition("-")
    shutil.rmtree(out, ignore_errors=True)
    own = {"library": library, "variant": variant, "out": str(out), "versions": load(library).VERSIONS}
    made = ask([str(python), "-m", "benchmarks._pack"], order | own, environ(library, work))
    shutil.rmtree(out)
    return made


def _disk(folder: Path, size: int) -> float:
    """Seconds to write so many bytes to the disk."""
    target = folder / "disk.bin"
    begun = time.perf_counter()
    command = ["dd", "if=/dev/zero", f"of={target}", "bs=1M", f"count={max(1, size >> 20)}", "conv=fsync"]
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - begun
    target.unlink()
    return seconds


def _summary(rounds: list[dict[str, Any]], names: tuple[str, ...], count: int) -> dict[str, Any]:
    base = names[0]
    rows = {}
    for name in names:
        row = {}
        for key in ("seconds", "seconds_on_disk"):
            own, reference = ([each[n][key] for each in rounds] for n in (name, base))
            row[key], row[f"{key} of {base}"] = round(median(own), 3), _rounded(median_ratio(own, reference))
        row["samples per second and worker"] = round(count / WORKERS / row["seconds"])
        rows[name] = row | {"bytes": rounds[-1][name]["bytes"], "versions": rounds[-1][name]["versions"]}
    return rows | {"disk": {"seconds": round(median(each["disk"] for each in rounds), 3)}}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


if __name__ == "__main__":
    main()
