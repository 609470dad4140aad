"""Ragged fields from end to end: what is written is read, and what is damaged is named."""

import contextlib
import io
import re
import struct
import tarfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from _datasets import CONTAINERS, load, packed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

import shardio
from shardio.care import rebuilt_index
from shardio.care.verify import verify
from shardio.containers.extents import Runs
from shardio.containers.packed_values import Scratch
from shardio.errors import BadSample, ConfigError, ShardCorrupt
from shardio.format.fields import describe, length_column
from shardio.system.directory import Directory

COUNT, ROW, LENGTH = 6, 2, 20
MOST = 2**63 - 1
NAME = "shard-000000"
DTYPES = ("bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128")


def value(number: int) -> NDArray[np.int16]:
    """The value of a sample; all have one length, so that the places of one may stand for another's."""
    return np.arange(LENGTH, dtype=np.int16) + 1000 * number


def written(path: Path, container: str) -> Path:
    """A dataset of one shard."""
    rows = [{"tokens": value(number)} for number in range(COUNT)]
    packed(path, rows, {"tokens": ("int16", (None,))}, container=container, shard_size="1MB", shard_samples=COUNT)
    return path


def index_of(path: Path) -> NDArray[np.void]:
    """The side index of the tar, writable."""
    return np.lib.format.open_memmap(path / f"{NAME}.idx.npy", "r+")


def put(path: Path, key: bytes, change: Callable[[bytes], bytes]) -> None:
    """Change an entry of the LMDB."""
    with (
        lmdb.open(str(path / f"{NAME}.lmdb"), subdir=False, lock=False) as opened,
        opened.begin(write=True) as entries,
    ):
        entries.put(key, change(entries.get(key)))


def set_length(path: Path, container: str, length: int) -> None:
    """State another length of row 2 in its column."""
    name = length_column("tokens")
    if container == "tar":
        index_of(path)[name][ROW] = length
    elif container == "hdf5":
        with h5py.File(path / f"{NAME}.h5", "r+") as file:
            file[name][ROW] = length
    else:
        start = 8 * ROW
        put(path, b"\xff" * 8 + name.encode(), lambda old: old[:start] + struct.pack("<q", length) + old[start + 8 :])


def deliveries(path: Path) -> set[bytes | str]:
    """Read row 2 in each way, alone and among others; return its values, or "named" where an error names the place."""
    dataset = shardio.open(path)

    def parts(rows: list[int]) -> Any:
        ends = np.full(len(rows), LENGTH)
        return dataset.selection(np.array(rows)).parts("tokens", Runs(0 * ends, ends)).reshape(-1, LENGTH)

    ways: list[Callable[[list[int]], Any]] = [
        parts,
        lambda rows: dataset.selection(np.array(rows)).values("tokens"),
        lambda rows: dataset.selection(np.array(rows)).values("tokens", Scratch()),
        lambda rows: dataset.read(rows, ["tokens"])["tokens"],
        lambda rows: [each.numpy() for each in next(iter(load(dataset.select(rows), len(rows))))["tokens"]],
    ]
    found: set[bytes | str] = set()
    for way in ways:
        for rows in ([ROW], [5, ROW, 4], [ROW, 1, ROW]):
            try:
                read = [bytes(each) for each in way(rows)]
                found |= {each for each in read if each not in {value(n).tobytes() for n in (1, 4, 5)}}
            except ShardCorrupt as error:
                found.add("named" if NAME in f"{error}" and f"field 'tokens', row {ROW}" in f"{error}" else f"{error}")
    return found


def verified(path: Path) -> list[int]:
    """The rows that `verify(deep=True)` names."""
    return [each.location.row for each in verify(path, deep=True).found if each.location is not None]


@pytest.mark.usefixtures("part")
@pytest.mark.parametrize("container", CONTAINERS)
def test_lengths_that_are_not_those_of_the_values(container: str, tmp_path: Path) -> None:
    """A length that differs from the value's is refused by name, however it is read, and `verify` names its row."""
    path = written(tmp_path / "d", container)
    assert deliveries(path) == {value(ROW).tobytes()}
    for length in (LENGTH - 1, LENGTH + 1, 0, -1, 1 << 40, MOST, -MOST - 1, LENGTH - (1 << 63), LENGTH + (1 << 62)):
        set_length(path, container, length)
        assert deliveries(path) == {"named"}, length
    assert verified(path) == [ROW]


SPANS = [
    (0, 20), (39, 59), (40, 59), (40, 61), (41, 60), (60, 40), (-1, 19), (100, 120), (101, 121), (120, 140), (121, 141),
    (1 << 40, (1 << 40) + 20), (-MOST - 1, -MOST + 19), (1 << 62, (1 << 62) + 20), (40 - (1 << 63), 60 - (1 << 63)),
    (MOST - 10, 10 - MOST), (0, 1 << 40), (40 + (1 << 62), 60 + (1 << 62)),
]  # fmt: skip
"""Entries to stand as those of row 2: a few others within the data, and some outside."""


@pytest.mark.usefixtures("part")
@pytest.mark.parametrize("span", SPANS)
def test_offsets_of_hdf5(span: tuple[int, int], tmp_path: Path) -> None:
    """Offsets out of order or outside of the data are refused by name; others of that length give what is there."""
    path, (start, end) = written(tmp_path / "d", "hdf5"), span
    with h5py.File(path / f"{NAME}.h5", "r+") as file:
        file["tokens/offsets"][ROW : ROW + 2] = span
    whole = np.concatenate([value(number) for number in range(COUNT)])
    inside = 0 <= start <= end <= len(whole) and end - start == LENGTH
    samples, all_of_it = shardio.open(path).selection(np.array([5, ROW])), np.full(2, LENGTH)
    told = pytest.raises(ShardCorrupt, match=rf"{NAME}.h5, field 'tokens', row {ROW}: ")
    with contextlib.nullcontext() if inside else told:
        assert bytes(samples.values("tokens")[1]) == whole[start:end].tobytes()
    with contextlib.nullcontext() if inside else told:
        assert bytes(samples.parts("tokens", Runs(0 * all_of_it, all_of_it))[LENGTH:]) == whole[start:end].tobytes()


@pytest.mark.usefixtures("part")
@pytest.mark.parametrize("container", ["tar", "lmdb"])
def test_values_of_other_sizes(container: str, tmp_path: Path) -> None:
    """A value that is shorter or longer than its length, or is no multiple of an entry, is refused by name."""
    for size in (0, 2, 2 * LENGTH - 1, 2 * LENGTH + 1, 2 * LENGTH + 2):
        path = written(tmp_path / f"{size}", container)
        if container == "tar":
            index_of(path)["tokens.size"][ROW] = size
        else:
            put(path, ROW.to_bytes(8, "big") + b"tokens", lambda old, size=size: (old + b"ab")[:size])
        assert deliveries(path) == {"named"}, size
        assert verified(path) == [ROW]


@st.composite
def values(draw: st.DrawFn) -> tuple[shardio.Field, list[NDArray[Any] | None]]:
    """A field, and values of it: of any dtype and length, none and one among them; some are missing."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    optional = draw(st.booleans())
    lengths = draw(st.lists(st.one_of(st.integers(0, 4), st.just(700)), min_size=1, max_size=12))
    several = [draw(arrays.arrays(dtype, (min(n, 4), *shape))) for n in lengths]
    long = [np.resize(array, (n, *shape)) for array, n in zip(several, lengths, strict=True)]
    missing = [optional and draw(st.booleans()) for _ in long]
    field = shardio.Field("array", dtype.name, (None, *shape), optional=optional)
    return field, [None if lacks else array for array, lacks in zip(long, missing, strict=True)]


@pytest.mark.filterwarnings("ignore:field .* holds rows")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given=values(), container=st.sampled_from([*CONTAINERS, "memory"]))
def test_round_trip(given: tuple[shardio.Field, list[Any]], container: str, tmp_path_factory: Any) -> None:
    """Values of any dtype and length are read as they were written, bit by bit, through every way to read them."""
    field, expected = given
    path = tmp_path_factory.mktemp("ragged") / "d"
    rows = [{"x": array} for array in expected]
    data = packed(None if container == "memory" else path, rows, {"x": field}, container=container, shard_samples=5)
    assert data.fields["x"] == field
    everyone = np.arange(len(data))
    lengths = [0 if array is None else len(array) for array in expected]
    assert data.selection(everyone).column(length_column("x")).tolist() == lengths
    ways = [data.read(everyone)["x"], [data[n]["x"] for n in range(len(data))]]
    ways.append([each for batch in load(data, 4, shuffle=None, tail="pad") for each in batch["x"]][: len(data)])
    for found in ways:
        for array, wanted in zip(found, expected, strict=True):
            if wanted is None:
                assert array is None
                continue
            array = np.asarray(array)
            assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
            assert array.tobytes() == wanted.tobytes()
            assert array.flags.writeable


def test_other_programs_read_them(tmp_path: Path) -> None:
    """h5py reads a value as `data[offsets[i]:offsets[i + 1]]`, and a tar holds real .npy files."""
    expected = [np.full((n, 2), n, np.float32) for n in (3, 0, 1)]
    rows = [{"x": array} for array in expected]
    fields = {"x": ("float32", (None, 2))}
    packed(tmp_path / "h", rows, fields, container="hdf5")
    with h5py.File(tmp_path / "h" / f"{NAME}.h5") as file:
        data, offsets = file["x/data"], file["x/offsets"][...]
        assert (data.dtype, data.shape, offsets.dtype) == (np.float32, (4, 2), np.int64)
        for array, (start, end) in zip(expected, pairwise(offsets), strict=True):
            np.testing.assert_array_equal(data[start:end], array)
    packed(tmp_path / "t", rows, fields, container="tar")
    with tarfile.open(tmp_path / "t" / f"{NAME}.tar") as tar:
        for array, member in zip(expected, tar.getmembers(), strict=True):
            assert member.name.endswith(".x.npy")
            np.testing.assert_array_equal(np.load(io.BytesIO(tar.extractfile(member).read())), array)


def test_an_index_is_rebuilt(tmp_path: Path) -> None:
    """The side index of a tar is made again as it was; a member that holds another array is named."""
    path = written(tmp_path / "d", "tar")
    index = path / f"{NAME}.idx.npy"
    before = index.read_bytes()
    index.unlink()
    assert shardio.repair(path).shards
    assert index.read_bytes() == before
    shard = path / f"{NAME}.tar"
    shard.write_bytes(shard.read_bytes().replace(b"(20,)", b"(21,)", 1))
    index.unlink()
    with pytest.raises(ShardCorrupt, match=r"key 000000000000, field 'tokens': no .npy of array, int16, \[any\]"):
        rebuilt_index.rebuild(Directory(path), shardio.open(path).manifest, f"{NAME}.tar")


def test_values_that_do_not_fit(tmp_path: Path) -> None:
    """Values of another number of axes, or of another length along the others, are bad samples; shapes are checked."""
    fields = {"x": ("float32", (None, 2)), "y": ("int16", (1, None, None))}
    good = {"x": np.zeros((5, 2)), "y": np.zeros((1, 2, 3))}
    with shardio.create(tmp_path / "d", fields=fields) as writer:
        writer.append(good)
        for name, shape in (("x", (2,)), ("x", (0,)), ("x", (3, 3)), ("x", (1, 3, 2)), ("y", (2, 3, 3)), ("y", (1, 3))):
            expected = {"x": "(None, 2)", "y": "(1, None, None)"}[name]
            with pytest.raises(BadSample, match=re.escape(f"field {name!r}: expected shape {expected}, got {shape}")):
                writer.append(good | {name: np.zeros(shape)})
    data = shardio.open(tmp_path / "d")
    assert (data[0]["x"].shape, data[0]["y"].shape) == ((5, 2), (1, 2, 3))
    assert describe(data.fields["x"]) == "array, float32, [any, 2]"
    assert data.fields["y"].ragged is False
    for shape in ((None, 0), (None, -1), (None, True), ("n", 2)):
        with pytest.raises(ConfigError, match="shape"):
            shardio.Field("array", "float32", shape)
    for kind in ("image", "pixels"):
        with pytest.raises(ConfigError, match="a shape must be a tuple of integers"):
            shardio.Field(kind, shape=(None, 3))


def test_arrays_of_a_stated_shape_are_checked(tmp_path: Path) -> None:
    """A .npy whose array has another shape than its field's is damage."""
    data = packed(tmp_path / "d", [{"y": np.zeros((1, 2))}], {"y": ("int16", (1, None))})
    shard = tmp_path / "d" / f"{NAME}.tar"
    shard.write_bytes(shard.read_bytes().replace(b"(1, 2)", b"(2, 1)"))
    for read in (lambda: data.read([0]), lambda: next(iter(load(data, 1)))):
        with pytest.raises(ShardCorrupt, match=r"field 'y': not array: expected shape \(1, None\), got \(2, 1\)"):
            read()


@pytest.mark.parametrize("container", CONTAINERS)
def test_they_are_kept_by_what_rewrites_datasets(container: str, tmp_path: Path) -> None:
    """Resharding, merging, appending and casting keep ragged fields, their lengths and their checksums."""
    path = written(tmp_path / "d", container)
    data = shardio.open(path)
    for number, other in enumerate(CONTAINERS):
        made = shardio.convert(path, tmp_path / f"{number}", container=other)
        assert made.manifest.digest == data.digest
    both = shardio.convert([path, tmp_path / "0"], tmp_path / "both", container=container)
    assert [len(each) for each in shardio.open(both.path).read(range(2 * COUNT))["tokens"]] == [LENGTH] * 2 * COUNT
    shardio.convert(path, tmp_path / "0", append=True)
    assert len(shardio.open(tmp_path / "0")) == 2 * COUNT
    shardio.convert(path, tmp_path / "wide", dtype={"tokens": "int32"}, optional="tokens", container=container)
    wide = shardio.open(tmp_path / "wide")
    assert wide.fields["tokens"] == shardio.Field("array", "int32", (None,), optional=True)
    np.testing.assert_array_equal(wide[ROW]["tokens"], value(ROW))
    for place in ("0", "both", "wide"):
        assert not verify(tmp_path / place, deep=True).problems


def test_stats_tell_their_lengths() -> None:
    """`stats` tells lengths of all samples, numbers of the sampled ones, and channels along the second axis."""
    rows = [{"x": np.full((n, 2), (n, 10 * n), np.float32), "y": np.arange(n)} for n in (0, 1, 2, 5)]
    data = shardio.from_samples(rows, {"x": ("float32", (None, 2)), "y": ("int64", (None,))})
    found = shardio.stats(data).fields
    for field in found.values():
        assert (field.lengths.count, field.lengths.min, field.lengths.max, field.lengths.mean) == (4, 0, 5, 2)
        assert field.shapes == ()
    assert (found["y"].values.count, found["y"].values.max, found["y"].channels) == (8, 4, ())
    assert [channel.mean for channel in found["x"].channels] == [30 / 8, 300 / 8]
    assert found["x"].channel_axis == 1
    with pytest.raises(ConfigError, match="has no axis 0"):
        shardio.stats(data, channel_axis={"x": 0})
