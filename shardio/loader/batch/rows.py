"""Rows of a batch while workers make them: read, verify, decode, transform, and apply the user's function.

This module also treats bad samples: `BatchRows.fill` raises the error, puts another sample in the row, or blanks it.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NoReturn, final

import numpy as np
import torch
from numpy.typing import NDArray

from ...containers.row_locator import PackedValues
from ...dataset.readable import SelectedSamples
from ...engines.array_transforms import first_overflow, transform_arrays
from ...engines.cpu import BadImage
from ...engines.jpeg_headers import are_plain_jpegs, orientations_of
from ...engines.orientation import are_swapped
from ...errors import BadSample, ConfigError, ShardCorrupt
from ...format.fields import presence, present_column, shape_column
from ...order.plan import Order, PlanSlice
from ...system import helper_process
from ...system.timing import StageClock
from .bad_samples import BadSampleRecord, is_bad_sample, is_damaged
from .mixing import LABEL
from .random_params import RandomKeys, array_moves, image_steps
from .spec import BatchSpec

FETCHES = 3
"""The number of times that a sample in a store is read before it counts as damaged."""

REPLACEMENTS = 16
"""The number of samples that are tried in place of a bad one."""


@final
@dataclass(frozen=True, slots=True)
class FilledRows:
    """Finished rows, from which one batch is assembled.

    Attributes:
        spec: the specification of the batch.
        indices: for each row the number of its sample, int64 [n].
        valid: False for padding and for masked samples, bool [n].
        mark_valid: whether the batch has a field `valid`.
        masked: the rows that a bad sample left blank.
        keys: the numbers that determine the rows' random parameters.
        arrays: by name, `[n, ...]`, the fields whose values all have one shape.
        lists: by name, the values of the other fields.
        present: for each optional field, bool [n]: which samples have its value.
        image_sizes: by name, int32 [n, 2], the heights and widths of images that an engine for whole batches makes.
        mapped: the results of the user's function for each sample; None for masked samples.
        bad_samples: the bad samples that were replaced or masked.
        stored_bytes: the number of stored bytes that were read.
        rows: the `BatchRows` that these rows belong to.
        part: the range of these rows in `rows`.
    """

    spec: BatchSpec
    indices: NDArray[np.int64]
    valid: NDArray[np.bool_]
    mark_valid: bool
    masked: Sequence[int]
    keys: RandomKeys
    arrays: Mapping[str, NDArray[Any]]
    lists: Mapping[str, list[Any]]
    present: Mapping[str, NDArray[np.bool_]]
    image_sizes: Mapping[str, NDArray[np.int32]]
    mapped: Sequence[Mapping[str, Any] | None]
    bad_samples: tuple[BadSampleRecord, ...]
    stored_bytes: int
    rows: "BatchRows"
    part: slice

    def blank_rows(self, name: str) -> Sequence[int]:
        """The rows that have no value of a field: those of masked samples, and of samples that lack it."""
        absent = np.flatnonzero(~self.present[name]).tolist() if name in self.present else ()
        return [*self.masked, *absent]


@final
class BatchRows:
    """Rows that workers fill. Several threads may fill disjoint parts at once.

    Args:
        spec: the specification of the batch.
        plan: the order of the epoch, which also names replacements of bad samples.
        samples: the samples of the rows.
        arrays: the memory of the fields in `spec.array_layout`, `[rows, ...]` each.
        mark_valid: whether batches get a field `valid` even if no bad sample is masked.
        clock: measures the time of each stage.
    """

    def __init__(
        self,
        spec: BatchSpec,
        plan: Order,
        samples: PlanSlice,
        arrays: Mapping[str, NDArray[Any]],
        *,
        mark_valid: bool,
        clock: StageClock,
    ) -> None:
        self.spec, self.clock = spec, clock
        self._plan, self._samples, self._arrays, self._mark_valid = plan, samples, arrays, mark_valid
        # Replacing a bad sample changes its row, and `restart` needs the samples as they were planned.
        changes = spec.on_bad_sample != "raise"
        self._indices = samples.indices.copy() if changes else samples.indices
        self._rng_keys = samples.rng_keys.copy() if changes else samples.rng_keys
        self._valid = samples.valid.copy() if changes else samples.valid
        count = len(samples.indices)
        self._blank = np.zeros(count, np.bool_)
        self._has_blanks = False
        # Fields of one size are counted by the row, values whose sizes differ one by one.
        self._fixed_bytes = sum(kind.row_bytes for kind in spec.fields.values() if kind.fixed)
        self._value_fields = [name for name, kind in spec.fields.items() if not kind.fixed]
        self._value_bytes = np.zeros(count if self._value_fields else 0, np.int64)
        self._lists: dict[str, list[Any]] = {name: [None] * count for name in spec.fields if name not in arrays}
        self._present = {name: np.ones(count, np.bool_) for name, kind in spec.fields.items() if kind.optional}
        self._image_sizes = {
            name: np.ones((count, 2), np.int32) for name, image in spec.images.items() if image.batch_engine
        }
        maps_samples = spec.map_function is not None and spec.map_function.by == "sample"
        self._mapped: list[Mapping[str, Any] | None] = [None] * count if maps_samples else []
        self._bad: dict[int, BadSampleRecord] = {}
        self._lock = threading.Lock()
        self._held: list[Any] = []
        spec.scratch.give_back_when_gone(self, self._held)

    def __len__(self) -> int:
        return len(self._indices)

    def fill(self, part: slice) -> None:
        """Make the rows of `part`; raise, replace or mask bad samples as the specification says."""
        replaces = self.spec.on_bad_sample != "raise"
        try:
            self._make(part)
        except Exception as error:
            # One sample may have asked for all memory: made alone, it shows which, and the others are good. And a
            # sample that is damaged in a cache may be whole in its store.
            alone = isinstance(error, MemoryError) or is_damaged(error)
            if not (alone or (replaces and is_bad_sample(error))):
                raise
        else:
            return
        for row in range(*part.indices(len(self))):
            if replaces:
                self._make_or_replace(row)
            else:
                self._make_alone(row)

    def remake(self, row: int) -> None:
        """Make a row again, with its images on the host, because an engine for whole batches refused one of them."""
        if self.spec.on_bad_sample == "raise":
            self._make_alone(row, images_on_host=True)
        else:
            self._make_or_replace(row)

    def filled(self, part: slice) -> FilledRows:
        """Return the rows of `part` in their current state."""
        start, stop, _ = part.indices(len(self))
        masked = np.flatnonzero(self._blank[part]).tolist() if self._has_blanks else []
        value_bytes = int(self._value_bytes[part].sum()) if self._value_fields else 0
        return FilledRows(
            spec=self.spec,
            indices=self._indices[part],
            valid=self._valid[part],
            mark_valid=self._mark_valid or self.spec.on_bad_sample == "mask",
            masked=masked,
            keys=self._keys(part),
            arrays={name: array[part] for name, array in self._arrays.items()},
            lists={name: values[part] for name, values in self._lists.items()},
            present={name: there[part] for name, there in self._present.items()},
            image_sizes={name: sizes[part] for name, sizes in self._image_sizes.items()},
            mapped=self._mapped[part],
            bad_samples=tuple(self._bad[row] for row in sorted(self._bad) if start <= row < stop) if self._bad else (),
            stored_bytes=(stop - start - len(masked)) * self._fixed_bytes + value_bytes,
            rows=self,
            part=slice(start, stop),
        )

    def restart(self, part: slice, spec: BatchSpec | None = None) -> "BatchRows":
        """Return new, unfilled rows for the planned samples of `part`, in the same memory.

        They follow `spec` if given; fields that it adds to the arrays get new memory.
        """
        spec = spec or self.spec
        samples = self._samples[part]
        arrays = {name: array[part] for name, array in self._arrays.items()}
        for name, (shape, dtype) in spec.array_layout(len(samples.indices)).items():
            if name not in arrays:
                arrays[name] = np.empty(shape, dtype)
        return BatchRows(spec, self._plan, samples, arrays, mark_valid=self._mark_valid, clock=self.clock)

    def value(self, name: str, row: int) -> Any:
        """Return one field of one row: a number, a tensor, a text, ..."""
        array = self._arrays.get(name)
        if array is None:
            return self._lists[name][row]
        value = array[row]
        return value.item() if isinstance(value, np.generic) else self.spec.tensor(name, value)

    def presence_columns(self, row: int) -> dict[str, bool]:
        """Return by name what says, beside the values of one row that are stacked, whether an optional one is there."""
        return {presence(n): bool(there[row]) for n, there in self._present.items() if self.spec.stacked(n)}

    def mapped_example(self) -> Mapping[str, Any]:
        """Return the result of the user's function for another sample, whose names a batch of masked samples takes."""
        index, key = self._plan.replacement(int(self._indices[0]), int(self._rng_keys[0]), REPLACEMENTS + 1)
        samples = PlanSlice(np.array([index]), np.array([key]), np.ones(1, np.bool_))
        arrays = {name: np.empty((1, *array.shape[1:]), array.dtype) for name, array in self._arrays.items()}
        spec = replace(self.spec, on_bad_sample="replace")
        other = BatchRows(spec, self._plan, samples, arrays, mark_valid=False, clock=self.clock)
        other.fill(slice(0, 1))
        (example,) = other.filled(slice(0, 1)).mapped
        if example is None:
            raise BadSample("no sample could be read for the map function")
        return example

    def describe(self, part: slice, most: int = 8) -> str:
        """Name the samples of `part` and their shards, for messages."""
        indices, dataset = self._indices[part], self.spec.dataset
        shards = sorted({dataset.shard_of(index) for index in indices[:most].tolist()})
        more = f" and {len(indices) - most} more" if len(indices) > most else ""
        return f"samples {indices[:most].tolist()}{more} in {', '.join(shards)} of {dataset.path}"

    def _keys(self, rows: slice | NDArray[np.int64]) -> RandomKeys:
        return RandomKeys(self._plan.seed, self._plan.epoch, self._rng_keys[rows])

    def _make(self, part: slice, *, images_on_host: bool = False) -> None:
        spec, indices = self.spec, self._indices[part]
        with ExitStack() as lent:
            lent.enter_context(helper_process.time_limit(spec.read_limit))
            selection = spec.dataset.select(indices, spec.limits.max_value_bytes)
            # All at once: two threads that hold some and wait for more could wait for each other.
            lent.enter_context(selection.fetch(spec.columns, self.clock))
            with self.clock.stage("read"):
                for name, there in self._present.items():
                    there[part] = selection.column(present_column(name))
                stored = {
                    name: self._read(name, part, selection, lent)
                    for name in spec.fields
                    if name not in spec.gpu_direct_fields
                }
            if spec.verify:
                with self.clock.stage("verify"):
                    spec.dataset.check(indices, stored, spec.limits.max_value_bytes)
            if spec.mixing is not None:
                self._check_labels(stored[LABEL], indices)
            with self.clock.stage("decode"):
                for name, kind in spec.fields.items():
                    if kind.is_image:
                        self._decode_images(name, part, selection, stored[name], images_on_host)
                    elif name in spec.arrays and name in stored:
                        self._transform_arrays(name, part, stored[name])
                    elif not kind.fixed:
                        has = self._present[name][part] if kind.optional else None
                        values = spec.dataset.decode(name, stored[name], indices, has)
                        self._lists[name][part] = (
                            self._as_tensors(name, part, values) if kind.kind == "array" else values
                        )
                for name, there in self._present.items():  # transforms may have made something of zeros
                    if name in self._arrays and not there[part].all():
                        self._arrays[name][part][~there[part]] = 0
        if spec.map_function is not None and spec.map_function.by == "sample":
            with self.clock.stage("map"):
                for row in range(*part.indices(len(self))):
                    sample = {name: self.value(name, row) for name in spec.fields} | self.presence_columns(row)
                    sample["index"] = int(self._indices[row])
                    keys = self._keys(slice(row, row + 1))
                    self._mapped[row] = spec.map_function.apply_to_sample(sample, sample["index"], keys)
        if self._value_fields:
            self._value_bytes[part] = sum(_value_sizes(stored[name]) for name in self._value_fields)

    def _read(self, name: str, part: slice, selection: SelectedSamples, lent: ExitStack) -> Any:
        """Return the stored values of a field: an array (if possible the batch's) if all have one size, or bytes."""
        spec, kind = self.spec, self.spec.fields[name]
        image, array = spec.images.get(name), spec.arrays.get(name)
        out, scratch = self._arrays[name][part] if kind.fixed else None, None
        from_scratch = (image is not None and not image.cpu_engine.keeps_pixels) or (
            array is not None and not (array.on_device or array.in_place)
        )
        if kind.fixed and from_scratch:  # transforms write the batch
            count = len(self._indices[part])
            memory = lent.enter_context(spec.scratch.lend()).take(count * kind.row_bytes)
            out = memory.view(kind.row_dtype).reshape(count, *kind.row_shape)
        if kind.kind == "image":  # files for an engine for whole batches must outlive this task
            scratch = (
                self._hold_scratch()
                if image is not None and image.batch_engine
                else lent.enter_context(spec.scratch.lend())
            )
        elif kind.kind == "array" and not kind.fixed:
            scratch = spec.scratch.take()
            stored = selection.values(name, scratch)
            if isinstance(stored, PackedValues):  # of which the batch's arrays are views
                spec.scratch.give_back_when_gone(stored.data, [scratch])
            else:
                spec.scratch.give_back(scratch)
            return stored
        return selection.stored(name, out, scratch)

    def _hold_scratch(self) -> Any:
        """Take scratch that these rows keep until they are deleted."""
        scratch = self.spec.scratch.take()
        self._held.append(scratch)
        return scratch

    def _transform_arrays(self, name: str, part: slice, values: NDArray[Any]) -> None:
        array = self.spec.arrays[name]
        moves = array_moves(array.recipe, self._keys(part))
        if (lost := first_overflow(values, array.recipe, moves)) is not None:
            self._raise_overflow(name, part, *lost)
        if not array.on_device:
            transform_arrays(values, array.recipe, moves, self._arrays[name][part])

    def _as_tensors(self, name: str, part: slice, values: Sequence[NDArray[Any] | None]) -> list[torch.Tensor | None]:
        """Return arrays whose shapes differ as the tensors to deliver; BadSample if int64 cannot hold a number."""
        if name in self.spec.ragged_as_int64:
            stored, values = values, [None if value is None else value.astype(np.int64) for value in values]
            for row, (value, given) in enumerate(zip(values, stored, strict=True)):
                if given is not None and given.dtype == np.uint64 and value is not None and (value < 0).any():
                    self._raise_overflow(name, part, row, given[value < 0][0])
        return [None if value is None else torch.from_numpy(value) for value in values]

    def _raise_overflow(self, name: str, part: slice, row: int, number: Any) -> NoReturn:
        place = self.spec.dataset.path / self.spec.dataset.where(int(self._indices[part][row]))
        array = self.spec.arrays.get(name)
        dtype = "int64" if array is None or array.recipe.conversion is None else array.recipe.conversion.dtype
        raise BadSample(f"{place}, field {name!r}: {dtype} cannot hold what the transforms make of {number}")

    def _check_labels(self, labels: NDArray[Any], indices: NDArray[np.int64]) -> None:
        """Raise BadSample for a label below 0, ConfigError for a label of `num_classes` or more."""
        mixing, dataset = self.spec.mixing, self.spec.dataset
        if mixing is None or (wrong := mixing.first_wrong_label(labels)) is None:
            return
        place, label = dataset.path / dataset.where(int(indices[wrong])), labels[wrong]
        largest = mixing.num_classes - 1
        message = f"{place}, field {LABEL!r}: mixing needs labels from 0 to {largest}, got {label}"
        # A label that is too large more likely means a wrong num_classes than a bad sample.
        raise ConfigError(f"{message}: give a larger num_classes") if label > largest else BadSample(message)

    def _decode_images(
        self, name: str, part: slice, selection: SelectedSamples, encoded: Sequence[Any], on_host: bool
    ) -> None:
        """Make images with the CPU engine: all, or only those that the engine for whole batches would refuse."""
        image, rows = self.spec.images[name], np.arange(*part.indices(len(self)))
        out, kind = self._arrays[name][part] if name in self._arrays else None, self.spec.fields[name]
        if kind.fixed and image.cpu_engine.keeps_pixels:  # they were read into the batch
            return
        sizes = np.full((len(rows), 2), kind.shape, np.int32) if kind.fixed else selection.column(shape_column(name))
        if kind.optional and kind.kind == "image" and not (there := self._present[name][part]).all():
            for row in rows[~there].tolist() if name in self._lists else ():
                self._lists[name][row] = self._blank_value(name) if image.batch_engine else None
            encoded = [encoded[number] for number in np.flatnonzero(there).tolist()]
            rows, sizes = rows[there], sizes[there]
            out = None if out is None else np.empty((len(rows), *out.shape[1:]), out.dtype)
            if not len(rows):
                return
        if image.watch is not None:
            image.watch.look(encoded)
        orientations = orientations_of(encoded) if image.orient and kind.kind == "image" else None
        if image.batch_engine:
            self._image_sizes[name][rows] = sizes
            for row, value in zip(rows.tolist(), encoded, strict=True):
                self._lists[name][row] = value
            # Engines for whole batches hold images whole, and so get none that may be too large.
            small = sizes.astype(np.int64).prod(axis=1) <= self.spec.limits.max_image_pixels
            plain = are_plain_jpegs(encoded, sizes) & small
            plain &= True if orientations is None else orientations == 1
            chosen = np.arange(len(rows)) if on_host else np.flatnonzero(~plain)
            if not len(chosen):
                return
            rows, sizes, encoded = rows[chosen], sizes[chosen], [encoded[number] for number in chosen.tolist()]
            orientations = None if orientations is None else orientations[chosen]
        if orientations is not None:
            sizes = np.where(are_swapped(orientations)[:, None], sizes[:, ::-1], sizes)
        steps = image_steps(image.cpu_engine.recipe, sizes, self._keys(rows))
        try:
            images = image.cpu_engine(encoded, sizes, steps, out, orientations)
        except BadImage as error:
            where = self.spec.dataset.where(int(self._indices[rows[error.place]]))
            raise BadSample(f"{self.spec.dataset.path / where}, field {name!r}: {error}") from error
        if out is not None and len(out) < len(self._arrays[name][part]):
            self._arrays[name][rows] = out
        for row, pixels in zip(rows.tolist(), images, strict=True) if images is not None else ():
            self._lists[name][row] = image.cpu_engine.output_format.tensor(pixels)

    def _make_alone(self, row: int, *, images_on_host: bool = False) -> None:
        """Make one row; raise BadSample if there is not enough memory for its sample."""
        dataset, index = self.spec.dataset, int(self._indices[row])
        for attempt in range(FETCHES):
            try:
                self._make(slice(row, row + 1), images_on_host=images_on_host)
            except MemoryError as error:
                place = dataset.path / dataset.where(index)
                raise BadSample(f"{place}: there is not enough memory to read or decode it: {error}") from error
            except (BadSample, ShardCorrupt):
                if attempt + 1 == FETCHES or not dataset.refetch(index):
                    raise
            else:
                return

    def _make_or_replace(self, row: int) -> None:
        """Make one row from its own sample; if that is bad, replace or mask it."""
        index, key = int(self._indices[row]), int(self._rng_keys[row])
        first: Exception | None = None
        try:
            for attempt in range(REPLACEMENTS + 1):
                if attempt:
                    self._indices[row], self._rng_keys[row] = self._plan.replacement(index, key, attempt)
                try:
                    self._make_alone(row, images_on_host=True)
                except Exception as error:
                    if not is_bad_sample(error):
                        raise
                    first = first or error
                else:
                    if first is not None:
                        self._record(row, index, first, int(self._indices[row]))
                    return
                if self.spec.on_bad_sample == "mask":
                    self._mask(row)
                    self._record(row, index, first, None)
                    return
            where = self.spec.dataset.where(index)
            message = f"{where} is bad, and so are {REPLACEMENTS} samples in its place; its error: {first}"
            raise BadSample(message) from first
        finally:
            # The error's traceback refers to this frame, and its callers hold the batch: without this cycle the memory
            # goes back at once, and not when the garbage collector runs.
            del first

    def _record(self, row: int, index: int, error: Exception, replaced_by: int | None) -> None:
        if not self._samples.valid[row]:  # padding repeats samples that are recorded where they count
            return
        with self._lock:
            location = self.spec.dataset.locate(index)
            self._bad[row] = BadSampleRecord(self._plan.epoch, location, str(error), replaced_by)

    def _mask(self, row: int) -> None:
        """Blank a row: zeros, empty texts and bytes, or None."""
        self._valid[row], self._blank[row], self._has_blanks = False, True, True
        for there in self._present.values():
            there[row] = False
        if self._value_fields:
            self._value_bytes[row] = 0
        for array in self._arrays.values():
            array[row] = 0
        for name, values in self._lists.items():
            values[row] = self._blank_value(name)
        if self._mapped:
            self._mapped[row] = None

    def _blank_value(self, name: str) -> Any:
        """Return the value of a masked sample in a field's list."""
        kind, image = self.spec.fields[name], self.spec.images.get(name)
        if image is not None:
            numbers = image.cpu_engine.output_format
            return numbers.tensor(np.zeros(numbers.shape(image.recipe.size or (0, 0)), numbers.dtype))
        if kind.kind == "array":
            return torch.from_numpy(np.zeros((0,), self.spec.listed_dtype(name)))
        return {"text": "", "bytes": b""}.get(kind.kind)


def _value_sizes(stored: Any) -> Any:
    """Return the number of stored bytes of each value of a field, int64 [n]."""
    return stored.sizes if isinstance(stored, PackedValues) else np.array([len(value) for value in stored], np.int64)
