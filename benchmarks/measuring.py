"""The cost of measuring: the rate of ranks of `shardio bench` against plain loops, and the work of `shardio.monitor`.

A plain loop takes batches from a Loader whose workers do not time their stages, and counts samples; several wait for
each other after each step, as ranks that train do. The ranks of the bench time stages and steps as well, while a thread
adds up their memory and processor time. Both stand ready, and take turns of some seconds. The barrier itself is
measured alone, between processes that do nothing else. Next to the rates are the processor seconds per sample of all
processes of a side, the one that adds up included: they vary less.

    python benchmarks/measuring.py --photos /tmp/photos --json measuring.json
"""

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import shardio
from benchmarks._results import finish, options
from benchmarks.before_after import LOADED, prepare
from shardio.bench.config import BenchConfig
from shardio.bench.rank import build_loader
from shardio.bench.rank_processes import Barrier
from shardio.bench.significance import compare_pairs
from shardio.bench.standing_ranks import WARMUP_STEPS, StandingRanks
from shardio.bench.usage import UsageSampler
from shardio.system.processes import CONTEXT
from shardio.system.timing import StageClock

TURN_SECONDS = 6.0  # the memory of a process with a gigabyte mapped is added up about as often
MONITOR_SECONDS = 5.0
LIMIT = 60.0


UNTIMED = nullcontext()


def untimed(self: StageClock, name: str) -> Any:
    """A stage that is not timed."""
    return UNTIMED


def plain(config: BenchConfig, rank: int, barrier: Barrier, pipe: "Connection[Any, Any]") -> None:
    """The plain loop of one rank: for each number of steps that it gets, take so many batches; send the rate."""
    StageClock.stage = untimed  # type: ignore[method-assign]  # the cost of the real one is what is measured
    loader = build_loader(config, shardio.World(rank, config.ranks, rank, config.ranks))

    def endless() -> Generator[Any, None, None]:
        while True:
            yield from loader

    while (steps := pipe.recv()) is not None:
        batches = endless()
        for _ in range(WARMUP_STEPS):
            next(batches)
            barrier.wait(rank, LIMIT)
        begun, samples = time.perf_counter(), 0
        for _ in range(steps):
            samples += len(next(batches)["index"])
            barrier.wait(rank, LIMIT)
        rate = samples / (time.perf_counter() - begun)
        batches.close()
        pipe.send(rate)


def pass_barrier(rank: int, barrier: Barrier, passes: int, pipe: "Connection[Any, Any]") -> None:
    """Pass a barrier many times; send the seconds that each time took."""
    barrier.wait(rank, LIMIT)
    begun = time.perf_counter()
    for _ in range(passes):
        barrier.wait(rank, LIMIT)
    pipe.send((time.perf_counter() - begun) / passes)


def barrier_seconds(ranks: int) -> float:
    """Return the seconds that a barrier takes by itself."""
    barrier, (here, there) = Barrier(ranks), CONTEXT.Pipe()
    processes = [CONTEXT.Process(target=pass_barrier, args=(rank, barrier, 2000, there)) for rank in range(ranks)]
    for process in processes:
        process.start()
    seconds = max(float(here.recv()) for _ in processes)
    for process in processes:
        process.join()
    return seconds


def cost(config: BenchConfig, rounds: int) -> dict[str, Any]:
    """Compare the plain loops with the bench's ranks."""
    pipes, barrier = [CONTEXT.Pipe() for _ in range(config.ranks)], Barrier(config.ranks)
    processes = [
        CONTEXT.Process(target=plain, args=(config, rank, barrier, pipe[1]), daemon=True)
        for rank, pipe in enumerate(pipes)
    ]
    for process in processes:
        process.start()

    def unmeasured(steps: int) -> Turn:
        for here, _ in pipes:
            here.send(steps)
        return Turn(sum(float(here.recv()) for here, _ in pipes), (steps + WARMUP_STEPS) * samples_per_step)

    samples_per_step = config.ranks * config.samples_per_step
    steps = max(1, round(unmeasured(8).rate * TURN_SECONDS / samples_per_step))
    with StandingRanks(config) as ranks:
        pids = [child.pid or 0 for child in multiprocessing.active_children() if child.name.startswith("bench rank")]

        def measured() -> Turn:
            with UsageSampler(pids):
                turns = ranks.turn(TURN_SECONDS)
            warmup = WARMUP_STEPS * samples_per_step
            return Turn(sum(turn.samples_per_second for turn in turns), sum(turn.samples for turn in turns) + warmup)

        sides = (
            partial(with_cpu_seconds, [process.pid or 0 for process in processes], partial(unmeasured, steps)),
            partial(with_cpu_seconds, pids, measured),
        )
        rates: tuple[list[float], list[float]] = ([], [])
        cpu: tuple[list[float], list[float]] = ([], [])
        for side in sides:
            side()
        for number in range(rounds):
            for index in (0, 1) if number % 2 else (1, 0):
                turn, seconds = sides[index]()
                rates[index].append(turn.rate)
                cpu[index].append(seconds / turn.samples)
    for here, _ in pipes:
        here.send(None)
    rate = median(rates[0])
    return {
        "rate": asdict(compare_pairs(*rates)),
        "cpu_seconds_per_sample": asdict(compare_pairs(*cpu)),
        "plain_per_second": round(rate),
        "step_seconds": samples_per_step / rate,
    }


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of one side: samples per second, and all samples, those of the first steps included."""

    rate: float
    samples: int


def with_cpu_seconds(pids: Sequence[int], side: Callable[[], Turn]) -> tuple[Turn, float]:
    """Run a turn; return the processor seconds that it took in some processes and in this one, too."""
    begun, own = cpu_seconds(pids), time.process_time()
    turn = side()
    return turn, cpu_seconds(pids) - begun + time.process_time() - own


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the processor seconds of processes until now."""
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)  # clock_getcpuclockid(3), which Python lacks


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
    parser = options(__doc__, rounds=10, photos=True)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "before-after"))
    parser.add_argument("--data", default=",".join(LOADED))
    arguments = parser.parse_args()
    arguments.work.mkdir(exist_ok=True)
    prepare(arguments.work, arguments.photos, LOADED)
    result: dict[str, Any] = {"benchmark": "measuring", "barrier_seconds": barrier_seconds(2)}
    for name in arguments.data.split(","):
        for ranks in (1, 2):
            config = BenchConfig(
                str(arguments.work / name),
                batch_size=LOADED[name],
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
