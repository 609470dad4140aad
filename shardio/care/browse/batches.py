"""The batch that a rank gets at a step, or a part of it, made as a Loader makes it, without the steps before it.

The plan says which samples these are, and what their random choices are; nobody walks to a step, and of a large batch
only what a page shows is read.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...format.limits import Limits
from ...loader.batch.assemble import assemble
from ...loader.batch.bad_samples import fill
from ...loader.batch.rows import Rows
from ...loader.batch.spec import BatchOptions, DeviceOptions, batch_spec
from ...order.plan import Assign, Order, Schedule, Tail
from ...order.world import World
from ...system import allocation
from ...system.rules import Count, check_fields
from ...system.timing import StageClock
from ...transforms import Transform
from ...views.readable import ReadableDataset
from ..sheet import Card
from ..show import Context, cards_of
from ..values import MOST_PIXELS
from ..video_frames import few_frames

MOST_GLOBAL = 1 << 22  # samples of a step of all ranks, whose places are looked up
_FRAMES = 8  # of a clip
_MOST_BYTES = 1 << 24  # of an array of one sample
_MOST_HELD = 1 << 28  # bytes of images and other values of a page, after which it ends


@dataclass(frozen=True, slots=True)
class Job:
    """A job, and one of its batches. The names are those of `shardio.Loader` and `shardio show --batches`.

    Raises ConfigError for a value that breaks a rule.
    """

    world: Count = 1
    rank: int = 0
    batch_size: Count = 32
    epoch: int = 0
    step: int = 0
    seed: int = 0
    shuffle: Literal["global", "block", "none"] = "global"
    block: Count = 64
    window: Count = 16
    tail: Tail = "drop"
    assign: Assign = "rank"
    augment: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.rank < self.world:
            raise ConfigError("{rank} must be in [0, {}), got {}", self.world, self.rank)
        if self.world * self.batch_size > MOST_GLOBAL:
            raise ConfigError(
                "a page looks up steps of up to {} samples, got {} x {}", MOST_GLOBAL, self.world, self.batch_size
            )


@dataclass(frozen=True, slots=True)
class Shown:
    """A part of a batch.

    Attributes:
        job: which batch it is.
        steps: the steps of its epoch.
        first: the first row shown.
        indices: the numbers of its samples.
        cards: their pictures and lines.
        errors: by row, counted from `first`, why a sample is bad.
        left_out: in words, fields that are not shown.
    """

    job: Job
    steps: int
    first: int
    indices: list[int]
    cards: Sequence[Card]
    errors: Mapping[int, str]
    left_out: str


def batch_of(
    dataset: ReadableDataset, job: Job, transforms: Mapping[str, Sequence[Transform]], first: int = 0, most: int = 24
) -> Shown:
    """Make some rows of a batch. Bad samples are masked.

    Args:
        dataset: the dataset.
        job: which batch.
        transforms: the transforms by field.
        first: the first row.
        most: the number of rows, at most; there are fewer of large images.

    Raises ConfigError for a step or a row that there is not, and what reading raises.
    """
    shuffle = None if job.shuffle == "none" else job.shuffle
    order = dataset.plan(job.seed, shuffle, job.block, job.window).at_epoch(job.epoch)
    schedule = Schedule(order.n, World(job.rank, job.world, 0, 1), job.batch_size, job.tail, assign=job.assign)
    schedule.check_steps()
    if not 0 <= job.step < len(schedule):
        raise ConfigError("{step} must be in [0, {}), the steps of an epoch, got {}", len(schedule), job.step)
    if not 0 <= first < job.batch_size:
        raise ConfigError("a batch has rows 0 to {}, got {}", job.batch_size - 1, first)
    rows = _rows(dataset, schedule, order, job, transforms, slice(first, first + most))
    count = held = 0
    while count < len(rows) and held < _MOST_HELD:
        fill(rows, slice(count, count + 1))
        held += sum(_bytes(values[count]) for values in rows.lists.values())
        count += 1
    images = {**rows.spec.images, **rows.spec.clips}
    normalized = {name: n for name, i in images.items() if (n := i.recipe.normalization) is not None}
    cards, left_out = cards_of(
        assemble(rows, slice(0, count)).batch, Context.of(dataset, normalized, rows.spec.names), count, _FRAMES
    )
    too_large = [name for name in dataset.fields if name not in rows.spec.fields]
    left_out += f"; too large to show: {', '.join(too_large)}" if too_large else ""
    errors = {row: record.reason for row, record in rows.bad.items()}
    return Shown(
        job, len(schedule), first, rows.planned.indices[:count].tolist(), cards, errors, left_out.removeprefix("; ")
    )


def _bytes(value: Any) -> int:
    """Return about how many bytes of memory a value takes: an array, a string, or a list of such."""
    return sum(map(_bytes, value)) if isinstance(value, list) else getattr(value, "nbytes", 0) or sys.getsizeof(value)


def _rows(
    dataset: ReadableDataset,
    schedule: Schedule,
    order: Order,
    job: Job,
    transforms: Mapping[str, Sequence[Transform]],
    part: slice,
) -> Rows:
    """Return rows of a batch, not yet made, of all fields but those with large arrays."""
    fields = [n for n, field in dataset.fields.items() if not (field.fixed and field.row_bytes > _MOST_BYTES)]
    fields = [n for n in fields if dataset.fields[n].on in (None, *fields)]
    options = BatchOptions(
        fields=fields,
        transforms=few_frames(dataset.fields, _FRAMES) | dict(transforms if job.augment else {}),
        on_bad_sample="mask",
        limits=Limits(MOST_PIXELS, MOST_PIXELS),
    )
    spec = batch_spec(dataset, options, DeviceOptions())
    row_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in spec.array_layout(1).values())
    planned = schedule.part(order, job.step)[part][: max(1, _MOST_HELD // max(1, row_bytes))]
    layout: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]] = spec.array_layout(len(planned.indices))
    arrays: dict[str, NDArray[Any]] = {n: allocation.empty(shape, dtype) for n, (shape, dtype) in layout.items()}
    return Rows(spec, order, planned, arrays, pads=schedule.tail == "pad", clock=StageClock())
