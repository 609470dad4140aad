"""Making rows: samples are read, verified, decoded, transformed and given to the user's function for samples."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...containers.packed_values import PackedValues
from ...engines.base import rows_of
from ...engines.cpu import make_images
from ...engines.jpeg_headers import are_plain_jpegs, orientations_of
from ...engines.orientation import upright_sizes
from ...errors import BadSample, ConfigError, MapError
from ...format.fields import present_column
from ...system import helper_process
from ...transforms.steps import Sizes, Step
from ...views.readable import SelectedSamples, decoded
from .clip_plan import plan_clips
from .decisions import Decisions, decide
from .extents import extents
from .make_arrays import (
    RaggedRead,
    make_fixed,
    make_listed,
    make_ragged,
    make_tokens,
    read_block,
    read_ragged,
    read_whole,
)
from .make_clips import check_clips, make_clips, make_image_clips, read_clips
from .make_image_lists import make_image_lists
from .make_instances import UprightBoxes, place_image, place_instances, upright_boxes
from .mixing import LABEL
from .pairs import check_pairs, note_image_sizes
from .rows import Rows


def make_rows(rows: Rows, *, images_on_host: bool = False) -> None:
    """Make the values of rows. Raises the error of a bad sample, unless it can leave it among `rows.failed`.

    If `images_on_host`, the CPU engine makes all images, also those of an engine for whole batches.
    """
    spec, dataset, clock, indices = rows.spec, rows.spec.dataset, rows.clock, rows.indices
    names = spec.names
    with ExitStack() as lent:
        lent.enter_context(helper_process.time_limit(spec.options.read_limit))
        with clock.stage("read"):
            rows.decided = _decided(rows, lent)
            selection = rows.decided.selection
            for name, there in rows.present.items():
                there[:] = selection.column(present_column(names.stored[name]))
            blocks = {name: read_block(rows, name, selection, lent) for name in spec.fields if spec.reads_blocks(name)}
            whole = [name for name, delivered in names.delivered.items() if not blocks.keys() >= {*delivered}]
            planned = {name: plan_clips(spec, name, selection, rows.keys(), indices) for name in spec.videos}
            stored = {name: _read(rows, name, selection, lent) for name in whole if name not in planned}
            clips = {name: read_clips(rows, name, plan, selection) for name, plan in planned.items()}
            instances = {
                root: found if isinstance(found := stored.get(root), RaggedRead) else read_whole(rows, root, selection)
                for root in spec.roots
            }
        if spec.options.verify:
            with clock.stage("verify"):
                read = {name: each.stored() if isinstance(each, RaggedRead) else each for name, each in stored.items()}
                for name, plan in planned.items():
                    check_clips(rows, name, plan, clips[name])
                dataset.check(indices, read, spec.options.limits.max_value_bytes)
        if spec.mixing is not None:
            _check_labels(rows, stored[names.stored[LABEL]], spec.mixing.num_classes - 1)
        with clock.stage("decode"):
            upright = upright_boxes(rows, stored, instances) if spec.cropped_for else {}
            for field, delivered in names.delivered.items():
                if spec.fields[delivered[0]].is_image:
                    _decode_images(rows, delivered, stored[field], upright, on_host=images_on_host)
                elif field in clips:
                    make_clips(rows, field, planned[field], clips[field])
                elif spec.fields[delivered[0]].kind == "images":
                    lists = decoded(dataset, field, stored[field], indices, rows.present.get(delivered[0]))
                    make_image_lists(rows, [name for name in delivered if name in spec.image_lists], lists)
                    make_image_clips(rows, [name for name in delivered if name in spec.clips], lists, selection)
            placed = place_instances(rows, stored, instances) if spec.groups else {}
            for name, kind in spec.fields.items():
                field = names.stored[name]
                if kind.is_image or name in spec.image_lists or name in spec.clips:
                    continue
                if name in placed:
                    make_ragged(rows, name, placed[name], owned=True)
                elif name in blocks:
                    make_fixed(rows, name, *blocks[name])
                elif isinstance(found := stored[field], RaggedRead):
                    make_ragged(rows, name, found)
                elif name in spec.arrays and kind.fixed:
                    make_fixed(rows, name, found)
                elif not kind.fixed:
                    values = decoded(dataset, field, found, indices, rows.present.get(name))
                    if kind.kind == "array":
                        make_listed(rows, name, values)
                    elif name in spec.arrays:
                        make_tokens(rows, name, values)
                    else:
                        rows.lists[name] = values
            check_pairs(rows)
            for name, there in rows.present.items():
                if not there.all():
                    _blank(rows, name, np.flatnonzero(~there).tolist())
    if rows.mapped and spec.options.map_function is not None:
        with clock.stage("map"):
            for row, index in enumerate(indices.tolist()):
                if row in rows.failed:
                    continue
                sample = {name: rows.value(name, row) for name in spec.fields} | rows.added_columns(row)
                own_keys, position = rows.keys(slice(row, row + 1)), int(rows.planned.begins[row])
                sample["index"] = index
                try:
                    rows.mapped[row] = spec.options.map_function.apply(sample, index, own_keys, position)
                except MapError:
                    if spec.options.on_bad_sample == "raise" or len(rows) == 1:
                        raise
                    rows.failed.add(row)
    for name in spec.varying:
        if name in stored and not isinstance(stored[name], RaggedRead):
            rows.varying_bytes += _sizes(stored[name])


def _decided(rows: Rows, lent: ExitStack) -> Decisions:
    """Return what is decided of rows, once for all rows of their job unless their shards are in a store."""
    spec, dataset = rows.spec, rows.spec.dataset
    if rows.part_of is not None and not dataset.in_store:
        whole, part = rows.part_of
        if (shared := whole.decide_once(partial(_decided, whole, lent))) is not None:
            return shared if len(rows) == len(whole) else shared[part]
    selection = dataset.selection(rows.indices, spec.options.limits.max_value_bytes)
    if dataset.in_store:  # all at once: two threads that hold some and wait for more could wait for each other
        lent.enter_context(selection.fetch(spec.columns, extents(spec, selection, rows.keys(), rows.indices)))
    return decide(spec, selection, rows.keys())


def _read(rows: Rows, name: str, selection: SelectedSamples, lent: ExitStack) -> Any:
    """Read a stored field once for all names that deliver it.

    Return an array (if possible the batch's) if all values have one size, or bytes.
    """
    spec, delivered = rows.spec, rows.spec.names.delivered[name]
    kind = spec.fields[delivered[0]]
    if kind.ragged:
        return read_ragged(rows, name, selection)
    if kind.fixed:
        own = [rows.arrays[each] for each in delivered if spec.holds_stored_values(each)]
        if not own:  # transforms write the batch
            memory = lent.enter_context(spec.scratch.lend()).take(len(rows) * kind.row_bytes)
            own = [memory.view(kind.row_dtype).reshape(len(rows), *kind.row_shape)]
        values = selection.column(name, own[0])
        for copy in own[1:]:
            copy[...] = values
        return values
    if delivered[0] not in rows.image_sizes and kind.kind != "array":
        return selection.values(name, lent.enter_context(spec.scratch.lend()))
    scratch = spec.scratch.take()
    if kind.kind == "image":  # files for an engine for whole batches must outlive this call
        rows.scratches.append(scratch)
        return selection.values(name, scratch)
    stored = selection.values(name, scratch)
    if isinstance(stored, PackedValues):  # of which the batch's arrays are views
        spec.scratch.give_back_when_gone(stored.data, [scratch])
    else:
        spec.scratch.give_back(scratch)
    return stored


def _sizes(stored: Any) -> Any:
    """Return the number of stored bytes of each value of a field, int64 [n]."""
    return stored.sizes if isinstance(stored, PackedValues) else np.array([len(value) for value in stored], np.int64)


def _blank(rows: Rows, name: str, missing: Sequence[int]) -> None:
    """Put what stands for missing values into some rows: transforms may have made something of zeros."""
    spec = rows.spec
    for each in spec.with_mark(name):
        if each in rows.arrays:
            rows.arrays[each][missing] = spec.fill(each)
        for row in missing if name in spec.collations and each in rows.lists else ():
            rows.lists[each][row] = spec.blank_value(each)
    if name in spec.collations and (lengths := spec.added_name(name)) in rows.arrays:
        rows.arrays[lengths][missing] = 0
    for column in (*([spec.offsets[name]] if name in spec.offsets else []), *spec.clip_columns.get(name, ())):
        rows.arrays[column][missing] = 0


def _check_labels(rows: Rows, labels: NDArray[Any], largest: int) -> None:
    """Raise BadSample for a label below 0, ConfigError for one above the largest."""
    for row in np.flatnonzero((labels < 0) | (labels > largest)).tolist():
        place, label = rows.spec.place_of(rows.indices[row]), labels[row]
        message = f"{place}, field {LABEL!r}: mixing needs labels from 0 to {largest}, got {label}"
        # A label that is too large more likely means a wrong num_classes than a bad sample.
        raise ConfigError(f"{message}: give a larger num_classes") if label > largest else BadSample(message)


def _decode_images(
    rows: Rows, names: Sequence[str], encoded: Sequence[Any], boxes: Mapping[str, UprightBoxes], *, on_host: bool
) -> None:
    """Make the images of a stored field under all its names with the CPU engine, and note how they lie.

    An engine for whole batches leaves it only those that it would refuse. `boxes` are what crops are drawn for.
    """
    spec, kind, first = rows.spec, rows.spec.fields[names[0]], rows.spec.images[names[0]]
    stored = spec.names.stored[names[0]]
    numbers, sizes = np.arange(len(rows)), rows.decided.sizes[stored]
    if kind.optional and kind.kind == "image" and not (there := rows.present[names[0]]).all():
        for name in names:
            for row in numbers[~there].tolist() if name in rows.lists else ():
                rows.lists[name][row] = spec.blank_value(name) if first.batch_engine else None
        encoded = [encoded[row] for row in np.flatnonzero(there).tolist()]
        numbers, sizes = numbers[there], sizes[there]
    orientations = orientations_of(encoded) if spec.options.orient and kind.kind == "image" else None
    for name in spec.placed.intersection(names):
        place_image(rows, name, numbers, sizes, orientations, boxes)
    if kind.fixed:  # pixels that stay as they are were read into the batch
        names = [name for name in names if not spec.images[name].cpu_engine.keeps_pixels]
    if not names or not len(numbers):
        return
    for name in names:
        if (watch := spec.images[name].watch) is not None:
            watch.look(encoded)
    upright = sizes if orientations is None else upright_sizes(sizes, orientations)
    note_image_sizes(rows, names, upright, numbers)
    if first.batch_engine:
        for name in names:
            rows.image_sizes[name][numbers] = sizes
            for row, file in zip(numbers.tolist(), encoded, strict=True):
                rows.lists[name][row] = file
        # Engines for whole batches hold images whole, and so get none that may be too large.
        small = sizes.astype(np.int64).prod(axis=1) <= spec.options.limits.max_image_pixels
        plain = are_plain_jpegs(encoded, sizes) & small
        plain &= True if orientations is None else orientations == 1
        chosen = np.arange(len(numbers)) if on_host else np.flatnonzero(~plain)
        if not len(chosen):
            return
        numbers, upright, encoded = numbers[chosen], upright[chosen], [encoded[place] for place in chosen.tolist()]
        orientations = None if orientations is None else orientations[chosen]
    engines = [spec.images[name].cpu_engine for name in names]
    steps = [rows.decided.drawn.get(name) or _steps(rows, name, upright, numbers) for name in names]
    outs = [_out(rows, name, numbers) for name in names]
    failed: dict[int, BadSample] = {}
    made = make_images(engines, encoded, upright, steps, outs, orientations, failed)
    if failed and len(rows) == 1:  # a sample that is made alone says what is wrong
        raise BadSample(f"{spec.place_of(rows.indices[0], stored)}: {failed[0]}") from failed[0]
    rows.failed.update(numbers[[*failed]].tolist())
    for name, engine, out, images in zip(names, engines, outs, made, strict=True):
        if out is not None and len(out) < len(rows):
            rows.arrays[name][numbers] = out
        for row, pixels in zip(numbers.tolist(), images, strict=True) if images is not None else ():
            if row not in rows.failed:
                rows.lists[name][row] = engine.output_format.tensor(pixels)


def _steps(rows: Rows, name: str, upright: Sizes, numbers: NDArray[np.int64]) -> Sequence[Step]:
    """Return the steps of the images of some rows, which are `upright`."""
    if (placement := rows.placements.get(name)) is not None:
        return [rows_of(step, numbers) for step in placement.steps]
    return rows.spec.images[name].cpu_engine.recipe.steps(upright, rows.field_keys(name)[numbers])


def _out(rows: Rows, name: str, numbers: NDArray[np.int64]) -> NDArray[Any] | None:
    """Return the array for the images of some rows: the batch's, or another one if some rows have none."""
    out = rows.arrays.get(name)
    return out if out is None or len(numbers) == len(out) else np.empty((len(numbers), *out.shape[1:]), out.dtype)
