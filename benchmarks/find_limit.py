"""The limit that `shardio bench --find-limit` finds, beside a stopwatch around a plain loop.

The loop below uses nothing of the bench: it takes batches, sleeps for a step, and looks at the clock. All steps count,
the first ones of epochs too. It tries steps
around the limit that the bench found, in turns, and the step at which it reaches the pass mark is its own limit.

    python benchmarks/find_limit.py --photos /tmp/photos-as-tar --json find-limit.json

The volumes have the size of those of MLPerf Storage's unet3d; 28 of them take 4 GB below `--work`.
"""

import multiprocessing
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import shardio
from benchmarks._results import finish, options
from shardio.bench import BenchConfig
from shardio.bench.limit_search import find_limit

VOLUME = (4, 128, 512, 559)  # 146.5 million bytes
VOLUMES = 28
MARK = 0.90
TRIED = (0.94, 0.97, 1.0, 1.03, 1.06)  # of the limit that the bench found
LEAST_SECONDS, LEAST_STEPS = 4.0, 20
THREADS = 2


def make_volumes(path: Path) -> None:
    """Write the volumes, unless they exist."""
    if path.exists():
        return
    random = np.random.default_rng(0)
    volume = random.integers(0, 255, VOLUME, np.uint8)
    with shardio.create(path, container="hdf5", fields={"image": ("uint8", VOLUME)}) as writer:
        for number in range(VOLUMES):
            writer.append({"image": np.roll(volume, number)})


def stopwatch(dataset: str, batch_size: int, crop: bool, steps: "multiprocessing.Queue[Any]", out: Any) -> None:
    """The loop: for each step time that it is given, take batches and sleep; put the share of the time that it slept.

    All steps count, and a sleep counts with its nominal time.
    """
    transforms: list[Any] = [shardio.RandomResizedCrop(224), shardio.RandomHorizontalFlip()] if crop else []
    loader = shardio.Loader(dataset, batch_size, transforms=transforms or None, threads=THREADS, world=shardio.World())
    for _ in loader:  # warms up
        pass
    while (step := steps.get()) is not None:
        counted, total, end = 0, 0.0, time.perf_counter() + LEAST_SECONDS
        while counted < LEAST_STEPS or time.perf_counter() < end:
            begun = time.perf_counter()
            for _ in loader:
                time.sleep(step)
                counted += 1
            total += time.perf_counter() - begun
        out.put(counted * step / total)


def by_hand(dataset: Path, batch_size: int, crop: bool, limit: float, rounds: int) -> float:
    """Return the shortest step with which the stopwatch shows the mark."""
    context = multiprocessing.get_context("spawn")
    steps, out = context.Queue(), context.Queue()
    process = context.Process(target=stopwatch, args=(str(dataset), batch_size, crop, steps, out))
    process.start()
    shares: dict[float, list[float]] = {limit * factor: [] for factor in TRIED}
    for number in range(rounds):
        for step in list(shares)[:: 1 if number % 2 else -1]:
            steps.put(step)
            shares[step].append(out.get(timeout=300))
    steps.put(None)
    process.join()
    # A line through the shares: each step is at the mark or near it.
    slope, offset = np.polyfit(list(shares), [median(values) for values in shares.values()], 1)
    return float((MARK - offset) / slope)


def main() -> None:
    """Compare on photos and on volumes."""
    parser = options(__doc__, rounds=3)
    parser.add_argument("--photos", type=Path, required=True, help="a dataset of photos")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "shardio-find-limit"))
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    arguments.work.mkdir(exist_ok=True)
    volumes = arguments.work / "volumes"
    make_volumes(volumes)
    cases = {
        "photos": (BenchConfig(str(arguments.photos), emulate="resnet50-a100", image_size=224, threads=THREADS), True),
        "volumes": (BenchConfig(str(volumes), emulate="unet3d-h100", threads=THREADS), False),
    }
    result: dict[str, Any] = {"benchmark": "find_limit", "rounds": arguments.rounds}
    for name, (config, crop) in cases.items():
        runs: list[dict[str, Any]] = []
        for _ in range(arguments.repeat):
            limit = find_limit(config)
            hand = by_hand(Path(config.dataset), config.samples_per_step, crop, limit.step_seconds, arguments.rounds)
            ratio = limit.step_seconds / hand
            probes = [asdict(probe) for probe in limit.probes]
            runs.append({"bench": limit.step_seconds, "by_hand": hand, "ratio": ratio, "probes": probes})
            print(name, f"{limit.step_seconds:.4f} s", f"{hand:.4f} s", f"{ratio:.3f}", file=sys.stderr, flush=True)
        result[name] = {
            "batch_size": config.samples_per_step,
            "accelerators": limit.accelerators,
            "ratio": median(run["ratio"] for run in runs),
            "runs": runs,
        }
    finish(result, arguments.json)


if __name__ == "__main__":
    main()
