"""One rank's part in a derive: it reads the batches of its shards, calls the function, and writes what that returns.

loaders   one, or one for each random copy: the ranges of this rank's shards one after the other, read ahead
function  one batch at a time, in the thread of the shard whose turn it is
writer    finishes, syncs and records a shard while another thread computes the next one
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import torch

from ..conversion.runners import POLL_SECONDS, Advance
from ..conversion.shard_tasks import TaskContext, WriteTask
from ..errors import ConfigError, MapError
from ..format.fields import Field, presence
from ..loader.batch.host_batch import Batch
from ..loader.loader import Loader
from ..order.world import World
from ..output.records import Record, Skipped
from ..output.shard_writer import ShardWriter
from ..system.directory import Directory
from ..views.readable import ReadableDataset
from .outputs import Columns, check, check_nan, columns_of, difference, stacked

Function: TypeAlias = Callable[[Batch], Any]
"""Returns for a batch, as a Loader delivers it, a tensor [B, ...], or by field tensors or lists of B values."""


class Computed(NamedTuple):
    """The values of a batch.

    Attributes:
        numbers: the numbers of its samples in the view.
        columns: the values of all of them.
        bad: by number, the samples that could not be read, whose values mean nothing.
    """

    numbers: range
    columns: Columns
    bad: Mapping[int, Skipped]


@final
@dataclass
class Deriver:
    """Makes the shards of one rank.

    Attributes:
        loaders: a Loader in stored order, or one for each random copy, at its epoch.
        function: the function.
        stacks: whether values get an axis for copies.
        keeps_nan: whether NaN is stored.
        recorded: returns the numbers of the shards that have records, of which only damaged ones are made again.
        fields: the fields of the first batch that was computed, which all others must have.
        first: the values of the first batch, which need not be computed again.
        tasks: the tasks of this rank, ascending.
    """

    loaders: Sequence[Loader]
    function: Function
    stacks: bool
    keeps_nan: bool
    recorded: Callable[[], set[int]]
    fields: Mapping[str, Field] = field(default_factory=dict)
    first: Computed | None = None
    tasks: Sequence[WriteTask] = ()
    _results: Iterator[Computed] = field(init=False)
    _coming: deque[int] = field(default_factory=deque)  # the tasks whose batches the results hold from here on
    _made: set[int] = field(default_factory=set)
    _seen: Counter[int] = field(default_factory=Counter)  # bad samples of each Loader
    _turn: threading.Condition = field(default_factory=threading.Condition)

    def computed(self, ranges: Sequence[range]) -> Iterator[Computed]:
        """Yield the values of the batches of some ranges of samples.

        Raises MapError, which names the samples, for values that cannot be stored, and whatever the function raises.
        """
        loops = [loader.ranges(ranges) for loader in self.loaders]
        size = self.loaders[0].batch_size
        parts = (range(first, min(first + size, each.stop)) for each in ranges for first in each[::size])
        try:
            for numbers, *batches in zip(parts, *loops, strict=True):
                yield self._compute(numbers, batches)
        finally:
            for loop in loops:
                loop.close()

    def repeated(self, batches: Sequence[range]) -> list[str]:
        """Compute some batches twice; return notes on fields that differ, or one note that all are equal."""
        found: dict[str, list[float]] = {}
        columns = (deepcopy(each.columns) for each in self.computed([each for each in batches for _ in range(2)]))
        for one, other in zip(columns, columns, strict=True):
            for name in self.fields:
                if (most := difference(one[name], other[name])) is not None:
                    found.setdefault(name, []).append(most)
        return [
            f"field {name!r} differs in {len(most)} of {len(batches)} batches, computed twice, by up to {max(most):g}"
            for name, most in found.items()
        ] or [f"0 of {len(batches)} batches differ, computed twice"]

    def make_shard(self, context: TaskContext, task: WriteTask, folder: Directory, advance: Advance) -> Record:
        """Write the values of a task's samples to a shard in `folder`; see `TaskContext.make_shard`."""
        fields = context.source.fields
        marks = [presence(name) for name, field in fields.items() if field.optional]
        writer = ShardWriter(folder, context.container, fields, task.number, task.first, {}, task.count)
        bad: dict[int, Skipped] = {}
        try:
            with self._turn:
                if task.number not in self._coming:
                    self._begin(task)
                while self._coming[0] != task.number:  # begun before this one, in another thread
                    self._turn.wait(POLL_SECONDS)
                    advance(0)  # ends this one if that has failed
                while writer.samples < task.count:
                    batch = next(self._results)
                    bad |= batch.bad
                    there = {mark: np.array([number not in batch.bad for number in batch.numbers]) for mark in marks}
                    writer.extend({**batch.columns, **there})
                    advance(len(batch.numbers))
                self._made.add(self._coming.popleft())
                if not self._coming:
                    self._results = iter(())  # the generator, which refers to this object, would keep the batches
                self._turn.notify_all()
            return Record(writer.finish(), tuple(bad.values()))
        finally:
            writer.discard()  # finds nothing to remove once the shard is in its place

    def _begin(self, task: WriteTask) -> None:
        """Begin to compute all tasks that have no record yet, and this one, whose record may be of a damaged shard."""
        done = (self.recorded() | self._made) - {task.number}
        tasks = [each for each in self.tasks if each.number not in done]
        self._coming = deque(each.number for each in tasks)
        ranges = [range(each.first, each.first + each.count) for each in tasks]
        made, first, self.first = list[Computed](), self.first, None
        if first is not None and not ranges[0].start:
            made, ranges[0] = [first], ranges[0][len(first.numbers) :]
        self._results = chain(made, self.computed(list(filter(None, ranges))))

    def _compute(self, numbers: range, batches: Sequence[Batch]) -> Computed:
        bad = self._bad(numbers, batches)
        place = f"samples {numbers[0]} to {numbers[-1]}"
        try:
            of_batch = torch.cuda.device_of(batches[0]["index"])  # type: ignore[no-untyped-call]  # torch's
            with torch.inference_mode(), of_batch:
                made = (columns_of(self.function(batch)) for batch in batches)
                columns = stacked([deepcopy(each) for each in made]) if self.stacks else next(made)
            self.fields = check(columns, self.fields, len(numbers))
            if not self.keeps_nan:
                check_nan(columns, numbers, but=bad)
        except MapError as error:
            raise MapError("{}: {}", place, error) from error
        except Exception as error:
            error.add_note(f"{place}: the function failed")
            raise
        return Computed(numbers, columns, bad)

    def _bad(self, numbers: range, batches: Sequence[Batch]) -> dict[int, Skipped]:
        """Return the samples that could not be read of the batches, which were just delivered."""
        bad: dict[int, Skipped] = {}
        for place, (loader, batch) in enumerate(zip(self.loaders, batches, strict=True)):
            records = loader.quarantine()[self._seen[place] :]
            self._seen[place] += len(records)
            rows = np.flatnonzero(~batch["valid"].cpu().numpy()) if records else ()
            bad |= {numbers[row]: Skipped(numbers[row], f"{found}") for row, found in zip(rows, records, strict=True)}
        return bad


def loaders(
    view: ReadableDataset, world: World, copies: int, device: str | None, batch_size: int, **options: Any
) -> list[Loader]:
    """Return a Loader of all samples in stored order for each copy, at its epoch; `cuda` is a GPU of the rank's own.

    Raises ConfigError for options that a Loader refuses, and for videos too short for a clip.
    """
    alone = World(0, 1, world.local_rank, world.local_size)
    if device == "cuda" and torch.cuda.is_available():
        device = f"cuda:{world.local_rank % torch.cuda.device_count()}"
    # The conversion has the budget of bad samples.
    shared = {"shuffle": None, "tail": "pad", "world": alone, "device": device, "max_bad": len(view), **options}
    made = [Loader(view, batch_size, **shared) for _ in range(copies)]
    for epoch, loader in enumerate(made):
        loader.set_epoch(epoch)
    if short := made[0].too_short:
        raise ConfigError(f"{short} videos of {view!r} are too short for a clip, and every sample needs its values")
    return made
