"""Computing the figures of one field in bounded memory: numbers are counted by value, blocks are combined."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...errors import BadSample
from ...format import images
from ...format.fields import Field, facts_column, length_column, packets_column, present_column, shape_column
from ...format.packets import CODECS, BadTable, VideoFacts, whole_table
from ...views.classes import names_by_field
from ...views.readable import SelectedSamples
from ..examine import decode
from .field_view import FieldView
from .figures import (
    Channel,
    Classes,
    FieldStats,
    Histogram,
    ImageStats,
    InstanceStats,
    Sources,
    Spread,
    Values,
    VideoStats,
)

MOST_DIFFERENT = 1 << 18  # different values that are counted exactly
MOST_CLASSES = 10_000  # different integers that are taken for classes; more if the metadata names more
MOST_COMMON = 10  # sizes of images and shapes of arrays to list
BINS = 12
_GROWING_RATIO = 50  # from this ratio of the largest value to the smallest on, bins may grow with the value
_MANTISSA = 52  # bits of a float64
_LARGEST_INTEGER = 2.0**63 - 2**10  # the largest float64 below 2^63
_LEVELS = 256
_AREAS = {"small": 0, "medium": 32**2, "large": 96**2}  # from which on boxes are called so, in square pixels, by COCO
_SCALE = np.linspace(0, 1, _LEVELS)
_PROGRESSIVE = 2  # among the JPEG coding processes

NumberArray: TypeAlias = NDArray[Any]
"""int64, or float64 where they are not integers."""


@final
class ValueCounts:
    """Counts finite numbers by value: exactly up to `MOST_DIFFERENT` different ones, beyond that rounded to fewer bits.

    It keeps as many bits as `MOST_DIFFERENT` allows, so the rank of a rounded quantile is off by about one part in
    `MOST_DIFFERENT`.

    Args:
        dtype: the dtype of the values.
        rounding: rounds values to a number of bits; `round_to_bits` by default.

    Attributes:
        values: the different values, ascending.
        counts: how often each was added, int64.
        exact: whether no value has been rounded.
    """

    def __init__(
        self,
        dtype: type[np.int64] | type[np.float64],
        rounding: Callable[[NumberArray, int], NumberArray] | None = None,
    ) -> None:
        self.values: NumberArray = np.empty(0, dtype)
        self.counts = np.empty(0, np.int64)
        self.exact = True
        self._rounding, self._bits = rounding or round_to_bits, _MANTISSA
        self._ends = math.inf, -math.inf

    def add(self, values: NDArray[Any], counts: NDArray[np.int64] | int = 1) -> None:
        """Count values of any shape, each once or as often as `counts` says."""
        values = values.reshape(-1).astype(self.values.dtype)
        if not len(values):
            return
        self._ends = min(self._ends[0], values.min().item()), max(self._ends[1], values.max().item())
        rounded = values if self.exact else self._rounding(values, self._bits)
        self._merge(np.append(self.values, rounded), np.append(self.counts, np.broadcast_to(counts, values.shape)))
        while len(self.values) > MOST_DIFFERENT:
            self.exact, self._bits = False, self._bits - 1
            self._merge(self._rounding(self.values, self._bits), self.counts)

    def spread(self, *, growing: bool = False) -> Spread | None:
        """Return the distribution of all numbers, as `spread_of` does; None if none was added."""
        return spread_of(self.values, self.counts, growing=growing, ends=self._ends) if len(self.values) else None

    def _merge(self, values: NumberArray, counts: NDArray[np.int64]) -> None:
        self.values, inverse = np.unique(values, return_inverse=True)
        self.counts = np.zeros(len(self.values), np.int64)
        np.add.at(self.counts, inverse, counts)


def round_to_bits(values: NumberArray, bits: int) -> NumberArray:
    """Round the mantissa of each value to a number of bits; integers stay integers."""
    mantissas, exponents = np.frexp(values.astype(np.float64))
    rounded = np.ldexp(np.rint(np.ldexp(mantissas, bits)), exponents - bits)
    limit = np.finfo(np.float64).max if values.dtype.kind == "f" else _LARGEST_INTEGER
    result: NumberArray = np.clip(rounded, -limit, limit).astype(values.dtype)
    return result


def spread_of(
    values: NumberArray, counts: NDArray[np.int64], *, growing: bool = False, ends: tuple[float, float] | None = None
) -> Spread:
    """Return the distribution of numbers that are given by value.

    Args:
        values: at least one, all finite; int64 if they are integers.
        counts: how often each value occurs.
        growing: whether the histogram's bins grow with the value if the largest is at least 50 times the smallest.
        ends: the exact minimum and maximum, if `values` are rounded.
    """
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    low, high = ends or (values[0].item(), values[-1].item())
    floats = values.astype(np.float64)
    # A power of two scales without rounding; unscaled, sums and squares of large numbers would overflow.
    scale = math.ldexp(1.0, math.frexp(max(-low, high))[1] - 1)
    mean = float(np.average(floats / scale, weights=counts))
    std = math.sqrt(float(np.average((floats / scale - mean) ** 2, weights=counts)))
    median, p95 = (min(max(_quantile(floats, counts, share), low), high) for share in (0.5, 0.95))
    histogram = _histogram(np.clip(values, low, high), counts, growing)
    return Spread(int(counts.sum()), low, median, scale * mean, p95, high, scale * std, histogram)


def _quantile(values: NDArray[np.float64], counts: NDArray[np.int64], share: float) -> float:
    """Interpolate linearly between neighbours, NumPy's default method."""
    ranks = np.cumsum(counts)
    rank = share * (int(ranks[-1]) - 1)
    low, high = (float(values[np.searchsorted(ranks, at, "right")]) for at in (math.floor(rank), math.ceil(rank)))
    return low + (high / 2 - low / 2) * (2 * (rank - math.floor(rank)))  # halves: the difference may overflow


def _histogram(values: NumberArray, counts: NDArray[np.int64], growing: bool) -> Histogram:
    low, high = values[0].item(), values[-1].item()
    integers = values.dtype.kind == "i"
    if low == high:
        return Histogram((low, low + 1 if integers else high), (int(counts.sum()),))
    growing = growing and low > 0 and high / low >= _GROWING_RATIO
    if integers and high - low < 1 << _MANTISSA:
        bins = range(low, high + 1, -(-(high - low + 1) // BINS))
        edges = np.array([*bins, min(bins[-1] + bins.step, 2**63 - 1)])
        if growing:
            edges = np.rint(np.geomspace(low, high + 1, BINS + 1)).astype(np.int64)
    else:
        with np.errstate(over="ignore"):  # `high - low` may overflow, and by rounding the last edge
            edges = low + (high / BINS - low / BINS) * np.arange(BINS + 1)
            if growing:
                edges = np.exp(np.linspace(math.log(low), math.log(high), BINS + 1))
        edges = np.clip(edges, low, high).astype(np.float64)
        edges[0], edges[-1] = low, high
    edges = np.unique(edges)
    binned, _ = np.histogram(values, edges, weights=counts)
    return Histogram(tuple(edges.tolist()), tuple(binned.tolist()))


def values_of(array: NDArray[Any], fill_values: Sequence[float] = ()) -> Values:
    """Return the range and moments of an array of any shape and dtype, without its fill values."""
    given = array.reshape(-1)
    numbers = without(given, fill_values)
    filled = len(given) - len(numbers)
    numbers = np.abs(numbers) if numbers.dtype.kind == "c" else numbers
    finite = numbers[np.isfinite(numbers)]
    nan = int(np.isnan(numbers).sum())
    inf = len(numbers) - len(finite) - nan
    if not len(finite):
        return Values(nan=nan, inf=inf, filled=filled)
    floats = finite.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = _finite(floats.mean()), _finite(floats.std())
    return Values(len(finite), finite.min().item(), finite.max().item(), mean, std, nan, inf, filled)


def without(numbers: NDArray[Any], fill_values: Sequence[float]) -> NDArray[Any]:
    """Return numbers, [n], without those that are fill values."""
    for value in fill_values:
        numbers = numbers[numbers != numbers.dtype.type(value)]
    return numbers


@final
class MeanError:
    """The standard error of a mean over the values of randomly chosen samples; each may have another number of them.

    The values of one sample resemble each other, so each sample counts as one draw: the mean is the ratio of two sums
    over samples. Source: Cochran 1977, "Sampling Techniques", chapter 6.
    """

    def __init__(self) -> None:
        self._samples, self._shift = 0, 0.0
        self._sums = np.zeros(5)  # of n, s, n n, n s and s s, with n values and the sum s in a sample

    def add(self, counts: NDArray[np.float64], sums: NDArray[np.float64]) -> None:
        """Count samples by the number of their values and the sum of these, both [n]."""
        if not self._samples and counts.any():
            self._shift = float(sums.sum() / counts.sum())  # near the mean, so that the squares stay small
        with np.errstate(over="ignore", invalid="ignore"):
            sums = sums - self._shift * counts
            self._sums += [counts.sum(), sums.sum(), counts @ counts, counts @ sums, sums @ sums]
        self._samples += len(counts)

    def error(self, population: int) -> float | None:
        """Return the standard error where the samples are of a larger `population`; 0 if that is 0: they are all."""
        count, total, n_n, n_s, s_s = self._sums.tolist()
        if not count or not population:
            return 0.0 if count else None
        if self._samples < 2:
            return None
        mean = total / count
        squares = max(0.0, s_s - 2 * mean * n_s + mean**2 * n_n) * self._samples / (self._samples - 1)
        return _finite(math.sqrt(squares * max(0.0, 1 - self._samples / population)) / count)


def combine(first: Values, second: Values) -> Values:
    """Return the range and moments of two sets of numbers together.

    Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".
    """
    both = [values for values in (first, second) if values.count]
    counted = {name: getattr(first, name) + getattr(second, name) for name in ("nan", "inf", "filled")}
    total = replace(both[0] if both else first, **counted)
    if len(both) < 2:
        return total
    count = first.count + second.count
    shares = np.array([first.count, second.count]) / count
    means, stds = (np.array([getattr(values, name) for values in both], np.float64) for name in ("mean", "std"))
    with np.errstate(over="ignore", invalid="ignore"):
        distance = means[1] - means[0]
        mean = means[0] + distance * shares[1]
        std = np.sqrt(shares @ stds**2 + shares.prod() * distance**2)
    low, high = min(v.min for v in both if v.min is not None), max(v.max for v in both if v.max is not None)
    return replace(total, count=count, min=low, max=high, mean=_finite(mean), std=_finite(std))


def _finite(figure: Any) -> float | None:
    return float(figure) if np.isfinite(figure) else None


@final
class FieldCounter:
    """Gathers the figures of one field.

    Two passes feed it: `count` takes what the shards' indexes hold of every sample, `add` what `inspect` finds in some.

    Args:
        name: the name of the field.
        field: the declaration of the field.
        samples: the number of samples in the dataset.
        view: which of its values count, and along which axis.

    Attributes:
        field, view: as given.
    """

    def __init__(self, name: str, field: Field, samples: int, view: FieldView) -> None:
        self._name, self.field, self._samples, self.view = name, field, samples, view
        self._numbers = ValueCounts(np.int64 if holds_integers(field) or _classifies(field) else np.float64)
        self._areas = np.zeros(len(_AREAS), np.int64)
        self._stored_sizes, self._lengths = ValueCounts(np.int64), ValueCounts(np.int64)
        self._image_sizes = ValueCounts(np.int64, _round_sizes)
        self._values = Values()
        sizes = [(field.shape or ())[axis] or 0 for axis in view.axes]
        self._channels = (Values(),) * (math.prod(sizes) if sizes else 0)
        places = (field.channels or 3) if field.is_image else max(1, len(self._channels)) + 1
        self._errors = tuple(MeanError() for _ in range(places))  # of each channel; of arrays, then of all together
        self._shapes: Counter[tuple[int, ...]] = Counter()
        self._encodings: Counter[str] = Counter()
        self._jpeg_codings: Counter[str] = Counter()
        self._levels = np.zeros((field.channels or 3, _LEVELS))
        self._pixel_classes: dict[int, float] = defaultdict(float)
        self._missing = 0
        self._videos = VideoCounter() if field.kind == "video" else None
        if field.fixed and samples:
            self._stored_sizes.add(np.array([field.row_bytes]), samples)
        if field.kind == "pixels" and field.shape is not None and samples:
            height, width = np.array(field.shape, np.int64)[:, None]
            self._image_sizes.add(_pack(height, width), samples)

    def count(self, selection: SelectedSamples) -> None:
        """Count stored sizes, image sizes and scalars, for which no sample is read."""
        there: Any = slice(None)
        if self.field.optional:
            there = selection.column(present_column(self._name))
            self._missing += int(np.count_nonzero(~there))
        if not self.field.fixed:
            self._stored_sizes.add(selection.sizes(self._name)[there])
        if self._videos is not None:
            self._image_sizes.add(_pack(*self._videos.count(selection.column(facts_column(self._name))[there])))
        elif self.field.has_lengths:
            self._lengths.add(selection.column(length_column(self._name))[there])
        if self.field.kind == "image":
            heights, widths = selection.column(shape_column(self._name))[there].astype(np.int64).T
            self._image_sizes.add(_pack(heights, widths))
        if self.field.kind == "scalar":
            numbers = selection.column(self._name)[there]
            self._values = combine(self._values, values_of(numbers, self.view.fill_values))
            numbers = without(numbers, self.view.fill_values)
            magnitudes = np.abs(numbers) if numbers.dtype.kind == "c" else numbers
            self._numbers.add(magnitudes[np.isfinite(magnitudes)])

    @property
    def inspected(self) -> tuple[str, ...]:
        """The columns that `inspect` takes of a sample."""
        if self._videos is None:
            return (self._name,)
        return facts_column(self._name), packets_column(self._name), length_column(self._name)

    def inspect(self, stored: Any, *more: Any) -> Any:
        """Return what `add` counts of one stored value, on any thread; raise BadSample if the value does not decode.

        For a field of fixed shape, `stored` holds the arrays of several samples, [samples, *shape].
        """
        field, view = self.field, self.view
        if field.kind == "video":
            return inspect_table(stored, *more)
        if field.kind == "pixels":
            return len(stored), "pixels", None, *_pixels(field, stored)
        if field.fixed:
            return (*_inspect_arrays(field.shape, stored, view), None)
        stored = bytes(stored)
        value = decode(field, stored)
        match field.kind:
            case "image":
                encoding = images.sniff(stored) or "other"
                coding = None
                if encoding == "jpeg" and field.role != "mask":
                    found = images.jpeg_coding(stored)
                    other = "progressive" if found.process == _PROGRESSIVE else "other"
                    coding = "baseline" if found.baseline else other
                return 1, encoding, coding, *_pixels(field, value[None])
            case "text":
                return len(value)
            case "array":
                whole = value if _classifies(field) or field.role == "boxes" else None
                return (*_inspect_arrays(value.shape, value[None], view), whole)

    def add(self, inspected: Sequence[Any]) -> None:
        """Count what `inspect` returned for several values."""
        match self.field.kind:
            case "image" | "pixels":
                for count, encoding, jpeg_coding, shares, means in inspected:
                    self._encodings[encoding] += count
                    if self.field.role == "mask":
                        for number, share in shares.items():
                            self._pixel_classes[number] += share
                        continue
                    if jpeg_coding is not None:
                        self._jpeg_codings[jpeg_coding] += 1
                    self._levels += shares
                    for error, values in zip(self._errors, means, strict=True):  # each image weighs the same
                        error.add(np.ones(count), values)
            case "video" if self._videos is not None:
                self._videos.add(inspected)
            case "text":
                self._lengths.add(np.array(inspected, np.int64))
            case "array":
                for shape, values, sums, whole in inspected:
                    self._shapes[shape] += 1
                    self._values = reduce(combine, values, self._values)
                    self._channels = tuple(map(combine, self._channels, values))
                    for error, (counts, totals) in zip(self._errors, [*sums, sums.sum(axis=0)], strict=True):
                        error.add(counts, totals)
                    if self.field.role == "boxes":
                        self._areas += _by_area(whole)
                    elif whole is not None:
                        self._numbers.add(whole)

    def stats(self, metadata: Mapping[str, Any], fields: Mapping[str, Field], population: int) -> FieldStats:
        """Return the figures of all that was counted.

        Args:
            metadata: the dataset's, which may name the classes.
            fields: the dataset's.
            population: the number of samples that those read were chosen from at random; 0 if all were read.
        """
        kind, axes = self.field.kind, self.view.axes
        errors = [error.error(population) for error in self._errors]
        values = replace(self._values, error=errors[-1] if kind == "array" else None)
        return FieldStats(
            field=self.field,
            sizes=self._stored_sizes.spread(growing=True),
            images=self._images(errors) if self.field.is_image or self._videos is not None else None,
            classes=self._classes(metadata, fields) if kind == "scalar" or _classifies(self.field) else None,
            values=values if kind in ("scalar", "array") else None,
            channels=tuple(replace(c, error=e) for c, e in zip(self._channels, errors, strict=False)),
            spread=self._numbers.spread() if kind == "scalar" else None,
            lengths=self._lengths.spread(),
            shapes=() if self.field.fixed or self.field.ragged else tuple(self._shapes.most_common(MOST_COMMON)),
            channel_axis=axes if len(axes) > 1 else next(iter(axes), None),
            fill_values=self.view.fill_values,
            missing=self._missing,
            instances=self._instances() if self.field.on is not None and self.field.per is None else None,
            videos=None if self._videos is None else self._videos.stats(),
        )

    def _instances(self) -> InstanceStats:
        areas = dict(zip(_AREAS, self._areas.tolist(), strict=True)) if self.field.role == "boxes" else {}
        return InstanceStats(int(self._lengths.counts[self._lengths.values == 0].sum()), areas)

    def _images(self, errors: Sequence[float | None]) -> ImageStats | None:
        counts = self._image_sizes.counts
        if not len(counts):
            return None
        heights, widths = _unpack(self._image_sizes.values)
        spreads = {
            "heights": heights,
            "widths": widths,
            "shorter_sides": np.minimum(heights, widths),
            "aspect_ratios": widths / np.maximum(heights, 1),
            "megapixels": heights * widths / 1e6,
        }
        most = np.lexsort((self._image_sizes.values, -counts))[:MOST_COMMON]
        decoded, classes = self._encodings.total(), sorted(self._pixel_classes.items())
        return ImageStats(
            **{name: spread_of(values, counts, growing=True) for name, values in spreads.items()},
            sizes=len(counts),
            common=tuple((int(heights[i]), int(widths[i]), int(counts[i])) for i in most),
            encodings=dict(self._encodings.most_common()),
            jpeg_codings=dict(self._jpeg_codings.most_common()),
            channels=tuple(map(_channel, self._levels / decoded, errors)) if decoded and not classes else (),
            pixel_classes={value: share / decoded for value, share in classes},
        )

    def _classes(self, metadata: Mapping[str, Any], fields: Mapping[str, Field]) -> Classes | None:
        """Return the samples of each class if the numbers are classes. A `label` counts from 0, so that gaps show."""
        labels = self._name == "label"
        listed = metadata.get("classes") if labels else None
        names = list(map(str, listed)) if isinstance(listed, list) else []
        if _classifies(self.field):
            names = list(names_by_field(metadata, fields).get(self._name, ()))
        limit = max(MOST_CLASSES, len(names))
        counted = self._numbers
        if self.field.row_dtype.kind not in "iub" or not counted.exact or not 0 < len(counted.values) <= limit:
            return None
        pairs = zip(counted.values.tolist(), counted.counts.tolist(), strict=True)
        counts = {int(value): count for value, count in pairs}
        if max(map(abs, counts)) >= 1 << 53:  # float64, which counts uint64, holds no larger integers exactly
            return None
        numbered = range(max(len(names), max(counts) + 1)) if labels and max(counts) < limit else range(len(names))
        values = tuple(sorted({*counts, *numbered}))
        value_names = tuple(names[v] if 0 <= v < len(names) else str(v) for v in values) if names else None
        samples = tuple(counts.get(v, 0) for v in values)
        most, least = max(counts.values()), min(counts.values())
        return Classes(values, samples, value_names, samples.count(0), most, least, most / least)


@final
class VideoCounter:
    """Gathers the figures of videos: of all from their facts, of some from their tables of packets."""

    def __init__(self) -> None:
        self._frames, self._seconds, self._rates = ValueCounts(np.int64), *(ValueCounts(np.float64) for _ in range(2))
        self._codecs: Counter[str] = Counter()
        self._rotated = self._packets = self._spared = 0
        self._spacing = ValueCounts(np.float64)

    def count(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Count videos by their facts, int64 [n, ...]; return the heights and widths of their frames."""
        facts = VideoFacts(*rows.T)
        frames, height, width = (np.asarray(each) for each in (facts.frames, facts.height, facts.width))
        seconds = np.asarray(facts.span * facts.ticks / np.maximum(1, facts.per))
        self._frames.add(frames)
        self._seconds.add(seconds)
        self._rates.add(frames[seconds > 0] / seconds[seconds > 0])
        known = np.asarray(facts.codec).clip(0, len(CODECS) - 1)
        self._codecs.update({CODECS[n]: c for n, c in enumerate(np.bincount(known).tolist()) if c})
        self._rotated += int(np.count_nonzero(facts.rotation))
        return height, width

    def add(self, inspected: Sequence[tuple[int, int, int, int]]) -> None:
        """Count what `inspect_table` returned for several videos."""
        for frames, keys, packets, spared in inspected:
            self._spacing.add(np.array([frames / max(1, keys)]))
            self._packets += packets
            self._spared += spared

    def stats(self) -> VideoStats | None:
        """Return the figures; None if there are no videos."""
        frames, seconds = self._frames.spread(growing=True), self._seconds.spread(growing=True)
        if frames is None or seconds is None:
            return None
        spared = self._spared / self._packets if self._packets else None
        codecs = dict(self._codecs.most_common())
        return VideoStats(frames, seconds, self._rates.spread(), codecs, self._rotated, self._spacing.spread(), spared)


def inspect_table(facts_row: NDArray[np.int64], table: Any, size: int) -> tuple[int, int, int, int]:
    """Return how many frames, key frames, packets, and packets that nothing refers to a video's table has.

    Raises BadSample for a table that is damaged.
    """
    facts = VideoFacts(*facts_row.tolist())
    try:
        packets = whole_table(facts, table, int(size))[1]
    except BadTable as error:
        raise BadSample(f"its table of packets: {error}") from error
    return facts.frames, int(packets.keys.sum()), len(packets), int(packets.spare.sum())


@final
class SourceCounter:
    """Counts the samples of each source, and those of each class in it.

    Args:
        names: the sources.
        labels: counts the field `label`; None if there is no such field of integers.
    """

    def __init__(self, names: Sequence[str], labels: FieldCounter | None) -> None:
        self._names, self._label = tuple(names), labels
        self._counts = np.zeros(len(names), np.int64)
        self._labels = [ValueCounts(np.int64) for _ in names]

    def count(self, numbers: NDArray[np.int64], selection: SelectedSamples) -> None:
        """Count samples, whose sources are `numbers`, int64 [n]."""
        self._counts += np.bincount(numbers, minlength=len(self._names))
        if self._label is None:
            return
        labels, optional = selection.column("label"), self._label.field.optional
        there = selection.column(present_column("label")) if optional else np.ones(len(labels), np.bool_)
        for number in np.unique(numbers[there]).tolist():
            self._labels[number].add(without(labels[there & (numbers == number)], self._label.view.fill_values))

    def sources(self, classes: Classes | None) -> Sources:
        """Return the counts; `classes` are those of the field `label`."""
        values = () if classes is None else classes.values
        found = [dict(zip(c.values.tolist(), c.counts.tolist(), strict=True)) for c in self._labels if values]
        table = tuple(tuple(counts.get(value, 0) for value in values) for counts in found)
        return Sources(self._names, tuple(self._counts.tolist()), table)


def holds_integers(field: Field) -> bool:
    """Return whether a field holds scalars that int64 holds."""
    return field.kind == "scalar" and field.row_dtype.kind in "iub" and field.row_dtype != np.uint64


def _classifies(field: Field) -> bool:
    """Return whether a field holds integers per box or point, such as their classes."""
    integers = field.per is not None and field.shape == (None,) and field.row_dtype.kind in "iub"
    return integers and field.row_dtype != np.uint64


def _by_area(boxes: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return how many boxes, [n, 4], have each of the areas of `_AREAS`."""
    sides = (boxes[:, 2:] - boxes[:, :2]).astype(np.float64)
    places = np.searchsorted([*_AREAS.values()], sides.clip(0).prod(axis=1), "right") - 1
    return np.bincount(places[np.isfinite(boxes).all(axis=1)], minlength=len(_AREAS))


def _inspect_arrays(shape: Any, stored: NDArray[Any], view: FieldView) -> Any:
    """Return the shape of arrays [n, *shape], the values of each channel, and counts and sums, [channels, 2, n]."""
    moved = np.moveaxis(stored, [axis + 1 for axis in view.axes], range(len(view.axes)))
    places = [moved[at] for at in np.ndindex(moved.shape[: len(view.axes)])]
    values = [values_of(place, view.fill_values) for place in places]
    rows = (place.reshape(len(stored), math.prod(place.shape[1:])) for place in places)
    return shape, values, np.array([_sums(row, view.fill_values) for row in rows])


def _sums(rows: NDArray[Any], fill_values: Sequence[float]) -> list[NDArray[np.float64]]:
    """Return the number of values that count in each row, and their sum, both [n]."""
    numbers = np.abs(rows) if rows.dtype.kind == "c" else rows
    counted = np.isfinite(numbers)
    for value in fill_values:
        counted &= rows != rows.dtype.type(value)
    with np.errstate(over="ignore", invalid="ignore"):
        totals = np.sum(numbers, axis=1, dtype=np.float64, where=counted)
    return [counted.sum(axis=1).astype(np.float64), totals]


def _pixels(field: Field, stored: NDArray[Any]) -> tuple[Any, Any]:
    """Return what is counted of images of one size, [n, height, width, channels].

    For masks, also [n, height, width], these are the share of each number among the pixels, times n, and None; for
    others the share of each level in each channel, times n, and the means of each channel, [channels, n].
    """
    count = len(stored)
    if field.role == "mask":
        numbers, counts = np.unique(stored, return_counts=True)
        return dict(zip(numbers.tolist(), (counts * (count / stored.size)).tolist(), strict=True)), None
    levels = np.array([_shares(channel) for channel in np.moveaxis(stored, 3, 0)]) * count
    means = levels @ _SCALE if count == 1 else stored.mean(axis=(1, 2)).T / (_LEVELS - 1)
    return levels, means.reshape(-1, count)


def _shares(values: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the share of each level among bytes."""
    levels = Image.fromarray(values.reshape(-1, values.shape[-1])).histogram()  # NumPy needs twice the time
    return np.asarray(levels, np.float64) / values.size


def _channel(shares: NDArray[np.float64], error: float | None) -> Channel:
    mean = float(_SCALE @ shares)
    return Channel(mean, float(np.sqrt((_SCALE - mean) ** 2 @ shares)), tuple(shares.tolist()), error)


# An image size is packed into one number, so that its counts are those of sizes; all figures of sizes follow from them.
def _pack(heights: NDArray[np.int64], widths: NDArray[np.int64]) -> NumberArray:
    return heights << 32 | widths


def _unpack(sizes: NumberArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return sizes >> 32, sizes & 0xFFFFFFFF


def _round_sizes(sizes: NumberArray, bits: int) -> NumberArray:
    return _pack(*(round_to_bits(sides, bits) for sides in _unpack(sizes)))
