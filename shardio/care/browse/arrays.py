"""Parts of arrays, as a page asks for them: `:` along one or two axes, a number along the others.

Only the part is read, where the container can read blocks; so a page shows a slice of an array of any size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...containers.extents import Blocks, Runs
from ...errors import BadSample, ConfigError
from ...format.fields import Field, length_column
from ...system import helper_process
from ...views.readable import ReadableDataset, decoded

MOST_ALONG = 2048  # of each of two axes
MOST_ALONE = 1 << 18  # of one
_MOST_BYTES = 1 << 26  # of a value that is read whole, and of a ragged one's entries
_SECONDS = 10.0
_RANGE = re.compile(r"(\d{0,18}):(\d{0,18})|(-?\d{1,18})")

Shape: TypeAlias = tuple[int, ...]


class Empty(BadSample):
    """An array without values: nothing of it can be shown."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of an array that is shown.

    Attributes:
        begins: the first place along each axis.
        sizes: the number of places along each, at least 1.
        kept: the axes that are shown; along the others there is one place.
    """

    begins: tuple[int, ...]
    sizes: tuple[int, ...]
    kept: tuple[int, ...]

    def __str__(self) -> str:
        return ", ".join(
            f"{begin}:{begin + size}" if axis in self.kept else f"{begin}"
            for axis, (begin, size) in enumerate(zip(self.begins, self.sizes, strict=True))
        )

    def moved(self, axis: int, to: int) -> Cut:
        """Return the part at another place along an axis that is not shown."""
        return Cut((*self.begins[:axis], to, *self.begins[axis + 1 :]), self.sizes, self.kept)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a sample's array.

    Attributes:
        values: the part, with as many axes as are shown.
        cut: which part it is.
        shape: the shape of the whole array.
    """

    values: NDArray[Any]
    cut: Cut
    shape: Shape


def usual_cut(shape: Shape) -> Cut:
    """Return the part to show first: the last two axes, in the middle of the axis before them; of one axis all."""
    axes = len(shape)
    kept = tuple(range(max(0, axes - 2), axes))
    begins = [0] * axes
    if axes > 2:
        begins[-3] = shape[-3] // 2
    most = MOST_ALONE if axes == 1 else MOST_ALONG
    return Cut(tuple(begins), tuple(min(n, most) if a in kept else 1 for a, n in enumerate(shape)), kept)


def asked_cut(text: str) -> Callable[[Shape], Cut]:
    """Return which part of an array, of any shape, a string such as `3, :, 100:200` asks for.

    The returned function raises ConfigError if the string does not suit the shape.
    """
    words = [word.strip() for word in text.split(",")]

    def cut(shape: Shape) -> Cut:
        if len(words) != len(shape):
            raise ConfigError("a slice of {} has {} parts, got {!r}", [*shape], len(shape), text[:100])
        spans, kept = [], []
        for axis, (word, length) in enumerate(zip(words, shape, strict=True)):
            found = _RANGE.fullmatch(word)
            if found is None:
                raise ConfigError("a slice is made of numbers, `:` and ranges such as 10:20, got {!r}", text[:100])
            if found[3] is not None:
                number = int(found[3]) + (length if found[3].startswith("-") else 0)
                spans.append((number, number + 1))
            else:
                spans.append((int(found[1] or 0), min(int(found[2] or length), length)))
                kept.append(axis)
            if not 0 <= spans[-1][0] < spans[-1][1] <= length:
                raise ConfigError("axis {} has places 0 to {}, got {!r}", axis, length - 1, word)
        if len(kept) > 2:
            raise ConfigError("a slice shows one or two axes, got {!r}: give numbers for the others", text[:100])
        most = MOST_ALONG if len(kept) == 2 else MOST_ALONE
        sizes = (min(end - begin, most) for begin, end in spans)
        return Cut(tuple(begin for begin, _ in spans), tuple(sizes), tuple(kept))

    return cut


def read(dataset: ReadableDataset, name: str, index: int, cut: Callable[[Shape], Cut]) -> Part:
    """Read a part of a sample's array. Raises what reading raises, ConfigError for a part that is not in the array."""
    field, number = dataset.field(name), np.array([index])
    with helper_process.time_limit(_SECONDS):
        selection = dataset.selection(number, _MOST_BYTES)
        if field.fixed:
            shape = field.row_shape
            chosen = _within(cut, shape)
            if not shape:
                return Part(selection.column(name)[0], chosen, shape)
            begins = np.array([chosen.begins], np.int64)
            values = selection.blocks(name, Blocks(begins, chosen.sizes))[0]
        elif field.ragged:
            length = int(selection.column(length_column(name))[0])
            shape = (length, *field.entry_shape)
            chosen = _within(cut, shape)
            first, size = chosen.begins[0], chosen.sizes[0]
            if size * field.entry_bytes > _MOST_BYTES:
                raise BadSample(f"{size} entries of {field.entry_bytes} bytes are too many to show at once")
            values = selection.parts(name, Runs(np.array([first]), np.array([first + size])))
            values = values[_places(chosen.begins, chosen.sizes, 1)]
        else:
            (value,) = decoded(dataset, name, selection.values(name), number)
            shape, chosen = value.shape, _within(cut, value.shape)
            values = value[_places(chosen.begins, chosen.sizes, 0)]
    return Part(values.reshape([chosen.sizes[axis] for axis in chosen.kept]), chosen, shape)


def whole(dataset: ReadableDataset, name: str, index: int, most: int) -> NDArray[Any] | None:
    """Return a sample's array of one shape if it has at most so many bytes; None for others."""
    field = dataset.field(name)
    if not field.fixed or field.row_bytes > most:
        return None
    with helper_process.time_limit(_SECONDS):
        values: NDArray[Any] = dataset.selection(np.array([index])).column(name)[0]
        return values


def is_tokens(field: Field) -> bool:
    """Return whether arrays are integers along one axis, to be read like a text."""
    return len(field.shape or ()) == 1 and field.row_dtype.kind in "iu" and field.per is None


def _within(cut: Callable[[Shape], Cut], shape: Shape) -> Cut:
    if 0 in shape:
        raise Empty(f"an array of shape {[*shape]} has no values")
    return cut(shape)


def _places(begins: Sequence[int], sizes: Sequence[int], first: int) -> Any:
    """Return the index of a part, whose axes before `first` have been read as they are."""
    spans = [slice(b, b + s) for b, s in zip(begins, sizes, strict=True)]
    return (*[slice(None)] * first, *spans[first:])
