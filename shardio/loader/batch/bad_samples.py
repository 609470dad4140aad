"""Bad samples: made once more where that may help, then raised, replaced by others, or masked.

A sample is bad if its stored bytes cannot be read, have changed (with `verify=True`) or do not decode, or if the user's
`map` function for single samples fails on it (`quarantine.is_bad_sample`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import BadSample, ShardCorrupt
from ...order.plan import PlanSlice
from .make_rows import make_rows
from .quarantine import BadSampleRecord, is_bad_sample
from .rows import Rows

FETCHES = 3
"""The number of times that a sample in a store is read before it counts as damaged."""

_DAMAGE = (BadSample, ShardCorrupt)  # the stored bytes are not what they should be, or the copy in a cache

REPLACEMENTS = 16
"""The number of samples to try instead of a bad one."""


def fill(rows: Rows, part: slice) -> None:
    """Make the rows of `part`; raise, replace or mask bad samples as the specification says.

    Good rows stay as they are made at first. Where an error doesn't say which row is bad, it is found by halves.
    """
    spec = rows.spec
    replaces = spec.options.on_bad_sample != "raise"
    start, stop, _ = part.indices(len(rows))
    failed: list[int] = [start]
    halves: list[slice] = []
    try:
        failed = _make(rows, part)
    except Exception as error:
        # One sample may have asked for all memory: made alone, it shows which, and the others are good. And a sample
        # that is damaged in a cache may be whole in its store.
        alone = isinstance(error, (MemoryError, *_DAMAGE))
        if not (alone or (replaces and is_bad_sample(error))):
            raise
        if stop - start > 1:
            middle = (start + stop) // 2
            failed, halves = [], [slice(start, middle), slice(middle, stop)]
    for half in halves:
        fill(rows, half)
    for row in failed:
        fill_alone(rows, row, images_on_host=replaces)


def fill_alone(rows: Rows, row: int, *, images_on_host: bool = True) -> None:
    """Make one row from its own sample, its images on the host; if the sample is bad, raise, replace or mask it."""
    spec, index, key = rows.spec, int(rows.indices[row]), int(rows.rng_keys[row])
    first: Exception | None = None
    try:
        for attempt in range(REPLACEMENTS + 1):
            if attempt:
                rows.replaced.add(row)
                rows.indices[row], rows.rng_keys[row] = rows.order.replacement(index, key, attempt)
            try:
                _make_alone(rows, row, images_on_host=images_on_host)
            except Exception as error:
                if spec.options.on_bad_sample == "raise" or not is_bad_sample(error):
                    raise
                first = first or error
            else:
                if first is not None:
                    _record(rows, row, index, first, int(rows.indices[row]))
                return
            if spec.options.on_bad_sample == "mask":
                _mask(rows, row)
                _record(rows, row, index, first, None)
                return
        raise BadSample(
            f"{spec.dataset.locate(index)} is bad, and so are {REPLACEMENTS} samples in its place; its error: {first}"
        ) from first
    finally:
        # The error's traceback refers to this frame, and its callers hold the batch: without this cycle the memory
        # goes back at once, and not when the garbage collector runs.
        del first


def mapped_example(rows: Rows) -> Mapping[str, Any]:
    """Return the result of the user's function for another sample, whose names a batch of masked samples takes."""
    index, key = rows.order.replacement(int(rows.indices[0]), int(rows.rng_keys[0]), REPLACEMENTS + 1)
    sample = PlanSlice(np.array([index]), np.array([key]), np.ones(1, np.bool_), rows.planned.begins[:1])
    arrays = {name: np.empty((1, *array.shape[1:]), array.dtype) for name, array in rows.arrays.items()}
    spec = replace(rows.spec, options=replace(rows.spec.options, on_bad_sample="replace"))
    other = Rows(spec, rows.order, sample, arrays, pads=False, clock=rows.clock)
    fill(other, slice(0, 1))
    (example,) = other.mapped
    if example is None:
        raise BadSample("no sample could be read for the map function")
    return example


def _make(rows: Rows, part: slice, *, images_on_host: bool = False) -> list[int]:
    """Make the rows of `part`; return those of bad samples."""
    made = rows.unmade(part)
    make_rows(made, images_on_host=images_on_host)
    rows.put(part, made)
    return sorted(part.indices(len(rows))[0] + row for row in made.failed)


def _make_alone(rows: Rows, row: int, *, images_on_host: bool) -> None:
    """Make one row; raise BadSample if there is not enough memory for its sample."""
    spec, index = rows.spec, int(rows.indices[row])
    for attempt in range(FETCHES):
        try:
            _make(rows, slice(row, row + 1), images_on_host=images_on_host)
        except MemoryError as error:
            message = f"{spec.place_of(index)}: there is not enough memory to read or decode it: {error}"
            raise BadSample(message) from error
        except _DAMAGE:
            if attempt + 1 == FETCHES or not spec.dataset.refetch(index):
                raise
        else:
            return


def _record(rows: Rows, row: int, index: int, error: Exception, replaced_by: int | None) -> None:
    if rows.planned.valid[row]:  # padding repeats samples that are recorded where they count
        location = rows.spec.dataset.locate(index)
        rows.bad[row] = BadSampleRecord(rows.order.epoch, location, str(error), replaced_by)


def _mask(rows: Rows, row: int) -> None:
    """Blank a row: zeros, empty strings and bytes, or None."""
    rows.valid[row], rows.blank[row] = False, True
    rows.varying_bytes[row] = 0
    for column in rows.present.values():
        column[row] = False
    for name, column in rows.arrays.items():
        column[row] = rows.spec.fill(name)
    for name, values in rows.lists.items():
        values[row] = rows.spec.blank_value(name)
    if rows.mapped:
        rows.mapped[row] = None
