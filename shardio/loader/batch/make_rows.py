"""Making rows: samples are read, verified, decoded, transformed and given to the user's function for samples."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from ...containers.row_locator import PackedValues
from ...dataset.readable import SelectedSamples
from ...engines.array_transforms import first_overflow, transform_arrays
from ...engines.cpu import BadImage
from ...engines.jpeg_headers import are_plain_jpegs, orientations_of
from ...engines.orientation import are_swapped
from ...errors import BadSample, ConfigError
from ...format.fields import present_column, shape_column
from ...system import helper_process
from ...system.timing import StageClock
from .mixing import LABEL
from .random_params import RandomKeys, array_moves, image_steps
from .rows import RowValues
from .spec import BatchSpec


def make_rows(
    spec: BatchSpec,
    indices: NDArray[np.int64],
    keys: RandomKeys,
    arrays: Mapping[str, NDArray[Any]],
    clock: StageClock,
    *,
    images_on_host: bool = False,
) -> RowValues:
    """Make rows of samples, and return their values. Raises the error of a bad sample.

    Args:
        spec: the specification of the batches.
        indices: the samples, int64 [n].
        keys: what determines their random parameters.
        arrays: the memory of the fields in `spec.array_layout`, `[n, ...]` each.
        clock: measures the time of each stage.
        images_on_host: whether the CPU engine makes all images, for an engine for whole batches too.
    """
    values, dataset, limit = RowValues.empty(spec, len(indices), arrays), spec.dataset, spec.limits.max_value_bytes
    with ExitStack() as lent:
        lent.enter_context(helper_process.time_limit(spec.read_limit))
        if dataset.is_remote:
            with clock.stage("fetch"):
                selection = dataset.select(indices, limit)
                # All at once: two threads that hold some and wait for more could wait for each other.
                lent.enter_context(selection.fetched(spec.columns))
        with clock.stage("read"):
            if not dataset.is_remote:
                selection = dataset.select(indices, limit)
            for name, there in values.present.items():
                there[:] = selection.column(present_column(name))
            read = [name for name in spec.fields if name not in spec.gpu_direct_fields]
            stored = {name: _read(name, selection, values, lent) for name in read}
        if spec.verify:
            with clock.stage("verify"):
                dataset.check(indices, stored, limit)
        if spec.mixing is not None:
            _check_labels(spec, stored[LABEL], indices)
        with clock.stage("decode"):
            for name, kind in spec.fields.items():
                if kind.is_image:
                    sizes = np.full((len(indices), 2), kind.shape, np.int32) if kind.fixed else None
                    sizes = selection.column(shape_column(name)) if sizes is None else sizes
                    _decode_images(name, stored[name], sizes, indices, keys, values, on_host=images_on_host)
                elif name in spec.arrays and name in stored:
                    _transform_arrays(name, stored[name], indices, keys, values)
                elif not kind.fixed:
                    listed = dataset.decode(name, stored[name], indices, values.present.get(name))
                    values.lists[name][:] = _tensors(spec, name, listed, indices) if kind.kind == "array" else listed
            for name, there in values.present.items():  # transforms may have made something of zeros
                if name in arrays and not there.all():
                    arrays[name][~there] = 0
    if spec.map_function is not None and spec.maps_samples:
        with clock.stage("map"):
            for row, index in enumerate(indices.tolist()):
                sample = {name: values.value(name, row) for name in spec.fields} | values.presence_columns(row)
                sample["index"] = index
                own_keys = keys[slice(row, row + 1)]
                values.mapped[row] = spec.map_function.apply_to_sample(sample, index, own_keys)
    for name in spec.varying:
        values.varying_bytes += _sizes(stored[name])
    return values


def _read(name: str, selection: SelectedSamples, values: RowValues, lent: ExitStack) -> Any:
    """Return the stored values of a field: an array (if possible the batch's) if all have one size, or bytes."""
    spec, kind = values.spec, values.spec.fields[name]
    image, array = spec.images.get(name), spec.arrays.get(name)
    out, scratch = values.arrays[name] if kind.fixed else None, None
    from_scratch = (image is not None and not image.cpu_engine.keeps_pixels) or (
        array is not None and not (array.on_device or array.in_place)
    )
    if kind.fixed and from_scratch:  # transforms write the batch
        count = len(values.varying_bytes)
        memory = lent.enter_context(spec.scratch.lend()).take(count * kind.row_bytes)
        out = memory.view(kind.row_dtype).reshape(count, *kind.row_shape)
    if kind.kind == "image" and image is not None and image.batch_engine:  # its files must outlive this call
        scratch = spec.scratch.take()
        values.scratches.append(scratch)
    elif kind.kind == "image":
        scratch = lent.enter_context(spec.scratch.lend())
    elif kind.kind == "array" and not kind.fixed:
        scratch = spec.scratch.take()
        stored = selection.values(name, scratch)
        if isinstance(stored, PackedValues):  # of which the batch's arrays are views
            spec.scratch.give_back_when_gone(stored.data, [scratch])
        else:
            spec.scratch.give_back(scratch)
        return stored
    return selection.stored(name, out, scratch)


def _sizes(stored: Any) -> Any:
    """Return the number of stored bytes of each value of a field, int64 [n]."""
    return stored.sizes if isinstance(stored, PackedValues) else np.array([len(value) for value in stored], np.int64)


def _transform_arrays(
    name: str, stored: NDArray[Any], indices: NDArray[np.int64], keys: RandomKeys, values: RowValues
) -> None:
    array = values.spec.arrays[name]
    moves = array_moves(array.recipe, keys)
    if (lost := first_overflow(stored, array.recipe, moves)) is not None:
        row, number = lost
        _raise_overflow(values.spec, name, int(indices[row]), number)
    if not array.on_device:
        transform_arrays(stored, array.recipe, moves, values.arrays[name])


def _tensors(
    spec: BatchSpec, name: str, arrays: Sequence[NDArray[Any] | None], indices: NDArray[np.int64]
) -> list[torch.Tensor | None]:
    """Return arrays whose shapes differ as the tensors to deliver; BadSample if int64 cannot hold a number."""
    if name in spec.ragged_as_int64:
        stored, arrays = arrays, [None if array is None else array.astype(np.int64) for array in arrays]
        for row, (array, given) in enumerate(zip(arrays, stored, strict=True)):
            if given is not None and given.dtype == np.uint64 and array is not None and (array < 0).any():
                _raise_overflow(spec, name, int(indices[row]), given[array < 0][0])
    return [None if array is None else torch.from_numpy(array) for array in arrays]


def _raise_overflow(spec: BatchSpec, name: str, index: int, number: Any) -> NoReturn:
    array = spec.arrays.get(name)
    dtype = "int64" if array is None or array.recipe.conversion is None else array.recipe.conversion.dtype
    raise BadSample(f"{spec.place_of(index)}, field {name!r}: {dtype} cannot hold what the transforms make of {number}")


def _check_labels(spec: BatchSpec, labels: NDArray[Any], indices: NDArray[np.int64]) -> None:
    """Raise BadSample for a label below 0, ConfigError for a label of `num_classes` or more."""
    if spec.mixing is None or (wrong := spec.mixing.first_wrong_label(labels)) is None:
        return
    place, label, largest = spec.place_of(int(indices[wrong])), labels[wrong], spec.mixing.num_classes - 1
    message = f"{place}, field {LABEL!r}: mixing needs labels from 0 to {largest}, got {label}"
    # A label that is too large more likely means a wrong num_classes than a bad sample.
    raise ConfigError(f"{message}: give a larger num_classes") if label > largest else BadSample(message)


def _decode_images(
    name: str,
    encoded: Sequence[Any],
    sizes: NDArray[np.int32],
    indices: NDArray[np.int64],
    keys: RandomKeys,
    values: RowValues,
    *,
    on_host: bool,
) -> None:
    """Make images with the CPU engine: all, or only those that the engine for whole batches would refuse."""
    spec, image, kind = values.spec, values.spec.images[name], values.spec.fields[name]
    rows, out = np.arange(len(indices)), values.arrays.get(name)
    if kind.fixed and image.cpu_engine.keeps_pixels:  # they were read into the batch
        return
    if kind.optional and kind.kind == "image" and not (there := values.present[name]).all():
        for row in rows[~there].tolist() if name in values.lists else ():
            values.lists[name][row] = spec.blank_value(name) if image.batch_engine else None
        encoded = [encoded[number] for number in np.flatnonzero(there).tolist()]
        rows, sizes = rows[there], sizes[there]
        out = None if out is None else np.empty((len(rows), *out.shape[1:]), out.dtype)
        if not len(rows):
            return
    if image.watch is not None:
        image.watch.look(encoded)
    orientations = orientations_of(encoded) if image.orient and kind.kind == "image" else None
    if image.batch_engine:
        values.image_sizes[name][rows] = sizes
        for row, file in zip(rows.tolist(), encoded, strict=True):
            values.lists[name][row] = file
        # Engines for whole batches hold images whole, and so get none that may be too large.
        small = sizes.astype(np.int64).prod(axis=1) <= spec.limits.max_image_pixels
        plain = are_plain_jpegs(encoded, sizes) & small
        plain &= True if orientations is None else orientations == 1
        chosen = np.arange(len(rows)) if on_host else np.flatnonzero(~plain)
        if not len(chosen):
            return
        rows, sizes, encoded = rows[chosen], sizes[chosen], [encoded[number] for number in chosen.tolist()]
        orientations = None if orientations is None else orientations[chosen]
    if orientations is not None:
        sizes = np.where(are_swapped(orientations)[:, None], sizes[:, ::-1], sizes)
    steps = image_steps(image.cpu_engine.recipe, sizes, keys[rows])
    try:
        images = image.cpu_engine(encoded, sizes, steps, out, orientations)
    except BadImage as error:
        place = spec.place_of(int(indices[rows[error.place]]))
        raise BadSample(f"{place}, field {name!r}: {error}") from error
    if out is not None and len(out) < len(indices):
        values.arrays[name][rows] = out
    for row, pixels in zip(rows.tolist(), images, strict=True) if images is not None else ():
        values.lists[name][row] = image.cpu_engine.output_format.tensor(pixels)
