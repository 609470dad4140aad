"""The figures of a dataset as text: aligned, and in ASCII except for names that are not."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...system.units import counted, format_size
from .figures import Classes, DatasetStats, FieldStats, Histogram, ImageStats, Sources, Spread, Values, VideoStats

BAR_WIDTH = 40  # characters
MOST_LISTED = 20  # classes, and bad values
_LISTED_ENDS = 10  # the number of largest and of smallest classes to list where there are more than MOST_LISTED
_LONGEST_VIEW = 200  # characters of what a view is
_MOST_COLUMNS = 8  # sources whose classes stand side by side
_MOST_CHANNELS = 16  # whose mean and standard deviation stand on one line
_MOST_COMMON = 5  # image sizes and array shapes
_AREAS = " (COCO's: below 32 x 32, below 96 x 96 stored pixels, and above)"
_LEAST_ERROR = 1e-12  # below it, a standard error is rounding
_LEAST, _LARGEST = 1e-37, 3e38  # about the ends of float32

Row = tuple[str, str]
"""A label and its figure; a row without a label continues the one above."""


def text(stats: DatasetStats) -> str:
    """Return the report, without a final line end. Sizes are in decimal units."""
    lines = _aligned(_head(stats))
    for column, sources in stats.sources.items():
        classes = stats.fields["label"].classes if "label" in stats.fields else None
        heading = f"{column}: {counted(len(sources.names), 'source', ',')}"
        lines += ["", heading, *_aligned(_sources(sources, classes), "  ")]
    for name, field in stats.fields.items():
        joined = f", joined from {stats.joined[name]}" if name in stats.joined else ""
        lines += ["", f"{name}: {_kind(field)}{joined}", *_aligned(_rows(name, field), "  ")]
    return "\n".join(lines)


def normalize_arrays(channels: Sequence[Values], sizes: Sequence[int] = ()) -> str | None:
    """Return Python code of the transform that gives arrays of such channels mean 0 and standard deviation 1.

    `sizes` are the places on each of several axes of channels.
    The values of a channel that are all the same become 0. None if a figure is missing, or too large for float32.
    """
    pairs = [(c.mean, c.std) for c in channels if c.mean is not None and c.std is not None]
    if not pairs or len(pairs) < len(channels) or max(max(abs(mean), std) for mean, std in pairs) > _LARGEST:
        return None
    stds = [f"{std:.6g}" if std > _LEAST else "1" for _, std in pairs]
    means = [f"{mean:.6g}" for mean, _ in pairs]
    for size in reversed(sizes[1:]):
        means, stds = (_grouped(each, size) for each in (means, stds))
    return _normalize(means, stds)


def _grouped(codes: Sequence[str], size: int) -> list[str]:
    """Return Python code of tuples, each of so many of the parts given."""
    return [f"({', '.join(codes[n : n + size])}{',' if size == 1 else ''})" for n in range(0, len(codes), size)]


def _normalize(means: Sequence[str], stds: Sequence[str]) -> str:
    mean, std = (part[0] if len(part) == 1 else f"({', '.join(part)})" for part in (means, stds))
    return f"shardio.Normalize({mean}, {std})"


def _aligned(rows: Iterable[Row], indent: str = "") -> list[str]:
    rows = list(rows)
    width = max((len(label) for label, _ in rows), default=0)
    return [f"{indent}{label:{width}}  {figure}".rstrip() for label, figure in rows]


def _kind(stats: FieldStats) -> str:
    field = stats.field
    color = field.role or {3: "RGB", 1: "grey"}.get(field.channels or 0)
    sizes = field.row_shape if field.fixed else (field.shape or ()) if field.kind == "array" else ()
    shape = "x".join("any" if size is None else str(size) for size in sizes)
    place = f"on {field.on}" if field.on else f"per {field.per}" if field.per else ""
    return " ".join(filter(None, [field.kind, field.dtype, color, shape, place]))


def _head(stats: DatasetStats) -> Iterator[Row]:
    yield "dataset", stats.path
    if stats.view is not None:
        yield "view", stats.view if len(stats.view) <= _LONGEST_VIEW else f"{stats.view[:_LONGEST_VIEW]}..."
    yield "digest", stats.digest
    shards = "" if stats.shards is None else f" in {stats.shards:,} {stats.container} shards"
    yield "samples", f"{stats.samples:,}{shards}"
    if stats.bytes is not None:
        mean = f", {format_size(stats.bytes / stats.samples)} per sample" if stats.samples else ""
        yield "bytes", f"{format_size(stats.bytes)}{mean}"
    if stats.sampled:
        how = "all samples" if stats.sampled == stats.samples else f"{stats.sampled:,} samples (seed {stats.seed})"
        exact = "" if stats.sampled == stats.samples else "; --sample all looks at all"
        yield "looked at", f"{how}; figures of these are marked *{exact}"
        yield "bad *", f"{len({bad.location.index for bad in stats.bad}):,} samples"
    yield from (("", f"{bad}") for bad in stats.bad[:MOST_LISTED])
    if len(stats.bad) > MOST_LISTED:
        yield "", f"and {len(stats.bad) - MOST_LISTED:,} more"


def _sources(sources: Sources, classes: Classes | None) -> Iterator[Row]:
    yield "samples", ""
    yield from _listed(sources.names, sources.counts)
    if classes is None or not sources.classes:
        return
    if len(sources.names) > _MOST_COLUMNS or len(classes.values) > MOST_LISTED:
        yield "classes", "by source: in --json"
        return
    names = _printable(_names(classes))
    table = [
        _printable(sources.names),
        *([f"{count:,}" for count in row] for row in zip(*sources.classes, strict=True)),
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    yield "classes", ""
    for name, row in zip(["", *names], table, strict=True):
        cells = "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        yield "", f"{name:>{max(map(len, names))}}  {cells}"


def _rows(name: str, field: FieldStats) -> Iterator[Row]:
    if field.missing:
        yield "missing", f"of {counted(field.missing, 'sample')}, left out"
    if field.sizes is not None:
        yield from _spread("stored size", field.sizes, "bytes", bars=field.lengths is None)
    if field.videos is not None:
        yield from _videos(field.videos)
    if field.images is not None:
        yield from _images(field.images)
    if (classes := field.classes) is not None:
        what, mark = ("sample", "") if field.field.kind == "scalar" else ("instance", " *")
        balance = f"of {classes.smallest:,} to {classes.largest:,} {what}s (1 : {classes.ratio:.3g})"
        if classes.smallest == classes.largest:
            balance = f"of {counted(classes.largest, what, ',')} each"
        yield f"classes{mark}", f"{len(classes.values):,}, {balance}"
        if classes.empty:
            yield "empty classes", f"{classes.empty:,}"
    # Many integers without names are better shown as a distribution.
    if classes is not None and (name == "label" or classes.names or len(classes.values) <= MOST_LISTED):
        yield from _listed(_names(classes), classes.counts)
    elif field.spread is not None:
        yield from _spread("values", field.spread)
    if field.lengths is not None:
        entries = "per image" if field.instances is not None else "entries"
        yield from _spread({"text": "characters *", "images": "images"}.get(field.field.kind, entries), field.lengths)
    if field.instances is not None:
        yield "images without", f"{field.instances.empty:,}"
        if areas := field.instances.areas:
            yield "areas *", ", ".join(f"{name} {count:,}" for name, count in areas.items()) + _AREAS
    if (values := field.values) is not None:
        sampled = "" if field.spread is not None else " *"
        if sampled and values.count:
            figures = {"min": values.min, "max": values.max, "mean": values.mean, "std": values.std}
            words = [f"{key} {_number(value)}" for key, value in figures.items() if value is not None]
            yield "values *", "  ".join(words) + (f"  (mean +- {values.error:.2g})" if values.error else "")
            if field.field.on is None and field.field.per is None:  # which no Normalize takes
                yield from _channels(name, field)
        if values.filled:
            fills = ", ".join(map(_number, field.fill_values))
            yield f"fill values{sampled}", f"{values.filled:,} of {fills}, left out"
        if values.nan or values.inf:
            yield f"not finite{sampled}", f"{values.nan:,} NaN, {values.inf:,} infinite, left out"
            if values.nan and field.field.kind == "array":
                each = [f"{channel.nan:,}" for channel in field.channels]
                of_each = f" of each channel: {', '.join(each)};" if 1 < len(each) <= _MOST_CHANNELS else ""
                yield f"NaN{sampled}", f"{of_each} shardio.FillMissing puts numbers in their place".lstrip()
    for number, (shape, count) in enumerate(field.shapes[:_MOST_COMMON]):
        yield "" if number else "shapes *", f"{list(shape)}: {count:,}"


def _channels(name: str, field: FieldStats) -> Iterator[Row]:
    """Rows on the channels of arrays: which axis was taken for them, and their means and standard deviations."""
    channels, axis = field.channels, field.channel_axis
    axes, first = axis if isinstance(axis, tuple) else (), int(field.field.window or field.field.ragged)
    leading = len(axes) > 1 and axes == tuple(range(first, first + len(axes)))
    sizes = [(field.field.shape or ())[each] or 0 for each in axes]
    if axis is not None:
        places = f"{len(channels)} places on {f'axes {axes}' if axes else f'axis {axis}'}"
        yield "channels *", f"{places}; --channel-axis {name}=none takes all values together"
    if len(channels) > _MOST_CHANNELS:
        yield "mean, std *", f"of {places}: in --json"
    elif axis and not leading and not (field.field.ragged and not axes):
        for place, channel in enumerate(channels):
            if channel.mean is not None and channel.std is not None:
                error = f" +- {channel.error:.2g}" if channel.error else ""
                yield "" if place else "mean, std *", f"{channel.mean:.6g}{error}, {channel.std:.6g}"
    elif (field.field.fixed or channels) and field.field.row_dtype.kind != "c":
        together = channels or ((field.values,) if field.values is not None else ())
        if (code := normalize_arrays(together, sizes)) is not None:
            yield "mean, std *", code
            yield from _errors([channel.error for channel in together])


def _errors(errors: Sequence[float | None]) -> Iterator[Row]:
    """Return a row of the standard errors of means, unless they are of all samples."""
    known = [error for error in errors if error is not None]
    if any(known):
        yield "mean +- *", ", ".join(f"{error:.2g}" if error > _LEAST_ERROR else "0" for error in known)


def _videos(videos: VideoStats) -> Iterator[Row]:
    yield "codecs", ", ".join(f"{name or 'unknown'} {count:,}" for name, count in videos.codecs.items())
    yield from _spread("frames", videos.frames)
    yield from _spread("seconds", videos.seconds, bars=False)
    if videos.rates is not None:
        yield from _spread("frames/s", videos.rates, bars=False)
    if videos.rotated:
        yield "rotated", f"{videos.rotated:,} are turned to be shown"
    if videos.spacing is not None:
        yield from _spread("frames/key frame *", videos.spacing, bars=False)
    if videos.spared is not None:
        yield "spared packets *", f"{videos.spared:.1%}, which are left out of decoding unless a clip shows them"


def _images(images: ImageStats) -> Iterator[Row]:
    yield from _spread("height", images.heights, bars=False)
    yield from _spread("width", images.widths, bars=False)
    yield from _spread("shorter side", images.shorter_sides)
    yield from _spread("width / height", images.aspect_ratios, bars=False)
    yield from _spread("megapixels", images.megapixels, bars=False)
    if images.sizes > 1:
        yield "sizes", f"{images.sizes:,} different; width x height of the most common:"
        for height, width, count in images.common[:_MOST_COMMON]:
            yield "", f"{width} x {height}: {count:,} ({count / images.heights.count:.1%})"
    for label, counts in (("encodings *", images.encodings), ("JPEGs *", images.jpeg_codings)):
        if counts:
            yield label, ", ".join(f"{name} {count:,}" for name, count in counts.items())
    if images.pixel_classes:
        yield from _pixel_classes(images.pixel_classes)
    if images.channels:
        means, stds = [f"{c.mean:.4f}" for c in images.channels], [f"{c.std:.4f}" for c in images.channels]
        yield "mean, std *", _normalize(means, stds)
        yield from _errors([channel.error for channel in images.channels])


def _pixel_classes(shares: Mapping[int, float]) -> Iterator[Row]:
    """List the numbers in masks and their shares of the pixels; the most common ones, if there are many."""
    listed = sorted(sorted(shares, key=lambda value: -shares[value])[:MOST_LISTED])
    yield "classes *", f"{len(shares):,}, from {min(shares)} to {max(shares)}; their shares of the pixels:"
    for value in listed:
        bar = "#" * math.ceil(BAR_WIDTH * shares[value] / max(shares.values()))
        yield "", f"{value:>5}  {shares[value]:7.2%}  {bar}"
    if len(shares) > MOST_LISTED:
        yield "", f"and {len(shares) - MOST_LISTED:,} more"


def _names(classes: Classes) -> Sequence[str]:
    return [str(value) for value in classes.values] if classes.names is None else classes.names


def _printable(names: Sequence[str]) -> list[str]:
    return [name if name.isprintable() else ascii(name)[1:-1] for name in names]


def _listed(names: Sequence[str], counts: Sequence[int]) -> Iterator[Row]:
    """List the samples of each class or source; of many, the largest and the smallest."""
    printable = _printable(names)

    def bars(positions: Sequence[int]) -> Iterator[Row]:
        return _bars([printable[at] for at in positions], [counts[at] for at in positions], max(counts))

    positions = range(len(printable))
    if len(positions) <= MOST_LISTED:
        yield from bars(positions)
        return
    descending = sorted(positions, key=lambda position: -counts[position])
    yield "the largest", ""
    yield from bars(descending[:_LISTED_ENDS])
    yield "the smallest", ""
    yield from bars(descending[-_LISTED_ENDS:])


def _spread(label: str, spread: Spread, unit: str = "", *, bars: bool = True) -> Iterator[Row]:
    show = format_size if unit == "bytes" else _number
    if spread.min == spread.max:
        yield label, f"{show(spread.min)} each"
        return
    figures = ("min", "median", "mean", "p95", "max", "std")
    yield label, "  ".join(f"{name} {show(getattr(spread, name))}" for name in figures)
    if bars:
        yield from _histogram(spread.histogram, spread.max, unit)


def _histogram(histogram: Histogram, high: float, unit: str) -> Iterator[Row]:
    edges, counts = histogram.edges, histogram.counts
    integers = all(isinstance(edge, int) for edge in edges) and (not unit or edges[-1] < 1000)
    last = [min(edge - integers, high) for edge in edges[1:]]  # of integers, the last one that the bin includes
    distinct = len(set(map(format_size, edges))) == len(edges)  # as rounded sizes

    def show(edge: float) -> str:
        return (format_size(edge) if distinct else f"{edge:,} B") if unit else _number(edge)

    ends = zip(edges, last, strict=False)
    return _bars([show(a) if integers and a == b else f"{show(a)} to {show(b)}" for a, b in ends], counts, max(counts))


def _bars(names: Sequence[str], counts: Sequence[int], longest: int) -> Iterator[Row]:
    name_width, digits = (max(map(len, column), default=0) for column in (names, [f"{count:,}" for count in counts]))
    for name, count in zip(names, counts, strict=True):
        bar = "#" * -(-BAR_WIDTH * count // longest) if longest else ""
        yield "", f"{name:>{name_width}}  {count:>{digits},}  {bar}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
