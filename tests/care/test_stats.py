"""Dataset statistics: every figure equals a value known in advance, in every container."""

import ast
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import encode, jpeg, png, spoiled
from _datasets import CONTAINERS, packed

import shardio
from shardio import native
from shardio.care.stats import report, stats
from shardio.care.stats.field_view import views
from shardio.care.stats.figures import Spread
from shardio.errors import ConfigError, ShardCorrupt
from shardio.format.fields import Field

COLORS = [(51, 102, 204), (255, 0, 0), (0, 51, 255)]
FIELDS = {
    "image": "image",
    "label": "int64",
    "score": "float32",
    "caption": "text",
    "grid": ("float64", (2, 3)),
    "points": Field("array", dtype="int16"),
    "blob": "bytes",
    "note": "json",
}
CLASSES = ["cat", "dog", "owl", "eel", "bat"]


def plain(height: int, width: int, color: tuple[int, int, int]) -> bytes:
    """A PNG of one colour."""
    return encode("png", np.full((height, width, 3), color, np.uint8))


def sample(number: int) -> dict[str, Any]:
    """A sample with a field of every kind; its number determines all figures."""
    return {
        "image": plain(10 + number % 3, 20 - number % 2, COLORS[number % 3]),
        "label": (0, 0, 0, 1, 3)[number % 5],
        "score": number / 4,
        "caption": "ä" * (number % 6),
        "grid": np.full((2, 3), number, np.float64),
        "points": np.arange(number % 4, dtype=np.int16),
        "blob": bytes(number),
        "note": [0] * (number % 3),
    }


def write(path: Path, container: str, samples: list[dict[str, Any]], fields: Any = FIELDS) -> shardio.Dataset:
    """A dataset of these samples in several shards."""
    return packed(path, samples, fields, container=container, shard_size="6KB", metadata={"classes": CLASSES})


def two_parts(folder: Path) -> dict[str, shardio.Dataset]:
    """Datasets of 10 and of 15 samples."""
    numbers = {"a": range(10), "b": range(10, 25)}
    return {name: write(folder / name, "tar", [sample(n) for n in part]) for name, part in numbers.items()}


def check(spread: Spread | None, values: Any) -> None:
    """Check that a spread agrees with NumPy's figures for these values."""
    values = np.asarray(values)
    assert (spread.count, spread.min, spread.max) == (len(values), values.min(), values.max())
    assert spread.mean == pytest.approx(values.mean(), rel=1e-12)
    assert spread.std == pytest.approx(values.std(), rel=1e-9, abs=1e-12)
    assert [spread.median, spread.p95] == pytest.approx(np.percentile(values, [50, 95]).tolist(), rel=1e-12)
    edges, counts = np.array(spread.histogram.edges), spread.histogram.counts
    which = np.minimum(np.searchsorted(edges, values, "right") - 1, len(counts) - 1)
    assert np.bincount(which, minlength=len(counts)).tolist() == list(counts)


@pytest.mark.usefixtures("part")
@pytest.mark.parametrize("container", [*CONTAINERS, "memory"])
def test_all_figures_are_right(tmp_path: Path, container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of scalars, images, texts and arrays are exact, also when blocks of reads cross shard boundaries."""
    monkeypatch.setattr("shardio.care.stats._COUNTED_SAMPLES", 11)
    samples = [sample(number) for number in range(60)]
    ds = write(tmp_path / "d", container, samples)
    found = stats(ds)
    assert (found.samples, found.shards, found.container) == (60, len(ds.manifest.shards), container)
    assert found.shards > 3
    assert found.bytes == ds.manifest.shards.bytes.sum()
    assert (found.digest, found.sampled, found.bad) == (ds.digest, 60, ())
    for name, field in ds.fields.items():
        sizes = [len(memoryview(field.encode(one[name])).cast("B")) for one in samples]
        check(found.fields[name].sizes, sizes)
    check(found.fields["score"].spread, [one["score"] for one in samples])
    check(found.fields["caption"].lengths, [len(one["caption"]) for one in samples])
    points = np.concatenate([one["points"] for one in samples])
    values = found.fields["points"].values
    assert (values.count, values.min, values.max, values.nan, values.inf) == (len(points), 0, 2, 0, 0)
    assert (values.mean, values.std) == pytest.approx((points.mean(), points.std()))
    assert dict(found.fields["points"].shapes) == {(size,): 15 for size in range(4)}
    values = found.fields["grid"].values
    assert (values.count, values.min, values.max) == (360, 0, 59)
    assert (values.mean, values.std) == pytest.approx((29.5, np.arange(60).std()))


@pytest.mark.parametrize("container", ["tar", "memory"])
def test_images_are_described(tmp_path: Path, container: str) -> None:
    """Statistics of images include their sizes, encodings, and the mean and deviation of their pixels."""
    samples = [sample(number) for number in range(60)]
    samples[7]["image"] = jpeg(10, 10)
    samples[8]["image"] = jpeg(30, 10, progressive=True)
    images = stats(write(tmp_path / "d", container, samples)).fields["image"].images
    heights = np.array([{7: 10, 8: 30}.get(n, 10 + n % 3) for n in range(60)])
    widths = np.array([{7: 10, 8: 10}.get(n, 20 - n % 2) for n in range(60)])
    check(images.heights, heights)
    check(images.widths, widths)
    check(images.shorter_sides, np.minimum(heights, widths))
    check(images.aspect_ratios, widths / heights)
    check(images.megapixels, heights * widths / 1e6)
    assert images.sizes == 8
    assert images.common[:3] == ((10, 19, 10), (10, 20, 10), (11, 20, 10))
    assert images.common[-1] == (30, 10, 1)
    assert images.encodings == {"png": 58, "jpeg": 2}
    assert images.jpeg_codings == {"baseline": 1, "progressive": 1}


GREY = np.repeat([[255], [0]], 2, axis=0).repeat(6, axis=1).astype(np.uint8)


@pytest.mark.parametrize(
    ("images", "channels", "means", "stds", "code"),
    [
        # in RGB, from 0 to 1, and each image weighs the same
        ([plain(10, 10, COLORS[0]), plain(50, 70, COLORS[1])], 3, (0.6, 0.2, 0.4), (0.4, 0.2, 0.4),
         "shardio.Normalize((0.6000, 0.2000, 0.4000), (0.4000, 0.2000, 0.4000))"),
        ([encode("png", GREY)], 1, (0.5,), (0.5,), "shardio.Normalize(0.5000, 0.5000)"),  # as in the loader
    ],
)  # fmt: skip
def test_pixels_are_described(images: list[bytes], channels: int, means: Any, stds: Any, code: str) -> None:
    """Mean and deviation of pixels are by channel, and are printed as the transform."""
    ds = shardio.from_samples([{"x": image} for image in images], {"x": Field("image", channels=channels)})
    found = stats(ds).fields["x"].images.channels
    assert [channel.mean for channel in found] == pytest.approx(means)
    assert [channel.std for channel in found] == pytest.approx(stds)
    assert found[-1].levels[204 if channels == 3 else 255] == found[-1].levels[0] == 0.5
    assert code in report.text(stats(ds))


@pytest.mark.parametrize("kind", ["file", "pixels"])
def test_masks_are_described_by_class(kind: str) -> None:
    """Of a mask the shares of its numbers are told, in which every mask weighs the same, and no mean or deviation."""
    many, few = np.zeros((10, 20), np.uint8), np.full((10, 20), 255, np.uint8)
    many[:5] = 7
    few[0, :10] = 7
    pixels = kind == "pixels"
    field = Field("pixels", shape=(10, 20), role="mask") if pixels else Field("image", role="mask")
    samples = [{"mask": numbers[..., None] if pixels else encode("png", numbers)} for numbers in (many, few)]
    figures = stats(shardio.from_samples(samples, {"mask": field}))
    images = figures.fields["mask"].images
    assert images.pixel_classes == pytest.approx({0: 0.25, 7: 0.275, 255: 0.475})
    assert images.channels == ()
    text = report.text(figures)
    assert "mask: image mask" in text or "mask: pixels mask" in text
    assert "3, from 0 to 255" in text
    assert "Normalize" not in text
    json.dumps(figures.to_dict())
    deep = encode("png", np.arange(30, dtype=np.uint16)[:, None].repeat(40, 1) * 1000)  # levels of 16 bits
    figures = stats(shardio.from_samples([{"mask": deep}], {"mask": Field("image", role="mask")}))
    assert list(figures.fields["mask"].images.pixel_classes) == [1000 * number for number in range(30)]
    assert "and 10 more" in report.text(figures)


def test_arrays_are_described_by_channel(tmp_path: Path) -> None:
    """The first axis of arrays of one shape is their channels, whose mean and deviation are printed as a transform."""
    random = np.random.default_rng(0)
    rows = [random.normal((5, -3000, 7), (1, 400, 0), (6, 4, 3)).T.astype(np.float32) for _ in range(40)]
    ds = write(tmp_path / "d", "hdf5", [{"x": row} for row in rows], {"x": ("float32", (3, 4, 6))})
    found = stats(ds).fields["x"]
    for place, channel in enumerate(found.channels):
        values = np.stack(rows)[:, place].astype(np.float64)
        assert channel.count == values.size
        assert (channel.mean, channel.std) == pytest.approx((values.mean(), values.std()))
    assert found.values.mean == pytest.approx(np.stack(rows).mean(dtype=np.float64))
    code = next(line for line in report.text(stats(ds)).splitlines() if "mean, std *" in line).split("*")[1]
    made = eval(code, {"shardio": shardio})  # noqa: S307  # our own
    (batch,) = shardio.Loader(ds, 40, transforms={"x": [made]}, world=shardio.World())
    assert batch["x"].mean(dim=(0, 2, 3)).numpy() == pytest.approx(np.zeros(3), abs=1e-3)
    assert batch["x"].std(dim=(0, 2, 3)).numpy() == pytest.approx((1, 1, 0), abs=1e-2)  # the last one is constant


def test_some_arrays_have_no_channels() -> None:
    """Long first axes, complex numbers and shapes that differ are told as a whole; one axis is one number per place."""
    fixed = {"long": np.zeros((65, 2)), "complex": np.full((2, 2), 3 + 4j, "c8"), "two": np.array([1.0, 3.0])}
    fixed["many"] = np.zeros((17, 2))
    fields: Any = {name: (array.dtype, array.shape) for name, array in fixed.items()}
    fields |= {"ragged": Field("array", dtype="float64"), "one": "complex64"}
    samples = [{**fixed, "ragged": np.zeros((2, n + 1)), "one": 3 + 4j} for n in range(3)]
    found = stats(shardio.from_samples(samples, fields))
    channels = {name: len(field.channels) for name, field in found.fields.items()}
    assert channels == {"long": 0, "complex": 0, "two": 2, "many": 17, "ragged": 0, "one": 0}
    # Complex numbers are told by their absolute values.
    assert (found.fields["complex"].values.mean, found.fields["one"].spread.median) == (5, 5)
    assert report.text(found).count("shardio.Normalize(") == 2
    assert "mean, std *  of 17 places on axis 0: in --json" in report.text(found)
    assert "mean, std *  shardio.Normalize(0, 1)" in report.text(found)  # of the long ones, together
    assert "shardio.Normalize((1, 3), (1, 1))" in report.text(found)


def classes_of(values: Any, name: str = "label", dtype: str = "int64", names: Any = None) -> Any:
    """The class statistics of one column."""
    metadata = {} if names is None else {"classes": names}
    ds = shardio.from_samples([{name: value} for value in values], {name: dtype}, metadata=metadata)
    return stats(ds).fields[name].classes


def test_class_balance_is_told_with_names() -> None:
    """Class statistics hold counts, extremes, their ratio, and classes without samples, by name."""
    found = classes_of([0, 0, 0, 3, 1, 0, 3], names=CLASSES)
    assert (found.values, found.counts, found.names) == ((0, 1, 2, 3, 4), (4, 1, 0, 2, 0), tuple(CLASSES))
    assert (found.largest, found.smallest, found.ratio, found.empty) == (4, 1, 4.0, 2)
    # With names, any number of values counts as classes.
    found = classes_of(range(10_001), names=[f"c{n}" for n in range(12_000)])
    assert (len(found.values), found.empty) == (12_000, 1999)


@pytest.mark.parametrize(
    ("values", "options", "expected", "names"),
    [
        ([2, 2, 0], {}, {0: 1, 1: 0, 2: 2}, None),  # labels count from 0, so that 1 is missing
        ([2, 2, 0], {"name": "age"}, {0: 1, 2: 2}, None),  # other numbers are their own names
        ([2, 2, 0], {"name": "age", "names": ["a"]}, {0: 1, 2: 2}, None),  # the names belong to the label
        ([1, -1], {"names": ["a", "b"]}, {-1: 1, 0: 0, 1: 1}, ("-1", "a", "b")),  # not every value has a name
        ([5], {"names": ["a"]}, {0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 1}, ("a", "1", "2", "3", "4", "5")),
        ([2**40, 7], {}, {7: 1, 2**40: 1}, None),  # not counted from 0
        ([True, False, True], {"name": "seen", "dtype": "bool"}, {0: 1, 1: 2}, None),
        ([3, 3], {"dtype": "uint8"}, {0: 0, 1: 0, 2: 0, 3: 2}, None),
        ([3, 3], {"dtype": "uint64"}, {0: 0, 1: 0, 2: 0, 3: 2}, None),
        (range(10_001), {}, None, None),
        ([0.0, 1.0], {"dtype": "float32"}, None, None),
        ([2**64 - 1, 1], {"dtype": "uint64"}, None, None),
    ],
)
def test_classes_are_what_the_field_says(values: Any, options: Any, expected: Any, names: Any) -> None:
    """The field decides which values are classes and how they are named; many, fractions and huge integers are none."""
    found = classes_of(values, **options)
    if expected is None:
        assert found is None
        return
    assert dict(zip(found.values, found.counts, strict=True)) == expected
    assert found.names == names


@pytest.mark.parametrize("kind", ["scalar", "array", "varying"])
def test_numbers_that_are_not_finite_are_counted_apart(kind: str) -> None:
    """NaN and infinities are counted separately and excluded from the mean."""
    values = [1.0, math.nan, 3.0, math.inf, -math.inf, math.nan]
    if kind == "scalar":
        samples, field = [{"x": value} for value in values], Field("scalar", dtype="float32")
    else:
        field = Field("array", dtype="float32", shape=(2,) if kind == "array" else None)
        samples = [{"x": np.array(values[at : at + 2], np.float32)} for at in (0, 2, 4)]
    found = stats(shardio.from_samples(samples, {"x": field})).fields["x"]
    assert (found.values.count, found.values.nan, found.values.inf) == (2, 2, 2)
    assert (found.values.min, found.values.max, found.values.mean, found.values.std) == (1, 3, 2, 1)
    if kind == "scalar":
        check(found.spread, [1.0, 3.0])
    json.dumps(stats(shardio.from_samples(samples, {"x": field})).to_dict(), allow_nan=False)


TEMPERATURES = np.arange(24, dtype=np.int16).reshape(3, 2, 4)
TEMPERATURES[0, 0, 0] = TEMPERATURES[2, 1, 1] = -32768
FLOATS = TEMPERATURES.astype(np.float32)
FLOATS[FLOATS < 0] = np.float32(1e20)
FLOATS[1, 0, 0] = np.nan


@pytest.mark.parametrize("container", ["tar", "hdf5", "memory"])
@pytest.mark.parametrize("fixed", [True, False])
def test_fill_values_are_left_out_and_counted(tmp_path: Path, container: str, fixed: bool) -> None:
    """Fill values and NaN count in no figure of arrays, by channel or together, and of scalars, and are counted."""
    shape = (3, 2, 4) if fixed else None
    fields = {"t": Field("array", "int16", shape), "f": Field("array", "float32", shape), "label": "int16"}
    samples = [{"t": TEMPERATURES, "f": FLOATS, "label": label} for label in (3, -1, 3, 3)]
    ds = write(tmp_path / "d", container, samples, fields)
    found = stats(ds, fill_values={"t": -32768, "f": [1e20, -5], "label": -1}).fields
    kept = TEMPERATURES[TEMPERATURES >= 0]
    values, floats, label = found["t"].values, found["f"].values, found["label"]
    assert (values.count, values.min, values.max, values.filled) == (88, 1, 23, 8)
    assert values.mean == pytest.approx(kept.mean())
    assert values.std == pytest.approx(kept.std())
    assert (floats.count, floats.nan, floats.filled, floats.max) == (84, 4, 8, 23)
    assert (label.values.filled, label.spread.min, label.classes.values) == (1, 3, (0, 1, 2, 3, 4))
    assert found["f"].fill_values == (np.float32(1e20), -5)  # as the field holds it
    assert [channel.filled for channel in found["t"].channels] == ([4, 0, 4] if fixed else [])
    told = report.text(stats(ds, fill_values={"t": -32768}))
    assert "fill values *  8 of -32,768, left out" in told
    assert "not finite *   4 NaN, 0 infinite, left out" in told or "not finite *  4 NaN, 0 infinite, left out" in told
    assert f"{'of each channel: 0, 4, 0; ' if fixed else ''}shardio.FillMissing puts numbers in their place" in told


@pytest.mark.parametrize(
    ("attributes", "dtype", "expected"),
    [
        ({"_FillValue": -32768}, "int16", (-32768,)),
        ({"_FillValue": 1e20, "missing_value": 1e20}, "float32", (float(np.float32(1e20)),)),
        ({"missing_value": [-1, -2]}, "int16", (-1, -2)),
        ({"_FillValue": 1e20}, "int16", ()),  # of other data
        ({"_FillValue": "none", "units": "K"}, "float32", ()),
        ({}, "float32", ()),
    ],
)
def test_a_field_may_state_its_fill_values(attributes: dict[str, Any], dtype: str, expected: tuple[float, ...]) -> None:
    """The attributes of the CF conventions are taken where a field has some, unless the user gives others."""
    fields = {"x": Field("array", dtype, (2,), attributes=attributes)}
    assert views(fields, {}, {})["x"].fill_values == expected
    assert views(fields, {"x": 7}, {})["x"].fill_values == (7,)


def test_the_axis_of_channels_is_told_and_can_be_chosen(tmp_path: Path) -> None:
    """The report names the axis that is taken for channels; another one, or none, may be asked for."""
    rows = np.random.default_rng(1).normal(5, 2, (20, 3, 4)).astype(np.float32)
    ds = write(tmp_path / "d", "hdf5", [{"x": row} for row in rows], {"x": ("float32", (3, 4))})

    def told(**options: Any) -> tuple[list[float], str]:
        found = stats(ds, **options)
        return [channel.mean for channel in found.fields["x"].channels], report.text(found)

    means, text = told()
    assert means == pytest.approx(rows.mean(axis=(0, 2)).tolist(), rel=1e-5)
    assert "channels *   3 places on axis 0; --channel-axis x=none takes all values together" in text
    means, text = told(channel_axis={"x": -1})
    assert means == pytest.approx(rows.mean(axis=(0, 1)).tolist(), rel=1e-5)
    assert "channels *   4 places on axis 1;" in text
    assert "Normalize" not in text  # which takes the first axis
    means, text = told(channel_axis={"x": (0, 1)})
    assert means == pytest.approx(rows.mean(axis=0).reshape(-1).tolist(), rel=1e-5)
    assert "channels *   12 places on axes (0, 1);" in text
    code = text[text.index("shardio.Normalize((") :].partition("\n")[0]
    assert np.shape(ast.literal_eval(f"[{code.partition('(')[2][:-1]}]")) == (2, 3, 4)
    means, text = told(channel_axis={"x": None})
    assert means == []
    mean, std = rows.mean(dtype=np.float64), rows.std(dtype=np.float64)
    assert f"mean, std *  shardio.Normalize({mean:.6g}, {std:.6g})" in text
    assert "channels *" not in text


def test_means_of_a_sample_come_with_their_standard_error(tmp_path: Path) -> None:
    """The error is that of random samples of images and arrays, each of which resembles itself; it is 0 of all."""
    levels = np.random.default_rng(5).integers(0, 256, 400)
    fields = {"image": "image", "pixels": Field("pixels", shape=(4, 4)), "x": ("float32", (1, 3)),
              "y": Field("array", "int16")}  # fmt: skip
    samples = [
        {
            "image": plain(4, 4, (level, 10, 255 - level)),
            "pixels": np.full((4, 4, 3), level, np.uint8),
            "x": np.full((1, 3), level, np.float32),
            "y": np.full(1 + number % 3, level, np.int16),
        }
        for number, level in enumerate(levels.tolist())
    ]
    ds = write(tmp_path / "d", "hdf5", samples, fields)
    found = stats(ds, sample=50)
    image, pixels = (found.fields[name].images.channels for name in ("image", "pixels"))
    x, y = found.fields["x"], found.fields["y"]
    one = levels.std() / np.sqrt(50) * np.sqrt(1 - 50 / 400)  # what a sample of 50 of 400 errs by, on average
    for channel, scale in ((image[0], 255), (image[2], 255), (pixels[1], 255), (x.channels[0], 1), (x.values, 1),
                           (y.values, 1)):  # fmt: skip
        assert channel.error * scale == pytest.approx(one, rel=0.35)
    assert image[1].error == pytest.approx(0, abs=1e-9)
    for values in (x.values, y.values):
        assert abs(values.mean - levels.mean()) < 4 * values.error
    text = report.text(found)
    assert "looked at  50 samples (seed 0); figures of these are marked *; --sample all looks at all" in text
    told = re.sub(" +", " ", text).replace("+- *", "+- * ")
    assert f"mean +- *  {image[0].error:.2g}, 0, {image[2].error:.2g}" in told
    whole = stats(ds, sample="all")
    assert (whole.sampled, whole.fields["x"].channels[0].error) == (400, 0)
    assert [stats(ds, sample=count).fields["x"].channels[0].error for count in (0, 1)] == [None, None]
    assert "+-" not in report.text(whole)
    assert "looked at  all samples; figures of these are marked *\n" in report.text(whole)


def test_a_sample_is_chosen_by_its_seed(tmp_path: Path) -> None:
    """The seed alone selects the decoded subset, whatever the container and the number of threads."""
    samples = [sample(number) for number in range(200)]
    ds = write(tmp_path / "d", "lmdb", samples)
    told = [stats(ds, sample=30, seed=seed, workers=workers) for seed, workers in ((3, 1), (3, 5), (4, 2))]
    assert told[0] == told[1]
    one, _, another = (found.fields["grid"].values for found in told)
    assert one != another
    assert [found.sampled for found in told] == [30] * 3
    assert one.count == another.count == 180
    other = stats(shardio.from_samples(samples, FIELDS), sample=30, seed=3).fields["grid"].values
    assert (one.min, one.max, one.mean) == (other.min, other.max, pytest.approx(other.mean))
    check(told[0].fields["score"].spread, [one["score"] for one in samples])  # of all


def test_no_sample_need_be_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With sample=0 no image is read or decoded, and figures come from the index alone."""
    monkeypatch.setattr("shardio.engines.whole_images.decode", None)
    for container in (*CONTAINERS, "memory"):
        ds = write(tmp_path / container, container, [sample(number) for number in range(40)])
        with monkeypatch.context() as patch:
            if native.library() is not None and container != "memory":
                patch.setattr("shardio.dataset.selection.Selection.values", None)
                patch.setattr("shardio.dataset.selection._measured", None)
            found = stats(ds, sample=0)
        images = found.fields["image"].images
        assert (found.sampled, images.channels, images.encodings, images.heights.count) == (0, (), {}, 40)
        assert found.fields["image"].sizes.count == 40
        assert "looked at" not in report.text(found)


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_bad_samples_are_named_and_left_out(tmp_path: Path, container: str) -> None:
    """Invalid images and texts are reported by shard, row, number and key; the other samples count."""
    fields = {"image": "image", "key": "text"}
    samples = [{"image": png(seed=n), "key": f"key-{n:03d}"} for n in range(30)]
    samples[4]["image"] = spoiled(jpeg())
    ds = write(tmp_path / "d", container, samples, fields)
    path = tmp_path / "d" / ds.shard_of(9)
    path.write_bytes(path.read_bytes().replace(b"key-009", b"k\xffy-009"))
    for workers in (1, 4):
        found = stats(ds, workers=workers)
        assert [(bad.location.index, bad.field) for bad in found.bad] == [(4, "image"), (9, "key")]
        first, second = map(str, found.bad)
        assert first.startswith(f"{ds.locate(4)}: field 'image': the jpeg image of ")
        assert ", key key-004): " in first
        assert ", key k\\xffy-009): field 'key': not text: " in second
        assert found.fields["image"].images.encodings == {"png": 29}
        assert found.fields["key"].lengths.count == 29
        told = report.text(found)
        assert "bad *      2 samples\n" in told
        assert first in told
    ds.close()


def test_a_sample_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Samples beyond the end of a truncated file are bad, if the index still gives their sizes."""
    ds = write(tmp_path / "d", "hdf5", [{"grid": np.full((50, 100), n, np.float64)} for n in range(3)],
               {"grid": ("float64", (50, 100))})  # fmt: skip
    path = tmp_path / "d" / ds.manifest.shards.names[0]
    ds.read([0])
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)
    found = stats(ds)
    assert found.bad
    assert {bad.field for bad in found.bad} == {None}
    assert found.bad[0].location.shard == path.name
    ds.close()


def test_a_shard_without_its_index_is_an_error(tmp_path: Path) -> None:
    """A shard without its index is an error, because the figures are those of all samples."""
    ds = write(tmp_path / "d", "tar", [sample(number) for number in range(30)])
    (tmp_path / "d" / "shard-000001.idx.npy").unlink()
    with pytest.raises(ShardCorrupt, match=r"shard-000001.tar: its index .* is missing"):
        stats(ds)


@pytest.mark.parametrize("options", [{}, {"channel_axis": {"x": 0}}, {"channel_axis": {"x": 1}}])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 4)])
def test_arrays_without_numbers_have_no_figures(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    """Arrays along one of whose axes there is nothing are counted, and have no values, whatever axis is chosen."""
    samples = shardio.from_samples([{"x": np.zeros(shape, np.float32)}] * 3, {"x": ("float32", shape)})
    figures = stats(samples, **options).fields["x"]
    assert (figures.values.count, figures.values.mean) == (0, None)
    assert {channel.count for channel in figures.channels} <= {0}


@pytest.mark.parametrize("values", [[2**63 - 1, 2**63 - 6], [-(2**63), 5 - 2**63], [2**63 - 1, -(2**63)]])
def test_the_ends_of_64_bits_are_counted(values: list[int]) -> None:
    """Histogram bins include the largest and smallest 64-bit integers."""
    spread = stats(shardio.from_samples([{"x": value} for value in values], {"x": "int64"})).fields["x"].spread
    assert (spread.min, spread.max) == (min(values), max(values))
    assert spread.histogram.counts[0] == spread.histogram.counts[-1] == 1
    assert sum(spread.histogram.counts) == 2


def test_an_empty_dataset_has_no_figures() -> None:
    """An empty dataset has no figures."""
    found = stats(shardio.from_samples([], FIELDS))
    assert (found.samples, found.sampled) == (0, 0)
    assert {(f.sizes, f.images, f.classes, f.spread, f.lengths) for f in found.fields.values()} == {(None,) * 5}
    assert report.text(found).startswith("dataset  ")
    assert "Normalize" not in report.text(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample": -1}, "sample must be an integer of at least 0, or 'all', got -1"),
        ({"sample": "some"}, "sample must be .* got 'some'"),
        ({"fill_values": {"y": 1}}, r"fill_values: 'y' is no field of numbers; there are x \(scalar, int64\)"),
        ({"fill_values": {"x": 0.5}}, r"field 'x' is scalar, int64, which cannot hold 0.5"),
        ({"fill_values": {"x": [1, 2**64]}}, r"which cannot hold \[1, 18446744073709551616\]"),
        ({"channel_axis": {"x": 0}}, "field 'x' is scalar, int64, which has no axis 0"),
        ({"channel_axis": {"x": (0, 1)}}, "field 'x' is scalar, int64, which has no axis 0"),
        ({"sample": True}, "sample must be"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    """Each message names the rule and the value."""
    with pytest.raises(ConfigError, match=message):
        stats(shardio.from_samples([{"x": 1}]), **options)


def test_the_report_is_aligned_ascii(tmp_path: Path) -> None:
    """The report is ASCII with one section per field, bars of #, and no trailing spaces."""
    found = stats(write(tmp_path / "d", "tar", [sample(number) for number in range(60)]))
    told = report.text(found)
    assert told.isascii()
    lines = told.splitlines()
    assert all(line == line.rstrip() for line in lines)
    assert [line for line in lines if line and line[0] != " "][6:] == [
        "image: image RGB",
        "label: scalar int64",
        "score: scalar float32",
        "caption: text",
        "grid: array float64 2x3",
        "points: array int16",
        "blob: bytes",
        "note: json",
    ]
    assert "  stored size    8 B each" in lines
    assert "  classes        5, of 12 to 36 samples (1 : 3)" in lines
    assert "  empty classes  2" in lines
    bars = {line.split()[0]: line.count("#") for line in lines if line.split()[:1] and line.split()[0] in CLASSES}
    assert bars == {"cat": 40, "dog": 14, "owl": 0, "eel": 14, "bat": 0}
    assert "  values *     min 0.0  max 59.0" not in told
    assert "  values *     min 0  max 59  mean 29.5  std 17.32" in lines
    assert any(line.split()[:4] == ["20", "x", "10:", "10"] for line in lines)


def test_many_classes_are_listed_in_part() -> None:
    """The report lists the ten largest and ten smallest classes, and escapes names with control characters."""
    labels = [number for number in range(50) for _ in range(number + 1)]
    names = [f"c{number}" if number else "\x1b[31mred\n" for number in range(50)]
    metadata = {"classes": names}
    ds = shardio.from_samples([{"label": label} for label in labels], {"label": "int64"}, metadata=metadata)
    lines = report.text(stats(ds)).splitlines()
    listed = [line.split()[0] for line in lines if "#" in line]
    largest, smallest = ([f"c{number}" for number in numbers] for numbers in (range(49, 39, -1), range(9, 0, -1)))
    assert listed == [*largest, *smallest, r"\x1b[31mred\n"]


def test_views_are_counted_as_an_epoch_delivers_them(tmp_path: Path) -> None:
    """Of a view come its own samples, and of a concatenation those of each source, and the classes in each."""
    joined = shardio.concat(two_parts(tmp_path))
    found = stats(joined, sample="all")
    whole = stats(write(tmp_path / "whole", "hdf5", [sample(n) for n in range(25)]), sample="all")
    assert (found.container, found.shards, found.bytes, found.sampled, found.bad) == (None, None, None, 25, ())
    assert found.fields == whole.fields
    assert found.sources["source"].names == ("a", "b")
    assert found.sources["source"].counts == (10, 15)
    assert found.sources["source"].classes == ((6, 2, 0, 2, 0), (9, 3, 0, 3, 0))
    lines = report.text(found).splitlines()
    assert lines[0] == "dataset    concat(a, b)"
    assert lines[1].startswith("view       Concat of {'a': <Dataset")
    assert len(lines[1]) < 220
    assert "samples    25" in lines
    first = lines.index("source: 2 sources")
    assert lines[first + 1 : first + 11] == [
        "  samples",
        "           a  10  ###########################",
        "           b  15  ########################################",
        "  classes",
        "                a  b",
        "           cat  6  9",
        "           dog  2  3",
        "           owl  0  0",
        "           eel  2  3",
        "           bat  0  0",
    ]
    view = joined.select([24, 3, 3])
    few = stats(view, sample="all")
    assert (few.samples, few.sampled, few.digest) == (3, 3, view.digest)
    assert few.fields["label"].classes.counts == (0, 2, 0, 1, 0)
    assert few.sources["source"].counts == (2, 1)
    assert few.fields["score"].spread.max == 6
    assert json.loads(json.dumps(few.to_dict()))["sources"]["source"]["names"] == ["a", "b"]


def test_weighted_views_are_counted_with_their_weights(tmp_path: Path) -> None:
    """Of a mixture with weights, each source counts as often as an epoch delivers its samples."""
    mixture = shardio.mix(two_parts(tmp_path), {"a": 3, "b": 1}, samples=40)
    found = stats(mixture, sample=20, seed=4)
    assert (found.samples, found.sampled) == (40, 20)
    assert found.sources["source"].counts == (30, 10)
    assert found.fields["label"].classes.counts[0] == sum(row[0] for row in found.sources["source"].classes)
    assert found.fields["label"].classes.counts[0] == 24


def test_bad_values_of_a_view_are_named_by_source() -> None:
    """A value of a view that does not decode is named by its number in the view, and by its source and shard."""
    joined = shardio.concat(
        {name: shardio.from_samples([{"image": jpeg()}, {"image": spoiled(jpeg())}]) for name in "ab"}
    )
    found = stats(joined[1:], sample="all")
    assert [(bad.location.index, bad.location.shard.partition("/")[0], bad.field) for bad in found.bad] == [
        (0, "a", "image"),
        (2, "b", "image"),
    ]
    assert "bad *      2 samples" in report.text(found)


def test_boxes_and_their_classes() -> None:
    """Images without boxes are counted in all samples; areas, by COCO's limits, and classes in those that are read."""
    sides = [(32, 31.9), (32, 32), (96, 95), (96, 96), (0, 500)]  # small, medium, medium, large, small
    fields = {
        "image": Field("image"),
        "boxes": Field("array", "float32", (None, 4), role="boxes", on="image", optional=True),
        "labels": Field("array", "int64", (None,), per="boxes"),
        "points": Field("array", "float32", (None, 1, 2), role="points", on="image"),
    }

    def boxed(number: int) -> dict[str, Any]:
        chosen = sides[: number % 6]
        return {
            "image": plain(10, 10, COLORS[0]),
            "boxes": None if number == 11 else np.array([(3, 5, 3 + w, 5 + h) for w, h in chosen]).reshape(-1, 4),
            "labels": np.array([(0, 0, 0, 1, 3)[n] for n in range(0 if number == 11 else len(chosen))], np.int64),
            "points": np.zeros((number % 2, 1, 2), np.float32),
        }

    rows = [boxed(number) for number in range(12)]
    for row in rows:
        row["boxes"] = None if row["boxes"] is None else row["boxes"].astype(np.float32)
    data = shardio.from_samples(rows, fields, metadata={"classes": CLASSES})
    found = stats(data, sample="all").fields
    assert found["boxes"].instances is not None
    assert found["boxes"].instances.empty == 2
    assert found["boxes"].missing == 1
    assert found["boxes"].instances.areas == {"small": 9 + 1, "medium": 7 + 5, "large": 3}
    assert found["boxes"].lengths is not None
    assert (found["boxes"].lengths.count, found["boxes"].lengths.max, found["boxes"].lengths.mean) == (11, 5, 25 / 11)
    assert found["points"].instances is not None
    assert (found["points"].instances.empty, found["points"].instances.areas) == (6, {})
    classes = found["labels"].classes
    assert classes is not None
    assert (classes.names, classes.counts) == (tuple(CLASSES), (9 + 7 + 5, 3, 0, 1, 0))
    assert found["labels"].instances is None
    told = report.text(stats(data, sample="all"))
    assert "boxes: array float32 boxes anyx4 on image\n" in told
    assert re.search(r"images without +2\n +areas \* +small 10, medium 12, large 3 ", told)
    assert re.search(r"classes \* +5, of 1 to 21 instances", told)
    assert re.search(r"cat +21  #+\n +dog +3", told)
    assert "Normalize(3" not in told
    few = stats(data, sample=0).fields
    assert few["boxes"].instances is not None
    assert few["boxes"].instances.empty == 2
    assert few["labels"].classes is None
