"""The limit that `shardio bench --find-limit` finds, against a stopwatch around a plain loop.

The loop below uses nothing of the bench: it takes batches, sleeps for a step, and looks at the clock. All steps count,
the first ones of epochs too. It and the bench's rank measure steps around the limit that the bench has found, in
turns, so that neighbours disturb both alike. The ratio of the shares of the time that they compute, at the same steps
one after the other, shows how far they agree.

    python benchmarks/find_limit.py --photos /tmp/photos-as-tar --json find-limit.json

The volumes have the size of those of MLPerf Storage's unet3d; 28 of them take 4 GB below `--work`.
"""

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import shardio
from benchmarks._results import finish, options
from shardio.bench.config import BenchConfig
from shardio.bench.limit_search import find_limit
from shardio.bench.significance import compare_pairs
from shardio.bench.standing_ranks import StandingRanks

VOLUME = (4, 128, 512, 559)  # 146.5 million bytes
VOLUMES = 28
TRIED = (0.95, 1.0, 1.05)  # of the limit that the bench found
SECONDS, LEAST_STEPS = 3.0, 20  # of each turn
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
        counted, total, end = 0, 0.0, time.perf_counter() + SECONDS
        while counted < LEAST_STEPS or time.perf_counter() < end:
            begun = time.perf_counter()
            for _ in loader:
                time.sleep(step)
                counted += 1
            total += time.perf_counter() - begun
        out.put(counted * step / total)


@contextmanager
def by_hand(config: BenchConfig, crop: bool) -> Iterator[Callable[[float], float]]:
    """Start the stopwatch; yield a function that returns the share of the time that it slept with steps so long."""
    context = multiprocessing.get_context("spawn")
    steps, out = context.Queue(), context.Queue()
    arguments = (config.dataset, config.samples_per_step, crop, steps, out)
    process = context.Process(target=stopwatch, args=arguments)
    process.start()

    def measure(step: float) -> float:
        steps.put(step)
        share: float = out.get(timeout=300)
        return share

    try:
        yield measure
    finally:
        steps.put(None)
        process.join()


def compare(config: BenchConfig, crop: bool, rounds: int) -> dict[str, Any]:
    """Find the limit, and measure around it with the bench's rank and by hand."""
    found = find_limit(config)
    print(f"{found.step_seconds:.4f} s per step, {found.accelerators:.2f} accelerators", file=sys.stderr, flush=True)
    tried = [found.step_seconds * factor for factor in TRIED]
    shares: dict[str, dict[float, list[float]]] = {name: {step: [] for step in tried} for name in ("bench", "by hand")}
    with StandingRanks(config) as ranks, by_hand(config, crop) as stopwatch:
        ranks.turn(SECONDS)
        ways = {
            "bench": lambda step: min(t.utilisation for t in ranks.turn(max(SECONDS, LEAST_STEPS * step), step)),
            "by hand": stopwatch,
        }
        for number in range(rounds):
            for step in tried:
                for name in list(ways)[:: 1 if number % 2 else -1]:
                    shares[name][step].append(ways[name](step))
    bench, hand = ([share for step in tried for share in shares[name][step]] for name in ("bench", "by hand"))
    return {
        "batch_size": config.samples_per_step,
        "found": found.step_seconds,
        "accelerators": found.accelerators,
        "utilisation": asdict(compare_pairs(hand, bench)),
        "shares": {name: list(measured.values()) for name, measured in shares.items()},
    }


def main() -> None:
    """Compare on photos and on volumes."""
    parser = options(__doc__, rounds=6)
    parser.add_argument("--photos", type=Path, required=True, help="a dataset of photos")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "shardio-find-limit"))
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
        result[name] = found = compare(config, crop, arguments.rounds)
        print(name, found["utilisation"], file=sys.stderr, flush=True)
    finish(result, arguments.json)


if __name__ == "__main__":
    main()
