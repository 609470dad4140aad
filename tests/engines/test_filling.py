"""Missing values filled and told, and numbers per variable and level: equal on host and device."""

from typing import Any

import numpy as np
import pytest
import torch
from _device import device as device
from _jobs import same
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as hypothesis_arrays

import shardio
from shardio import native
from shardio.engines.array_transforms import (
    as_delivered,
    delivered_dtype,
    first_overflow,
    transform_and_mark,
    transform_arrays,
    transform_each,
)
from shardio.errors import ConfigError
from shardio.native import numbers
from shardio.transforms import ArrayRecipe
from shardio.transforms.random_generator import RandomKeys

FILL = -9999
MOVES = [shardio.RandomSpatialCrop((2, 3)), shardio.RandomAxisFlip(0.5, (-1, -2))]
NUMBERS = st.floats(-100, 100, width=16)


def on_both(recipe: ArrayRecipe, arrays: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what host and device make of arrays, and where they filled them, once both are equal, and NumPy too."""
    moves = recipe.moves(RandomKeys(1, 0, np.arange(len(arrays))))
    out = np.empty((len(arrays), *(recipe.out_size or ())), delivered_dtype(recipe, arrays.dtype))
    marks = np.empty(out.shape, np.bool_)
    transform_arrays(arrays, recipe, moves, out, marks)
    host, (device, there) = as_delivered(out, recipe), transform_and_mark(torch.from_numpy(arrays), recipe, moves)
    assert there is not None
    assert host.dtype == device.dtype
    assert np.array_equal(marks, there.numpy())
    assert torch.equal(host.contiguous().view(torch.uint8), device.contiguous().view(torch.uint8))
    with pytest.MonkeyPatch.context() as patch:
        for least in (0, 1 << 60):  # by the compiled part, by NumPy
            patch.setattr(numbers, "LEAST", least)
            again, marked = np.zeros_like(out), np.zeros_like(marks)
            transform_arrays(arrays, recipe, moves, again, marked)
            assert (again.tobytes(), marked.tobytes()) == (out.tobytes(), marks.tobytes())
            transform_arrays(arrays, recipe, moves, again)  # without marks
            each, told = transform_each([*arrays], recipe, moves)
            assert again.tobytes() == np.stack(each).tobytes() == out.tobytes()
            assert np.stack(told).tobytes() == marks.tobytes()
    return host, torch.from_numpy(marks)


def levels(data: st.DataObject, shape: tuple[int, ...], numbers: st.SearchStrategy[float]) -> Any:
    """Draw a number, or one for each place on some of the leading axes, or for all places on one of them."""
    axes = data.draw(st.integers(0, len(shape)))
    sizes = tuple(data.draw(st.sampled_from([1, size])) for size in shape[:axes])
    return np.array(data.draw(st.lists(numbers, min_size=int(np.prod(sizes)), max_size=int(np.prod(sizes))))).reshape(
        sizes
    )


def over(numbers: Any, axes: int) -> Any:
    """Numbers in a shape that NumPy broadcasts over arrays of so many axes."""
    found = np.asarray(numbers, np.float32)
    return found.reshape(*found.shape, *(1 for _ in range(axes - found.ndim)))


@given(
    data=st.data(),
    dtype=st.sampled_from(["int16", "uint16", "int64", "float16", "float32", "float64"]),
    result=st.sampled_from(["float32", "float16", "bfloat16"]),
    window=st.booleans(),
)
def test_values_are_filled_and_normalized_as_by_numpy(
    data: st.DataObject, dtype: str, result: Any, window: bool
) -> None:
    """`(where(missing, value, x) - mean) / std` with numbers per variable and level, whatever moves values and when."""
    shape, rows = (2, 3, 4, 5), (2,) if window else ()
    code = np.dtype(dtype).type(9999 if dtype == "uint16" else FILL)
    elements = st.integers(0, 100) if np.dtype(dtype).kind != "f" else st.one_of(NUMBERS, st.just(np.nan))
    arrays = data.draw(
        hypothesis_arrays(np.dtype(dtype), (3, *rows, *shape), elements=st.one_of(elements, st.just(code)))
    )
    mean, std = levels(data, shape[:2], NUMBERS), levels(data, shape[:2], st.sampled_from([0.5, 1.0, 3.0]))
    value = (
        data.draw(st.one_of(st.just("mean"), NUMBERS)) if data.draw(st.booleans()) else levels(data, shape[:2], NUMBERS)
    )
    fill = shardio.FillMissing(value, mask=True, missing=[code])
    moves = MOVES if data.draw(st.booleans()) else []
    place = data.draw(st.integers(0, len(moves)))
    given_transforms = [*moves[:place], fill, *moves[place:], shardio.Normalize(mean, std, result)]
    recipe = ArrayRecipe.of(given_transforms, (*rows, *shape), np.dtype(dtype), leading=len(rows))
    found, marks = on_both(recipe, arrays)

    plain = ArrayRecipe.of([*moves], (*rows, *shape), np.dtype(dtype), leading=len(rows))
    moved = np.empty((3, *(plain.out_size or ())), dtype)
    transform_arrays(arrays, plain, plain.moves(RandomKeys(1, 0, np.arange(3))), moved)
    missing = np.isnan(moved) | (moved == code)
    filled = np.where(missing, over(mean if isinstance(value, str) else value, 4), moved.astype(np.float32))
    wanted = (filled - over(mean, 4)) / over(std, 4)
    assert np.array_equal(marks.numpy(), missing)
    assert torch.equal(found, torch.from_numpy(wanted.astype(np.float32)).to(found.dtype))


@given(data=st.data(), dtype=st.sampled_from(["uint8", "int16", "uint16", "uint32", "float16", "float32", "float64"]))
def test_without_a_conversion_the_dtype_stays(data: st.DataObject, dtype: str) -> None:
    """FillMissing alone delivers the stored dtype, and with ToInt64 int64; no other value changes."""
    code = np.dtype(dtype).type(200)
    kind = np.dtype(dtype).kind
    elements = st.sampled_from([0, 1, 200] + ([np.nan, np.inf, -0.0] if kind == "f" else []))
    arrays = data.draw(hypothesis_arrays(np.dtype(dtype), (3, 2, 4), elements=elements))
    convert = [shardio.ToInt64()] if kind != "f" and data.draw(st.booleans()) else []
    recipe = ArrayRecipe.of([shardio.FillMissing((7, 9), missing=200), *convert], (2, 4), np.dtype(dtype))
    found, marks = on_both(recipe, arrays)
    missing = np.isnan(arrays) | (arrays == code)
    assert np.array_equal(marks.numpy(), missing)
    wanted = np.where(missing, np.array([7, 9], dtype)[:, None], arrays)
    assert np.array_equal(found.numpy(), wanted.astype(np.int64 if convert else dtype))


def test_a_missing_number_does_not_overflow() -> None:
    """Numbers that stand for none may be larger than the dtype of the results holds; others may not."""
    arrays = np.full((2, 1, 3), 1e20, np.float32)
    arrays[1, 0, 2] = 7e4
    recipe = ArrayRecipe.of([shardio.FillMissing(missing=1e20), shardio.ToFloat("float16")], (1, 3), arrays.dtype)
    assert first_overflow(arrays[:1], recipe, ()) is None
    assert first_overflow(arrays, recipe, ()) == (1, 7e4)
    assert on_both(recipe, arrays[:1])[0].tolist() == [[[0.0, 0.0, 0.0]]]


@pytest.mark.parametrize(
    ("dtype", "transforms", "message"),
    [
        ("int16", [shardio.FillMissing()], "FillMissing of arrays of int16, which hold no NaN, needs missing="),
        ("complex64", [shardio.FillMissing()], "FillMissing takes real numbers, got arrays of complex64"),
        ("float32", [shardio.FillMissing("mean")], "takes the mean of a Normalize behind it, and there is none"),
        ("float32", [shardio.FillMissing("mean"), shardio.ToFloat()], "takes the mean of a Normalize"),
        ("uint8", [shardio.FillMissing(-1, missing=255)], "FillMissing's value must be one that uint8 holds, got -1"),
        ("uint8", [shardio.FillMissing(missing=-1)], "FillMissing's missing must be one that uint8 holds, got -1"),
        (
            "float32",
            [shardio.FillMissing(7e4), shardio.ToFloat("float16")],
            "value, normalized, must be one that float16",
        ),
        ("float32", [shardio.FillMissing(), shardio.FillMissing()], "transform 1: FillMissing must come once"),
        ("float32", [shardio.ToFloat(), shardio.FillMissing()], "transform 1: FillMissing must come before ToFloat"),
        (
            "float32",
            [shardio.FillMissing((1, 2))],
            r"FillMissing's value must have 1 or 3 numbers, got 2: the channels",
        ),
        ("float32", [shardio.Normalize(np.zeros((3, 5)), 1)], r"mean must have a shape of the leading axes.*\(3, 5\)"),
        ("float32", [shardio.Normalize(0, np.ones((3, 4, 8, 8, 1)))], r"std must have a shape of the leading axes"),
        (
            "float32",
            [shardio.RandomSpatialCrop((4, 4)), shardio.Normalize(np.zeros((3, 4, 8, 8)), 1)],
            "mean differs along axis -2 of arrays, along which RandomSpatialCrop moves values at random",
        ),
        (
            "float32",
            [shardio.RandomAxisFlip(0.5, -4), shardio.FillMissing((1, 2, 3))],
            "value differs along axis -4 of arrays, along which RandomAxisFlip moves values",
        ),
    ],
)
def test_what_does_not_fit_is_refused(dtype: str, transforms: Any, message: str) -> None:
    """Each message names the rule and the value."""
    with pytest.raises(ConfigError, match=message):
        ArrayRecipe.of(transforms, (3, 4, 8, 8), np.dtype(dtype))


def holed(count: int, *shape: int) -> Any:
    """Numbers [count, *shape], of which some are NaN."""
    numbers = np.arange(count * np.prod(shape), dtype=np.float32).reshape(count, *shape)
    numbers[np.random.default_rng(0).random(numbers.shape) < 0.3] = np.nan
    return numbers


def filled(values: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What FillMissing(-1) makes of arrays, and where."""
    missing = np.isnan(values)
    return torch.from_numpy(np.where(missing, np.float32(-1), values)), torch.from_numpy(missing)


PLAIN = [shardio.FillMissing(-1, mask=True)]
CROPS = [[*PLAIN, shardio.RandomSpatialCrop((2, 3))], [shardio.RandomSpatialCrop((2, 3)), *PLAIN]]


def load(data: Any, transforms: Any, **options: Any) -> list[dict[str, Any]]:
    """All batches of a loader of one rank; a list of transforms is for the field `x`."""
    transforms = transforms if isinstance(transforms, dict) else {"x": transforms}
    loader = shardio.Loader(data, min(4, len(data)), **{"transforms": transforms, "shuffle": None, "seed": 2} | options)
    return list(loader)


@pytest.mark.parametrize("options", [{}, {"verify": True}, {"device": "there"}])
def test_a_loader_tells_where_it_filled(options: dict[str, Any], device: str) -> None:
    """`NAME_missing` lies beside the values, and a crop before or after FillMissing is the same."""
    stored = holed(8, 2, 4, 5)
    data = shardio.from_samples([{"x": x} for x in stored])
    where = options | ({"device": device} if "device" in options else {})
    for number, batch in enumerate(load(data, PLAIN, **where)):
        values, missing = filled(stored[4 * number :][:4])
        assert torch.equal(batch["x"].cpu(), values)
        assert torch.equal(batch["x_missing"].cpu(), missing)
    for one, other in zip(load(data, CROPS[0], **where), load(data, CROPS[1], **where), strict=True):
        assert one["x"].shape == one["x_missing"].shape == (4, 2, 2, 3)
        assert torch.equal(one["x"], other["x"])
        assert torch.equal(one["x_missing"], other["x_missing"])
        assert torch.equal(one["x"] == -1, one["x_missing"])


def test_processes_tell_where_they_filled() -> None:
    """Worker processes deliver the marks that threads do, of values of one shape and of several lengths."""
    kinds: Any = {"x": ("float32", (2, 3)), "r": ("float32", (None,))}
    data = shardio.from_samples([{"x": x, "r": holed(1, n)[0]} for n, x in enumerate(holed(4, 2, 3))], kinds)
    rules = {"x": PLAIN, "r": [*PLAIN, shardio.PadTo()]}
    (one,), (other,) = (load(data, rules, **how) for how in ({}, {"isolate": True, "threads": 1}))
    assert same(one, other)


def test_a_sample_without_the_field_misses_no_values(device: str) -> None:
    """Optional fields that a sample lacks, and masked samples, are zeros, and nothing of them counts as filled."""
    kinds = {"x": shardio.Field("array", "float32", (3,), optional=True)}
    data = shardio.from_samples([{"x": np.full(3, np.nan, np.float32)}, {}, {"x": np.ones(3, np.float32)}], kinds)
    for where in ({}, {"device": device}):
        (batch,) = load(data, PLAIN, **where)
        assert batch["x"].tolist() == [[-1] * 3, [0] * 3, [1] * 3]
        assert batch["x_missing"].tolist() == [[True] * 3, [False] * 3, [False] * 3]
        assert batch["x_present"].tolist() == [True, False, True]


@pytest.mark.parametrize("options", [{}, {"map": dict}, {"map": dict, "map_by": "sample"}])
@pytest.mark.parametrize("entry", [(), (2,)])
def test_values_of_several_lengths(options: dict[str, Any], entry: tuple[int, ...]) -> None:
    """Lists, padded and joined values have marks of their shape; padding is not missing, and neither is no value."""
    lengths = [3, 0, 5, 1]
    kinds = {"x": shardio.Field("array", "float32", (None, *entry), optional=True)}
    stored: list[Any] = [holed(1, n, *entry)[0] for n in lengths]
    data = shardio.from_samples([*({"x": x} for x in stored[:3]), {}], kinds)
    stored[3] = np.empty((0, *entry), np.float32)

    (batch,) = load(data, PLAIN, **options)
    for x, values, marks in zip(stored[:3], batch["x"], batch["x_missing"], strict=False):
        assert torch.equal(values, filled(x)[0])
        assert torch.equal(marks, filled(x)[1])
    assert batch["x"][3] is batch["x_missing"][3] is None

    for rule, length in ((shardio.PadTo(value=7, side="left"), 5), (shardio.PadTo(6, value=7, side="left"), 6)):
        (batch,) = load(data, [*PLAIN, rule], **options)
        assert batch["x"].shape == batch["x_missing"].shape == (4, length, *entry)
        for row, x in enumerate(stored):
            assert torch.equal(batch["x"][row, length - len(x) :], filled(x)[0])
            assert torch.equal(batch["x_missing"][row, length - len(x) :], filled(x)[1])
            assert (batch["x"][row, : length - len(x)] == 7).all()
            assert not batch["x_missing"][row, : length - len(x)].any()
        assert batch["x_length"].tolist() == [3, 0, 5, 0]
        assert sorted(batch) == ["index", "x", "x_length", "x_missing", "x_present"]

    (batch,) = load(data, [*PLAIN, shardio.Ragged()], **options)
    assert torch.equal(batch["x"], filled(np.concatenate(stored))[0])
    assert torch.equal(batch["x_missing"], filled(np.concatenate(stored))[1])
    assert batch["x_offsets"].tolist() == [0, 3, 3, 8, 8]
    (batch,) = load(data, [*PLAIN, shardio.Ragged(nested=True)], **options)
    assert sorted(batch) == ["index", "x", "x_missing", "x_present"]
    assert torch.equal(batch["x_missing"].values(), filled(np.concatenate(stored))[1])
    (batch,) = load(data, [*PLAIN, shardio.RandomWindow(2), shardio.PadTo(2)], **options)
    assert torch.equal(batch["x"] == -1, batch["x_missing"])
    assert batch["x_length"].tolist() == [2, 0, 2, 0]


def test_arrays_of_several_shapes_and_windows() -> None:
    """Arrays of any shape fill one by one, or cropped to one tensor; windows fill in each of their rows."""
    stored = [holed(1, 2, n)[0] for n in (3, 4, 5, 6)]
    data = shardio.from_samples([{"x": x} for x in stored], {"x": {"kind": "array", "dtype": "float32"}})
    (batch,) = load(data, PLAIN)
    for x, values, marks in zip(stored, batch["x"], batch["x_missing"], strict=True):
        assert torch.equal(values, filled(x)[0])
        assert torch.equal(marks, filled(x)[1])
    (batch,) = load(data, [shardio.CenterSpatialCrop((2, 3)), *PLAIN])
    assert batch["x"].shape == batch["x_missing"].shape == (4, 2, 3)
    assert torch.equal(batch["x"] == -1, batch["x_missing"])

    rows = holed(6, 2, 3)
    windows = shardio.from_samples([{"x": x} for x in rows]).windows(3, within="dataset")
    (batch,) = load(windows, [shardio.FillMissing("mean", mask=True), shardio.Normalize((1, 2), (2, 4))])
    seen = np.stack([rows[n : n + 3] for n in range(4)])
    wanted = (np.nan_to_num(seen) - np.array([[1], [2]])) / np.array([[2], [4]])
    assert torch.equal(batch["x_missing"], torch.from_numpy(np.isnan(seen)))
    assert torch.equal(batch["x"], torch.from_numpy(np.where(np.isnan(seen), 0, wanted).astype(np.float32)))


def test_a_torch_dataset_tells_where_it_filled() -> None:
    stored = holed(4, 2, 3)
    samples = shardio.TorchDataset(shardio.from_samples([{"x": x} for x in stored]), transforms={"x": PLAIN})
    assert torch.equal(samples[2]["x_missing"], filled(stored[2])[1])


def test_a_column_of_that_name_is_not_overwritten() -> None:
    data = shardio.from_samples([{"x": np.zeros(3, np.float32), "x_missing": 1}] * 4)
    with pytest.raises(
        ConfigError, match="for 'x': FillMissing adds the column 'x_missing', which the batch has already"
    ):
        load(data, PLAIN)
    assert load(data, [shardio.FillMissing()])[0]["x_missing"].tolist() == [1] * 4


@pytest.mark.parametrize(("dtype", "tensors"), [("float16", torch.float16), ("bfloat16", torch.bfloat16)])
def test_the_compiled_part_rounds_as_torch(dtype: str, tensors: torch.dtype) -> None:
    """Any float32: numbers between two results, the smallest and the largest ones, infinities and NaN."""
    steps = np.arange(1 << 16, dtype=np.uint32)
    near = [
        (steps << shift) + np.uint32(off) for shift in (13, 16) for off in (0, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000)
    ]
    bits = np.concatenate([np.random.default_rng(0).integers(0, 1 << 32, 1 << 18, dtype=np.uint32), *near])
    values, out = bits.view(np.float32), np.empty(bits.shape, np.uint16)
    zero, one = np.zeros((), np.float32), np.ones((), np.float32)
    assert numbers.convert([values], (zero, one, zero), None, dtype, [out], None) == (native.library() is not None)
    if native.library() is not None:
        found, wanted = torch.from_numpy(out).view(tensors), torch.from_numpy(values).to(tensors)
        assert torch.equal(found.isnan(), wanted.isnan())
        assert torch.equal(found.nan_to_num(0).view(torch.int16), wanted.nan_to_num(0).view(torch.int16))
