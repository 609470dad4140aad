"""Crops, flips and rotations of arrays: equal on host and device, and determined by seed, epoch and index alone."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import shardio
from shardio import World
from shardio.engines.array_moves import apply_moves, apply_moves_to_tensor
from shardio.errors import ConfigError
from shardio.transforms import ArrayRecipe
from shardio.transforms.arrays import ArrayCrop, ArrayFlip, ArrayRotate90

VOLUME = (2, 6, 8, 8)
ALL = (shardio.RandomSpatialCrop((4, 6, 6)), shardio.RandomAxisFlip(0.5, (-1, -2, -3)), shardio.RandomRotate90())


def volumes(count: int, shape: tuple[int, ...] = VOLUME) -> shardio.Dataset:
    """Arrays whose elements are their own positions."""
    rows = [
        {"field": np.arange(np.prod(shape)).reshape(shape).astype(np.float32) + n, "label": n} for n in range(count)
    ]
    return shardio.from_samples(rows, shard_samples=5)


def load(data: shardio.Dataset, batch_size: int = 4, **options: Any) -> shardio.Loader:
    """A loader of one rank."""
    given = {"transforms": {"field": ALL}, "world": World(), "threads": 2, "seed": 3}
    return shardio.Loader(data, batch_size, **(given | options))


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
    recipe = ArrayRecipe.of(
        [shardio.RandomSpatialCrop(cut), shardio.RandomAxisFlip(0.5, (-1, -2)), shardio.RandomRotate90()], shape
    )
    arrays = np.random.default_rng(seed).random((count, *shape))
    moves = recipe.moves(seed=seed, epoch=1, indices=np.arange(count))
    out = np.empty((count, *recipe.out_shape))
    apply_moves(arrays, moves, out)
    assert torch.equal(torch.from_numpy(out), apply_moves_to_tensor(torch.from_numpy(arrays), moves, recipe.out_shape))
    places, row, column, turn = moves
    assert isinstance(places, ArrayCrop)
    assert isinstance(row, ArrayFlip)
    assert isinstance(column, ArrayFlip)
    assert isinstance(turn, ArrayRotate90)
    for number, array in enumerate(arrays):
        y, x = places.corners[number].tolist()
        block = array[:, y : y + cut[0], x : x + cut[1]]
        block = block[:, :, ::-1] if row.mask[number] else block
        block = block[:, ::-1] if column.mask[number] else block
        assert np.array_equal(out[number], np.rot90(block, turn.quarters[number], (-2, -1)))


@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 3}, {"isolate": True}, {"verify": True}])
def test_a_loader_moves_its_arrays(options: dict[str, Any]) -> None:
    """A batch holds the recipe's result for each sample, whichever way the batch is made."""
    data = volumes(12)
    recipe = ArrayRecipe.of(ALL, VOLUME)
    for batch in load(data, **options):
        assert batch["field"].shape == (4, 2, 4, 6, 6)
        wanted = np.empty((4, *recipe.out_shape), np.float32)
        indices = batch["index"].numpy()
        apply_moves(data.read(indices, ["field"])["field"], recipe.moves(seed=3, epoch=0, indices=indices), wanted)
        assert np.array_equal(batch["field"].numpy(), wanted)


def test_a_device_gets_them_whole_and_moves_them_there() -> None:
    """With a device the whole array is copied and cropped there. (torch's `meta` device has shapes only.)"""
    for batch in load(volumes(12), device="meta"):
        assert batch["field"].device.type == "meta"
        assert batch["field"].shape == (4, 2, 4, 6, 6)


def test_a_list_is_for_the_one_array_field() -> None:
    """A list of transforms applies to the one array field of fixed shape if there is no image field."""
    (batch, *_) = load(volumes(4), transforms=[shardio.CenterSpatialCrop((2, 2, 2))])
    assert batch["field"].shape == (4, 2, 2, 2, 2)
    assert batch["field"][0, 0, 0, 0, 0] == 2 * 64 + 3 * 8 + 3 + batch["index"][0]


def test_axes_move_as_often_as_asked() -> None:
    """p is the share of arrays flipped along each axis; the three rotations are equally likely."""
    indices = np.arange(6000)
    flip = ArrayRecipe.of([shardio.RandomAxisFlip(0.3, (-1, -2))], VOLUME).moves(seed=0, epoch=0, indices=indices)
    for mirror in flip:
        assert isinstance(mirror, ArrayFlip)
        assert mirror.mask.mean() == pytest.approx(0.3, abs=0.03)
    (turn,) = ArrayRecipe.of([shardio.RandomRotate90(0.6)], VOLUME).moves(seed=0, epoch=0, indices=indices)
    assert isinstance(turn, ArrayRotate90)
    assert np.bincount(turn.quarters, minlength=4) / 6000 == pytest.approx([0.4, 0.2, 0.2, 0.2], abs=0.03)


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ([shardio.RandomSpatialCrop((9, 9))], r"a block of \(9, 9\) is not in arrays of shape \(2, 6, 8, 8\)"),
        ([shardio.RandomSpatialCrop((1,) * 5)], "a block of"),  # more axes than the array has
        ([shardio.RandomAxisFlip(0.5, (-5,))], "there is no axis -5"),
        ([shardio.RandomRotate90(axes=(-3, -1))], "needs axes of one size"),
        ([shardio.RandomHorizontalFlip()], "must be a shardio array transform, got"),
    ],
)
def test_what_does_not_fit_is_refused(transforms: list[Any], message: str) -> None:
    """Transforms that do not fit the shape are refused with that shape."""
    with pytest.raises(ConfigError, match=message):
        load(volumes(4), transforms={"field": transforms})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: shardio.RandomSpatialCrop(0), "size must be whole numbers of at least 1, got 0"),
        (lambda: shardio.RandomSpatialCrop(("a",)), "size must be"),  # type: ignore[arg-type]
        (lambda: shardio.RandomAxisFlip(axes=(1,)), "axes must be different whole numbers below 0"),
        (lambda: shardio.RandomAxisFlip(axes=(-1, -1)), "axes must be different"),
        (lambda: shardio.RandomRotate90(axes=(-1,)), "axes must be two"),  # type: ignore[arg-type]
        (lambda: shardio.RandomRotate90(p=2), "p must be in"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    """Each message names the rule and the value."""
    with pytest.raises(ConfigError, match=message):
        make()
