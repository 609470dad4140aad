"""The figures of a dataset, as frozen values: what `shardio.stats` returns.

`DatasetStats` describes stored data; the statistics of a running loader are `shardio.LoaderStats`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...format.fields import Field
from ...views.readable import Location


@dataclass(frozen=True, slots=True)
class Histogram:
    """The number of values in each bin.

    Attributes:
        edges: one more than there are bins, ascending. A bin includes its lower edge and excludes its upper one; only
            the last bin of floats includes both.
        counts: the number of values in each bin.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of a set of finite numbers.

    Attributes:
        count: how many numbers there are.
        std: the standard deviation, `sqrt(mean((x - mean)^2))`.
        median, p95: the 50th and the 95th percentile, interpolated linearly between two values.
        histogram: of all numbers.
    """

    count: int
    min: float
    median: float
    mean: float
    p95: float
    max: float
    std: float
    histogram: Histogram


@dataclass(frozen=True, slots=True)
class Values:
    """The range and moments of numbers; complex ones count by their absolute value.

    Attributes:
        count: the number of finite values that are no fill values.
        min, max, mean, std: of these values; None if there are none, or if the figure itself overflows.
        nan, inf: the number of NaNs and of infinities.
        filled: the number of fill values.
        error: the standard error of the mean, where the values are those of a random sample of all samples; 0 if they
            are of all, None if there are fewer than two samples.
    """

    count: int = 0
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    nan: int = 0
    inf: int = 0
    filled: int = 0
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Classes:
    """The number of samples of each class, where a class is one value of an integer field.

    For a field with a class per box or point, these are the instances of the sampled samples.

    Attributes:
        values: ascending. With `names`, or in a field called `label`, values without any sample are included.
        counts: the number of samples of each value.
        names: the name of each value; None if the metadata holds none.
        empty: the number of values without any sample.
        largest, smallest: the number of samples of the most and of the least common value that occurs.
        ratio: `largest / smallest`.
    """

    values: tuple[int, ...]
    counts: tuple[int, ...]
    names: tuple[str, ...] | None
    empty: int
    largest: int
    smallest: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Sources:
    """The number of samples of each source of a view.

    Attributes:
        names: the sources.
        counts: the number of samples of each source.
        classes: for each source the number of samples of each class, in the order of `Classes.values` of the field
            `label`; empty if that holds no classes.
    """

    names: tuple[str, ...]
    counts: tuple[int, ...]
    classes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Channel:
    """One colour channel of the sampled images, in which every image weighs the same whatever its size.

    Attributes:
        mean, std: on the scale 0 to 1.
        levels: the share of pixels with each value 0 to 255, float [256].
        error: the standard error of the mean, as in `Values`.
    """

    mean: float
    std: float
    levels: tuple[float, ...]
    error: float | None = None


@dataclass(frozen=True, slots=True)
class ImageStats:
    """Sizes of all images of one field, and pixels of the sampled ones.

    Attributes:
        heights, widths, shorter_sides: in pixels.
        aspect_ratios: width / height.
        megapixels: in 10^6 pixels.
        sizes: the number of different sizes.
        common: the most common sizes: height, width, number of images.
        encodings: sampled images by encoding: `jpeg`, `png`, `webp`, `bmp`, or `pixels`.
        jpeg_codings: sampled JPEGs by coding: `baseline` (the one that hardware decodes), `progressive`, `other`.
        channels: R, G and B, or grey alone, of the sampled images; empty if none was sampled, and of masks.
        pixel_classes: the share of the sampled masks' pixels that has each number, by number; every mask weighs the
            same whatever its size. Empty for other images.
    """

    heights: Spread
    widths: Spread
    shorter_sides: Spread
    aspect_ratios: Spread
    megapixels: Spread
    sizes: int
    common: tuple[tuple[int, int, int], ...]
    encodings: Mapping[str, int]
    jpeg_codings: Mapping[str, int]
    channels: tuple[Channel, ...]
    pixel_classes: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class InstanceStats:
    """Boxes or points; `FieldStats.lengths` has how many there are on each image.

    Attributes:
        empty: the number of images without any.
        areas: the sampled boxes by area in stored pixels, as COCO divides them: `small` below 32^2, `medium` below
            96^2, and `large`; empty for points.
    """

    empty: int
    areas: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class VideoStats:
    """Videos, from the table of each; the sizes of their frames are in `FieldStats.images`.

    Attributes:
        frames, seconds: of each video.
        rates: the frames per second of each video that has a duration; None if none has.
        codecs: the number of videos by codec.
        rotated: the number of videos that are turned to be shown.
        spacing: the frames per key frame of each sampled video; None if none was sampled. Decoding a clip begins
            at a key frame.
        spared: the share of the sampled videos' packets that are left out of decoding unless a clip shows them.
    """

    frames: Spread
    seconds: Spread
    rates: Spread | None
    codecs: Mapping[str, int]
    rotated: int
    spacing: Spread | None
    spared: float | None


@dataclass(frozen=True, slots=True)
class FieldStats:
    """The figures of one field; None or empty where a figure does not apply to the field's kind.

    Attributes:
        field: the field's declaration.
        sizes: stored bytes per sample; None if there are no samples.
        images: sizes and pixels of an image field, and the sizes of the frames of videos.
        videos: of videos.
        classes: of an integer scalar with at most 10,000 different values, or as many as the metadata names; of
            integers per box or point, those of the sampled samples.
        values: of a scalar, or of the elements of the sampled arrays.
        channels: of the sampled arrays, by place on `channel_axis`; of several axes the last one changes first. Empty
            without such an axis.
        channel_axis: the axis of arrays that is taken for channels: the one, or ones, chosen, or else the first, of
            ragged fields the second, as `Normalize` takes it; None for complex arrays, and without a choice for those
            of more than 64 such places.
        fill_values: the numbers that mean "no value", and are left out of `values`, `channels`, `classes` and `spread`.
        spread: of the finite values of a scalar that are no fill values.
        lengths: of the sampled texts, in characters; of all values of a ragged field, in entries; of
            all lists of images, in images.
        shapes: the most common shapes of sampled arrays that differ in shape: shape, number of arrays.
        instances: of boxes and points.
        missing: the number of samples that lack the value of an optional field; they count in no other figure.
    """

    field: Field
    sizes: Spread | None
    images: ImageStats | None = None
    classes: Classes | None = None
    values: Values | None = None
    channels: tuple[Values, ...] = ()
    spread: Spread | None = None
    lengths: Spread | None = None
    shapes: tuple[tuple[tuple[int, ...], int], ...] = ()
    channel_axis: int | tuple[int, ...] | None = None
    fill_values: tuple[float, ...] = ()
    missing: int = 0
    instances: InstanceStats | None = None
    videos: VideoStats | None = None


@dataclass(frozen=True, slots=True)
class BadValue:
    """A sampled value that cannot be read or decoded: its place, its field (None for the whole sample), the reason."""

    location: Location
    field: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.location}: {self.reason if self.field is None else f'field {self.field!r}: {self.reason}'}"


@dataclass(frozen=True, slots=True)
class DatasetStats:
    """The figures of a dataset or a view.

    Attributes:
        path: the dataset's directory.
        view: what a view chooses, and of which dataset; None for a dataset.
        digest: of the content.
        container, shards, bytes: of a dataset's files; None for a view.
        samples: the number of samples in an epoch.
        sampled: the number of samples whose images, texts and arrays were read and decoded.
        seed: the seed that chose those samples.
        bad: the values of those samples that cannot be read or decoded.
        fields: the figures of each field, by name.
        joined: by field that a view has joined, the path of the dataset that has it.
        sources: the samples of each source, by the column of a batch that names it, such as `source`.
    """

    path: str
    view: str | None
    digest: str
    container: str | None
    samples: int
    shards: int | None
    bytes: int | None
    sampled: int
    seed: int
    bad: tuple[BadValue, ...]
    fields: Mapping[str, FieldStats]
    joined: Mapping[str, str]
    sources: Mapping[str, Sources]

    def to_dict(self) -> dict[str, Any]:
        """Return every figure, ready for JSON."""
        return asdict(self)
