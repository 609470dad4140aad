"""From sample indices to one batch: the work of a step, cut into tasks of a few samples."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray

from .augment import Transform
from .buffers import BufferPool
from .containers import direct
from .dataset import Dataset
from .engines.cpu import BadImage, CpuEngine
from .errors import BadSample, ConfigError
from .fields import Field, shape_column
from .mapping import Mapped, collate
from .plan import Part, Plan
from .recipe import Recipe
from .selection import Selection
from .timing import StageClock
from .types import Indices

Batch: TypeAlias = dict[str, Any]
TASK_COST = (1 << 20, 1 << 22)  # bytes; less, and a task's overhead shows; more, and threads wait for one another
IMAGE_COST = 1 << 16  # what decoding takes, as bytes that could be copied in a fraction of that time
VALUE_COST = 1 << 12


@dataclass(frozen=True, slots=True)
class _Images:
    """How one image field becomes pixels."""

    recipe: Recipe
    engine: CpuEngine


@final
class Collator:
    """Knows how each field of a dataset becomes part of a batch, and owns the memory that batches are made in.

    Args:
        dataset: where samples come from.
        transforms: a list for the one image field, or {field: list}.
        batch_size: samples in each batch.
        fields: the fields to deliver; None is all.
        threads: workers that share the tasks.
        pin: page-lock that memory.
        mapping: the user's own function.
    """

    def __init__(
        self,
        dataset: Dataset,
        transforms: Sequence[Transform] | Mapping[str, Sequence[Transform]] | None,
        batch_size: int,
        *,
        fields: Sequence[str] | None,
        threads: int,
        pin: bool,
        mapping: Mapped | None = None,
    ) -> None:
        self.dataset = dataset
        self.fields = _chosen(dataset, fields)
        self.images: dict[str, _Images] = {}
        self.task_samples = task_samples(self.fields, batch_size, threads)
        self.local = threading.local()
        self.mapping = mapping
        self._pools: dict[str, BufferPool] = {}
        by_field = _transforms_by_field(dataset, self.fields, transforms)
        for name, field in self.fields.items():
            shape, dtype = field.row_shape, field.row_dtype if field.fixed else np.dtype(np.uint8)
            if field.kind == "image":
                channels = field.channels or 3
                recipe = Recipe.of(by_field.get(name, ()), channels=channels, size=_image_size(field))
                engine = CpuEngine(recipe, channels=channels)
                self.images[name] = _Images(recipe, engine)
                if recipe.size is None:
                    continue
                shape, dtype = engine.out_shape(recipe.size), engine.out_dtype
            elif not field.fixed:
                continue
            self._pools[name] = BufferPool((batch_size, *shape), dtype, pin=pin)
        self.batch_bytes = sum(pool.size for pool in self._pools.values())

    def keep(self, batches: int) -> None:
        """Keeps the memory of so many batches for the next use."""
        for pool in self._pools.values():
            pool.keep(batches)

    @property
    def memory(self) -> direct.Memory:
        """This thread's memory for stored values."""
        try:
            found: direct.Memory = self.local.memory
        except AttributeError:
            found = self.local.memory = direct.Memory()
        return found

    @property
    def slots(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of each array that a batch is made in."""
        return {name: (pool.shape, pool.dtype) for name, pool in self._pools.items()}

    def job(
        self,
        plan: Plan,
        part: Part,
        pad: bool,
        clock: StageClock,
        arrays: dict[str, NDArray[Any]] | None = None,
    ) -> "BatchJob":
        """The work that makes the batch of `part`; with `pad` the batch gets a `valid`. It is made in `arrays`, which
        are as `slots` has them, or in this collator's own memory."""
        own = {name: pool.lend() for name, pool in self._pools.items()} if arrays is None else arrays
        return BatchJob(self, plan, part, pad, clock, own)


@final
class BatchJob:
    """One batch in the making. Tasks fill disjoint slices of it."""

    def __init__(
        self,
        collator: Collator,
        plan: Plan,
        part: Part,
        pad: bool,
        clock: StageClock,
        arrays: dict[str, NDArray[Any]],
    ) -> None:
        self.collator = collator
        self.plan = plan
        self.part = part
        self.clock = clock
        self.arrays = arrays
        self._pad = pad
        count = len(part.indices)
        self.lists: dict[str, list[Any]] = {name: [None] * count for name in collator.fields if name not in arrays}
        self.sizes = [0] * -(-count // collator.task_samples)
        self.samples: list[Any] = [None] * count  # what the user's function made of each
        self._left = len(self.sizes)
        self._lock = threading.Lock()
        self._batch: Batch | None = None

    @property
    def tasks(self) -> Sequence[Callable[[], None]]:
        """The tasks, made when asked for: were they kept here, job and tasks would refer to each other, and the batch's
        memory would wait for the garbage collector."""
        return [_Task(self, number) for number in range(len(self.sizes))]

    def result(self) -> tuple[Batch, int]:
        """The batch, and how many stored bytes were read for it."""
        return self._assemble() if self._batch is None else self._batch, sum(self.sizes)

    def ended(self, rows: slice) -> None:
        """Called when a task has made its rows: the user's function comes last, still on the worker's thread."""
        mapping = self.collator.mapping
        if mapping is None:
            return
        if mapping.by == "sample":
            with self.clock.stage("map"):
                for row in range(*rows.indices(len(self.samples))):
                    self.samples[row] = mapping.sample(self._sample(row), str(self.part.indices[row]))
        with self._lock:
            self._left -= 1
            if self._left:
                return
        with self.clock.stage("map"):
            if mapping.by == "sample":
                self._batch = collate(self.samples) | self._own()
            else:
                self._batch = mapping.batch(self._assemble(), str(self.part.indices.tolist())) | self._own()

    def _assemble(self) -> Batch:
        batch: Batch = {}
        for name in self.collator.fields:
            array = self.arrays.get(name)
            batch[name] = self.lists[name] if array is None else torch.from_numpy(array)
        return batch | self._own()

    def _own(self) -> Batch:
        """What the loader itself adds to a batch."""
        own = {"index": torch.from_numpy(self.part.indices)}
        return own | ({"valid": torch.from_numpy(self.part.valid)} if self._pad else {})

    def _sample(self, row: int) -> dict[str, Any]:
        sample: dict[str, Any] = {}
        for name, field in self.collator.fields.items():
            array = self.arrays.get(name)
            value = self.lists[name][row] if array is None else array[row]
            scalar = field.kind == "scalar" or array is None
            sample[name] = (
                value.item() if isinstance(value, np.generic) else value if scalar else torch.from_numpy(value)
            )
        return sample | {"index": int(self.part.indices[row])}


class _Task:
    """Reads, decodes and transforms a few samples of a batch."""

    def __init__(self, job: BatchJob, number: int) -> None:
        self._job = job
        self._number = number
        start = number * job.collator.task_samples
        self._rows = slice(start, min(start + job.collator.task_samples, len(job.part.indices)))

    def __str__(self) -> str:
        indices = self._job.part.indices[self._rows].tolist()
        return f"samples {indices} of {self._job.collator.dataset.path}"

    def __call__(self) -> None:
        indices = self._job.part.indices[self._rows]
        with self._job.clock.stage("read"):
            found = self._job.collator.dataset.select(indices)
        self._job.sizes[self._number] = sum(
            self._image(name, indices, found) if field.kind == "image" else self._plain(name, field, found)
            for name, field in self._job.collator.fields.items()
        )
        self._job.ended(self._rows)

    def _image(self, name: str, indices: Indices, found: Selection) -> int:
        job, dataset = self._job, self._job.collator.dataset
        how = job.collator.images[name]
        with job.clock.stage("read"):
            encoded = found.values(name, job.collator.memory)
            sizes = found.column(shape_column(name))
        with job.clock.stage("decode"):
            steps = how.recipe.steps(sizes, seed=job.plan.seed, epoch=job.plan.epoch, indices=indices)
            out = job.arrays.get(name)
            try:
                made = how.engine(encoded, sizes, steps, None if out is None else out[self._rows])
            except BadImage as error:
                place = dataset.where(int(indices[error.place]))
                raise BadSample(f"{dataset.path / place}, field {name!r}: {error}") from error
            if made is not None:
                job.lists[name][self._rows] = map(torch.from_numpy, made)
        return int(encoded.sizes.sum()) if isinstance(encoded, direct.Packed) else sum(map(len, encoded))

    def _plain(self, name: str, field: Field, found: Selection) -> int:
        job = self._job
        if field.fixed:
            with job.clock.stage("read"):
                return found.column(name, job.arrays[name][self._rows]).nbytes
        with job.clock.stage("read"):
            stored = found.values(name)
        with job.clock.stage("decode"):
            values = job.collator.dataset.decode(name, stored, job.part.indices[self._rows])
            job.lists[name][self._rows] = map(torch.from_numpy, values) if field.kind == "array" else values
        return sum(map(len, stored))


def task_samples(fields: Mapping[str, Field], batch_size: int, threads: int) -> int:
    """How many samples a task takes: two tasks a thread for each batch, if that makes them neither tiny nor huge."""
    kinds = {"image": IMAGE_COST}
    cost = sum(field.row_bytes if field.fixed else kinds.get(field.kind, VALUE_COST) for field in fields.values())
    low, high = (max(1, limit // max(1, cost)) for limit in TASK_COST)
    wanted = min(high, max(low, batch_size // (2 * threads)))
    return -(-batch_size // max(1, round(batch_size / wanted)))  # of equal size


def _image_size(field: Field) -> tuple[int, int] | None:
    return None if field.shape is None else (field.shape[0], field.shape[1])


def _chosen(dataset: Dataset, names: Sequence[str] | None) -> dict[str, Field]:
    chosen = list(dataset.fields if names is None else names)
    if reserved := {"index", "valid"} & set(chosen):
        raise ConfigError(
            f"{dataset.path}: field {reserved.pop()!r} clashes with the loader's own; choose others by fields="
        )
    for name in chosen:
        if name not in dataset.fields:
            raise ConfigError(f"{dataset.path}: no field {name!r}; there are {', '.join(dataset.fields)}")
    return {name: dataset.fields[name] for name in chosen}


def _transforms_by_field(
    dataset: Dataset,
    fields: Mapping[str, Field],
    transforms: Sequence[Transform] | Mapping[str, Sequence[Transform]] | None,
) -> Mapping[str, Sequence[Transform]]:
    if transforms is None:
        return {}
    pictures = [name for name, field in fields.items() if field.kind == "image"]
    if isinstance(transforms, Mapping):
        for name in transforms:
            if name not in pictures:
                raise ConfigError(f"transforms for {name!r}, but the image fields of {dataset.path} are {pictures}")
        return transforms
    if len(pictures) != 1:
        raise ConfigError(
            f"a list of transforms needs exactly one image field; {dataset.path} has {pictures}: give a dict"
        )
    return {pictures[0]: transforms}
