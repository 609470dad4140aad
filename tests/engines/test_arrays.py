"""Transforms of arrays: equal on host and device, and determined by seed, epoch and index alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from _builders import jpeg, spoiled
from _datasets import load as load_of_one_rank
from _device import device as device
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as hypothesis_arrays

import shardio
from shardio.engines.array_transforms import (
    as_delivered,
    delivered_dtype,
    first_overflow,
    transform_and_mark,
    transform_arrays,
)
from shardio.errors import BadSample, ConfigError
from shardio.transforms import ArrayRecipe
from shardio.transforms.random_generator import RandomKeys

VOLUME = (2, 6, 8, 8)
FIELD = np.zeros(VOLUME, np.float32)
ALL = (shardio.RandomSpatialCrop((4, 6, 6)), shardio.RandomAxisFlip(0.5, (-1, -2, -3)), shardio.RandomRotate90())


def volumes(count: int, shape: tuple[int, ...] = VOLUME) -> shardio.Dataset:
    """Arrays whose elements are their own positions."""
    rows = [
        {"field": np.arange(np.prod(shape)).reshape(shape).astype(np.float32) + n, "label": n} for n in range(count)
    ]
    return shardio.from_samples(rows, shard_samples=5)


def load(data: Any, batch_size: int = 4, **options: Any) -> shardio.Loader:
    return load_of_one_rank(data, batch_size, **{"transforms": {"field": ALL}, "seed": 3} | options)


def recipe_of(transforms: Sequence[Any], shape: tuple[int, ...], dtype: str = "float32") -> ArrayRecipe:
    return ArrayRecipe.of(transforms, shape, np.dtype(dtype))


def paired(image: Sequence[Any], mask: Sequence[Any], channels: tuple[int, ...] = (1,)) -> shardio.Loader:
    """A loader of images with four channels and of masks, whose voxels are their own positions."""
    grid = np.arange(6 * 8 * 8, dtype=np.float32).reshape(1, 6, 8, 8)
    rows = [{"image": np.repeat(grid, 4, axis=0), "mask": grid.reshape(*channels, 6, 8, 8)} for _ in range(20)]
    return load(shardio.from_samples(rows), transforms={"image": image, "mask": mask})


@pytest.mark.filterwarnings("error::shardio.PairingWarning")
@pytest.mark.parametrize(("size", "channels"), [(4, (1,)), ((4, 4, 4), ()), ((4, 6, 6), (1,))])
def test_fields_that_belong_together(size: Any, channels: tuple[int, ...]) -> None:
    """The same transform in the same place of two lists makes the same choice for each sample."""
    moves = [shardio.RandomSpatialCrop(size), *ALL[1:]]
    for batch in paired([*moves, shardio.Normalize(0, 1)], moves, channels):
        mask = batch["mask"].reshape(4, 1, *batch["mask"].shape[-3:])
        assert torch.equal(batch["image"], mask.expand(batch["image"].shape))
        assert len({sample.numpy().tobytes() for sample in mask}) == 4


@pytest.mark.parametrize(
    ("image", "mask", "channels", "kind"),
    [
        ([ALL[1], ALL[0]], [ALL[0]], (1,), "RandomSpatialCrop"),
        ([shardio.RandomSpatialCrop(4)], [shardio.RandomSpatialCrop(4)], (), "RandomSpatialCrop"),
        ([shardio.RandomAxisFlip(0.5)], [shardio.RandomAxisFlip(0.2)], (1,), "RandomAxisFlip"),
    ],
)
def test_fields_that_draw_differently(
    image: Sequence[Any], mask: Sequence[Any], channels: tuple[int, ...], kind: str
) -> None:
    """A Loader names the fields, and what their lists have in common, when it is made, in the line that makes it."""
    with pytest.warns(shardio.PairingWarning, match=f"fields 'image' and 'mask' both have {kind}, but draw") as caught:
        paired(image, mask, channels)
    assert caught[0].filename == load_of_one_rank.__code__.co_filename


def twice(*samples: Any) -> shardio.Dataset:
    """A dataset of samples that hold everything twice, as `one` and `other`."""
    kind = "image" if isinstance(samples[0], bytes) else shardio.Field("array", "float32", samples[0].shape)
    return shardio.from_samples([{"one": x, "other": x} for x in samples], {"one": kind, "other": kind})


PHOTOS = twice(*(jpeg(20, 24, seed=n) for n in range(8)))
GRIDS = twice(*(np.full((1, 6, 8), n if n % 2 else np.nan, np.float32) for n in range(8)))
VIEW = [shardio.RandomResizedCrop(8), shardio.RandomHorizontalFlip()]
CENTER = [shardio.CenterCrop(8)]


@pytest.mark.parametrize(
    ("data", "one", "other"),
    [
        (PHOTOS, VIEW, VIEW),
        (PHOTOS, VIEW, [*VIEW, shardio.ColorJitter(0.4)]),  # other colours of the same crops
        (PHOTOS, [*CENTER, shardio.ColorJitter(0.4)], [*CENTER, shardio.ColorJitter(0.4)]),
        (GRIDS, [shardio.RandomSpatialCrop(4)], [shardio.RandomSpatialCrop(4)]),
        (shardio.mix({"photos": PHOTOS, "more": PHOTOS}), VIEW, VIEW),
    ],
)
def test_two_fields_that_show_one_view(data: Any, one: Sequence[Any], other: Sequence[Any]) -> None:
    """Fields that hold the same and draw alike are named in the first loop, and in no later one."""
    loader = load(data, transforms={"one": one, "other": other})
    with pytest.warns(shardio.PairingWarning, match="fields 'one' and 'other' hold the same bytes in every") as caught:
        next(iter(loader))
    assert [warning.filename for warning in caught] == [__file__]
    assert len(list(loader)) == len(loader)


def test_a_torch_dataset_warns_of_one_view() -> None:
    dataset = shardio.TorchDataset(PHOTOS, transforms={"one": VIEW, "other": VIEW})
    assert dataset.__getitems__([]) == []
    with pytest.warns(shardio.PairingWarning, match="fields 'one' and 'other' hold the same bytes"):
        dataset.__getitems__([3, 4])
    assert len(dataset.__getitems__([3, 4])) == 2


@pytest.mark.filterwarnings("ignore:fields 'one' and 'other' both have:shardio.PairingWarning")
@pytest.mark.parametrize(
    ("second", "one", "other"),
    [
        (jpeg(20, 24, seed=1), VIEW, [shardio.RandomHorizontalFlip(0.0), *VIEW]),  # other places, other draws
        (jpeg(20, 24, seed=1), CENTER, CENTER),  # nothing is drawn
        (jpeg(20, 24, seed=1), [*CENTER, shardio.ColorJitter(0.4)], CENTER),  # drawn for one only
        (jpeg(20, 24, seed=2), VIEW, VIEW),  # another image in one sample
        (jpeg(300, 300, seed=1), VIEW, VIEW),  # too large to be read
    ],
)
def test_two_fields_that_show_two_views_or_two_things(second: bytes, one: Sequence[Any], other: Sequence[Any]) -> None:
    """Other draws, nothing random, or other bytes in one sample of the first batch are no reason to warn."""
    rows = [{"one": jpeg(20, 24, seed=n), "other": jpeg(20, 24, seed=n)} for n in range(4)]
    rows[1]["other"] = second
    data = shardio.from_samples(rows, {"one": "image", "other": "image"})
    bad = {"on_bad_sample": "replace", "max_bad": 1, "max_value_bytes": 4000}
    loader = load(data, transforms={"one": one, "other": other}, **bad)
    assert len(list(loader)) == 1


@given(
    shape=st.tuples(*[st.integers(1, 7)] * 3),
    cut=st.tuples(*[st.integers(1, 7)] * 2),
    seed=st.integers(0, 99),
    count=st.integers(1, 9),
)
def test_host_and_device_move_alike(shape: tuple[int, ...], cut: tuple[int, int], seed: int, count: int) -> None:
    """NumPy and torch give equal results for any shapes, and each is a rotated block of its array."""
    cut = (min(cut[0], shape[1]), min(cut[0], shape[2], shape[1]))
    cut = (cut[1], cut[1])
    recipe = recipe_of(
        [shardio.RandomSpatialCrop(cut), shardio.RandomAxisFlip(0.5, (-1, -2)), shardio.RandomRotate90()], shape
    )
    arrays = np.random.default_rng(seed).random((count, *shape))
    moves = recipe.moves(RandomKeys(seed, 1, np.arange(count)))
    out = np.empty((count, *recipe.out_shape))
    transform_arrays(arrays, recipe, moves, out)
    assert torch.equal(torch.from_numpy(out), transform_and_mark(torch.from_numpy(arrays), recipe, moves)[0])
    places, row, column, turn = moves
    for number, array in enumerate(arrays):
        y, x = places.corners[number].tolist()
        block = array[:, y : y + cut[0], x : x + cut[1]]
        block = block[:, :, ::-1] if row.mask[number] else block
        block = block[:, ::-1] if column.mask[number] else block
        assert np.array_equal(out[number], np.rot90(block, turn.quarters[number], (-2, -1)))


@pytest.mark.parametrize("crop", [shardio.RandomSpatialCrop, shardio.CenterSpatialCrop])
def test_one_number_is_the_length_of_every_axis_but_the_first(crop: Any) -> None:
    """The first axis is the channels; the others get the same length, with the crops of a size for each axis."""
    for shape, wanted in (((4, 9, 8, 7), (4, 6, 6, 6)), ((4, 9), (4, 6)), ((1, 2, 9, 8), None), ((9,), None)):
        if wanted is None:
            with pytest.raises(ConfigError, match=r"a block of \(6, 6, 6\)|size of one number, 6, .* give \(6,\)"):
                recipe_of([crop(6)], shape)
            continue
        each = crop(wanted[1:])
        assert recipe_of([crop(6)], shape).out_shape == recipe_of([each], shape).out_shape == wanted
        indices = np.arange(9)
        (one,), (other,) = (recipe_of([t], shape).moves(RandomKeys(1, 0, indices)) for t in (crop(6), each))
        assert np.array_equal(one.corners, other.corners)


PER_CHANNEL = st.floats(-1e4, 1e4, width=32)
STORED = ["bool", "uint8", "int16", "uint16", "uint32", "int64", "uint64", "float16", "float32", "float64"]


@given(data=st.data(), dtype=st.sampled_from(STORED), result=st.sampled_from(["float32", "float16", "bfloat16"]))
def test_numbers_are_plain_numpys_on_host_and_device(data: st.DataObject, dtype: str, result: Any) -> None:
    """`(x - mean) / std`, each rounded to float32, then to the dtype: for any stored numbers, also inf and NaN."""
    shape = data.draw(st.lists(st.integers(1, 4), max_size=4).map(tuple))
    channels = shape[0] if shape else 1
    numbers = st.one_of(PER_CHANNEL, st.lists(PER_CHANNEL, min_size=channels, max_size=channels).map(tuple))
    mean = data.draw(numbers)
    std = data.draw(st.one_of(st.floats(2**-9, 1e4, width=32), st.just(tuple(range(1, channels + 1)))))
    arrays = data.draw(hypothesis_arrays(np.dtype(dtype), (3, *shape)))
    spatial = len(shape) > 1 or (shape and np.size(mean) == np.size(std) == 1)
    moves = [shardio.RandomAxisFlip(0.5)] if spatial and data.draw(st.booleans()) else []
    to_float = [shardio.ToFloat(result)] if data.draw(st.booleans()) else []
    normalize = shardio.Normalize(mean, std, None if to_float else result)
    converted = [normalize] if not to_float or data.draw(st.booleans()) else []
    recipe = recipe_of([*moves, *to_float, *converted], shape, dtype)
    drawn = recipe.moves(RandomKeys(0, 0, np.arange(3)))
    given_arrays = arrays.copy()
    out = np.empty((3, *shape), delivered_dtype(recipe, arrays.dtype))
    transform_arrays(arrays, recipe, drawn, out)
    host = as_delivered(out, recipe)
    device = transform_and_mark(torch.from_numpy(arrays), recipe, drawn)[0]
    assert np.array_equal(arrays, given_arrays, equal_nan=arrays.dtype.kind == "f")
    with np.errstate(all="ignore"):
        moved = [
            np.flip(array, -1) if moves and move.mask[row] else array  # type: ignore[union-attr]
            for row, array in enumerate(arrays)
            for move in drawn or (None,)
        ]
        wanted = np.stack(moved).astype(np.float32)
        if converted:
            columns = [np.asarray(n, np.float32).reshape(-1, *(1 for _ in shape[1:])) for n in (mean, std)]
            wanted = ((wanted - columns[0]) / columns[1]).reshape(wanted.shape)
    for found in (host, device):
        assert found.dtype == getattr(torch, result)
        assert torch.equal(found.nan_to_num(7), torch.from_numpy(wanted).to(found.dtype).nan_to_num(7))
    assert torch.equal(host.isnan(), device.isnan())
    lost = np.isfinite(np.stack(moved)) & host.isinf().numpy()
    overflow = first_overflow(arrays, recipe, drawn)
    if lost.any():
        row = int(np.flatnonzero(lost.reshape(3, -1).any(axis=1))[0])
        assert overflow == (row, moved[row][lost[row]][0])
    else:
        assert overflow is None


PRESSURE = np.full((4, 2, 3, 3), 900.0, np.float32)
PRESSURE[1, 1, 2, 0] = 101_325  # pascals, of which float16 holds 65,504
PRESSURE[2, 0] = np.inf  # not lost: it was infinite before
PRESSURE[3, 1, 1, 1] = np.nan


@pytest.mark.parametrize(
    ("transforms", "stored", "bad"),
    [
        ([shardio.ToFloat("float16")], "float32", [1]),
        ([shardio.ToFloat("float16")], "float64", [1]),
        ([shardio.ToFloat("bfloat16")], "float32", []),
        ([shardio.Normalize(1000, 10, dtype="float16")], "float32", []),
        ([shardio.Normalize(0, 0.01, dtype="float16")], "float32", [0, 1, 2, 3]),
        ([shardio.CenterSpatialCrop((1, 1)), shardio.ToFloat("float16")], "float32", []),  # not in the crop
        ([shardio.ToFloat()], "float32", []),
    ],
)
def test_numbers_that_overflow_make_a_bad_sample(transforms: Any, stored: str, bad: list[int], device: str) -> None:
    """A finite number that becomes infinite makes its sample bad, on the host and on a device, and is named."""
    data = shardio.from_samples([{"field": array.astype(stored)} for array in PRESSURE], {"field": (stored, (2, 3, 3))})
    for options in ({}, {"device": device}):
        shared: Any = {"batch_size": 4, "shuffle": None, "transforms": {"field": transforms}, **options}
        loader = shardio.Loader(data, on_bad_sample="mask", max_bad=4, **shared)
        (batch,) = loader
        assert batch["valid"].tolist() == [number not in bad for number in range(4)]
        assert batch["field"].isinf().flatten(1).any(1).tolist() == [False, False, 2 not in bad, False]
        if bad:
            value = "900.0" if bad[0] == 0 else "101325.0"
            dtype = transforms[-1].dtype
            with pytest.raises(
                BadSample, match=f"field 'field': {dtype} cannot hold what the transforms make of {value}"
            ):
                next(iter(shardio.Loader(data, **shared)))


@pytest.mark.parametrize(
    ("transforms", "options"),
    [
        (ALL, {"threads": 3}),
        (ALL, {"verify": True}),
        ([*ALL, shardio.Normalize((1000.0, 1400.0), (3.0, 7.0), dtype="bfloat16")], {"isolate": True, "threads": 1}),
        ([shardio.Normalize(10, 3)], {}),  # in place
        ([], {}),
        ([shardio.ToFloat("float16"), shardio.Normalize(0, 1)], {}),
    ],
)
def test_a_loader_converts_its_arrays(transforms: Any, options: dict[str, Any], device: str) -> None:
    """Threads or processes, a device, and a TorchDataset deliver the recipe's values."""
    data, recipe = volumes(12), recipe_of(transforms, VOLUME)
    samples = shardio.TorchDataset(data, transforms={"field": transforms}, seed=3)
    for where in (options, {"device": device}):
        for batch in load(data, transforms={"field": transforms}, **where):
            indices = batch["index"].numpy()
            moves = recipe.moves(RandomKeys(3, 0, indices))
            stored = torch.from_numpy(data.read(indices, ["field"])["field"])
            assert torch.equal(batch["field"], transform_and_mark(stored, recipe, moves)[0])
            assert torch.equal(samples[int(indices[0])]["field"], batch["field"][0])


def test_a_masked_array_is_zeros(device: str) -> None:
    """A bad sample's array is zeros, which nothing normalizes, on the host and on a device."""
    rows = [
        {"field": np.full((2, 4), n, np.int16), "image": (spoiled if n == 3 else bytes)(jpeg(20, 24, seed=n))}
        for n in range(8)
    ]
    data = shardio.from_samples(rows)
    options = {"transforms": {"field": [shardio.Normalize(10, 2)]}, "on_bad_sample": "mask", "max_bad": 2}
    for where in (None, device):
        (batch,) = load(data, 8, device=where, engine="cpu", **options)
        for row, index in enumerate(batch["index"].tolist()):
            assert (batch["field"][row] == ((index - 10) / 2 if index != 3 else 0)).all()


def test_axes_move_as_often_as_asked() -> None:
    """p is the share of arrays flipped along each axis; the three rotations are equally likely."""
    indices = np.arange(6000)
    flip = recipe_of([shardio.RandomAxisFlip(0.3, (-1, -2))], VOLUME).moves(RandomKeys(0, 0, indices))
    for mirror in flip:
        assert mirror.mask.mean() == pytest.approx(0.3, abs=0.03)
    (turn,) = recipe_of([shardio.RandomRotate90(0.6)], VOLUME).moves(RandomKeys(0, 0, indices))
    assert np.bincount(turn.quarters, minlength=4) / 6000 == pytest.approx([0.4, 0.2, 0.2, 0.2], abs=0.03)


@pytest.mark.parametrize(
    ("array", "transforms", "message"),
    [
        (FIELD, [shardio.RandomSpatialCrop((9, 9))], r"for 'field': a block of \(9, 9\) .* shape \(2, 6, 8, 8\)"),
        (FIELD, [shardio.RandomAxisFlip(0.5, (-5,))], "there is no axis -5"),
        (FIELD, [shardio.RandomRotate90(axes=(-3, -1))], "needs axes of one size"),
        (FIELD, [shardio.Normalize((1, 2, 3), 1)], r"mean must have 1 or 2 numbers, got 3: .* \(2, 6, 8, 8\)"),
        (FIELD, [shardio.ToFloat(), shardio.RandomRotate90()], "transform 1: RandomRotate90 must come before ToFloat"),
        (FIELD, [shardio.Normalize(0, 1), shardio.ToFloat()], "transform 1: ToFloat must come once, and before any"),
        (FIELD, [shardio.Normalize(0, 1)] * 2, "transform 1: Normalize must come once"),
        (FIELD, [shardio.RandomHorizontalFlip()], r"must be a shardio array transform, got .*take RandomSpatialCrop"),
        (FIELD, shardio.RandomSpatialCrop(4), "transforms for 'field' must be a list, got RandomSpatialCrop"),
        (FIELD, [abs], "transform 0 for 'field' must be one of shardio's"),
        (FIELD.astype("complex64"), [shardio.ToFloat()], "transform 0: ToFloat takes real numbers, got .*complex64"),
        # Of arrays that can become images the message says how, and of others what to convert instead.
        (np.zeros((8, 8), np.uint8), [shardio.RandomHorizontalFlip()], "--as-image makes images"),
        (np.zeros((8, 8, 3), np.float32), [shardio.RandomHorizontalFlip()], "as they were before they became float32"),
    ],
)
def test_what_does_not_fit_is_refused(array: Any, transforms: Any, message: str) -> None:
    """Transforms that do not fit an array are refused with its field, and with what does not fit."""
    with pytest.raises(ConfigError, match=message):
        load(shardio.from_samples([{"field": array}] * 4), transforms={"field": transforms})


def test_a_list_is_for_the_one_array_field() -> None:
    """A list goes to the one array field if there is no image; arrays whose shapes differ count as well."""
    (batch, *_) = load(volumes(4), transforms=[shardio.CenterSpatialCrop((2, 2, 2))])
    assert batch["field"].shape == (4, 2, 2, 2, 2)
    assert batch["field"][0, 0, 0, 0, 0] == 2 * 64 + 3 * 8 + 3 + batch["index"][0]
    kinds: Any = {"x": {"kind": "array", "dtype": "float32"}, "y": ("float32", (3,))}
    rows = [{"x": np.zeros((4, n + 1), np.float32), "y": np.zeros(3, np.float32)} for n in range(4)]
    data, crop = shardio.from_samples(rows, kinds), [shardio.RandomSpatialCrop((2,))]
    with pytest.raises(ConfigError, match=r"exactly one image or array field, but .* has \['x', 'y'\]"):
        load(data, transforms=crop)
    (batch, *_) = load(data, transforms=[shardio.CenterSpatialCrop((2, 1))], fields=["x"])
    assert batch["x"].shape == (4, 2, 1)
    assert next(iter(load(data, transforms=crop, fields=["y"])))["y"].shape == (4, 2)
    with pytest.raises(ConfigError, match=r"transforms for 'y', which fields=\['x'\] leaves out"):
        load(data, transforms={"y": crop}, fields=["x"])
