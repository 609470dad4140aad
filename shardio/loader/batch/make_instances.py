"""Making instances: images are placed, and boxes, points and what is per instance are moved and filtered with them."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...engines.jpeg_headers import orientations_of
from ...engines.orientation import Orientations, upright_steps
from ...errors import BadSample
from ...transforms.coordinates import Boxes, Owners, geometry, move_boxes, sizes_after
from ...transforms.steps import Sizes
from .collate import geometry_names
from .instances import InstanceGroup, Placement, kept
from .make_arrays import RaggedRead, place_of
from .rows import Rows

_FARTHEST = 1 << 24  # float32 holds all integers up to it
UprightBoxes: TypeAlias = tuple[Boxes, Owners]
"""Boxes on upright images, and the row of each."""


def upright_boxes(
    rows: Rows, stored: Mapping[str, Any], instances: Mapping[str, RaggedRead]
) -> dict[str, UprightBoxes]:
    """Return the boxes that crops are drawn for, by field.

    They are turned as their image is, which need not be the one that is cropped: a mask has no EXIF orientation.
    """
    found: dict[str, UprightBoxes] = {}
    for root in {*rows.spec.cropped_for.values()}:
        boxes, owners = _checked(rows, root, instances[root]), _owners(instances[root].lengths)
        image = rows.spec.dataset.fields[root].on or ""
        if rows.spec.options.orient and rows.spec.dataset.fields[image].kind == "image":
            turns = upright_steps(orientations_of(stored[image]))
            boxes = move_boxes(boxes, owners, rows.decided.sizes[image], turns)
        found[root] = boxes, owners
    return found


def place_image(
    rows: Rows,
    name: str,
    numbers: NDArray[np.int64],
    sizes: Sizes,
    orientations: Orientations | None,
    upright: Mapping[str, UprightBoxes],
) -> None:
    """Note how the images of some rows lie, under one name, and tell it in the batch's columns if it has them.

    Args:
        rows: all rows.
        name: the name.
        numbers: the rows that have an image.
        sizes: these images' stored heights and widths, int32 [k, 2].
        orientations: their EXIF orientations; None leaves them as stored.
        upright: the boxes that crops are drawn for, by field.
    """
    spec, boxes = rows.spec, upright.get(rows.spec.cropped_for.get(name, ""), ())
    if boxes and name in rows.boxes:
        rows.boxes[name][:] = np.split(boxes[0], np.searchsorted(boxes[1], np.arange(1, len(rows))))
    recipe, drawn = spec.images[name].cpu_engine.recipe, rows.decided.placed.get(name)
    placement = Placement.of(recipe, rows.field_keys(name), sizes, orientations, numbers, boxes, drawn)
    rows.placements[name] = placement
    if placement.padded:
        _check_canvas(rows, name, placement)
    if name in spec.geometry:
        (maps, _), delivered = geometry(placement.sizes, placement.all_steps), placement.delivered_sizes
        there = placement.there[:, None]
        columns = (maps * there[..., None], placement.sizes * there, delivered * there)
        for column, values in zip(geometry_names(name), columns, strict=True):
            rows.arrays[column][:] = values


def _check_canvas(rows: Rows, name: str, placement: Placement) -> None:
    """Raise BadSample for an image that is larger than what it is to be padded to."""
    canvas, sizes = sizes_after(placement.steps[-1], placement.sizes), placement.delivered_sizes
    for row in np.flatnonzero((sizes > canvas).any(axis=1) & placement.there)[:1].tolist():
        (height, width), (rows_of, columns) = sizes[row].tolist(), canvas[row].tolist()
        raise BadSample(
            f"{place_of(rows, name, row)}: PadImages takes at most {rows_of} x {columns}, got {height} x {width}"
        )


def place_instances(
    rows: Rows, stored: Mapping[str, Any], instances: Mapping[str, RaggedRead]
) -> dict[str, RaggedRead]:
    """Return the values of all groups, by name, as they lie on the delivered images, without what is not delivered.

    Raises BadSample for a sample whose fields of a group have several lengths.
    """
    placed: dict[str, RaggedRead] = {}
    for group in rows.spec.groups:
        reads = {name: stored[rows.spec.names.stored[name]] for name in group.names}
        root = instances[group.root]
        if group.rules:
            _checked(rows, group.root, root)
        for name, read in reads.items():
            if rows.spec.fields[name].on is not None:
                _checked(rows, rows.spec.names.stored[name], read)
            for row in np.flatnonzero(read.lengths != root.lengths)[:1].tolist():
                raise BadSample(
                    f"{place_of(rows, name, row)}: has {read.lengths[row]} entries, and {group.root!r} "
                    f"{root.lengths[row]}: fields per instance must have as many"
                )
        if (placement := rows.placements.get(group.image)) is not None:
            placed |= _placed(rows, group, placement, root, reads)
    return placed


def _placed(
    rows: Rows, group: InstanceGroup, placement: Placement, root: RaggedRead, reads: Mapping[str, RaggedRead]
) -> dict[str, RaggedRead]:
    owners = _owners(root.lengths)
    boxes, stays = None, np.ones(len(owners), np.bool_)
    if rows.spec.dataset.fields[group.root].role == "boxes":
        boxes, stays = kept(group, np.asarray(root.whole), placement, owners)
    lengths, placed = np.bincount(owners[stays], minlength=len(rows)), {}
    for name, read in reads.items():
        kind, values = rows.spec.fields[name], np.asarray(read.whole)
        if kind.role == "boxes":
            values = np.asarray(boxes)
        elif kind.role == "points":
            values = placement.points(values, owners, kind.flip_pairs or ())
        elif name == group.kept:
            values = np.arange(len(owners)) - np.searchsorted(owners, owners)
        placed[name] = RaggedRead(lengths, values[stays])
    return placed


def _checked(rows: Rows, stored: str, read: RaggedRead) -> NDArray[Any]:
    """Return the values of a stored field of boxes or points; BadSample for one that is NaN or far from any image."""
    values = np.asarray(read.whole)
    wrong = ~(np.abs(values) <= _FARTHEST).all(axis=tuple(range(1, values.ndim)))
    for row, value in zip(_owners(read.lengths)[wrong].tolist(), values[wrong].tolist(), strict=True):
        raise BadSample(
            f"{rows.spec.place_of(rows.indices[row], stored)}: coordinates must be numbers of at most "
            f"{_FARTHEST:,} in size, got {value!r:.200}"
        )
    return values


def _owners(lengths: NDArray[np.int64]) -> NDArray[np.intp]:
    return np.repeat(np.arange(len(lengths)), lengths)
