"""Assembling a batch from its rows: the dict that the consumer gets, with the fields that a device finishes as data."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from ...engines.array_transforms import transform_tensor
from ...engines.torch_steps import convert_and_erase
from ...format.fields import presence
from ...transforms.mixing import mixed_labels
from .bad_samples import mapped_example
from .collate import boundaries, joined, length_name, nested, nested_names
from .host_batch import Batch, DeferredField, EncodedImages, HostBatch, TensorFunction
from .map_function import MapFunction, collate
from .mixing import LABEL, BatchFunction, mix_field
from .random_params import array_moves, erased_boxes, image_steps, mix_params
from .rows import Rows


def assemble(rows: Rows, part: slice) -> HostBatch:
    """Return the batch of some rows, mapped and mixed if workers do that. Pure except for the user's own function."""
    spec, finish = rows.spec, None
    if spec.options.map_function is not None:
        batch = _mapped_batch(rows, part, spec.options.map_function)
    else:
        batch = _fields(rows, part) | _loader_columns(rows, part)
    if spec.mixing is not None:
        params = mix_params(spec.mixing.mixers, spec.mixing.size, rows.keys(part), rows.valid[part])
        shares = mixed_labels(batch[LABEL].numpy(), params, spec.mixing.num_classes)
        batch[LABEL] = _zero_rows(torch.from_numpy(shares), rows.masked(part))
        finish = partial(mix_field, field=spec.mixing.image, params=params)
        if not spec.mixing.on_device:
            batch, finish = finish(batch), None
    if names := nested_names(spec.collations):
        finish = partial(_finish_and_nest, names=names, finish=finish)
    bad = tuple(rows.bad[row] for row in sorted(rows.bad) if part.start <= row < part.stop)
    return HostBatch(batch, rows.stored_bytes(part), bad, finish, (rows, part) if spec.has_batch_engine else None)


def _finish_and_nest(batch: Batch, *, names: Sequence[str], finish: BatchFunction | None) -> Batch:
    return nested(batch if finish is None else finish(batch), names)


def _mapped_batch(rows: Rows, part: slice, function: MapFunction) -> Batch:
    """Return the batch that the user's function made, with the loader's own columns unchanged."""
    loader_columns = _loader_columns(rows, part)
    if function.by == "sample":
        return collate(rows.mapped[part], partial(mapped_example, rows), rows.spec.collations) | loader_columns
    batch = _fields(rows, part)
    argument = batch | {name: tensor.clone() for name, tensor in loader_columns.items()}
    return function.apply_to_batch(argument, rows.indices[part].tolist(), rows.keys(part)) | loader_columns


def _loader_columns(rows: Rows, part: slice) -> Batch:
    """Return the columns that the loader adds: `index`, `source` for a mixture, and `valid` if rows may be invalid."""
    columns = rows.spec.dataset.sample_ids(rows.indices[part])
    batch: Batch = {name: torch.from_numpy(values) for name, values in columns.items()}
    if rows.pads or rows.spec.options.on_bad_sample == "mask":
        batch["valid"] = torch.from_numpy(rows.valid[part])
    return batch


def _fields(rows: Rows, part: slice) -> Batch:
    """Return the fields, each followed by the column that says where an optional one that is stacked has values."""
    batch: Batch = {}
    for name in rows.spec.fields:
        batch |= _field(rows, part, name)
        if name in rows.present and rows.spec.stacked(name):
            batch[presence(name)] = torch.from_numpy(rows.present[name][part])
    return batch


def _field(rows: Rows, part: slice, name: str) -> Batch:
    """Return a field of a batch, with the column that joining its values adds."""
    spec = rows.spec
    rule = spec.collations.get(name)
    if spec.fields[name].role == "segments":
        return {name: boundaries(rows.lists[name][part])}
    if name in rows.arrays:
        added = () if rule is None else (length_name(name),)
        return {name: _stacked(rows, part, name)} | {n: torch.from_numpy(rows.arrays[n][part]) for n in added}
    if rule is not None:
        return joined(name, rows.lists[name][part], rule, partial(spec.tensor, name))
    if (image := spec.images.get(name)) is not None and image.batch_engine:
        sizes = rows.image_sizes[name][part]
        steps = image_steps(image.recipe, sizes, rows.field_keys(name, part))
        return {name: EncodedImages(rows.lists[name][part], sizes, steps)}
    return {name: [rows.value(name, row) for row in range(part.start, part.stop)]}


def _stacked(rows: Rows, part: slice, name: str) -> torch.Tensor | DeferredField:
    """Return the rows of a field that are in one array, with the transforms that the device carries out."""
    spec = rows.spec
    image, array = spec.images.get(name), spec.arrays.get(name)
    finish: TensorFunction | None = None
    if array is not None and array.on_device:
        moves = array_moves(array.recipe, rows.field_keys(name, part))
        finish = partial(transform_tensor, recipe=array.recipe, moves=moves)
    tensor = spec.tensor(name, rows.arrays[name][part])
    if image is not None and image.finished_on_device:
        boxes = erased_boxes(image.recipe, rows.field_keys(name, part))
        finish = partial(convert_and_erase, recipe=image.recipe, erasings=boxes, channels_last=spec.channels_last)
    if finish is None:
        return tensor
    absent = np.flatnonzero(~rows.present[name][part]).tolist() if name in rows.present else []
    return DeferredField(tensor, partial(_finish_and_zero, finish=finish, blank=[*rows.masked(part), *absent]))


def _finish_and_zero(tensor: torch.Tensor, finish: TensorFunction, blank: Sequence[int]) -> torch.Tensor:
    return _zero_rows(finish(tensor), blank)


def _zero_rows(tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Set some rows of `tensor` to zero, in place, and return it."""
    for row in rows:
        tensor[row] = 0
    return tensor
