"""What is in a dataset, as values."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...dataset.location import Location
from ...format.fields import Field
from ._tally import Histogram as Histogram
from ._tally import Spread as Spread

LEVELS = 256


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel of the sampled images, each image counted alike whatever its size.

    Attributes:
        mean, std: on the scale 0 to 1.
        levels: the share of pixels of each value 0 to 255, float [256].
    """

    mean: float
    std: float
    levels: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A histogram of widths and heights.

    Attributes:
        widths, heights: edges of the bins in pixels, as in `Histogram`.
        counts: [heights, widths].
    """

    widths: tuple[float, ...]
    heights: tuple[float, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ImageStats:
    """The images of one field.

    Attributes:
        heights, widths, shorter_sides: in pixels.
        aspect_ratios: width / height.
        megapixels: 10^6 pixels.
        sizes: different sizes.
        common: the most common sizes: height, width, images.
        grid: widths and heights.
        encodings: how many of the sampled images are `jpeg`, `png`, `webp`, `bmp`.
        jpeg_codings: how many of those JPEGs are `baseline` (as hardware decodes it), `progressive`, or `other`.
        channels: R, G, B, or grey alone, of those; empty if none was sampled.
    """

    heights: Spread
    widths: Spread
    shorter_sides: Spread
    aspect_ratios: Spread
    megapixels: Spread
    sizes: int
    common: tuple[tuple[int, int, int], ...]
    grid: Grid
    encodings: Mapping[str, int]
    jpeg_codings: Mapping[str, int]
    channels: tuple[Channel, ...]


@dataclass(frozen=True, slots=True)
class Classes:
    """How many samples each value of a whole number has.

    Attributes:
        values: ascending; with `names`, and of a field called `label`, those that occur in no sample, too.
        counts: samples of each.
        names: of each value; None where the metadata has none.
    """

    values: tuple[int, ...]
    counts: tuple[int, ...]
    names: tuple[str, ...] | None

    @property
    def empty(self) -> int:
        """Values that occur in no sample."""
        return self.counts.count(0)

    @property
    def largest(self) -> int:
        """Samples of the most common value."""
        return max(self.counts)

    @property
    def smallest(self) -> int:
        """Samples of the least common value that occurs at all."""
        return min(filter(None, self.counts))

    @property
    def ratio(self) -> float:
        """The largest to the smallest."""
        return self.largest / self.smallest

    def name(self, place: int) -> str:
        """What to call the value at a place in `values`."""
        return str(self.values[place]) if self.names is None else self.names[place]


@dataclass(frozen=True, slots=True)
class Values:
    """Numbers; of complex ones their absolute values.

    Attributes:
        count: finite ones.
        min, max, mean, std: of those; None if there are none.
        nan, inf: how many are no number, or infinite.
    """

    count: int
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    nan: int
    inf: int


@dataclass(frozen=True, slots=True)
class FieldContents:
    """What one field holds.

    Attributes:
        field: what it is.
        sizes: stored bytes per sample; None of no samples.
        images: of an image field.
        classes: of whole numbers of at most `MOST_CLASSES` different values.
        values: of a scalar, and of the sampled arrays: their elements.
        spread: of a scalar, of those that are finite.
        lengths: of the sampled texts, in characters.
        shapes: the most common shapes of sampled arrays of several shapes: shape, arrays.
    """

    field: Field
    sizes: Spread | None
    images: ImageStats | None = None
    classes: Classes | None = None
    values: Values | None = None
    spread: Spread | None = None
    lengths: Spread | None = None
    shapes: tuple[tuple[tuple[int, ...], int], ...] = ()


@dataclass(frozen=True, slots=True)
class BadValue:
    """A value of a sampled field that can't be read or decoded: where, the field (None for all), and why."""

    location: Location
    field: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.location}: {self.reason if self.field is None else f'field {self.field!r}: {self.reason}'}"


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a dataset.

    Attributes:
        path: the dataset's directory.
        container, digest: as the manifest has them.
        samples, shards, bytes: of all.
        sampled: samples whose images, texts and arrays were read and decoded.
        seed: chose them.
        bad: what was wrong with those.
        fields: by name.
    """

    path: str
    container: str
    digest: str
    samples: int
    shards: int
    bytes: int
    sampled: int
    seed: int
    bad: tuple[BadValue, ...]
    fields: Mapping[str, FieldContents]

    def to_dict(self) -> dict[str, Any]:
        """Every figure, for JSON."""
        told: dict[str, Any] = asdict(self)
        for name, field in self.fields.items():
            if (classes := field.classes) is not None:
                more = {key: getattr(classes, key) for key in ("empty", "largest", "smallest", "ratio")}
                told["fields"][name]["classes"] |= more
        return told
