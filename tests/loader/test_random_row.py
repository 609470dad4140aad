"""RandomRow: one of the copies of a value in each epoch, read without the others."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import zarr
from _datasets import CONTAINERS, load, packed
from _device import device as device
from _jobs import exact_over_ranks, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardio
from shardio import transforms as T
from shardio.containers.chunk_cache import CHUNKS
from shardio.containers.requested import REQUESTED
from shardio.errors import BadSample, ConfigError

N, COPIES = 14, 3
FIELDS: dict[str, Any] = {
    "grid": ("float32", (COPIES, 2, 5)),
    "score": ("int64", (COPIES,)),
    "maybe": shardio.Field("array", "int16", (COPIES, 4), optional=True),
    "ragged": ("float32", (None, 2)),
    "numbers": ("int32", (None,)),
    "words": ("uint16", (COPIES, None)),
    "any": shardio.Field("array", dtype="float64"),
}


def sample(number: int) -> dict[str, Any]:
    """Values whose rows differ: copies of one shape, of several lengths, and as many as the sample's number says."""
    rows = 1 + number % 4
    return {
        "grid": 100 * number + np.arange(COPIES * 10, dtype=np.float32).reshape(COPIES, 2, 5),
        "score": 10 * number + np.arange(COPIES),
        "maybe": None if number % 3 == 1 else 100 * number + np.arange(12, dtype=np.int16).reshape(COPIES, 4),
        "ragged": 100 * number + np.arange(2 * rows, dtype=np.float32).reshape(rows, 2),
        "numbers": 10 * number + np.arange(rows, dtype=np.int32),
        "words": 100 * number + np.arange(COPIES * rows, dtype=np.uint16).reshape(COPIES, rows),
        "any": 100.0 * number + np.arange(6).reshape((2, 3) if number % 2 else (3, 2)),
    }


ROWS = [*map(sample, range(N))]
EVERY: dict[str, Any] = {name: [T.RandomRow()] for name in FIELDS}
AFTER: dict[str, list[list[Any]]] = {
    "grid": [[], [T.RandomSpatialCrop((2,), offset=True)], [T.RandomAxisFlip()], [T.Normalize((1, 2), (3, 4))]],
    "score": [[], [T.ToFloat("float16")]],
    "maybe": [[], [T.RandomWindow(2)], [T.ToFloat("bfloat16")]],
    "ragged": [[], [T.Normalize((1, 2), (3, 4))]],
    "numbers": [[], [T.ToInt64()]],
    "words": [[], [T.PadTo(value=9)], [T.ToInt64(), T.Ragged()], [T.RandomWindow(1), T.PadTo()]],
    "any": [[], [T.ToFloat()]],
}
"""Transforms that may follow in the list of each field."""


@pytest.fixture(scope="module", params=[*CONTAINERS, "memory"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Several shards in a container."""
    folder = tmp_path_factory.mktemp("d")
    return packed(folder / "d", ROWS, FIELDS, container=request.param, shard_samples=5, shard_size="2KB")


def epochs(loader: Any, count: int) -> list[dict[int, dict[str, Any]]]:
    """By sample, the values of each of so many epochs."""
    found = []
    for _ in range(count):
        values: dict[int, dict[str, Any]] = {}
        for batch in loader:
            for row, number in enumerate(batch["index"].tolist()):
                values[number] = {name: column[row] for name, column in batch.items()}
        found.append(values)
    return found


@pytest.mark.filterwarnings("ignore:field '.*' holds rows of torch.uint16")
@pytest.mark.parametrize("verify", [False, True])
def test_epochs_deliver_each_row_once(dataset: Any, verify: bool) -> None:
    """As many epochs as a value has rows deliver each of them once, from any epoch on, and the next ones again."""
    loader = load(dataset, 4, transforms=EVERY, verify=verify, tail="pad", seed=5)
    loader.set_epoch(7)
    found = epochs(loader, 6)
    for number, stored in enumerate(ROWS):
        for name, value in stored.items():
            rows = [epoch[number][name] for epoch in found]
            if value is None:
                assert not any(
                    row.any() or epoch[number][f"{name}_present"] for row, epoch in zip(rows, found, strict=True)
                )
                continue
            assert all(row.shape == value.shape[1:] for row in rows)
            for begin in range(7 - len(value)):
                turns = sorted(np.asarray(row).tolist() for row in rows[begin : begin + len(value)])
                assert turns == value.tolist()


def test_the_first_row_is_any() -> None:
    """Samples begin with all rows alike, and the seed, the sample and the place in the list determine which."""
    recipe = T.ArrayRecipe.of([T.RandomRow()], (4, 2), np.dtype(np.float32))
    keys = T.random_generator.RandomKeys(1, 0, np.arange(8000))
    window, _ = recipe.moves(keys)
    assert np.bincount(window.begins, minlength=4) / 8000 == pytest.approx([0.25] * 4, abs=0.02)
    for other in (T.random_generator.RandomKeys(2, 0, keys.samples), keys.draws(1)):
        assert (recipe.moves(other)[0].begins != window.begins).mean() == pytest.approx(0.75, abs=0.02)


@pytest.mark.filterwarnings("ignore::shardio.PairingWarning")
@pytest.mark.filterwarnings("ignore:field '.*' holds rows of torch.uint16")
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    after=st.fixed_dictionaries({name: st.sampled_from(lists) for name, lists in AFTER.items()}),
    window=st.booleans(),
    shared=st.booleans(),
    epoch=st.integers(0, 99),
)
def test_rows_are_those_of_whole_values(
    dataset: Any, after: dict[str, list[Any]], window: bool, shared: bool, epoch: int
) -> None:
    """With any transforms behind it, and for several names of a field, what is read is what whole values give."""
    names = {name: name for name in FIELDS} | ({"other": "grid", "more": "ragged"} if shared else {})
    if window:
        dataset, names = (
            dataset.windows(2, within="dataset"),
            {n: s for n, s in names.items() if s in ("grid", "score")},
        )
    transforms = {name: [T.RandomRow(), *after[stored]] for name, stored in names.items()}
    read, cut = (load(dataset, 5, fields=names, transforms=transforms, verify=v, seed=3) for v in (False, True))
    for loader in (read, cut):
        loader.set_epoch(epoch)
    for one, other in zip(read, cut, strict=True):
        assert same(one, other)


HOW: list[Any] = [
    {},
    {"threads": 3},
    {"verify": True},
    pytest.param({"isolate": True, "threads": 1}, marks=pytest.mark.slow),
    {"map": dict},
    {"map": dict, "map_by": "sample"},
    {"to": "numpy"},
    {"device": "there"},
]


@pytest.mark.filterwarnings("ignore::shardio.PairingWarning")
@pytest.mark.parametrize("how", HOW, ids=str)
def test_offsets_are_the_rows_whoever_makes_the_batch(how: dict[str, Any], device: str) -> None:
    """`NAME_offset` is the number of the row, 0 for values that lack; crops behind it tell theirs, in the row."""
    data = shardio.from_samples(ROWS, FIELDS)
    rules: dict[str, Any] = {
        "grid": [T.RandomRow(offset=True), T.RandomAxisFlip(1.0), T.ToFloat("float16")],
        "crop": [T.RandomRow(), T.RandomSpatialCrop((1, 3), offset=True)],
        "lengthwise": [T.RandomRow(), T.RandomSpatialCrop(3, offset=True)],
        "entry": [T.RandomRow(), T.RandomWindow(1, offset=True)],
        "score": [T.RandomRow(offset=True), T.ToFloat()],
        "maybe": [T.RandomRow(offset=True)],
        "ragged": [T.RandomRow(offset=True)],
        "numbers": [T.RandomRow(offset=True), T.FillMissing(-1, missing=3, mask=True)],
    }
    names = {name: name if name in FIELDS else "grid" for name in rules}
    where = how | ({"device": device} if "device" in how else {})
    loader = load(data, 4, fields=names, transforms=rules, tail="pad", seed=3, **where)
    apart = shardio.TorchDataset(data, fields=names, transforms=rules, seed=3)
    (found,) = epochs(loader, 1)
    for number, stored in enumerate(ROWS):
        got = {name: np.asarray(torch.as_tensor(value).cpu()) for name, value in found[number].items()}
        row = {name: got[f"{name}_offset"].tolist() for name in rules}
        assert np.array_equal(got["grid"], stored["grid"][row["grid"][0], :, ::-1].astype(np.float16))
        copies = stored["grid"]
        (y, x), (z,), (entry,) = row["crop"], row["lengthwise"], row["entry"]
        assert any(np.array_equal(got["crop"], copy[y : y + 1, x : x + 3]) for copy in copies)
        assert any(np.array_equal(got["lengthwise"], copy[:, z : z + 3]) for copy in copies)
        assert any(np.array_equal(got["entry"], copy[entry : entry + 1]) for copy in copies)
        for name in ("score", "ragged"):
            assert got[name].tolist() == stored[name][row[name][0]].tolist()
        kept = stored["numbers"][row["numbers"][0]]
        assert (got["numbers"], got["numbers_missing"]) == ((-1, True) if kept == 3 else (kept, False))
        lacks = stored["maybe"] is None
        assert got["maybe"].tolist() == ([0] * 4 if lacks else stored["maybe"][row["maybe"][0]].tolist())
        assert not (lacks and row["maybe"][0])
        for name in (*rules, *(f"{name}_offset" for name in rules)):
            assert np.array_equal(apart[number][name], got[name])


@settings(max_examples=15, deadline=None)
@given(ranks=st.integers(1, 3), batch_size=st.integers(1, 5), epoch=st.integers(0, 5), draw=st.data())
def test_any_ranks_resume_with_the_rows_of_the_epoch(
    ranks: int, batch_size: int, epoch: int, draw: st.DataObject
) -> None:
    """Other ranks that take over midway deliver the rest of the epoch, with its rows; the next one has others."""
    data = shardio.from_samples(ROWS, FIELDS)
    options: dict[str, Any] = {"fields": ["grid", "numbers"], "transforms": {n: EVERY[n] for n in ("grid", "numbers")}}

    def values(batches: Any) -> list[Any]:
        return [
            (number, batch["grid"][row].tolist(), batch["numbers"][row].tolist())
            for batch in batches
            for row, number in enumerate(batch["index"].tolist())
            if batch["valid"][row]
        ]

    starts = []
    for number in (epoch, epoch + 1):
        loader = load(data, batch_size, seed=3, tail="pad", **options)
        loader.set_epoch(number)
        starts.append(loader.state_dict())
    first, second = (
        exact_over_ranks(data, ranks, batch_size, draw, values, start=start, **options) for start in starts
    )
    assert [number for number, *_ in sorted(first)] == [*range(N)]
    assert all(a[1] != b[1] for a, b in zip(sorted(first), sorted(second), strict=True))


def test_fields_at_the_same_place_take_the_same_row() -> None:
    """Copies of a latent and of its mask stay together, also where crops that differ follow."""
    copies = np.arange(4, dtype=np.float32)[:, None, None]
    rows = [{"latent": copies + np.zeros((4, 3, 6), np.float32), "mask": (copies + np.zeros((4, 1, 6))).astype("u1")}]
    data = shardio.from_samples(rows * 40)
    transforms = {"latent": [T.RandomRow(), T.Normalize(0, 1)], "mask": [T.RandomRow()]}
    seen = set()
    for batch in load(data, 8, transforms=transforms):
        assert torch.equal(batch["latent"][:, 0], batch["mask"][:, 0].float())
        seen |= {*batch["mask"][:, 0, 0].tolist()}
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("crop", [T.RandomSpatialCrop(3), T.RandomSpatialCrop((2, 3))])
def test_pairs_of_several_shapes_compare_their_rows(crop: Any) -> None:
    """Sizes of images and masks that draw the same crops are those of rows, whatever their channels."""
    kinds: Any = {"image": ("float32", (None,) * 4), "mask": ("float32", (None,) * 4)}
    rows = [{"image": np.ones((2, 4, 5 + n, 6), "f4"), "mask": np.ones((2, 1, 5 + n, 6), "f4")} for n in range(4)]
    rows[3]["mask"] = rows[2]["mask"]
    transforms = {name: [T.RandomRow(), crop] for name in kinds}
    loader = load(
        shardio.from_samples(rows, kinds), 4, transforms=transforms, shuffle=None, on_bad_sample="mask", max_bad=4
    )
    (batch,) = loader
    assert batch["valid"].tolist() == [True, True, True, False]


LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (1, 1, 10, 48), "compression": "gzip"},
    "Zarr": {"chunks": (1, 1, 10, 48)},
}


@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_the_row_is_read(layout: str, tmp_path: Path, device: str) -> None:
    """Readers ask for the bytes or chunks of the row, for a device too; a loader counts them."""
    values = np.random.default_rng(0).random((30, 8, 40, 48), np.float32)
    path = tmp_path / ("x.zarr" if layout == "Zarr" else "x.h5")
    if layout == "Zarr":
        zarr.open_group(path, mode="w").create_array("x", data=values, **LAYOUTS[layout])
        whole = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    else:
        with h5py.File(path, "w") as file:
            whole = file.create_dataset("x", data=values, **LAYOUTS[layout]).id.get_storage_size()
    shardio.index(path, tmp_path / "d", tell=lambda note: None)
    for where in ({}, {"device": device}):
        for after in ([], [T.Normalize(0.5, 2.0)]):
            CHUNKS.reset_in_child()
            before = REQUESTED.total
            loader = load(shardio.open(tmp_path / "d"), 10, transforms={"x": [T.RandomRow(), *after]}, **where)
            (found,) = epochs(loader, 1)
            assert REQUESTED.total - before == pytest.approx(whole / 8, rel=0.1)
            assert loader.stats().bytes == values.nbytes // 8
            if not after:
                assert all((values[n] == got["x"].cpu().numpy()).all((1, 2)).sum() == 1 for n, got in found.items())


def test_a_row_of_a_ragged_value_is_read_alone() -> None:
    """The loader reads one entry of each value of several lengths, for each name."""
    data = shardio.from_samples(
        [{"x": np.ones((100 + n, 7), np.float32)} for n in range(8)], {"x": ("float32", (None, 7))}
    )
    names = {"a": "x", "b": "x"}
    loader = load(data, 4, fields=names, transforms={name: [T.RandomRow()] for name in names})
    assert sum(len(batch["index"]) for batch in loader) == 8
    assert loader.stats().bytes == 2 * 8 * 7 * 4


def test_a_value_without_rows_is_a_bad_sample() -> None:
    """It is named, or masked; one that is missing is not bad."""
    values = [np.ones((2, 3), np.float32), np.ones((0, 3), np.float32), None]
    field = shardio.Field("array", "float32", (None, 3), optional=True)
    data = shardio.from_samples([{"x": value} for value in values], {"x": field})
    options: dict[str, Any] = {"transforms": {"x": [T.RandomRow()]}, "shuffle": None}
    with pytest.raises(BadSample, match=r"sample 1.*'x': RandomRow takes arrays that have rows, .* shape \(0, 3\)"):
        next(iter(load(data, 3, **options)))
    (batch,) = load(data, 3, on_bad_sample="mask", max_bad=1, **options)
    assert batch["valid"].tolist() == [True, False, True]
    assert batch["x"].tolist() == [[1] * 3, [0] * 3, [0] * 3]


@pytest.mark.parametrize(
    ("shape", "transforms", "message"),
    [
        ((), [T.RandomRow()], r"RandomRow takes arrays that have rows, and there are none in arrays of shape \(\)"),
        (
            (4, 5),
            [T.CenterSpatialCrop((3,)), T.RandomRow()],
            "transform 1: RandomRow must come first, and once",
        ),
        ((4, 5), [T.RandomRow(), T.RandomRow()], "transform 1: RandomRow must come first, and once"),
        ((4, 5), [T.ToFloat(), T.RandomRow()], "transform 1: RandomRow must come before ToFloat"),
        ((4, 5), [T.RandomRow(), T.RandomSpatialCrop((4, 5))], r"a block of \(4, 5\) is not in arrays of shape \(5,\)"),
        ((4, 5), [T.RandomRow(), T.PadTo()], "PadTo takes arrays whose first axis"),
        ((4, 5), [T.RandomRow(True), T.RandomWindow(2, offset=True)], "a field has one offset"),
    ],
)
def test_other_arrays_and_lists_are_refused(shape: Any, transforms: Any, message: str) -> None:
    """The loader names what doesn't fit before it reads."""
    data = shardio.from_samples(
        [{"x": np.ones(shape, np.float32)}] * 2, {"x": shardio.Field("array", "float32", shape)}
    )
    with pytest.raises(ConfigError, match=message):
        load(data, 1, transforms={"x": transforms})
