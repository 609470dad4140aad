"""Rows of one or more batches: the samples that they hold, and their values once these are made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ...containers.packed_values import Scratch
from ...format.fields import presence
from ...order.plan import Order, PlanSlice
from ...system.timing import StageClock
from ...transforms.coordinates import Boxes, Owners
from ...transforms.random_generator import RandomKeys
from .collate import geometry_names
from .decisions import Decisions
from .instances import Placement
from .quarantine import BadSampleRecord
from .spec import BatchSpec


@final
class Rows:
    """Rows of samples, and the memory of their values. Threads may `bad_samples.fill` disjoint parts at once.

    Args:
        spec: the specification of the batches.
        order: the order of the epoch, which also names replacements of bad samples.
        planned: the samples that the order has for the rows.
        arrays: the memory of the fields in `spec.array_layout`, `[n, ...]` each.
        pads: whether some rows of the epoch are padding.
        clock: measures the time of each stage.
        part_of: other rows, and the part of them whose samples these rows have.

    Attributes:
        indices: for each row the number of its sample, int64 [n].
        rng_keys: what determines its random transforms, int64 [n].
        valid: False for padding and for masked samples, bool [n].
        blank: the rows that a bad sample left blank, bool [n].
        decided: what was decided of the rows; set when they are made.
        failed: the rows of bad samples, whose values mean nothing until they are made again.
        replaced: the rows whose samples are no longer those that were planned.
        bad: by row, the bad samples that were replaced or masked.
        lists: by name, the n values of each field that is in no array.
        present: for each optional field, bool [n]: which samples have its value.
        image_sizes: by name, int32 [n, 2], the heights and widths of images that an engine for whole batches makes.
        cropped: by name, the sizes in pixels at the first crop of fields in `spec.pairs`, int [n, k, axes]: of an image
            k is 1; 0 where there is none.
        boxes: by name, the n values of the stored boxes that crops are drawn for, of images that an engine for whole
            batches makes.
        placements: by name, how the images of `spec.placed` lie on the stored ones; set when they are made.
        mapped: the results of the user's function for samples; None for masked samples. [] without such a function.
        varying_bytes: the number of stored bytes that were read of fields whose values differ in size, int64 [n].
        scratches: the memory that holds image files for an engine for whole batches.
    """

    def __init__(
        self,
        spec: BatchSpec,
        order: Order,
        planned: PlanSlice,
        arrays: Mapping[str, NDArray[Any]],
        *,
        pads: bool,
        clock: StageClock,
        part_of: tuple[Rows, slice] | None = None,
    ) -> None:
        self.spec, self.order, self.planned, self.arrays = spec, order, planned, arrays
        self.pads, self.clock, self.part_of = pads, clock, part_of
        self._deciding, self._shared = threading.Lock(), list[Decisions | None]()
        # Replacing a bad sample changes its row. The planned samples stay, for rows that are made again.
        changes = spec.options.on_bad_sample != "raise"
        self.indices = planned.indices.copy() if changes else planned.indices
        self.rng_keys = planned.rng_keys.copy() if changes else planned.rng_keys
        self.valid = planned.valid.copy() if changes else planned.valid
        count = len(planned.indices)
        self.blank = np.zeros(count, np.bool_)
        self.decided: Decisions
        self.failed: set[int] = set()
        self.replaced: set[int] = set()
        self.bad: dict[int, BadSampleRecord] = {}
        columns = (*spec.fields, *spec.marks.values())
        self.lists: dict[str, list[Any]] = {name: [None] * count for name in columns if name not in arrays}
        self.present = {name: np.ones(count, np.bool_) for name, kind in spec.fields.items() if kind.optional}
        engine_images = [name for name, image in spec.images.items() if image.batch_engine]
        self.image_sizes = {name: np.ones((count, 2), np.int32) for name in engine_images}
        drawn_later = [name for name in spec.cropped_for if name in self.image_sizes]
        self.boxes: dict[str, list[Boxes]] = {name: [np.empty((0, 4), np.float32)] * count for name in drawn_later}
        self.cropped: dict[str, NDArray[Any]] = {}
        self.placements: dict[str, Placement] = {}
        function = spec.options.map_function
        maps_samples = function is not None and function.by == "sample"
        self.mapped: list[Mapping[str, Any] | None] = [None] * count if maps_samples else []
        self.varying_bytes = np.zeros(count, np.int64)
        self.scratches: list[Scratch] = []
        if engine_images:
            spec.scratch.give_back_when_gone(self, self.scratches)

    def __len__(self) -> int:
        return len(self.planned.indices)

    def unmade(self, part: slice) -> Rows:
        """Return rows without values of the samples that are now in the rows of `part`, in the same memory."""
        samples = PlanSlice(self.indices[part], self.rng_keys[part], self.valid[part], self.planned.begins[part])
        arrays = {name: array[part] for name, array in self.arrays.items()}
        part_of = (self, part) if self.replaced.isdisjoint(range(*part.indices(len(self)))) else None
        return Rows(self.spec, self.order, samples, arrays, pads=self.pads, clock=self.clock, part_of=part_of)

    def decide_once(self, decide: Callable[[], Decisions]) -> Decisions | None:
        """Return what the first call's `decide` returned of all planned samples, which other threads wait for.

        None if that failed: then each part decides for itself, to find whose error it is.
        """
        with self._deciding:
            if not self._shared:
                self._shared.append(None)
                with suppress(Exception):
                    self._shared[0] = decide()
            return self._shared[0]

    def put(self, part: slice, made: Rows) -> None:
        """Take the values of rows that were `unmade(part)` before they were made."""
        for name, values in made.lists.items():
            self.lists[name][part] = values
        for name, there in made.present.items():
            self.present[name][part] = there
        for name, sizes in made.image_sizes.items():
            self.image_sizes[name][part] = sizes
        for name, boxes in made.boxes.items():
            self.boxes[name][part] = boxes
        if self.mapped:
            self.mapped[part] = made.mapped
        if self.spec.varying:
            self.varying_bytes[part] = made.varying_bytes
        self.scratches += made.scratches
        made.scratches.clear()  # these rows give them back

    def keys(self, part: slice = slice(None)) -> RandomKeys:
        """Return what determines the mixing of some rows, and what the user's function draws."""
        return RandomKeys(self.order.seed, self.order.epoch, self.rng_keys[part])

    def field_keys(self, name: str, part: slice = slice(None)) -> RandomKeys:
        """Return what determines the transforms of one field of some rows."""
        return self.keys(part).draws(self.spec.names.draws[name])

    def boxes_of(self, name: str, part: slice) -> tuple[Boxes, Owners]:
        """Return the boxes that the crops of some rows' images are drawn for, and the row of `part` of each."""
        listed = self.boxes[name][part]
        return np.concatenate(listed), np.repeat(np.arange(len(listed)), [len(each) for each in listed])

    def value(self, name: str, row: int) -> Any:
        """Return one field of one row: a number, a tensor, a string, ..."""
        array = self.arrays.get(name)
        if array is None:
            listed = self.lists[name][row]
            if name in self.spec.image_lists and isinstance(listed, list):
                return [self.spec.tensor(name, image) for image in listed]
            return self.spec.tensor(name, listed) if isinstance(listed, np.ndarray) else listed
        value = array[row]
        return value.item() if isinstance(value, np.generic) else self.spec.tensor(name, value)

    def added_columns(self, row: int) -> dict[str, Any]:
        """Return what goes with the values of one row: what is there, their lengths, what was filled, and offsets."""
        there = {presence(n): bool(there[row]) for n, there in self.present.items() if self.spec.stacked(n)}
        added = [self.spec.added_name(name) for name in self.spec.collations]
        geometry = (column for name in self.spec.geometry for column in geometry_names(name))
        clips = (column for columns in self.spec.clip_columns.values() for column in columns)
        more = (*self.spec.marks.values(), *self.spec.offsets.values(), *geometry, *clips)
        return (
            there
            | {name: int(self.arrays[name][row]) for name in added if name in self.arrays}
            | {name: self.value(name, row) for name in more}
        )

    def masked(self, part: slice) -> list[int]:
        """Return the rows of `part`, counted from its start, that a bad sample left blank."""
        masks = self.spec.options.on_bad_sample == "mask"
        masked: list[int] = np.flatnonzero(self.blank[part]).tolist() if masks else []
        return masked

    def stored_bytes(self, part: slice) -> int:
        """Return the number of stored bytes that were read for some rows."""
        varying = self.varying_bytes[part]
        fixed = (len(varying) - len(self.masked(part))) * self.spec.fixed_bytes
        return fixed + (int(varying.sum()) if self.spec.varying else 0)

    def describe(self, part: slice, most: int = 8) -> str:
        """Name the samples of `part` and their shards, for messages."""
        indices, dataset = self.indices[part], self.spec.dataset
        shards = sorted({dataset.shard_of(index) for index in indices[:most].tolist()})
        more = f" and {len(indices) - most} more" if len(indices) > most else ""
        return f"samples {indices[:most].tolist()}{more} in {', '.join(shards)} of {dataset.path}"
