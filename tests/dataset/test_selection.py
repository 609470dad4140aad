"""Reading many rows of many shards in one compiled call gives the values that the containers read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import jpeg
from _datasets import CONTAINERS, packed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardio
from shardio import native
from shardio.containers.extents import Runs
from shardio.containers.packed_values import Scratch
from shardio.errors import ConfigError, ShardCorrupt
from shardio.format.fields import CHECKSUM, length_column, shape_column
from shardio.testing.samples import FIELDS, sample

COUNT = 60
COLUMNS = ("tensor", "wide", "label", "weight", "good", CHECKSUM, shape_column("image"))
VALUES = ("image", "points", "track", "tokens", "caption", "blob", "meta")
RAGGED = ("track", "tokens")


@pytest.fixture(scope="module", params=[*CONTAINERS, "memory"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> shardio.Dataset:
    """Several shards of every kind of field."""
    return written(tmp_path_factory.mktemp(request.param) / "d", request.param)


def written(path: Path, container: str) -> shardio.Dataset:
    """A dataset of several shards in a container."""
    rows = [sample(n) | {"image": picture(n)} for n in range(COUNT)]
    return packed(path, rows, FIELDS, container=container, shard_size="40KB", shard_samples=9)


def picture(number: int) -> bytes:
    """A small JPEG."""
    return jpeg(8 + number % 5, 9, seed=number)


def everything(dataset: shardio.Dataset, indices: list[int]) -> dict[str, Any]:
    """All fields of some samples, values as bytes."""
    found = dataset.selection(np.array(indices, np.int64))
    columns: dict[str, Any] = {name: found.column(name).tolist() for name in COLUMNS}
    memory = Scratch()
    return columns | {name: list(map(bytes, found.values(name, memory))) for name in VALUES}


@pytest.mark.parametrize("located", [False, True])
def test_parts_of_a_selection(dataset: shardio.Dataset, located: bool) -> None:
    """A part has the samples of a slice, also where those of the whole were located, and parts of parts are taken."""
    indices = np.random.default_rng(0).integers(0, COUNT, 40)
    whole = dataset.selection(indices)
    if located:
        whole.locate([*COLUMNS, *VALUES, *map(length_column, RAGGED)])
    for part, chosen in ((whole[3:17], indices[3:17]), (whole[10:][5:6], indices[15:16]), (whole[7:7], indices[:0])):
        alone = dataset.selection(chosen)
        for name in COLUMNS:
            np.testing.assert_array_equal(part.column(name), alone.column(name))
        for name in VALUES:
            assert [*map(bytes, part.values(name, Scratch()))] == [*map(bytes, alone.values(name))]
        for name in RAGGED:
            lengths = alone.column(length_column(name))
            np.testing.assert_array_equal(
                part.parts(name, Runs(lengths // 2, lengths)), alone.parts(name, Runs(lengths // 2, lengths))
            )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(indices=st.lists(st.integers(0, COUNT - 1), max_size=70))
def test_one_call_gives_what_many_give(dataset: shardio.Dataset, indices: list[int]) -> None:
    """For any indices, with repeats, compiled reads and the containers' own reads agree."""
    assert len(dataset.manifest.shards) > 3
    fast = everything(dataset, indices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        assert everything(dataset, indices) == fast


@st.composite
def runs_of_samples(draw: st.DrawFn) -> list[tuple[int, list[float]]]:
    """Some samples, each with an even number of places along its value, as shares of it: where runs begin and end."""
    ends = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=3)
    drawn = draw(st.lists(st.tuples(st.integers(0, COUNT - 1), ends), max_size=70))
    return [(number, sorted(end for pair in pairs for end in pair)) for number, pairs in drawn]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=runs_of_samples(), name=st.sampled_from(RAGGED), compiled=st.booleans(), cut=st.integers(0, 70))
def test_runs_of_ragged_values(
    dataset: shardio.Dataset, chosen: list[tuple[int, list[float]]], name: str, compiled: bool, cut: int
) -> None:
    """`parts` gives the runs of all samples end to end, with or without compiled code, in new memory or given."""
    values = [sample(number)[name] for number, _ in chosen]
    places = [[int(end * len(value)) for end in ends] for value, (_, ends) in zip(values, chosen, strict=True)]
    counts = np.array([len(each) // 2 for each in places], np.int64)
    begins, ends = np.array([end for each in places for end in each], np.int64).reshape(-1, 2).T
    runs = Runs(begins, ends, counts)
    pairs = [[*zip(each[::2], each[1::2], strict=True)] for each in places]
    taken = [value[b:e] for value, each in zip(values, pairs, strict=True) for b, e in each]
    expected = np.concatenate([sample(0)[name][:0], *taken])
    found = dataset.selection(np.array([number for number, _ in chosen], np.int64))
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(native, "library", lambda: None)
        read = found.parts(name, runs)
        assert (read.dtype, read.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(read, expected)
        room = np.zeros((len(expected) + 2, *expected.shape[1:]), expected.dtype)
        assert found.parts(name, runs, room[1:-1]) is not None
        np.testing.assert_array_equal(room[1:-1], expected)
        assert not room[[0, -1]].any()
        np.testing.assert_array_equal(found.parts(name, runs, scratch=Scratch()), expected)
        assert found.column(length_column(name)).tolist() == list(map(len, values))
        first = int(runs[:cut].sizes.sum())
        np.testing.assert_array_equal(found[:cut].parts(name, runs[:cut]), expected[:first])
        np.testing.assert_array_equal(found[cut:].parts(name, runs[cut:]), expected[first:])
    if len(counts):
        covering = Runs(np.zeros_like(counts), np.array([len(value) for value in values], np.int64))
        assert runs.within(runs)
        assert runs.within(covering)
        assert covering.within(runs) == all(
            not len(value) or (0, len(value)) in each for value, each in zip(values, pairs, strict=True)
        )


def test_parts_that_no_value_has(dataset: shardio.Dataset) -> None:
    """ShardCorrupt names shard, row and field of a value with fewer entries; ConfigError and ValueError misuse."""
    found, zeros = dataset.selection(np.array([2, 50])), np.zeros(2, np.int64)
    place = dataset.locate(50)
    with pytest.raises(ShardCorrupt, match=rf"{place.shard}, field 'tokens', row {place.row}: has 5 entries.* have 6"):
        found.parts("tokens", Runs(zeros, np.array([5, 6])))
    with pytest.raises(ConfigError, match=r"'points' is array, float64, shapes differ: only values of a shape"):
        found.parts("points", Runs(zeros, zeros))
    for begins, ends in ((zeros, zeros[:1]), (zeros[:1], zeros[:1]), (zeros - 1, zeros), (zeros + 1, zeros)):
        with pytest.raises(ValueError, match="runs must be of 2 values"):
            found.parts("tokens", Runs(begins, ends))
    with pytest.raises(ValueError, match="runs must be of 2 values"):
        found.parts("tokens", Runs(zeros, zeros, np.array([1, 2])))
    with pytest.raises(ValueError, match="out must be"):
        found.parts("tokens", Runs(zeros, zeros + 1), np.empty(3, np.uint16))


def test_compiled_reads_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field of many shards is read in one compiled call, not one per shard."""
    if native.library() is None:
        pytest.skip("not compiled here")
    for container in CONTAINERS:
        opened = written(tmp_path / container, container)
        wanted = everything(opened, [3, 55, 3, 20])
        with monkeypatch.context() as patch:
            for reader in map(opened.shards.__getitem__, range(len(opened.manifest.shards))):
                patch.setattr(type(reader), "read", None)
            assert everything(opened, [3, 55, 3, 20]) == wanted
            found = opened.selection(np.array([3, 55]))
            found.parts("tokens", Runs(np.array([0, 1]), found.column(length_column("tokens"))))


@pytest.mark.parametrize("container", ["tar", "hdf5"])
@pytest.mark.parametrize("name", ["image", "wide"])
def test_a_shard_cut_while_open_is_named(tmp_path: Path, container: str, name: str) -> None:
    """When a compiled read fails, the container reports file, field and row."""
    path = tmp_path / "d"
    field = FIELDS[name]
    rows = [{name: picture(number) if name == "image" else sample(number)[name]} for number in range(COUNT)]
    opened = packed(path, rows, {name: field}, container=container, shard_size="1MB")
    everyone = np.arange(COUNT)
    read = opened.selection(everyone).column if field.fixed else opened.selection(everyone).values
    read(name)
    (shard,) = path.glob("shard-*[5r]")
    size = shard.stat().st_size
    with shard.open("r+b") as file:
        file.truncate(size // 4096 * 4096 // 2)
        with pytest.raises(ShardCorrupt, match=rf"{shard.name}.*'{name}', row \d+"):
            opened.selection(everyone).column(name) if field.fixed else opened.selection(everyone).values(
                name, Scratch()
            )
        file.truncate(size)  # restore the file behind the mapped pages
