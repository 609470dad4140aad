"""What measuring costs: the rate of the ranks of `shardio bench` beside plain loops, and the work of `shardio.monitor`.

A plain loop takes batches from a Loader whose workers do not time their stages, and counts samples. The ranks of the
bench time stages and steps and wait for each other after each step, while a thread adds up their memory and processor
time. Both stand ready, and take turns of half a second.

    python benchmarks/measuring.py --photos /tmp/photos --json measuring.json
"""

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import shardio
from benchmarks._results import finish, options
from benchmarks.before_after import prepare
from shardio.bench import BenchConfig
from shardio.bench.rank import build_loader
from shardio.bench.significance import compare_pairs
from shardio.bench.standing_ranks import WARMUP_STEPS, StandingRanks
from shardio.bench.usage_sampler import UsageSampler
from shardio.system.timing import StageClock

TURN_SECONDS = 0.5
BATCH_SIZES = {"photos": 256, "tensors": 16, "records": 512}
MONITOR_SECONDS = 5.0


@contextmanager
def _untimed(self: StageClock, name: str) -> Iterator[None]:
    """A stage that is not timed."""
    yield


def plain(config: BenchConfig, rank: int, pipe: "Connection[Any, Any]") -> None:
    """The plain loop of one rank: for each number of seconds that it gets, take batches for so long; send the rate."""
    StageClock.stage = _untimed  # type: ignore[method-assign]  # the cost of the real one is what is measured
    loader = build_loader(config, shardio.World(rank, config.ranks, rank, config.ranks))

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    while (seconds := pipe.recv()) is not None:
        batches = endless()
        for _ in range(WARMUP_STEPS):
            next(batches)
        begun, samples = time.perf_counter(), 0
        while time.perf_counter() < begun + seconds:
            samples += len(next(batches)["index"])
        pipe.send(samples / (time.perf_counter() - begun))


def cost(config: BenchConfig, rounds: int) -> dict[str, Any]:
    """Compare the plain loops with the bench's ranks."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(config.ranks)]
    processes = [
        context.Process(target=plain, args=(config, rank, pipe[1]), daemon=True) for rank, pipe in enumerate(pipes)
    ]
    for process in processes:
        process.start()

    def unmeasured() -> float:
        for here, _ in pipes:
            here.send(TURN_SECONDS)
        return sum(float(here.recv()) for here, _ in pipes)

    with StandingRanks(config) as ranks:
        pids = [child.pid or 0 for child in multiprocessing.active_children() if child.name.startswith("bench rank")]

        def measured() -> float:
            with UsageSampler(pids):
                return sum(turn.samples_per_second for turn in ranks.turn(TURN_SECONDS))

        sides = (unmeasured, measured)
        rates: tuple[list[float], list[float]] = ([], [])
        for side in sides:
            side()
        for number in range(rounds):
            for index in (0, 1) if number % 2 else (1, 0):
                rates[index].append(sides[index]())
    for here, _ in pipes:
        here.send(None)
    return asdict(compare_pairs(*rates)) | {"plain_per_second": round(median(rates[0]))}


def monitor_cost(dataset: Path, folder: Path) -> dict[str, float]:
    """Return the processor seconds of the monitor per interval, writing JSON lines, while nothing else runs."""
    lines = folder / "input.jsonl"
    lines.unlink(missing_ok=True)
    loader = shardio.Loader(dataset, 256, world=shardio.World())
    next(iter(loader))
    with shardio.monitor(loader, every=0.005, jsonl=lines):
        begun = time.process_time()
        time.sleep(MONITOR_SECONDS)
        seconds = time.process_time() - begun
    seconds /= len(lines.read_text().splitlines())
    return {"cpu_seconds_per_interval": seconds, "share_with_every_1_s": seconds, "share_with_every_30_s": seconds / 30}


def main() -> None:
    """Measure on photos, tensors and records, with one rank and with two."""
    parser = options(__doc__, rounds=60)
    parser.add_argument("--photos", type=Path, default=Path("/tmp/photos"), help="made by benchmarks/photos.py")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "before-after"))
    arguments = parser.parse_args()
    arguments.work.mkdir(exist_ok=True)
    prepare(arguments.work, arguments.photos)
    result: dict[str, Any] = {"benchmark": "measuring"}
    for name, batch_size in BATCH_SIZES.items():
        for ranks in (1, 2):
            config = BenchConfig(
                str(arguments.work / name),
                batch_size=batch_size,
                image_size=224 if name == "photos" else None,
                ranks=ranks,
                threads=2 // ranks,
            )
            result[f"{name}, {ranks} ranks"] = found = cost(config, arguments.rounds)
            print(name, ranks, found, file=sys.stderr, flush=True)
    result["monitor"] = monitor_cost(arguments.work / "photos", arguments.work)
    finish(result, arguments.json)


if __name__ == "__main__":
    main()
