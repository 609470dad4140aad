"""The two passes: a field's column counted for all samples, values looked at in some."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from ...dataset.dataset import Dataset
from ...dataset.selection import Selection
from ...errors import BadSample
from ...format.fields import Field, shape_column
from ...system.types import Indices
from ..examine import readable, reason, value
from ._images import COMMON, ImageSizes, PixelMoments
from ._moments import Moments
from ._tally import Tally
from .figures import BadValue, Classes, FieldContents

MOST_CLASSES = 10_000
"""Different whole numbers that are taken for classes; more if the metadata names more."""


@final
class Counted:
    """One field of all samples, as far as the shards' indexes know it.

    Args:
        name, field: of the column.
        samples: in the dataset.
    """

    def __init__(self, name: str, field: Field, samples: int) -> None:
        self._name, self._field = name, field
        self._bytes, self._sides = Tally(np.int64), ImageSizes()
        whole = field.kind == "scalar" and field.row_dtype.kind in "iub" and field.row_dtype != np.uint64
        self._numbers, self._moments = Tally(np.int64 if whole else np.float64), Moments()
        if field.fixed and samples:
            self._bytes.add(np.array([field.row_bytes]), samples)

    def add(self, selection: Selection) -> None:
        """Counts some samples."""
        if not self._field.fixed:
            self._bytes.add(selection.sizes(self._name))
        if self._field.kind == "image":
            self._sides.add(selection.column(shape_column(self._name)))
        if self._field.kind == "scalar":
            numbers = selection.column(self._name)
            numbers = np.abs(numbers) if numbers.dtype.kind == "c" else numbers
            self._moments += Moments.of(numbers)
            self._numbers.add(numbers[np.isfinite(numbers)] if numbers.dtype.kind == "f" else numbers)

    def contents(self, seen: "Seen", metadata: Mapping[str, Any]) -> FieldContents:
        """What is said of all samples, and of those that were looked at."""
        name, kind = self._name, self._field.kind
        scalar, array = kind == "scalar", kind == "array"
        return FieldContents(
            field=self._field,
            sizes=self._bytes.spread(growing=True),
            images=self._sides.images(seen.pixels[name]) if kind == "image" else None,
            classes=_classes(name, self._field, self._numbers, metadata) if scalar else None,
            values=self._moments.values() if scalar else seen.moments[name].values() if array else None,
            spread=self._numbers.spread() if scalar else None,
            lengths=seen.lengths[name].spread() if kind == "text" else None,
            shapes=tuple(seen.shapes[name].most_common(COMMON)) if array and not self._field.fixed else (),
        )


@dataclass
class Seen:
    """Some samples looked at.

    Attributes:
        fields: of the dataset.
        samples: how many.
        bad: what was wrong with them.
        pixels, moments, lengths, shapes: what was found, by field.
    """

    fields: Mapping[str, Field]
    samples: int = 0
    bad: list[BadValue] = field(default_factory=list)
    pixels: dict[str, PixelMoments] = field(init=False)
    moments: dict[str, Moments] = field(init=False)
    lengths: dict[str, Tally] = field(init=False)
    shapes: dict[str, Counter[tuple[int, ...]]] = field(init=False)

    def __post_init__(self) -> None:
        def of(kind: str) -> list[str]:
            return [name for name, one in self.fields.items() if one.kind == kind]

        self.pixels = {name: PixelMoments() for name in of("image")}
        self.moments = {name: Moments() for name in of("array")}
        self.shapes = {name: Counter() for name in of("array")}
        self.lengths = {name: Tally(np.int64) for name in of("text")}

    def merge(self, other: "Seen") -> None:
        """Adds what was found in others."""
        self.samples += other.samples
        self.bad += other.bad
        for name, pixels in other.pixels.items():
            self.pixels[name].merge(pixels)
        for name, moments in other.moments.items():
            self.moments[name] += moments
            self.shapes[name] += other.shapes[name]
        for name, tally in other.lengths.items():
            self.lengths[name].add(tally.values, tally.counts)

    def add(self, name: str, stored: bytes) -> None:
        """Looks at one value that is not of fixed size; BadSample if it is none."""
        found = value(self.fields[name], stored)
        match self.fields[name].kind:
            case "image":
                self.pixels[name].add(stored, found)
            case "text":
                self.lengths[name].add(np.array([len(found)]))
            case "array":
                self.moments[name] += Moments.of(found)
                self.shapes[name][found.shape] += 1


def look(dataset: Dataset, names: Sequence[str], indices: Indices) -> Seen:
    """Reads and decodes some fields of samples of one shard."""
    seen = Seen(dataset.fields, len(indices))
    for part, columns in readable(dataset, indices, names):
        if isinstance(columns, Exception):
            where = dataset.locate(int(part[0]))
            seen.bad.append(BadValue(where, None, reason(columns, dataset, where.shard)))
            continue
        for name in names:
            if dataset.fields[name].fixed:
                seen.moments[name] += Moments.of(columns[name])
                continue
            for index, stored in zip(part.tolist(), columns[name], strict=True):
                try:
                    seen.add(name, bytes(stored))
                except BadSample as error:
                    seen.bad.append(BadValue(dataset.locate(index), name, f"{error}"))
    seen.bad.sort(key=lambda bad: bad.location.index)
    return seen


def _classes(name: str, kind: Field, tally: Tally, metadata: Mapping[str, Any]) -> Classes | None:
    """How many samples each class has, if these numbers are classes. A `label` counts from 0, so that gaps are seen."""
    told = metadata.get("classes") if name == "label" else None
    names = list(map(str, told)) if isinstance(told, list) else []
    found = {int(v): c for v, c in zip(tally.values.tolist(), tally.counts.tolist(), strict=True)}
    most = max(MOST_CLASSES, len(names))
    whole = kind.row_dtype.kind in "iub" and all(abs(value) < 1 << 53 for value in found)  # as float64, too
    if not whole or not tally.exact or not 0 < len(found) <= most:
        return None
    numbered = range(max(len(names), max(found) + 1)) if name == "label" and max(found) < most else range(len(names))
    values = sorted({*found, *numbered})
    counts = tuple(found.get(v, 0) for v in values)
    called = tuple(names[v] if 0 <= v < len(names) else str(v) for v in values) if names else None
    return Classes(tuple(values), counts, called)
