"""Rows that are being made: read, checked, decoded, transformed, given to the user's function."""

import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from ...containers import row_locator
from ...dataset.mixture import MixedSelection
from ...dataset.selection import Selection
from ...engines.cpu import BadImage
from ...engines.headers import plain
from ...engines.volumes import move
from ...errors import BadSample, ConfigError
from ...format.fields import Field, shape_column
from ...order.plan import Order, PlanSlice
from ...system.timing import StageClock
from .bad_samples import BadSampleRecord, is_bad_sample
from .mixing import LABEL, MixingSpec
from .spec import BatchSpec, ImageSpec

REPLACEMENTS = 16
"""Samples that are tried in the place of a bad one."""


@final
class BatchRows:
    """The rows that are being made: tasks fill disjoint slices of them.

    Attributes:
        indices, draws, valid: of each row its sample, what its random choices are keyed by, and whether it counts.
        arrays: by field `[rows, ...]`, where all samples have one shape.
        lists: of the other fields.
        mapped: what the user's function made of each sample.
        bad: the bad samples met, by row.
        blank: whether a bad sample left a row blank.
    """

    def __init__(
        self, making: BatchSpec, plan: Order, part: PlanSlice, clock: StageClock, arrays: Mapping[str, NDArray[Any]]
    ) -> None:
        self.making, self.plan, self.clock, self.arrays = making, plan, clock, arrays
        # A bad sample changes its row, and whoever makes these batches again begins with the part.
        changes = making.on_bad != "raise"
        self.indices = part.indices.copy() if changes else part.indices
        self.rng_keys = part.rng_keys.copy() if changes else part.rng_keys
        self.valid = part.valid.copy() if changes else part.valid
        self._counts = part.valid
        self.blank = np.zeros(len(part.indices), np.bool_)
        self.lists: dict[str, list[Any]] = {n: [None] * len(part.indices) for n in making.fields if n not in arrays}
        # Of images that an engine for whole batches makes.
        self.sizes = {name: np.ones((len(part.indices), 2), np.int32) for name, i in making.images.items() if i.whole}
        self.mapped: list[Any] = [None] * len(part.indices)
        self.bad: dict[int, BadSampleRecord] = {}
        self._lock = threading.Lock()
        self._kept: list[row_locator.Scratch] = []
        weakref.finalize(self, making.give, self._kept).atexit = False

    def fill(self, rows: slice) -> int:
        """Makes some rows; the stored bytes that were read for them.

        A bad sample is raised, replaced or masked as `making.on_bad` says.
        """
        if self.making.on_bad == "raise":
            return self._make(rows)
        try:
            return self._make(rows)
        except Exception as error:
            if not is_bad_sample(error):
                raise
        return sum(self._salvage(row) for row in range(*rows.indices(len(self.indices))))

    def example(self) -> Mapping[str, Any]:
        """What the user's function makes of another sample, for a batch that is masked whole."""
        index, draw = self.plan.replacement(int(self.indices[0]), int(self.rng_keys[0]), REPLACEMENTS + 1)
        part = PlanSlice(np.array([index]), np.array([draw]), np.ones(1, np.bool_))
        arrays = {name: np.empty((1, *array.shape[1:]), array.dtype) for name, array in self.arrays.items()}
        other = BatchRows(replace(self.making, on_bad="replace"), self.plan, part, self.clock, arrays)
        other.fill(slice(0, 1))
        made: Mapping[str, Any] = other.mapped[0]
        return made

    def remake(self, row: int) -> None:
        """Makes a row on the host whose image an engine for whole batches has refused; else as `fill`."""
        if self.making.on_bad == "raise":
            self._make(slice(row, row + 1), host=True)
        else:
            self._salvage(row)

    def value(self, name: str, row: int) -> Any:
        """One field of a row, as the user's function takes it."""
        array = self.arrays.get(name)
        if array is None:
            return self.lists[name][row]
        value = array[row]
        return value.item() if isinstance(value, np.generic) else self.making.tensor(name, value)

    def _make(self, rows: slice, host: bool = False) -> int:
        making, indices = self.making, self.indices[rows]
        stored: dict[str, Any] = {}
        with ExitStack() as lent:
            with self.clock.stage("read"):
                found = making.dataset.select(indices)
                for name, field in making.fields.items():
                    if name in making.straight:
                        continue
                    out = self.arrays[name][rows] if field.fixed else None
                    if name in making.volumes and not making.volumes[name].later:
                        # It is moved from where it is read to its rows.
                        space = lent.enter_context(making.memory()).take(len(indices) * field.row_bytes)
                        out = space.view(field.row_dtype).reshape(len(indices), *field.row_shape)
                    how = making.images.get(name)
                    if how is None:
                        memory = None
                    else:  # what a whole batch is made of must outlive this task
                        memory = self._keep() if how.whole else lent.enter_context(making.memory())
                    stored[name] = found.stored(name, out, memory)
            if making.verify:
                with self.clock.stage("verify"):
                    making.dataset.check(indices, stored)
            if making.mixing is not None:
                self._check_labels(making.mixing, stored[LABEL], indices)
            with self.clock.stage("decode"):
                for name, field in making.fields.items():
                    if field.kind == "image":
                        self._decode(name, rows, found, stored[name], host)
                    elif name in making.volumes and name not in making.straight:
                        self._move(name, rows, stored[name])
                    elif not field.fixed:
                        values = making.dataset.decode(name, stored[name], indices)
                        self.lists[name][rows] = map(torch.from_numpy, values) if field.kind == "array" else values
        if making.mapping is not None and making.mapping.by == "sample":
            with self.clock.stage("map"):
                for row in range(*rows.indices(len(self.indices))):
                    sample = {name: self.value(name, row) for name in making.fields}
                    sample["index"] = int(self.indices[row])
                    self.mapped[row] = making.mapping.sample(sample, str(self.indices[row]))
        straight = sum(making.fields[name].row_bytes for name in making.straight) * len(indices)
        return straight + sum(map(_size, stored.values()))

    def _move(self, name: str, rows: slice, arrays: NDArray[Any]) -> None:
        """Moves some rows' arrays, where that is done here."""
        how = self.making.volumes[name]
        if not how.later:
            seed, epoch = self.plan.seed, self.plan.epoch
            moves = how.recipe.moves(seed=seed, epoch=epoch, indices=self.rng_keys[rows])
            move(arrays, moves, self.arrays[name][rows])

    def _check_labels(self, mixing: MixingSpec, labels: NDArray[Any], indices: NDArray[np.int64]) -> None:
        """BadSample for a label below 0, ConfigError for one above the classes."""
        if (wrong := mixing.check(labels)) is not None:
            where = self.making.dataset.path / self.making.dataset.where(int(indices[wrong]))
            most = mixing.mixers[0].num_classes - 1
            told = f"{where}, field {LABEL!r}: mixing is for labels from 0 to {most}, it is {labels[wrong]}"
            # A number that is too large is more likely one of a class that was not counted.
            raise ConfigError(f"{told}: give a larger num_classes") if labels[wrong] > most else BadSample(told)

    def _keep(self) -> row_locator.Scratch:
        """Memory for stored values that is this batch's until it is gone."""
        memory = self.making.take()
        self._kept.append(memory)  # for several tasks at once
        return memory

    def _decode(
        self, name: str, rows: slice, found: Selection | MixedSelection, encoded: Sequence[Any], host: bool
    ) -> None:
        """Makes some rows' images, or with an engine for whole batches those that it would not take."""
        how, places = self.making.images[name], np.arange(*rows.indices(len(self.indices)))
        sizes = found.column(shape_column(name))
        out = self.arrays[name][rows] if name in self.arrays else None
        if how.whole:
            self.sizes[name][rows] = sizes
            self.lists[name][rows] = list(encoded)
            odd = np.arange(len(places)) if host else np.flatnonzero(~plain(encoded, sizes))
            if not len(odd):
                return
            places, sizes, encoded = places[odd], sizes[odd], [encoded[place] for place in odd.tolist()]
        steps = how.engine.recipe.steps(
            sizes, seed=self.plan.seed, epoch=self.plan.epoch, indices=self.rng_keys[places]
        )
        try:
            made = how.engine(encoded, sizes, steps, out)
        except BadImage as error:
            where = self.making.dataset.where(int(self.indices[places[error.place]]))
            raise BadSample(f"{self.making.dataset.path / where}, field {name!r}: {error}") from error
        for place, image in zip(places.tolist(), made, strict=True) if made is not None else ():
            self.lists[name][place] = how.engine.numbers.tensor(image)

    def _salvage(self, row: int) -> int:
        """Makes one row, of another sample or as a blank if its own is bad."""
        index, draw = int(self.indices[row]), int(self.rng_keys[row])
        first: Exception | None = None
        for attempt in range(1, REPLACEMENTS + 1):
            try:
                size = self._make(slice(row, row + 1), host=True)
            except Exception as error:
                if not is_bad_sample(error):
                    raise
                first = first or error
            else:
                if first is not None:
                    self._record(row, index, first, int(self.indices[row]))
                return size
            if self.making.on_bad == "mask":
                self._blank(row)
                self._record(row, index, first, None)
                return 0
            self.indices[row], self.rng_keys[row] = self.plan.replacement(index, draw, attempt)
        where = self.making.dataset.where(index)
        raise BadSample(f"{where} is bad, and so are {REPLACEMENTS} samples in its place; it: {first}") from first

    def _record(self, row: int, index: int, error: Exception, replaced_by: int | None) -> None:
        if not self._counts[row]:  # padding repeats what is recorded where it counts
            return
        with self._lock:
            self.bad[row] = BadSampleRecord(self.plan.epoch, self.making.dataset.locate(index), str(error), replaced_by)

    def _blank(self, row: int) -> None:
        self.valid[row], self.blank[row] = False, True
        for array in self.arrays.values():
            array[row] = 0
        for name, column in self.lists.items():
            column[row] = _empty(self.making.fields[name], self.making.images.get(name))
        self.mapped[row] = None


def _empty(kind: Field, images: ImageSpec | None) -> Any:
    """What stands for a masked sample in a list."""
    if images is not None:
        numbers = images.engine.numbers
        return numbers.tensor(np.zeros(numbers.shape(images.recipe.size or (0, 0)), numbers.dtype))
    if kind.kind == "array":
        return torch.from_numpy(np.zeros((0,), kind.row_dtype))
    return {"text": "", "bytes": b""}.get(kind.kind)


def _size(stored: Any) -> int:
    if isinstance(stored, np.ndarray):
        return stored.nbytes
    return int(stored.sizes.sum()) if isinstance(stored, row_locator.PackedValues) else sum(map(len, stored))
