"""Pixel arrays become images during conversion. See test_cli_convert.py and test_reencode.py for sizes and dtypes."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import decoded
from numpy.typing import NDArray

import shardio
from shardio.conversion.api import convert
from shardio.conversion.reencode import ReencodeOptions
from shardio.conversion.source import Source
from shardio.conversion.transformed_source import TransformedSource
from shardio.errors import BadSample, ConfigError, SourceError
from shardio.format.fields import Field, infer_fields
from shardio.output.shard_writer import encode
from shardio.system.types import Sample

NONE = ReencodeOptions()


class Samples(Source):
    """Samples in a list."""

    metadata = {"source": "list"}

    def __init__(self, samples: list[Sample], fields: dict[str, Field] | None = None) -> None:
        self._samples, self.fields = samples, fields or infer_fields(samples[0])

    def sizes(self) -> NDArray[np.int64]:
        """One byte per sample."""
        return np.ones(len(self._samples), np.int64)

    def __getitem__(self, index: int) -> Sample:
        return self._samples[index]


def noise(*shape: int) -> NDArray[np.uint8]:
    """Random pixels, uint8."""
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize(
    ("shape", "channels"), [((5, 7), 1), ((5, 7, 1), 1), ((5, 7, 3), 3), ((3, 5, 7), 3), ((1, 5, 7), 1), ((3, 3, 3), 3)]
)
def test_pixels_become_images(shape: tuple[int, ...], channels: Any, fixed: bool) -> None:
    """Arrays, channels first or last, become images, of one size if their shape is fixed; other fields stay."""
    array = noise(*shape)
    fields = {"a": Field("array", "uint8", shape if fixed else None), "b": Field("array", "uint8", shape)}
    source = TransformedSource(Samples([{"a": array, "b": array}], fields), NONE, {}, ["a"])
    assert source.fields["b"] == fields["b"]
    first = len(shape) == 3 and shape[2] not in (1, 3)
    wanted = array.transpose(1, 2, 0) if first else array
    size = wanted.shape[:2] if fixed else None
    assert source.fields["a"] == Field("image", shape=size, channels=channels)
    assert np.array_equal(decoded(source[0]["a"]), wanted[..., 0] if channels == 1 and wanted.ndim == 3 else wanted)
    assert source[0]["b"] is array
    assert source.changes == {"as_image": ["a"]}


def test_pixels_of_several_shapes() -> None:
    """If the first sample is grey, a colour sample is bad, because its colours would be lost."""
    fields = {"a": Field("array", "uint8")}
    grey = TransformedSource(
        Samples([{"a": noise(4, 5)}, {"a": noise(6, 3, 1)}, {"a": noise(4, 5, 3)}], fields), NONE, {}, ["a"]
    )
    assert grey.fields["a"] == Field("image", channels=1)
    assert decoded(grey[1]["a"]).shape == (6, 3)
    with pytest.raises(BadSample, match="sample 2 of the source, field 'a': expected grey pixels"):
        grey[2]
    mixed = TransformedSource(Samples([{"a": noise(4, 5, 3)}, {"a": noise(4, 5)}], fields), NONE, {}, ["a"])
    assert (mixed.fields["a"].channels, decoded(mixed[1]["a"]).shape) == (3, (4, 5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"as_image": ["a"], "dtypes": {"a": "uint8"}},
            "as_image takes fields of arrays that dtype does not cast, got",
        ),
        ({"as_image": ["x"]}, "as_image takes fields of arrays that dtype does not cast, got 'x'"),
        ({"as_image": ["f"]}, "as_image: field 'f': pixels must be uint8, got float32"),
        (
            {"as_image": ["b"]},
            "as_image: field 'b': pixels must be [h, w], [h, w, 1 or 3] or [1 or 3, h, w], got [5, 7, 4]",
        ),
        ({"squeeze": ["a"]}, "squeeze takes fields of arrays of one element, got 'a'; there are a (array, uint8"),
        ({"squeeze": ["label"]}, "squeeze takes fields of arrays of one element, got 'label'"),
        ({"ragged": {"label": False}}, "ragged takes fields of arrays that stay arrays, got 'label'"),
        ({"ragged": {"a": False}, "as_image": ["a"]}, "ragged takes fields of arrays that stay arrays, got 'a'"),
        ({"dtypes": {"note": "int8"}}, "dtype takes fields of numbers, got 'note'"),
    ],
)
def test_fields_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    """Each option refuses fields that are not there, or of another kind, and says which there are."""
    sample = {"a": noise(4, 5), "b": noise(5, 7, 4), "f": np.zeros((5, 7), np.float32), "label": 1, "note": "x"}
    with pytest.raises(ConfigError, match=re.escape(message)):
        TransformedSource(Samples([sample]), NONE, **{"dtypes": {}} | options)


def test_empty_pixels_are_bad() -> None:
    """Pixel arrays without elements are bad samples."""
    source = TransformedSource(Samples([{"a": noise(0, 7)}]), NONE, {}, ["a"])
    with pytest.raises(BadSample, match=re.escape("field 'a': pixels: cannot be stored as PNG: [0, 7] of uint8")):
        source[0]


def test_arrays_of_one_element_become_numbers() -> None:
    """Arrays of one element become scalars: labels int64, others of their own or the requested dtype."""
    sample = {"label": np.full((1, 1), 7, np.uint8), "x": np.ones(1, np.float32), "y": np.ones((1,), np.float64)}
    source = TransformedSource(Samples([sample]), NONE, {"y": "float32"}, squeeze=["label", "x", "y"])
    assert source.fields == {
        "label": Field("scalar", "int64"),
        "x": Field("scalar", "float32"),
        "y": Field("scalar", "float32"),
    }
    made = source[0]
    assert [(name, np.shape(value), np.asarray(value).dtype) for name, value in made.items()] == [
        ("label", (), np.int64),
        ("x", (), np.float32),
        ("y", (), np.float32),
    ]
    assert made["label"] == 7


@pytest.mark.parametrize(
    ("values", "dtype", "rounded", "message"),
    [
        (np.array([2048, 2050]), "float16", 0, ""),  # float16 holds even numbers from 2048 on
        (np.array([2048, 2049]), "float16", 1, "float16 cannot hold 2049; allow_rounding=True rounds it"),
        (np.array([16391]), "float16", 7, "float16 cannot hold 16391; allow_rounding=True rounds it"),
        (np.array([2**53 + 1]), "float64", 1, r"float64 cannot hold 9007199254740993; allow_rounding=True rounds it"),
        (np.array([70000]), "float16", None, "float16 cannot hold 70000$"),  # too large, however it is rounded
        (np.array([-129]), "int8", None, "int8 cannot hold -129$"),
        (np.array([101325.0]), "float16", None, "float16 cannot hold 101325.0$"),
        (np.array([0.1, np.nan, np.inf]), "float32", 1.490116e-09, ""),  # floats are rounded
        (np.array([0.5], np.float32), "float16", 0, ""),
        (np.array([200], np.uint8), "float16", 0, ""),
    ],
)
def test_casts_that_change_numbers(
    values: NDArray[Any], dtype: str, rounded: float | None, message: str, tmp_path: Path
) -> None:
    """Integers are rounded only if that is allowed, floats with a note of the largest change; no number overflows."""
    samples = [{"x": np.zeros_like(values)}, {"x": values}, {"x": np.zeros_like(values)}]
    source = Samples(samples, {"x": Field("array", values.dtype.name, values.shape)})
    shared: Any = {"dtype": dtype, "shard_size": 1}
    if message:
        with pytest.raises(BadSample, match=rf"sample 1 of the source, field 'x': {message}"):
            convert(source, tmp_path / "strict", **shared)
    if rounded is None:
        with pytest.raises(BadSample, match=message):
            convert(source, tmp_path / "out", allow_rounding=True, **shared)
        return
    told: list[str] = []
    made = convert(source, tmp_path / "out", allow_rounding=bool(message), tell=told.append, **shared)
    np.testing.assert_array_equal(shardio.open(made.path)[1]["x"], values.astype(dtype))
    note = f"dtype: {dtype} rounds numbers of field 'x', by up to {rounded:.3g}"
    assert [one for one in (*made.notes, *told) if "rounds" in one] == ([note] * 2 if rounded else [])


def test_the_note_on_rounding_is_of_what_was_written(tmp_path: Path) -> None:
    """Shards of an interrupted conversion and of other processes count, samples that are not taken do not."""
    rows: list[Sample] = [{"x": np.full(2, value), "n": n} for n, value in enumerate((0.1, 0.5, 1e6, 1000.1))]
    shared: Any = {"dtype": "float16", "shard_size": 1, "where": "n < 3"}
    with pytest.raises(BadSample, match=r"float16 cannot hold 1000000.0"):
        convert(Samples(rows), tmp_path / "out", **shared)
    made = convert(Samples(rows), tmp_path / "out", resume=True, on_error="skip", max_bad=1, workers=2, **shared)
    assert made.manifest.samples == 2
    assert made.notes[-1] == "dtype: float16 rounds numbers of field 'x', by up to 2.44e-05"


def test_arrays_of_more_elements_are_bad_samples() -> None:
    """Arrays of several elements are bad samples, which a conversion may skip."""
    fields = {"label": Field("array", "int64", (1,))}
    samples: list[Sample] = [{"label": value} for value in (np.ones(1, np.int64), np.ones(2, np.int64), None)]
    source = TransformedSource(Samples(samples, fields), NONE, {}, squeeze=["label"])
    assert source[0]["label"] == 1
    told = (
        "sample 1 of the source, field 'label': expected one number, got [2] of int64",
        "field 'label': there is no value, and the field is not optional",
    )
    for number, reason in enumerate(told, 1):
        with pytest.raises(BadSample, match=re.escape(reason)):
            encode(source[number], source.fields)


def test_a_first_sample_that_is_bad_tells_nothing(tmp_path: Path) -> None:
    """The first good sample decides whether pixels are grey; a source without one is an error."""

    class Damaged(Samples):
        def __getitem__(self, index: int) -> Sample:
            if not index:
                raise BadSample("the first")
            return super().__getitem__(index)

    fields = {"a": Field("array", "uint8")}
    source = TransformedSource(Damaged([{}, {"a": noise(4, 5)}], fields), NONE, {}, ["a"])
    assert source.fields["a"].channels == 1
    with pytest.raises(BadSample, match="the first"):
        TransformedSource(Damaged([{}], fields), NONE, {}, ["a"])
    with pytest.raises(SourceError, match="holds no samples"):
        TransformedSource(Samples([], fields), NONE, {}, ["a"])
