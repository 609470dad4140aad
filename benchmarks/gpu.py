"""Measure the input of one GPU, and say what to change: one table, in eight minutes at most.

    python benchmarks/gpu.py --photos /tmp/photos --json gpu.json
    python benchmarks/gpu.py --device cpu --seconds 0.1 --size 64 --batch-size 16 --photos-count 64

- host: the Loader's host side alone, by threads and task sizes: for an engine that drops its files, and the CPU engine;
- dali: DALI inside of shardio against DALI alone with its file reader, and against the engine without a Loader;
- train: ResNet-50 in bfloat16, channels_last, with each engine against synthetic input: images/s and time waited;
- arrays: HDF5 arrays to the device against copies of page-locked memory, by task sizes and lengths of epochs;
- codec: nvImageCodec by its parts, and with two decoders, images used again and one kernel (`_gpu_kernel.py`);
- kernel: this kernel's pixels and rate against torch's operations;
- tests: the tests that need a GPU.

Each experiment is a process with a limit, and gets what those before it left of theirs. Its cases take turns, and its
rows are kept as they come, so one that is cut off or fails leaves what it has. Ratios are medians over turns, to the
first row of a group. Without a GPU the operators for the CPU are measured, and the kernel is compiled as C.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch

from benchmarks import _gpu_data, _processes
from benchmarks._gpu_parts import Settings
from benchmarks._results import options
from shardio.bench.machine import describe

LIMITS = {"host": 85, "dali": 75, "train": 105, "arrays": 55, "codec": 70, "kernel": 20, "tests": 60}
"""Seconds of each experiment's process, of 480 for all with the data."""


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, rounds=2)
    parser.add_argument("--photos", type=Path, help="folder of JPEG photos (default: synthetic images)")
    parser.add_argument("--work", type=Path, help="folder for data, kept between runs (default: a temporary one)")
    parser.add_argument("--device", default="auto", help="cuda, cpu, or auto: a GPU if there is one")
    parser.add_argument("--only", nargs="+", default=list(LIMITS), choices=LIMITS, metavar="EXPERIMENT")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224, help="pixels of the crops' sides")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of a turn")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds for everything")
    parser.add_argument("--photos-count", type=int, default=4000)
    parser.add_argument("--arrays-count", type=int, default=256)
    parser.add_argument("--threads", type=int, nargs="*", help="numbers of threads to try (default: 1, 4 and all)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(args, args.work or Path(folder))
    print("\n".join(table(result["experiments"])))


def measure(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Run the experiments, writing what is known to `args.json` after each."""
    deadline = time.monotonic() + args.budget - sum(LIMITS.values()) * args.budget / 480
    device = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    cores = len(os.sched_getaffinity(0))
    folder, dataset, said = _gpu_data.photos(args.photos, work, args.photos_count)
    settings = Settings(
        device=device,
        folder=str(folder),
        dataset=str(dataset),
        arrays=str(_gpu_data.arrays(work, args.arrays_count)),
        threads=sorted(args.threads or {min(n, cores) for n in (1, 4, cores)}),
        batch_size=args.batch_size,
        size=args.size,
        seconds=args.seconds,
        rounds=args.rounds,
    )
    result: dict[str, Any] = {
        "date": date.today().isoformat(),
        "images": said,
        "count": args.photos_count,
        "settings": asdict(settings),
        "gpu": None if device == "cpu" else f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}",
        "machine": describe(),
        "experiments": {},
    }
    for name in args.only:
        deadline += LIMITS[name] * args.budget / 480
        result["experiments"][name] = found = _run(name, settings, work, deadline - time.monotonic())
        print("\n".join(table({name: found})), file=sys.stderr)
        if args.json is not None:
            args.json.write_text(json.dumps(result, indent=1) + "\n")
    return result


def _run(name: str, settings: Settings, work: Path, limit: float) -> dict[str, Any]:
    """Run an experiment in a process, and return its rows, its seconds, and why it did not come to its end."""
    rows, begun = work / f"{name}.jsonl", time.monotonic()
    rows.unlink(missing_ok=True)
    failed: dict[str, str] = {}
    command = [sys.executable, "-m", "benchmarks._gpu_parts", name, json.dumps(asdict(settings)), str(rows)]
    try:
        if limit < 5:
            raise _processes.PeerFailed("no time was left")
        _processes.run(command, limit=limit)
    except _processes.PeerFailed as error:
        failed = {"failed": str(error)}
    lines = rows.read_text().splitlines(keepends=True) if rows.exists() else []
    found = {row["what"]: row for row in map(json.loads, (line for line in lines if line.endswith("\n")))}
    return {"rows": list(found.values()), "seconds": round(time.monotonic() - begun, 1)} | failed


def table(experiments: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a table of all rows, with what they say to change."""
    columns = ("what", "rate", "waited", "ratio", "what to change")
    yield from (_line(columns), _line(["-" * 60, "-" * 20, "-" * 6, "-" * 5, "-" * 20]))
    for name, found in experiments.items():
        for row in found["rows"]:
            failed = row.get("failed")
            rate = f"{row['rate']:,.4g} {row['unit']}" if "rate" in row and failed is None else ""
            waited = f"{row['waited']:.0%}" if "waited" in row else ""
            ratio = f"{row['ratio']:.2f}" if "ratio" in row else ""
            change = row.get("change", "") if failed is None else f"failed: {failed}"
            yield _line((f"{name}: {row['what']}", rate, waited, ratio, change))
        if "failed" in found:
            yield _line((f"{name}:", "", "", "", found["failed"].splitlines()[-1]))


def _line(cells: Sequence[str]) -> str:
    what, rate, waited, ratio, change = cells
    return f"{what:60} {rate:>20} {waited:>6} {ratio:>5}  {change}".rstrip()


if __name__ == "__main__":
    main()
