"""Boxes and points as people see them: with colours and names of classes, drawn on pictures of their image."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..format.fields import Field
from ..views.classes import class_name
from .lettering import drawable, font

MOST = 500
"""The most marks of one field that are drawn on an image."""

_COLORS = (
    (214, 39, 40), (31, 119, 180), (44, 160, 44), (255, 127, 14),
    (148, 103, 189), (23, 190, 207), (227, 119, 194), (140, 86, 75),
)  # fmt: skip
_NAME_COLOR = (255, 255, 255)
_EDGE, _RADIUS, _LETTERS = 2, 2, 10  # pixels
_LONGEST = 40  # characters of a name
_BEYOND = 16  # pixels outside a picture, beyond which it makes no difference where a mark is

Color = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Mark:
    """A box or a point on an image.

    Attributes:
        place: the left, top, right and bottom edge of a box, or the (x, y) of a point, in the image's pixels.
        color: RGB, one per class; one per instance without classes.
        name: the class of a box; "" if that is not known, and for points.
    """

    place: tuple[float, ...]
    color: Color
    name: str = ""


def marking_fields(fields: Mapping[str, Field], classes: Mapping[str, Sequence[str]], image: str) -> list[str]:
    """Return the fields of which marks on an image are made: boxes and points on it, and the labels of these."""
    lying = [name for name, field in fields.items() if field.on == image]
    labels = (_labels(fields, classes, name) for name in lying)
    return [*lying, *(name for name in labels if name is not None)]


def marks_of(
    values: Mapping[str, NDArray[Any] | None], fields: Mapping[str, Field], classes: Mapping[str, Sequence[str]]
) -> list[Mark]:
    """Return the marks on an image of one sample.

    Args:
        values: by stored field, the values of boxes, points and labels; None where the sample has none.
        fields: the dataset's fields.
        classes: the names of classes by field.
    """
    marks = list[Mark]()
    for name, value in values.items():
        if fields[name].on is None or value is None:
            continue
        labels = _labels(fields, classes, fields[name].per or name)
        known = None if labels is None else values.get(labels)
        known = None if known is None or len(known) != len(value) else known  # a bad sample, whose boxes are seen
        numbers = range(len(value)) if known is None else known.tolist()
        made = list[Mark]()
        for number, instance in zip(numbers, value[:MOST], strict=False):
            color, words = _COLORS[number % len(_COLORS)], ""
            if known is not None and labels is not None:
                words = class_name(number, classes.get(labels, ())) or f"{number}"
            made += _box(instance, color, words) if instance.ndim == 1 else _points(instance, color)
        marks += made[:MOST]
    return marks


def draw(image: Image.Image, marks: Sequence[Mark], scale: tuple[float, float]) -> None:
    """Draw marks on an RGB picture of their image, whose width and height are those of the image times `scale`."""
    pen, sides = ImageDraw.Draw(image), itertools.cycle(zip(scale, image.size, strict=True))
    names = list[tuple[int, int, Mark]]()
    for mark in marks:
        at = [
            round(min(max(number * factor, -_BEYOND), side + _BEYOND))
            for number, (factor, side) in zip(mark.place, sides, strict=False)
        ]
        if len(at) == 2:
            x, y = at
            pen.ellipse([x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS], mark.color)
            continue
        left, top, right, bottom = at
        pen.rectangle([left, top, max(left, right - 1), max(top, bottom - 1)], outline=mark.color, width=_EDGE)
        if mark.name:
            names.append((max(0, left), max(0, top), mark))
    for x, y, mark in names:  # on top of all edges
        words = drawable(mark.name[:_LONGEST])
        pen.rectangle(pen.textbbox((x + 1, y), words, font(_LETTERS)), mark.color)
        pen.text((x + 1, y), words, _NAME_COLOR, font(_LETTERS))


def _labels(fields: Mapping[str, Field], classes: Mapping[str, Sequence[str]], root: str) -> str | None:
    """Return the field that holds the classes of boxes or points; None if there is none."""
    integers = [
        name
        for name, field in fields.items()
        if field.per == root and field.shape == (None,) and field.row_dtype.kind in "iu"
    ]
    return next((name for name in integers if name in classes), "labels" if "labels" in integers else None)


def _box(box: NDArray[Any], color: Color, name: str) -> list[Mark]:
    return [Mark(tuple(box.tolist()), color, name)] if np.isfinite(box).all() else []


def _points(points: NDArray[Any], color: Color) -> list[Mark]:
    """Return the labelled points of one instance, [K, 2 or 3]."""
    there = np.isfinite(points).all(axis=1) & (points[:, 2:] > 0).all(axis=1)
    return [Mark((x, y), color) for x, y in points[there, :2].tolist()]
