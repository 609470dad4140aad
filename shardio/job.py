"""Some batches in the making: the work of a step, or of several, cut into tasks of a few samples."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray

from .containers import direct
from .dataset import Dataset
from .engines.cpu import BadImage, CpuEngine
from .errors import BadSample
from .fields import Field, shape_column
from .mapping import Mapped, collate
from .plan import Part, Plan
from .recipe import Recipe
from .selection import Selection
from .timing import StageClock
from .types import Indices

Batch: TypeAlias = dict[str, Any]
Made: TypeAlias = tuple[Batch, int] | Exception
"""A batch and how many stored bytes were read for it, or what went wrong."""


@dataclass(frozen=True, slots=True)
class Images:
    """How one image field becomes pixels."""

    recipe: Recipe
    engine: CpuEngine


@dataclass(frozen=True, slots=True)
class Making:
    """What is the same for all batches of a loader.

    Attributes:
        dataset: where samples come from.
        fields: those to deliver.
        images: how the image fields among them become pixels.
        batch_size: samples of a batch.
        task_samples: samples that one task makes.
        mapping: the user's own function.
    """

    dataset: Dataset
    fields: Mapping[str, Field]
    images: Mapping[str, Images]
    batch_size: int
    task_samples: int
    mapping: Mapped | None
    _free: deque[direct.Memory] = field(default_factory=deque, repr=False, compare=False)

    @contextmanager
    def memory(self) -> Iterator[direct.Memory]:
        """Memory for stored values, this thread's alone for the `with` block. It outlives the threads of an epoch."""
        try:
            lent = self._free.pop()
        except IndexError:
            lent = direct.Memory()
        try:
            yield lent
        finally:
            self._free.append(lent)


@final
class BatchJob:
    """Some batches in the making, one after the other in the same arrays. Tasks fill disjoint slices of them."""

    def __init__(
        self,
        making: Making,
        plan: Plan,
        part: Part,
        pad: bool,
        clock: StageClock,
        arrays: dict[str, NDArray[Any]],
    ) -> None:
        self.making = making
        self.plan = plan
        self.part = part
        self.clock = clock
        self.arrays = arrays
        self._pad = pad
        count = len(part.indices)
        self.lists: dict[str, list[Any]] = {name: [None] * count for name in making.fields if name not in arrays}
        self.sizes = [0] * -(-count // making.task_samples)
        self.samples: list[Any] = [None] * count  # what the user's function made of each
        self._left = len(self.sizes)
        self._lock = threading.Lock()
        self._batches: list[Batch] | None = None
        self.alone = count <= making.batch_size
        self.failed = False

    @property
    def tasks(self) -> Sequence[Callable[[], None]]:
        """The tasks, made when asked for: were they kept here, job and tasks would refer to each other, and the batch's
        memory would wait for the garbage collector."""
        return [_Task(self, number) for number in range(len(self.sizes))]

    def result(self) -> list[Made]:
        """The batches, with the stored bytes read for each; one that can't be made ends them with its error."""
        if self.failed:
            return self._one_by_one()
        batches = list(map(self._assemble, self._rows())) if self._batches is None else self._batches
        share, rest = divmod(sum(self.sizes), len(batches))
        return [(batch, share + (rest if place == 0 else 0)) for place, batch in enumerate(batches)]

    def _one_by_one(self) -> list[Made]:
        """Makes each batch anew, up to the one that fails: those before it are delivered, and its error is its own."""
        made: list[Made] = []
        for rows in self._rows():
            part = Part(self.part.indices[rows], self.part.valid[rows])
            arrays = {name: array[rows] for name, array in self.arrays.items()}
            job = BatchJob(self.making, self.plan, part, self._pad, self.clock, arrays)
            try:
                for task in job.tasks:
                    task()
            except Exception as error:  # noqa: BLE001  # raised again in the consumer, in this batch's turn
                return [*made, error]
            made += job.result()
        return made

    def ended(self, rows: slice) -> None:
        """Called when a task has made its rows: the user's function comes last, still on the worker's thread."""
        mapping = self.making.mapping
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
            self._batches = [self._mapped(mapping, rows) for rows in self._rows()]

    def _mapped(self, mapping: Mapped, rows: slice) -> Batch:
        if mapping.by == "sample":
            return collate(self.samples[rows]) | self._own(rows)
        return mapping.batch(self._assemble(rows), str(self.part.indices[rows].tolist())) | self._own(rows)

    def _rows(self) -> list[slice]:
        """Where each batch is in the arrays."""
        count, size = len(self.part.indices), self.making.batch_size
        return [slice(start, start + size) for start in range(0, count, size)]

    def _assemble(self, rows: slice) -> Batch:
        batch: Batch = {}
        for name in self.making.fields:
            array = self.arrays.get(name)
            batch[name] = self.lists[name][rows] if array is None else torch.from_numpy(array[rows])
        return batch | self._own(rows)

    def _own(self, rows: slice) -> Batch:
        """What the loader itself adds to a batch."""
        own = {"index": torch.from_numpy(self.part.indices[rows])}
        return own | ({"valid": torch.from_numpy(self.part.valid[rows])} if self._pad else {})

    def _sample(self, row: int) -> dict[str, Any]:
        sample: dict[str, Any] = {}
        for name, kind in self.making.fields.items():
            array = self.arrays.get(name)
            value = self.lists[name][row] if array is None else array[row]
            scalar = kind.kind == "scalar" or array is None
            sample[name] = (
                value.item() if isinstance(value, np.generic) else value if scalar else torch.from_numpy(value)
            )
        return sample | {"index": int(self.part.indices[row])}


class _Task:
    """Reads, decodes and transforms a few samples of a batch."""

    def __init__(self, job: BatchJob, number: int) -> None:
        self._job = job
        self._number = number
        start = number * job.making.task_samples
        self._rows = slice(start, min(start + job.making.task_samples, len(job.part.indices)))

    def __str__(self) -> str:
        indices = self._job.part.indices[self._rows].tolist()
        return f"samples {indices} of {self._job.making.dataset.path}"

    def __call__(self) -> None:
        if self._job.alone:
            self._work()
            return
        if self._job.failed:
            return
        try:
            self._work()
        except Exception:  # noqa: BLE001  # comes again when the batches are made one by one
            self._job.failed = True

    def _work(self) -> None:
        indices = self._job.part.indices[self._rows]
        with self._job.clock.stage("read"):
            found = self._job.making.dataset.select(indices)
        self._job.sizes[self._number] = sum(
            self._image(name, indices, found) if field.kind == "image" else self._plain(name, field, found)
            for name, field in self._job.making.fields.items()
        )
        self._job.ended(self._rows)

    def _image(self, name: str, indices: Indices, found: Selection) -> int:
        with self._job.making.memory() as memory:
            return self._decoded(name, indices, found, memory)

    def _decoded(self, name: str, indices: Indices, found: Selection, memory: direct.Memory) -> int:
        job, dataset = self._job, self._job.making.dataset
        how = job.making.images[name]
        with job.clock.stage("read"):
            encoded = found.values(name, memory)
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
            values = job.making.dataset.decode(name, stored, job.part.indices[self._rows])
            job.lists[name][self._rows] = map(torch.from_numpy, values) if field.kind == "array" else values
        return sum(map(len, stored))
