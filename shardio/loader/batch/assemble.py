"""Assembling a batch from its rows: the dict that the consumer gets, with the fields that a device finishes as data."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from ...engines.array_transforms import transform_and_mark
from ...engines.base import rows_of
from ...engines.torch_steps import convert_and_erase
from ...errors import MapError
from ...format.fields import presence
from ...transforms import ArrayRecipe
from ...transforms.arrays import Move
from ...transforms.mixing import mixed_labels
from .bad_samples import mapped_example
from .collate import added_name, boundaries, geometry_names, joined, nested, nested_names, unpadded
from .host_batch import Batch, DeferredField, EncodedImages, Finish, HostBatch
from .map_function import MapFunction, collate
from .mixing import LABEL, BatchFunction, mix_field
from .other_draws import mix_params
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
    columns = dict[str, list[str]]()
    for name in nested_names(spec.collations):
        columns.setdefault(spec.counted(name), []).extend(spec.with_mark(name))
    marks = {name: mark for name, mark in spec.marks.items() if spec.arrays[name].on_device}
    if columns or marks:
        finish = partial(_finish_columns, nest=columns, marks=marks, finish=finish)
    bad = tuple(rows.bad[row] for row in sorted(rows.bad) if part.start <= row < part.stop)
    return HostBatch(batch, rows.stored_bytes(part), bad, finish, (rows, part) if spec.has_batch_engine else None)


def _finish_columns(
    batch: Batch, *, nest: Mapping[str, Sequence[str]], marks: Mapping[str, str], finish: BatchFunction | None
) -> Batch:
    """Finish a batch, with columns of their own for the marks that a device made, and nested tensors."""
    finished: Batch = {}
    for name, value in batch.items():
        finished |= dict(zip((name, marks[name]), value, strict=True)) if name in marks else {name: value}
    return nested(finished if finish is None else finish(finished), nest)


def _mapped_batch(rows: Rows, part: slice, function: MapFunction) -> Batch:
    """Return the batch that the user's function made, with the loader's own columns unchanged."""
    loader_columns = _loader_columns(rows, part)
    if function.by == "sample":
        rules = rows.spec.collations
        of_marks = {mark: unpadded(rules[name]) for name, mark in rows.spec.marks.items() if name in rules}
        collated = collate(rows.mapped[part], partial(mapped_example, rows), {**rules, **of_marks})
        doubled = {added_name(mark, rule) for mark, rule in of_marks.items()}
        for name, rule in rules.items():
            own, shared = added_name(name, rule), rows.spec.added_name(name)
            if own != shared and own in collated and shared in collated:
                if not torch.equal(collated[own], collated[shared]):
                    raise MapError(f"the map function gave {name!r} and {rows.spec.counted(name)!r} unequal lengths")
                doubled.add(own)
        return {name: value for name, value in collated.items() if name not in doubled} | loader_columns
    batch = _fields(rows, part)
    argument = batch | {name: tensor.clone() for name, tensor in loader_columns.items()}
    position = int(rows.planned.begins[part.start])
    return {**function.apply(argument, rows.indices[part].tolist(), rows.keys(part), position), **loader_columns}


def _loader_columns(rows: Rows, part: slice) -> Batch:
    """Return the columns that the loader adds: `index`, `source` for a mixture, and `valid` if rows may be invalid."""
    columns = rows.spec.dataset.sample_ids(rows.indices[part])
    batch: Batch = {name: torch.from_numpy(values) for name, values in columns.items()}
    if rows.pads or rows.spec.options.on_bad_sample == "mask":
        batch["valid"] = torch.from_numpy(rows.valid[part])
    return batch


def _fields(rows: Rows, part: slice) -> Batch:
    """Return the fields, each followed by its columns: where crops begin, and where an optional tensor has values."""
    batch: Batch = {}
    for name in rows.spec.fields:
        batch |= _field(rows, part, name)
        for column in geometry_names(name) if name in rows.spec.geometry else ():
            batch[column] = torch.from_numpy(rows.arrays[column][part])
        if (offset := rows.spec.offsets.get(name)) is not None:
            batch[offset] = torch.from_numpy(rows.arrays[offset][part])
        for column in rows.spec.clip_columns.get(name, ()):
            batch[column] = torch.from_numpy(rows.arrays[column][part])
        if name in rows.present and rows.spec.stacked(name):
            batch[presence(name)] = torch.from_numpy(rows.present[name][part])
    return batch


def _field(rows: Rows, part: slice, name: str) -> Batch:
    """Return a field of a batch, with the column that joining its values adds."""
    spec = rows.spec
    rule = spec.collations.get(name)
    if spec.fields[name].role == "segments":
        return {name: boundaries(rows.lists[name][part])}
    marks = spec.with_mark(name)[1:]
    if (image := spec.images.get(name)) is not None and image.padder is not None:
        return {name: _stacked(rows, part, name)}
    if name in rows.arrays:
        added = [mark for mark in marks if mark in rows.arrays] + ([] if rule is None else [spec.added_name(name)])
        return {name: _stacked(rows, part, name)} | {n: torch.from_numpy(rows.arrays[n][part]) for n in added}
    if rule is not None:
        batch = joined(name, rows.lists[name][part], rule, partial(spec.tensor, name), spec.added_name(name))
        for mark in marks:
            batch[mark] = joined(mark, rows.lists[mark][part], unpadded(rule), torch.from_numpy)[mark]
        return batch
    if image is not None and image.batch_engine:
        sizes = rows.image_sizes[name][part]
        boxes = rows.boxes_of(name, part) if name in rows.boxes else ()
        steps = image.recipe.steps(sizes, rows.field_keys(name, part), *boxes)
        return {name: EncodedImages(rows.lists[name][part], sizes, steps)}
    if spec.fields[name].kind in ("text", "bytes", "json"):
        return {name: rows.lists[name][part]}
    return {n: [rows.value(n, row) for row in range(part.start, part.stop)] for n in (name, *marks)}


def _stacked(rows: Rows, part: slice, name: str) -> torch.Tensor | DeferredField:
    """Return the rows of a field that are in one array, with the transforms that the device carries out."""
    spec = rows.spec
    image, array = spec.images.get(name) or spec.clips.get(name), spec.arrays.get(name)
    finish: Finish | None = None
    if array is not None and array.on_device:
        moves = array.recipe.moves(rows.field_keys(name, part))
        finish = partial(_transformed, recipe=array.recipe, moves=moves)
    if image is not None and image.padder is not None:
        tensor = image.padder([None if each is None else each.numpy() for each in rows.lists[name][part]])
    else:
        tensor = spec.tensor(name, rows.arrays[name][part])
    if image is not None and image.finished_on_device:
        boxes = image.recipe.erase_steps(rows.field_keys(name, part))
        if image.frames:
            of_frames = np.repeat(np.arange(part.stop - part.start), image.frames)
            boxes = tuple(rows_of(step, of_frames) for step in boxes)
        finish = partial(convert_and_erase, recipe=image.recipe, erasings=boxes, channels_last=spec.channels_last)
        finish = partial(_frame_by_frame, finish=finish) if image.frames else finish
    if finish is None:
        return tensor
    absent = np.flatnonzero(~rows.present[name][part]).tolist() if name in rows.present else []
    return DeferredField(tensor, partial(_finish_and_zero, finish=finish, blank=[*rows.masked(part), *absent]))


def _transformed(tensor: torch.Tensor, recipe: ArrayRecipe, moves: Sequence[Move]) -> torch.Tensor | list[torch.Tensor]:
    """Carry out a recipe on a device; return the result and, if it is wanted, which values were filled."""
    values, filled = transform_and_mark(tensor, recipe, moves)
    return values if filled is None or recipe.filling is None or not recipe.filling.mask else [values, filled]


def _frame_by_frame(clips: torch.Tensor, finish: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Finish clips, [B, T, ...], as images are finished."""
    frames = finish(clips.flatten(0, 1))
    return frames.reshape(*clips.shape[:2], *frames.shape[1:])


def _finish_and_zero(tensor: torch.Tensor, finish: Finish, blank: Sequence[int]) -> torch.Tensor | list[torch.Tensor]:
    finished = finish(tensor)
    return [_zero_rows(each, blank) for each in finished] if isinstance(finished, list) else _zero_rows(finished, blank)


def _zero_rows(tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Set some rows of `tensor` to zero, in place, and return it."""
    for row in rows:
        tensor[row] = 0
    return tensor
