"""What is in a dataset, as text: aligned, and in ASCII but for names that are not."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...format.fields import Field
from ...system.units import format_size
from .figures import BadValue, Channel, Classes, Contents, FieldContents, Histogram, ImageStats, Spread

BAR = 40  # characters
MOST_LISTED = 20  # classes, and bad values
_ENDS = 10  # of more classes, the largest and the smallest
_COMMON = 5  # sizes and shapes
_LINES = 12  # of a histogram; of more bins every two are one

Row = tuple[str, str]
"""What it is, and a figure; without a name it goes on below the one before."""


def text(contents: Contents) -> str:
    """The report, without a line end. Sizes are in decimal units."""
    sections = [_section("", _head(contents))]
    sections += [_section(f"{name}: {_kind(f.field)}", _rows(name, f)) for name, f in contents.fields.items()]
    return "\n\n".join(sections)


def normalize(channels: Sequence[Channel]) -> str:
    """The transform that gives such images mean 0 and deviation 1, as Python."""
    return f"shardio.Normalize({_tuple([c.mean for c in channels])}, {_tuple([c.std for c in channels])})"


def name_of(classes: Classes, place: int) -> str:
    """A class's name for people: what can't be printed is escaped."""
    name = classes.name(place)
    return name if name.isprintable() else ascii(name)[1:-1]


def shown_by_class(name: str, field: FieldContents) -> bool:
    """Whether its classes are of interest each: many whole numbers without names are rather shown as values."""
    return field.classes is not None and (name == "label" or len(field.classes.values) <= MOST_LISTED)


def _tuple(values: Sequence[float]) -> str:
    told = ", ".join(f"{value:.4f}" for value in values)
    return told if len(values) == 1 else f"({told})"


def _section(title: str, rows: Iterable[Row]) -> str:
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    indent = "  " if title else ""
    lines = [f"{indent}{name:{width}}  {value}".rstrip() for name, value in rows]
    return "\n".join([title, *lines] if title else lines)


def _kind(field: Field) -> str:
    parts = [field.kind, field.dtype or "", {3: "RGB", 1: "grey"}.get(field.channels or 0, "")]
    shape = "x".join(map(str, field.row_shape)) if field.kind == "array" else ""
    return " ".join(filter(None, [*parts, shape]))


def _head(contents: Contents) -> Iterator[Row]:
    yield "dataset", contents.path
    yield "digest", contents.digest
    yield "samples", f"{contents.samples:,} in {contents.shards:,} {contents.container} shards"
    each = f", {format_size(contents.bytes / contents.samples)} per sample" if contents.samples else ""
    yield "bytes", f"{format_size(contents.bytes)}{each}"
    if contents.sampled:
        yield "looked at", f"{contents.sampled:,} samples (seed {contents.seed}); figures of these are marked *"
        yield "bad *", f"{len({bad.location.index for bad in contents.bad}):,} samples"
    yield from _bad(contents.bad)


def _bad(bad: Sequence[BadValue]) -> Iterator[Row]:
    yield from (("", f"{one}") for one in bad[:MOST_LISTED])
    if len(bad) > MOST_LISTED:
        yield "", f"and {len(bad) - MOST_LISTED:,} more"


def _rows(name: str, field: FieldContents) -> Iterator[Row]:
    if field.sizes is not None:
        yield from _spread("stored size", field.sizes, "bytes", bars=field.lengths is None)
    if field.images is not None:
        yield from _images(field.images)
    if field.classes is not None:
        yield from _balance(field.classes)
    if shown_by_class(name, field) and field.classes is not None:
        yield from _listed(field.classes)
    elif field.spread is not None:
        yield from _spread("values", field.spread)
    if field.lengths is not None:
        yield from _spread("characters *", field.lengths)
    yield from _values(field)
    for number, (shape, count) in enumerate(field.shapes[:_COMMON]):
        yield "" if number else "shapes *", f"{list(shape)}: {count:,}"


def _values(field: FieldContents) -> Iterator[Row]:
    values = field.values
    if values is None:
        return
    if field.spread is None and values.count:
        ends = [("min", values.min), ("max", values.max), ("mean", values.mean), ("std", values.std)]
        yield "values *", "  ".join(f"{name} {_number(value)}" for name, value in ends if value is not None)
    if values.nan or values.inf:
        yield "not finite" + (" *" if field.spread is None else ""), f"{values.nan:,} NaN, {values.inf:,} infinite"


def _images(images: ImageStats) -> Iterator[Row]:
    yield from _spread("height", images.heights, bars=False)
    yield from _spread("width", images.widths, bars=False)
    yield from _spread("shorter side", images.shorter_sides)
    yield from _spread("width / height", images.aspect_ratios, bars=False)
    yield from _spread("megapixels", images.megapixels, bars=False)
    total = images.heights.count
    if images.sizes > 1:
        yield "sizes", f"{images.sizes:,} different; width x height of the most common:"
        for height, width, count in images.common[:_COMMON]:
            yield "", f"{width} x {height}: {count:,} ({count / total:.1%})"
    if images.channels:
        yield "encodings *", _counts(images.encodings)
        if images.jpeg_codings:
            yield "JPEGs *", _counts(images.jpeg_codings)
        yield "mean, std *", normalize(images.channels)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _balance(classes: Classes) -> Iterator[Row]:
    count, empty = len(classes.values), classes.empty
    yield "classes", f"{count:,}, of {classes.smallest:,} to {classes.largest:,} samples (1 : {classes.ratio:.3g})"
    if empty:
        yield "empty classes", f"{empty:,}"


def _listed(classes: Classes) -> Iterator[Row]:
    count = len(classes.values)
    if count <= MOST_LISTED:
        yield from _class_bars(classes, range(count))
        return
    order = sorted(range(count), key=lambda place: (-classes.counts[place], place))
    yield "the largest", ""
    yield from _class_bars(classes, order[:_ENDS])
    yield "the smallest", ""
    yield from _class_bars(classes, order[-_ENDS:])


def _class_bars(classes: Classes, places: Sequence[int]) -> Iterator[Row]:
    names = [name_of(classes, place) for place in places]
    return _bars(names, [classes.counts[place] for place in places], classes.largest)


def _spread(name: str, spread: Spread, unit: str = "", *, bars: bool = True) -> Iterator[Row]:
    def shown(value: float) -> str:
        return format_size(value) if unit == "bytes" else _number(value)

    if spread.min == spread.max:
        yield name, f"{shown(spread.min)} each"
        return
    parts = ("min", "median", "mean", "p95", "max", "std")
    yield name, "  ".join(f"{part} {shown(getattr(spread, part))}" for part in parts)
    if bars:
        yield from _histogram(spread.histogram, spread.max, unit)


def _histogram(histogram: Histogram, high: float, unit: str) -> Iterator[Row]:
    edges, counts = histogram.edges, histogram.counts
    if len(counts) > _LINES:
        edges = (*edges[:-1:2], edges[-1])
        counts = tuple(sum(counts[at : at + 2]) for at in range(0, len(counts), 2))
    whole = all(isinstance(edge, int) for edge in edges) and (not unit or edges[-1] < 1000)
    ends = [min(edge - whole, high) for edge in edges[1:]]  # of whole numbers the last one that is in the bin
    apart = len(set(map(format_size, edges))) == len(edges)  # as sizes for people are

    def shown(edge: float) -> str:
        return (format_size(edge) if apart else f"{edge:,} B") if unit else _number(edge)

    names = [shown(a) if whole and a == b else f"{shown(a)} to {shown(b)}" for a, b in zip(edges, ends, strict=False)]
    return _bars(names, counts, max(counts))


def _bars(names: Sequence[str], counts: Sequence[int], most: int) -> Iterator[Row]:
    wide, digits = (max(map(len, column), default=0) for column in (names, [f"{count:,}" for count in counts]))
    for name, count in zip(names, counts, strict=True):
        length = -(-BAR * count // most) if most else 0
        yield "", f"{name:>{wide}}  {count:>{digits},}  {'#' * length}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
