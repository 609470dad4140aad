"""Some batches in the making: the work of a step, or of several, cut into tasks of a few samples."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from ...dataset.mixture import MixedSelection
from ...engines.tensors import delivered
from ...engines.volumes import move_tensors
from ...errors import ConfigError
from ...order.plan import Order, PlanSlice
from ...system.timing import StageClock
from .bad_samples import BadSampleRecord
from .host_batch import (
    Batch,
    BatchResult,
    DeferredField,
    EncodedImages,
    FieldInFiles,
    Finish,
    Finishing,
    HostBatch,
)
from .map_function import MapFunction, collate
from .mixing import LABEL
from .rows import BatchRows
from .spec import BatchSpec

_TOLD = 8
"""Samples that a message names."""


@final
class BatchJob:
    """Some batches in the making, one after the other in the same arrays.

    Args:
        making: what is the same for all.
        plan, part: which samples.
        pad: whether the batches have a `valid` whatever becomes of their samples.
        clock: takes the time of each stage.
        arrays: by field, with a row for each sample at least.
    """

    def __init__(
        self,
        making: BatchSpec,
        plan: Order,
        part: PlanSlice,
        pad: bool,
        clock: StageClock,
        arrays: dict[str, NDArray[Any]],
    ) -> None:
        self.canvas = BatchRows(making, plan, part, clock, arrays)
        self.failed = False
        self.alone = len(part.indices) <= making.batch_size
        self._part, self._pad = part, pad
        self._sizes = [0] * -(-len(part.indices) // making.task_samples)
        self._left = len(self._sizes)
        self._lock = threading.Lock()
        self._batches: list[tuple[Batch, Finish | None]] | None = None

    @property
    def tasks(self) -> Sequence[Callable[[], None]]:
        """The tasks, made when asked for: were they kept here, job and tasks would refer to each other, and the batch's
        memory would wait for the garbage collector."""
        return [_Task(self, number) for number in range(len(self._sizes))]

    def result(self) -> list[BatchResult]:
        """The batches; one that can't be made ends them with its error."""
        if self.failed:
            return self._one_by_one()
        made = [self._mixed(rows) for rows in self._rows()] if self._batches is None else self._batches
        share, rest = divmod(sum(self._sizes), len(made))
        return [
            HostBatch(
                batch,
                share + (rest if rows.start == 0 else 0),
                self._bad(rows),
                self._again,
                self._fallback(rows),
                finish,
            )
            for (batch, finish), rows in zip(made, self._rows(), strict=True)
        ]

    def _again(self) -> HostBatch:
        """The one batch of this job as it is now."""
        (made,) = self.result()
        if isinstance(made, Exception):
            raise made
        return made

    def _fallback(self, rows: slice) -> Callable[[], HostBatch] | None:
        making = self.canvas.making
        # What engines for whole batches have begun on cannot be taken back.
        engines = any(images.whole for images in making.images.values())
        return None if not making.straight or making.on_bad == "raise" or engines else partial(self._by_host, rows)

    def _by_host(self, rows: slice) -> HostBatch:
        """A batch that is read here, where bad samples are replaced or masked."""
        canvas = self.canvas
        read = {name: canvas.making.fields[name] for name in canvas.making.straight}
        count = len(canvas.indices[rows])
        arrays = {name: array[rows] for name, array in canvas.arrays.items()}
        arrays |= {name: np.empty((count, *field.row_shape), field.row_dtype) for name, field in read.items()}
        making = replace(canvas.making, straight=frozenset())
        job = BatchJob(making, canvas.plan, self._part[rows], self._pad, canvas.clock, arrays)
        for task in job.tasks:
            task()
        return job._again()

    def run(self, number: int, rows: slice) -> None:
        """Makes the rows of task `number`; the last task also has the user's function work on whole batches."""
        self._sizes[number] = self.canvas.fill(rows)
        mapping, mixing = self.canvas.making.mapping, self.canvas.making.mixing
        if mapping is None and (mixing is None or not mixing.here):
            return
        with self._lock:
            self._left -= 1
            if self._left:
                return
        with self.canvas.clock.stage("map" if mixing is None else "mix"):
            if mapping is None:
                self._batches = [self._mixed(rows) for rows in self._rows()]
            else:
                self._batches = [(self._mapped(mapping, rows), None) for rows in self._rows()]

    def _one_by_one(self) -> list[BatchResult]:
        """Makes each batch anew, up to the one that fails: those before it are delivered, and its error is its own."""
        made: list[BatchResult] = []
        canvas = self.canvas
        for rows in self._rows():
            arrays = {name: array[rows] for name, array in canvas.arrays.items()}
            job = BatchJob(canvas.making, canvas.plan, self._part[rows], self._pad, canvas.clock, arrays)
            try:
                for task in job.tasks:
                    task()
            except Exception as error:  # noqa: BLE001  # raised again in the consumer, in this batch's turn
                return [*made, error]
            made += job.result()
        return made

    def _mixed(self, rows: slice) -> tuple[Batch, Finish | None]:
        """A batch, mixed if it is to be; where that is for the device, what does it there."""
        batch, mixing, canvas = self._assemble(rows), self.canvas.making.mixing, self.canvas
        if mixing is None:
            return batch, None
        mix = mixing.decide(canvas.plan.seed, canvas.plan.epoch, canvas.rng_keys[rows], canvas.valid[rows])
        batch[LABEL] = _blanked(batch[LABEL], finish=partial(mixing.labels, mix=mix), masked=self._masked(rows))
        finish = mixing.images(mix)
        return (finish(batch), None) if mixing.here else (batch, finish)

    def _mapped(self, mapping: MapFunction, rows: slice) -> Batch:
        own = self._own(rows)
        if mapping.by == "sample":
            return collate(self.canvas.mapped[rows], self.canvas.example) | own
        given = self._assemble(rows) | {name: tensor.clone() for name, tensor in own.items()}
        return mapping.batch(given, str(self.canvas.indices[rows].tolist())) | own

    def _bad(self, rows: slice) -> tuple[BadSampleRecord, ...]:
        return tuple(bad for row, bad in sorted(self.canvas.bad.items()) if rows.start <= row < rows.stop)

    def _rows(self) -> list[slice]:
        """Where each batch is in the arrays."""
        count, size = len(self._part.indices), self.canvas.making.batch_size
        return [slice(start, start + size) for start in range(0, count, size)]

    def _assemble(self, rows: slice) -> Batch:
        return {name: self._value(name, rows) for name in self.canvas.making.fields} | self._own(rows)

    def _value(self, name: str, rows: slice) -> Any:
        """A field of a batch."""
        canvas, images = self.canvas, self.canvas.making.images.get(name)
        seed, epoch, rng_keys = canvas.plan.seed, canvas.plan.epoch, canvas.rng_keys[rows]
        if images is not None and images.whole:
            sizes = canvas.sizes[name][rows]
            made = images.recipe.steps(sizes, seed=seed, epoch=epoch, indices=rng_keys)
            return EncodedImages(canvas.lists[name][rows], sizes, made, partial(self._remade, name, rows.start))
        volumes, moved = canvas.making.volumes.get(name), None
        if volumes is not None and volumes.later:
            moves = volumes.recipe.moves(seed=seed, epoch=epoch, indices=rng_keys)
            moved = partial(move_tensors, moves=moves, out_shape=volumes.recipe.out_shape)
        if name in canvas.making.straight:
            return self._stored(name, rows, moved)
        array = canvas.arrays.get(name)
        if array is None:
            return canvas.lists[name][rows]
        tensor = canvas.making.tensor(name, array[rows])
        if moved is not None:
            return self._later(tensor, moved, rows)
        if images is None or images.engine.recipe is images.recipe:
            return tensor
        last, by_pixel = images.recipe.erased(seed=seed, epoch=epoch, indices=rng_keys), canvas.making.channels_last
        finish = partial(delivered, recipe=images.recipe, last=last, channels_last=by_pixel)
        return self._later(tensor, finish, rows)

    def _masked(self, rows: slice) -> list[int]:
        """Those of some rows that a bad sample left blank, counted from the first."""
        return np.flatnonzero(self.canvas.blank[rows]).tolist()

    def _later(self, tensor: torch.Tensor, finish: Finishing | None, rows: slice) -> DeferredField:
        """A field that the device finishes, with zeros where a sample is masked."""
        return DeferredField(tensor, partial(_blanked, finish=finish, masked=self._masked(rows)))

    def _stored(self, name: str, rows: slice, finish: Finishing | None) -> FieldInFiles | DeferredField:
        """Where the rows of a field stand that the device reads itself; nothing is read if all are masked."""
        indices, dataset, masked = self.canvas.indices[rows], self.canvas.making.dataset, self._masked(rows)
        if masked:  # their shards may not open; others are read in their places, and blanked
            whole = np.delete(np.arange(len(indices)), masked)
            if not len(whole):
                field = self.canvas.making.fields[name]
                empty = np.zeros((len(indices), *field.row_shape), field.row_dtype)
                return self._later(torch.from_numpy(empty), finish, rows)
            indices = indices.copy()
            indices[masked] = indices[whole[0]]
        selection = dataset.select(indices)
        found = None if isinstance(selection, MixedSelection) else selection.spans(name)
        field = self.canvas.making.fields[name]
        if found is None:
            raise ConfigError(
                f"{dataset.path}, field {name!r}: gpu_direct needs rows that stand in files as they are delivered: "
                "uncompressed HDF5, tar or LMDB"
            )
        paths = [str(dataset.path / path) for path in found[0]]
        shape = (len(indices), *field.row_shape)

        def where(row: int) -> str:
            return f"{dataset.path / dataset.where(int(indices[row]))}, field {name!r}"

        blanked = partial(_blanked, finish=finish, masked=masked)
        return FieldInFiles(paths, found[1], found[2], shape, field.row_dtype, blanked, where)

    def _remade(self, name: str, first: int, row: int) -> torch.Tensor:
        """The image of a row after it was made on the host."""
        self.canvas.remake(first + row)
        made: torch.Tensor = self.canvas.lists[name][first + row]
        return made

    def _own(self, rows: slice) -> Batch:
        """What the loader itself adds to a batch."""
        indices, dataset = self.canvas.indices[rows], self.canvas.making.dataset
        own = {"index": torch.from_numpy(indices)}
        if dataset.sources:
            own["source"] = torch.from_numpy(dataset.source_of(indices))
        if self._pad or self.canvas.making.on_bad == "mask":
            own["valid"] = torch.from_numpy(self.canvas.valid[rows])
        return own


def _blanked(tensor: torch.Tensor, finish: Finishing | None, masked: Sequence[int]) -> torch.Tensor:
    """What `finish` makes of a tensor, with zeros in some rows."""
    made = tensor if finish is None else finish(tensor)
    for row in masked:
        made[row] = 0
    return made


class _Task:
    """Makes a few samples of a job."""

    def __init__(self, job: BatchJob, number: int) -> None:
        self._job, self._number = job, number
        samples = job.canvas.making.task_samples
        self._rows = slice(number * samples, min((number + 1) * samples, len(job.canvas.indices)))
        self._thread = 0

    def __str__(self) -> str:
        canvas = self._job.canvas
        indices, dataset = canvas.indices[self._rows], canvas.making.dataset
        shards = sorted({dataset.shard_of(index) for index in indices[:_TOLD].tolist()})
        stage = canvas.clock.doing.get(self._thread)
        more = f" and {len(indices) - _TOLD} more" if len(indices) > _TOLD else ""
        told = f"samples {indices[:_TOLD].tolist()}{more} in {', '.join(shards)} of {dataset.path}"
        return told if stage is None else f"{stage}: {told}"

    def __call__(self) -> None:
        self._thread = threading.get_ident()
        if self._job.alone:
            self._job.run(self._number, self._rows)
            return
        if self._job.failed:
            return
        try:
            self._job.run(self._number, self._rows)
        except Exception:  # noqa: BLE001  # comes again when the batches are made one by one
            self._job.failed = True
