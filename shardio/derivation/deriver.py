"""One rank's part in a derive: it reads the batches of its shards, calls the function, and writes what that returns.

loaders   one, or one for each random copy: the ranges of this rank's shards one after the other, read ahead
function  one batch at a time, in the thread of the shard whose turn it is
writer    finishes, syncs and records a shard while another thread computes the next one
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import torch

from ..conversion.runners import POLL_SECONDS, Advance
from ..conversion.shard_tasks import TaskContext, WriteTask
from ..errors import ConfigError, MapError
from ..format.fields import Field, presence
from ..loader.batch.host_batch import Batch
from ..loader.loader import Loader
from ..loader.stats import LoaderStats
from ..order.world import World
from ..output.records import Record, Skipped
from ..output.shard_writer import ShardWriter
from ..system.directory import Directory
from ..views.readable import ReadableDataset
from .outputs import Columns, check, check_nan, columns_of, stacked

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
class Deriver:
    """Makes the shards of one rank.

    Args:
        view: the samples.
        function: the function.
        world: this rank.
        batch_size: samples per batch.
        copies: the number of Loaders, each at an epoch of its own.
        loading: other options of these.
        device: the device of batches; `cuda` is the GPU of the rank's number on its node.
        stacks: whether values get an axis for copies.
        keeps_nan: whether NaN is stored.
        recorded: returns the numbers of the shards that have records, of which only damaged ones are made again.

    Attributes:
        fields: the fields of the first batch that was computed, which all others must have.
        tasks: the tasks of this rank, ascending.

    Raises ConfigError for options that a Loader refuses, and for videos too short for a clip.
    """

    def __init__(
        self,
        view: ReadableDataset,
        function: Function,
        world: World,
        batch_size: int,
        copies: int,
        loading: Mapping[str, Any],
        device: str | None,
        *,
        stacks: bool,
        keeps_nan: bool,
        recorded: Callable[[], set[int]],
    ) -> None:
        self.fields: Mapping[str, Field] = {}
        self.tasks: Sequence[WriteTask] = ()
        alone = World(0, 1, world.local_rank, world.local_size)
        if device == "cuda" and torch.cuda.is_available():
            device = f"cuda:{world.local_rank % torch.cuda.device_count()}"
        make = partial(Loader, view, batch_size, shuffle=None, tail="pad", world=alone, device=device, **loading)
        self._loaders = [make(max_bad=len(view)) for _ in range(copies)]  # the conversion has the budget
        for epoch, loader in enumerate(self._loaders):
            loader.set_epoch(epoch)
        if short := self._loaders[0].too_short:
            raise ConfigError(f"{short} videos of {view!r} are too short for a clip, and every sample needs its values")
        self._function, self._stacks, self._keeps_nan, self._recorded = function, stacks, keeps_nan, recorded
        self._seen = [0] * copies  # bad samples of each Loader
        self._results: Iterator[Computed] = iter(())
        self._coming: deque[int] = deque()  # the tasks whose batches the results hold from here on
        self._made: set[int] = set()
        self._turn = threading.Condition()

    def computed(self, ranges: Sequence[range]) -> Iterator[Computed]:
        """Yield the values of the batches of some ranges of samples.

        Raises MapError, which names the samples, for values that cannot be stored, and whatever the function raises.
        """
        loops = [loader.ranges(ranges) for loader in self._loaders]
        size = self._loaders[0].batch_size
        parts = (range(first, min(first + size, each.stop)) for each in ranges for first in each[::size])
        try:
            for numbers, *batches in zip(parts, *loops, strict=True):
                yield self._compute(numbers, batches)
        finally:
            for loop in loops:
                loop.close()

    @property
    def stats(self) -> LoaderStats:
        """The statistics of all Loaders together."""
        return sum((loader.stats(all_epochs=True) for loader in self._loaders), LoaderStats())

    def repeated(self, batches: Sequence[range]) -> list[str]:
        """Compute some batches twice; return notes on fields that differ, or one note that all are equal."""
        found: dict[str, list[float]] = {}
        columns = (each.columns for each in self.computed([each for each in batches for _ in range(2)]))
        for one, other in zip(columns, columns, strict=True):
            for name in self.fields:
                if (most := difference(one[name], other[name])) is not None:
                    found.setdefault(name, []).append(most)
        if not found:
            return [f"0 of {len(batches)} batches differ, computed twice"]
        return [
            f"field {name!r} differs in {len(most)} of {len(batches)} batches, computed twice, by up to {max(most):g}"
            for name, most in found.items()
        ]

    def make_shard(self, context: TaskContext, task: WriteTask, folder: Directory, advance: Advance) -> Record:
        """Write the values of a task's samples to a shard in `folder`; see `TaskContext.make_shard`."""
        fields = context.source.fields
        optional = [name for name, field in fields.items() if field.optional]
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
                    there = np.array([number not in batch.bad for number in batch.numbers])
                    writer.extend({**batch.columns, **dict.fromkeys(map(presence, optional), there)})
                    advance(len(batch.numbers))
                self._made.add(self._coming.popleft())
                self._turn.notify_all()
            return Record(writer.finish(), tuple(bad.values()))
        finally:
            writer.discard()  # finds nothing to remove once the shard is in its place

    def _begin(self, task: WriteTask) -> None:
        """Begin to compute all tasks that have no record yet, and this one, whose record may be of a damaged shard."""
        done = (self._recorded() | self._made) - {task.number}
        tasks = [each for each in self.tasks if each.number not in done]
        self._coming = deque(each.number for each in tasks)
        self._results = self.computed([range(each.first, each.first + each.count) for each in tasks])

    def _compute(self, numbers: range, batches: Sequence[Batch]) -> Computed:
        bad = self._bad(numbers, batches)
        place = f"samples {numbers[0]} to {numbers[-1]}"
        device = self._loaders[0].device
        on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        try:
            with torch.inference_mode(), on_device:
                made = [columns_of(self._function(batch)) for batch in batches]
            columns = stacked(made) if self._stacks else made[0]
            self.fields = check(columns, self.fields, len(numbers))
            if not self._keeps_nan:
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
        for place, (loader, batch) in enumerate(zip(self._loaders, batches, strict=True)):
            records = loader.quarantine()[self._seen[place] :]
            self._seen[place] += len(records)
            rows = np.flatnonzero(~batch["valid"].cpu().numpy()) if records else ()
            bad |= {numbers[row]: Skipped(numbers[row], f"{found}") for row, found in zip(rows, records, strict=True)}
        return bad


def difference(one: Any, other: Any) -> float | None:
    """Return the largest difference of the numbers in two columns, None if they are equal; infinite for all else."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and one.shape == other.shape:
        if one.tobytes() == other.tobytes():
            return None
        return float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max())
    return None if len(one) == len(other) and all(map(np.array_equal, one, other)) else math.inf
