"""The rank processes of a configuration: started together, answering together, with a barrier between their steps."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Semaphore
from typing import Any, Self, TypeAlias, final

from ..errors import PipelineStalled, ShardioError
from ..system import processes
from ..system.shared_memory import Shared
from .config import BenchConfig

START_LIMIT = 300.0  # seconds that ranks wait for each other
NEVER = 1 << 62  # a step that does not come


@final
class Barrier:
    """Lets a fixed number of processes wait for each other, as often as they like. A process inherits it at its start.

    `multiprocessing.Barrier` has the last process wait until all others have been scheduled, which on busy processors
    takes milliseconds, in each step. Here each process leaves a token for every other one, and takes as many.

    Args:
        ranks: the number of processes.
    """

    def __init__(self, ranks: int) -> None:
        # Two sets, used by turns: a process that is a step ahead must not leave tokens among those of this step.
        self._tokens: list[list[Semaphore]] = [
            [processes.CONTEXT.Semaphore(0) for _ in range(ranks)] for _ in range(2 if ranks > 1 else 0)
        ]
        self._count = 0

    def wait(self, rank: int, timeout: float) -> None:
        """Wait until all processes have come here as often; `rank` is this one. Raises PipelineStalled."""
        if not self._tokens:
            return
        tokens = self._tokens[self._count % 2]
        self._count += 1
        for other, semaphore in enumerate(tokens):
            if other != rank:
                semaphore.release()
        deadline = time.monotonic() + timeout
        for _ in range(len(tokens) - 1):
            if not tokens[rank].acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise PipelineStalled(f"bench: rank {rank} has waited {timeout:.0f} s for the other ranks")


@dataclass(frozen=True, slots=True)
class Meeting:
    """The barrier and the decisions that the ranks of a measurement share.

    Attributes:
        barrier: where they wait for each other.
        counted_from: the first step that counts, once it is known.
        stop_after: the last step, once it is known.
    """

    barrier: Barrier
    counted_from: "Synchronized[int]"
    stop_after: "Synchronized[int]"

    @classmethod
    def of(cls, ranks: int) -> "Meeting":
        """Make the meeting of `ranks` processes."""
        value = processes.CONTEXT.Value
        return cls(Barrier(ranks), value("q", NEVER), value("q", NEVER))


Run: TypeAlias = Callable[[BenchConfig, int, Meeting, "Connection[Any, Any]"], None]
"""The function that a rank runs; it gets the configuration, its number, the meeting and a connection to the parent."""


class RankProcesses:
    """One process for each rank of a configuration; they end with the `with` block.

    Args:
        config: the configuration.
        run: the work of each rank. It may send how much of it is done, 0 to 1, as often as it likes, and answers.

    Attributes:
        pids: the identifier of each rank's process.
    """

    def __init__(self, config: BenchConfig, run: Run) -> None:
        self._meeting = meeting = Meeting.of(config.ranks)  # kept: the ranks open it by name
        shared = Shared(config)  # with what a view has looked up
        pipes = [processes.CONTEXT.Pipe() for _ in range(config.ranks)]
        self._pipes = [pipe[0] for pipe in pipes]
        self._ranks = [
            processes.CONTEXT.Process(
                target=_carry_out, args=(run, shared, rank, meeting, pipe[1]), name=f"bench rank {rank}"
            )
            for rank, pipe in enumerate(pipes)
        ]
        for process, (_, other_end) in zip(self._ranks, pipes, strict=True):
            with processes.children_ignore_interrupts():
                process.start()
            other_end.close()
        self.pids = [process.pid or 0 for process in self._ranks]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._ranks:
            process.terminate()
        for process in self._ranks:
            process.join(START_LIMIT)

    def send(self, message: Any) -> None:
        """Send a message to each rank."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # it has ended: `answers` says why
                pipe.send(message)

    def answers(self, seconds: float = 0.0, progress: Callable[[float], None] | None = None) -> list[Any]:
        """Return an answer of each rank, in rank order.

        Args:
            seconds: how long they need for it, without the time that ranks wait for each other.
            progress: called with the share of the work that is done, each time the first rank sends it.

        Raises the first error that a rank sends; ShardioError if one died, PipelineStalled if none sends anything.
        """
        answers: dict[int, Any] = {}
        limit = START_LIMIT + seconds
        while len(answers) < len(self._pipes):
            waiting = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in answers}
            ready = wait(list(waiting), limit)
            if not ready:
                raise PipelineStalled(f"bench: ranks {list(waiting.values())} sent nothing for {limit:.0f} s")
            for pipe in ready:
                rank = waiting[pipe]  # type: ignore[index]  # wait returns the objects that it was given
                try:
                    message = self._pipes[rank].recv()
                except (EOFError, OSError) as error:
                    raise ShardioError(f"bench: rank {rank} died") from error
                if isinstance(message, BaseException):
                    raise message
                if not isinstance(message, float):
                    answers[rank] = message
                elif progress is not None and rank == 0:
                    progress(message)
        return [answers[rank] for rank in range(len(self._pipes))]


def _carry_out(run: Run, config: Shared, rank: int, meeting: Meeting, pipe: "Connection[Any, Any]") -> None:
    """Be a rank, in its own process; send the error that ends it."""
    processes.die_with_parent()
    try:
        processes.wake_on_time()
        run(config.load(), rank, meeting, pipe)
    except BaseException as error:
        pipe.send(error)  # the parent ends the other ranks, which may wait at the barrier
        raise SystemExit(1) from error
