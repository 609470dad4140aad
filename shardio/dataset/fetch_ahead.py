"""Fetches the samples of coming steps, which the plan gives, from stores before workers read them."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..cache.node_cache import Hold
from ..containers.extents import Extent
from ..errors import ShardioError
from ..order.plan import Order, PlanSlice, Schedule
from ..system import background
from ..system.types import Indices
from ..views.readable import ReadableDataset, SelectedSamples

MOST_AHEAD = 1 << 29
"""Bytes that are fetched or held ahead of the consumer, per rank, if the cache has room for them."""

Extents: TypeAlias = Callable[[SelectedSamples, NDArray[np.int64]], Mapping[str, Extent]]
"""Returns what is read of each field that is not read whole, for selected samples with their random keys."""

_LOOK_SECONDS = 0.002
_MOST_STEPS = 4  # asked for at once: with more, batches come in clumps; with fewer, samples have fewer neighbours


@final
class FetchAhead:
    """Has the samples of coming steps fetched into the cache of the node, in the order of the epoch, on a thread.

    It changes only how long readers wait: they fetch themselves what is not there.

    Args:
        dataset: what has the samples.
        fields: the fields that are read.
        plan: the order of the epoch.
        schedule: the steps that cut it into batches.
        extents: returns what is read of fields that are not read whole, of selected samples with their random keys.
    """

    def __init__(
        self,
        dataset: ReadableDataset,
        fields: Sequence[str],
        plan: Order,
        schedule: Schedule,
        extents: Extents | None = None,
    ) -> None:
        self._dataset, self._fields, self._plan, self._schedule = dataset, tuple(fields), plan, schedule
        self._extents = extents
        self._inbox: SimpleQueue[int | None] = SimpleQueue()
        # Before anybody reads: readers would have each sample fetched by itself, instead of runs of neighbours.
        self._holds: deque[tuple[int, list[Hold]]] = deque()  # with the first step after those that need it
        self._asked = self._ask(0)
        background.start(self._run, "shardio fetch ahead")

    def delivered(self, step: int) -> None:
        """Say that the consumer has the batches of all steps before `step`."""
        if step:  # the first batch is still to come, and `_await_first` waits for it
            self._inbox.put(step)

    def close(self) -> None:
        """Let go of what was fetched ahead; you may call it twice."""
        self._inbox.put(None)

    def _run(self) -> None:
        try:
            self._await_first()
            while True:
                while self._inbox.empty() and (stop := self._ask(self._asked)) > self._asked:
                    self._asked = stop
                step = self._inbox.get()
                if step is None:
                    return
                while self._holds and self._holds[0][0] <= step:
                    for hold in self._holds.popleft()[1]:
                        hold.release()
        finally:
            for _, held in self._holds:
                for hold in held:
                    hold.release()

    def _await_first(self) -> None:
        """Wait until what was asked for first is there: what comes later would share the bandwidth with it.

        Whoever reads fetches what could not be had, or closes.
        """
        while self._inbox.empty() and not all(hold.present for _, held in self._holds for hold in held):
            time.sleep(_LOOK_SECONDS)

    def _ask(self, asked: int) -> int:
        """Have the samples of steps from `asked` on fetched, if there is room; return the first step not asked for."""
        ahead = sum(hold.bytes for _, held in self._holds for hold in held)
        if asked == len(self._schedule) or ahead >= MOST_AHEAD:
            return asked
        stop = self._stop(asked)
        try:
            held = self._prefetch(*self._samples(asked, stop))
            if held is None and not ahead:  # the cache has no room for all of it, but perhaps for one step
                stop = asked + 1
                held = self._prefetch(*self._distinct([self._schedule.part(self._plan, asked)]))
        except (ShardioError, OSError):
            return asked  # reading says what is wrong
        if held is None:
            return asked
        self._holds.append((stop, held))
        return stop

    def _prefetch(self, indices: Indices, keys: NDArray[np.int64]) -> list[Hold] | None:
        selection = self._dataset.selection(indices)
        return selection.prefetch(self._fields, {} if self._extents is None else self._extents(selection, keys))

    def _stop(self, first: int) -> int:
        """Return the step before which to stop asking at once.

        The first step comes alone, because the loop waits for it; then as many as came before, or a window of blocks.
        """
        if first == 0:
            return 1
        steps, (_, window) = len(self._schedule), self._plan.windows(*self._schedule.positions(first))
        if window < 0:
            return min(steps, first + min(first, _MOST_STEPS))
        stop = first + 1
        while stop < steps and self._plan.windows(*self._schedule.positions(stop))[1] <= window:
            stop += 1
        return stop

    def _samples(self, first: int, stop: int) -> tuple[Indices, NDArray[np.int64]]:
        """Return the samples to fetch for some steps, and their random keys.

        With blocks these are all of their windows, where one node takes all of them, or else all that the ranks of this
        node take of them: each rank asks for the same long runs, and who comes first fetches them.
        """
        world = self._schedule.world
        (start, _), (_, end) = (self._schedule.positions(step) for step in (first, stop - 1))
        low, high = self._plan.windows(start, end)
        # Ranks that are laid out cyclically over the nodes have neighbours elsewhere.
        if high < low or world.rank % world.local_size != world.local_rank:
            return self._distinct([self._schedule.part(self._plan, first, stop - first)])
        if world.local_size == world.size and self._extents is None:  # which the keys of other steps determine
            indices = np.concatenate([np.array(run) for run in self._plan.runs(low, high + 1)])
            return indices, indices
        node = [
            replace(self._schedule, world=replace(world, rank=rank, local_rank=rank % world.local_size))
            for rank in range(world.rank - world.local_rank, world.rank - world.local_rank + world.local_size)
        ]
        return self._distinct([one.part(self._plan, first, stop - first) for one in node])

    def _distinct(self, parts: Sequence[PlanSlice]) -> tuple[Indices, NDArray[np.int64]]:
        """Return each sample once, by number; or once with each random key, if keys determine what is read of it."""
        indices = np.concatenate([part.indices for part in parts])
        if self._extents is None:
            indices = np.unique(indices)
            return indices, indices
        indices, keys = np.unique(np.array([indices, np.concatenate([part.rng_keys for part in parts])]), axis=1)
        return indices, keys
