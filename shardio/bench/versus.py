"""Two configurations measured in turns within one run, so that what disturbs the machine disturbs both alike.

Each side has its own rank processes, all started once. A turn lasts part of a second: one side takes batches while the
other one's ranks wait.
"""

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, final

import torch

from ..errors import ConfigError, PipelineStalled, ShardioError
from ..loader.batch.types import Batch
from ..loader.loader import Loader
from ..order.world import World
from ..system import processes
from .config import BenchConfig
from .rank import START_LIMIT, Meeting, build_loader
from .significance import Comparison, compare_pairs

TURN_SECONDS = 0.5
ROUNDS = 40
WARMUP_STEPS = 4  # of each turn, before its clock starts


@dataclass(frozen=True, slots=True)
class Versus:
    """The result of a comparison in turns.

    Attributes:
        a, b: the configurations.
        a_rates, b_rates: samples per second of all ranks, by round.
        comparison: how B compares to A.
    """

    a: BenchConfig
    b: BenchConfig
    a_rates: list[float]
    b_rates: list[float]
    comparison: Comparison

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return {"schema": "shardio-bench-versus/1", **asdict(self)}


def versus(
    a: BenchConfig,
    b: BenchConfig,
    *,
    rounds: int = ROUNDS,
    turn_seconds: float = TURN_SECONDS,
    progress: Callable[[int, int], None] | None = None,
) -> Versus:
    """Measure two configurations in turns, and compare their rates.

    Args:
        a, b: what to measure; `epochs`, `seconds` and `warmup` do not apply.
        rounds: how often each of them has its turn; who begins alternates.
        turn_seconds: the time that is measured per turn.
        progress: called with the number of rounds that are done, and their number.

    Raises ConfigError for too few rounds, and what the ranks raise.
    """
    compare_pairs([1.0] * rounds, [1.0] * rounds)  # refuses too few rounds before anything is measured
    a_rates: list[float] = []
    b_rates: list[float] = []
    with _Side(a) as first, _Side(b) as second:
        for side in (first, second):
            side.turn(turn_seconds)  # warms up
        for number in range(rounds):
            turns = ((first, a_rates), (second, b_rates))
            for side, rates in turns if number % 2 == 0 else turns[::-1]:
                rates.append(side.turn(turn_seconds))
            if progress is not None:
                progress(number + 1, rounds)
    return Versus(a, b, a_rates, b_rates, compare_pairs(a_rates, b_rates))


def other_side(config: BenchConfig, other: str) -> BenchConfig:
    """Return the configuration that `other` names: another dataset, or settings such as `threads=4,decode=fast`.

    Raises ConfigError for a setting that there is not.
    """
    if "=" not in other:
        return replace(config, dataset=other)
    kinds = {item.name: item for item in fields(config)}
    changes: dict[str, Any] = {}
    for part in other.split(","):
        name, _, text = part.partition("=")
        if name not in kinds:
            raise ConfigError(f"versus: there is no setting {name!r}; there are {', '.join(kinds)}")
        changes[name] = _value(text)
    return replace(config, **changes)


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@final
class _Side:
    """The rank processes of one configuration, which end with the `with` block."""

    def __init__(self, config: BenchConfig) -> None:
        build_loader(config, World(0, config.ranks, 0, config.ranks))  # finds wrong arguments in this process
        self._meeting = meeting = Meeting.of(config.ranks)  # kept: the ranks open it by name
        pipes = [processes.CONTEXT.Pipe() for _ in range(config.ranks)]
        self._pipes = [pipe[0] for pipe in pipes]
        self._ranks = [
            processes.CONTEXT.Process(target=_run, args=(config, rank, meeting, pipe[1]), name=f"bench rank {rank}")
            for rank, pipe in enumerate(pipes)
        ]
        for process, (_, other_end) in zip(self._ranks, pipes, strict=True):
            with processes.children_ignore_interrupts():
                process.start()
            other_end.close()

    def __enter__(self) -> "_Side":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._ranks:
            process.terminate()
        for process in self._ranks:
            process.join(START_LIMIT)

    def turn(self, seconds: float) -> float:
        """Let the ranks take batches for so long; return their samples per second, all together."""
        for pipe in self._pipes:
            pipe.send(seconds)
        return sum(self._receive(rank, seconds) for rank in range(len(self._pipes)))

    def _receive(self, rank: int, seconds: float) -> float:
        try:
            if not self._pipes[rank].poll(START_LIMIT + seconds):
                raise PipelineStalled(f"bench: rank {rank} sent nothing for {START_LIMIT + seconds:.0f} s")
            answer = self._pipes[rank].recv()
        except (EOFError, OSError) as error:
            raise ShardioError(f"bench: rank {rank} died") from error
        if isinstance(answer, BaseException):
            raise answer
        return float(answer)


def _run(config: BenchConfig, rank: int, meeting: Meeting, pipe: "Connection[Any, Any]") -> None:
    """Take batches in turns, in a rank's own process, until it is ended."""
    processes.die_with_parent()
    try:
        loader = build_loader(config, World(rank, config.ranks, rank, config.ranks))
        taker = _Taker(config, rank, meeting, loader)
        while True:
            pipe.send(taker.turn(pipe.recv()))
    except EOFError:
        return
    except BaseException as error:
        pipe.send(error)
        raise SystemExit(1) from error


@final
class _Taker:
    """Takes the batches of one rank, epoch after epoch."""

    def __init__(self, config: BenchConfig, rank: int, meeting: Meeting, loader: Loader) -> None:
        self._rank, self._meeting, self._loader = rank, meeting, loader
        self._together = config.barrier and config.ranks > 1
        self._step_seconds = 0.0 if config.accelerator is None else config.accelerator.step_seconds
        self._step = 0

    def turn(self, seconds: float) -> float:
        """Begin a loop, take a few batches, and then batches for so long; return samples per second.

        The loop ends with the turn, so that no worker goes on while the other side has its turn.
        """
        batches = self._endless()
        try:
            for _ in range(WARMUP_STEPS):
                self._take(batches, None)
            begun, samples = time.monotonic(), 0
            last = False
            while not last:
                taken, last = self._take(batches, begun + seconds)
                samples += taken
            return samples / (time.monotonic() - begun)
        finally:
            batches.close()

    def _take(self, batches: Iterator[Batch], until: float | None) -> tuple[int, bool]:
        """Take a batch and do a step; return its samples, and whether the turn is over for all ranks."""
        batch = next(batches)
        if batch["index"].is_cuda:
            torch.cuda.current_stream(batch["index"].device).synchronize()
        deadline = time.monotonic() + self._step_seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(left)
        over = until is not None and time.monotonic() >= until
        if self._together:
            if over and self._rank == 0:
                self._meeting.stop_after.value = self._step
            self._meeting.barrier.wait(START_LIMIT)
            over = until is not None and self._meeting.stop_after.value == self._step
        self._step += 1
        return len(batch["index"]), over

    def _endless(self) -> Generator[Batch, None, None]:
        while True:
            yield from self._loader
