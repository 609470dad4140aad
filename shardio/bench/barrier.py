"""A barrier for the ranks of a measurement, at which the last one to come does not wait for the others to wake up."""

import time
from multiprocessing.synchronize import Semaphore
from typing import final

from ..errors import PipelineStalled
from ..system import processes


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
