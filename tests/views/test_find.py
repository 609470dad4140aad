"""Samples found by key: in datasets and views of any kind, by reading keys or through an index that is checked."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from _datasets import CONTAINERS, packed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardio
from shardio import native
from shardio.dataset.dataset import Dataset
from shardio.errors import ConfigError, ManifestError
from shardio.format import file_table
from shardio.format import keys as key_hashes
from shardio.format.keys import hashes_of
from shardio.views import kept_table, key_table
from shardio.views.view import BaseDataset

KEYS = st.text(max_size=3) | st.integers(0, 99).map(str)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-9, 9)


def different(keys: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Lists of different keys, some of which are missing."""
    return st.lists(keys | st.none(), unique_by=lambda key: object() if key is None else key)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("SHARDIO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def few_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of two bits, so that nearly all keys collide."""
    whole = key_hashes.hashes_of
    monkeypatch.setattr(key_table, "hashes_of", lambda keys: whole(keys) & np.uint64(3))


@pytest.fixture
def always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of any number of samples are kept in files."""
    monkeypatch.setattr(kept_table, "FEW", 0)
    monkeypatch.setattr(key_table, "FEW", 0)


@pytest.fixture(params=[False, True], ids=["whole hashes", "colliding hashes"])
def hashing(request: pytest.FixtureRequest) -> None:
    """The test runs with both."""
    if request.param:
        request.getfixturevalue("few_bits")


def in_memory(keys: list[Any], on: str = "key") -> Dataset:
    """A dataset with some keys; None is a missing one."""
    field = "int64" if any(isinstance(key, int) for key in keys) else "text"
    kind = shardio.Field("scalar", field) if field == "int64" else shardio.Field("text")
    optional = shardio.Field(kind.kind, kind.dtype, optional=None in keys)
    return shardio.from_samples(
        [{on: key, "n": n} for n, key in enumerate(keys)], {on: optional, "n": "int64"}, shard_samples=7
    )


def numbers_of(keys: list[Any]) -> dict[Any, int]:
    """The number of each key."""
    return {key: number for number, key in enumerate(keys) if key is not None}


@given(st.lists(NUMBERS))
def test_the_hash_of_an_integer_is_that_of_its_eight_bytes(numbers: list[int]) -> None:
    """Equal integers of any dtype have one hash, the XXH3-64 that any program computes."""
    array = np.array(numbers, np.int64)
    assert hashes_of(array).tolist() == [xxhash.xxh3_64_intdigest(one.tobytes()) for one in array]
    assert hashes_of(array.astype(np.int8)).tolist() == hashes_of(array.astype(np.int8).astype(np.int64)).tolist()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(different(KEYS) | different(NUMBERS), st.data())
def test_a_key_is_found_where_it_is(hashing: None, keys: list[Any], data: st.DataObject) -> None:
    """Each key has the number of its sample, in the order asked for, also repeated; any other one, or none, has -1."""
    if not any(key is not None for key in keys):
        return
    known, kind = numbers_of(keys), NUMBERS if any(isinstance(key, int) for key in keys) else KEYS
    wanted = data.draw(st.lists(st.sampled_from([*known]) | kind, max_size=30))
    found = in_memory(keys).find(wanted)
    assert found.dtype == np.int64
    assert found.tolist() == [known.get(key, -1) for key in wanted]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_view_finds_its_own_samples(hashing: None, data: st.DataObject) -> None:
    """Whatever views are stacked, a key leads to the number that its sample has in the uppermost one, or to -1."""
    keys = [f"k{n}" for n in range(40)]
    view: BaseDataset = in_memory(keys)
    for _ in range(data.draw(st.integers(0, 3))):
        match data.draw(st.sampled_from(["slice", "select", "where", "concat"])):
            case "slice":
                bound = st.none() | st.integers(-45, 45)
                chosen = slice(data.draw(bound), data.draw(bound), data.draw(st.sampled_from([None, 2, -1, -3])))
                view, keys = view[chosen], keys[chosen]
            case "select":
                numbers = data.draw(st.lists(st.integers(0, len(keys) - 1), unique=True)) if keys else []
                view, keys = view.select(numbers), [keys[number] for number in numbers]
            case "where":
                view, keys = view.where("key != 'k7'"), [key for key in keys if key != "k7"]
            case "concat":
                if keys:
                    more = [f"m{len(keys)}-{n}" for n in range(data.draw(st.integers(1, 9)))]
                    view = shardio.concat({"stack": view, "more": in_memory(more)})
                    keys = keys + more
    known = numbers_of(keys)
    wanted = data.draw(st.lists(st.sampled_from([*[f"k{n}" for n in range(40)], "m40-0"]), max_size=50))
    assert view.find(wanted).tolist() == [known.get(key, -1) for key in wanted]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=12))
def test_repeated_keys_are_named_with_the_first_two_places(hashing: None, keys: list[str]) -> None:
    """The error counts the samples that repeat a key, and names the first of them and the sample that has its key."""
    repeats = [n for n, key in enumerate(keys) if key in keys[:n]]
    dataset = in_memory(keys)
    if not repeats:
        assert dataset.find(keys).tolist() == list(range(len(keys)))
        return
    second = repeats[0]
    first = keys.index(keys[second])
    with pytest.raises(ConfigError, match=f"{len(repeats)} samples repeat") as error:
        dataset.find(["a"])
    assert f"{keys[second]!r}: at {dataset.locate(first)}, and at {dataset.locate(second)}" in str(error.value)
    distinct = sorted(map(keys.index, {*keys}))
    assert dataset.select(distinct).find([keys[n] for n in distinct]).tolist() == list(range(len(distinct)))


def test_what_is_drawn_anew_is_found_by_its_number() -> None:
    """Weighted views and mixtures find the numbers that their batches have."""
    data, more = in_memory([f"k{n}" for n in range(10)]), in_memory(["x", "y"])
    assert data.weighted([1.0] * 10, 30).find(["k3", "x"]).tolist() == [3, -1]
    assert shardio.mix({"a": data, "b": more}, {"a": 1, "b": 1}).find(["k3", "y"]).tolist() == [3, 11]


def test_what_is_no_key_is_refused() -> None:
    """Other fields, keys of another kind, and views whose samples are made of several have errors that say so."""
    rows = [{"key": f"k{n}", "n": n, "x": n / 2} for n in range(9)]
    data = shardio.from_samples(rows)
    for keys, on, rule in (
        (["a"], "x", "keys are texts or integers, 'x' is"),
        (["a"], "y", "no field 'y'"),
        ("k1", "key", "takes a list of strings"),
        ([1], "key", "takes a list of strings"),
        (["a", 1], "key", "takes a list of strings"),
        (["1"], "n", "takes a list of integers"),
        ([1.5], "n", "takes a list of integers"),
        ([[1]], "n", "takes a list of integers"),
        (3, "n", "takes a list of integers"),
    ):
        with pytest.raises(ConfigError, match=rule):
            data.find(keys, on)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="find is for stored samples"):
        data.windows(2, within="dataset")[1:].find([1], "n")
    assert data.find(np.array(["k1", "k9"])).tolist() == [1, -1]
    assert data.find(np.array([8, 1 << 63, 3], np.uint64), "n").tolist() == [8, -1, 3]
    assert data.find([], "n").tolist() == data.find(np.empty(0)).tolist() == []


@pytest.mark.parametrize("container", CONTAINERS)
def test_an_index_that_is_kept_finds_what_reading_finds(container: str, tmp_path: Path, always_kept: None) -> None:
    """The first call keeps the index beside the dataset, with 12 bytes per sample, and others read it."""
    keys = [f"é{n}" for n in range(300)]
    data = packed(tmp_path / "d", [{"key": key, "n": -n} for n, key in enumerate(keys)], container=container)
    wanted = [*keys[::-1], "e1", ""]
    assert data.find(wanted).tolist() == [*range(299, -1, -1), -1, -1]
    (index,) = indexes(tmp_path / "d")
    assert index.stat().st_size <= 12 * 300 + 1000
    assert data.find([-4, 4], "n").tolist() == [4, -1]
    assert len(indexes(tmp_path / "d")) == 2
    before = index.stat().st_mtime_ns
    assert shardio.open(tmp_path / "d").find(wanted).tolist() == data.find(wanted).tolist()
    assert index.stat().st_mtime_ns == before


def indexes(folder: Path) -> list[Path]:
    """The files of indexes in a folder."""
    return sorted(folder.glob("shardio.keys-*"), key=os.path.getmtime)


@pytest.fixture
def dataset(tmp_path: Path, always_kept: None) -> Dataset:
    """A dataset of 40 keys with an index."""
    data = packed(tmp_path / "d", [{"key": f"k{n}"} for n in range(40)], container="hdf5")
    data.find(["k1"])
    return shardio.open(tmp_path / "d")


def test_an_index_that_is_damaged_anywhere_is_made_anew(dataset: Dataset) -> None:
    """Whichever byte changes, or is missing, keys are found where they are, and the index is whole afterwards."""
    folder = Path(dataset.path)
    (index,) = indexes(folder)
    good, wanted = index.read_bytes(), [f"k{n}" for n in range(41)]
    numbers = np.random.default_rng(0).permutation(len(good))[:150].tolist()
    for wrong in (b"", good[:-1], good[: len(good) // 2], *(changed(good, number) for number in numbers)):
        index.unlink()
        index.write_bytes(wrong)
        assert shardio.open(folder).find(wanted).tolist() == [*range(40), -1]
        assert index.read_bytes() == good


def changed(content: bytes, number: int) -> bytes:
    """The content with another byte of this number."""
    return content[:number] + bytes([content[number] ^ 4]) + content[number + 1 :]


def test_an_index_with_a_right_checksum_leads_to_no_other_samples(dataset: Dataset) -> None:
    """Numbers beyond the samples, other arrays and other datasets' are not used; wrong ones do no harm."""
    folder = Path(dataset.path)
    (index,) = indexes(folder)
    kept = key_table.kept(dataset.digest, "key", 40)
    good = kept.read(index)
    assert good is not None
    hashes, numbers = np.asarray(good.hashes), np.asarray(good.numbers)
    for wrong in (
        key_table.KeyTable(hashes, numbers + np.uint32(1)),
        key_table.KeyTable(hashes, numbers[1:]),
        key_table.KeyTable(hashes, numbers.astype(np.int64)),
        key_table.KeyTable(hashes.astype(np.float64), numbers),
        key_table.KeyTable(hashes[:, None], numbers),
        key_table.KeyTable(hashes, numbers[:, None]),
    ):
        kept.write(index, wrong)
        assert kept.read(index) is None
        assert shardio.open(folder).find(["k3", "x"]).tolist() == [3, -1]
    for wrong in (key_table.KeyTable(hashes, numbers[::-1]), key_table.KeyTable(hashes[::-1], numbers)):
        kept.write(index, wrong)
        found = shardio.open(folder).find([f"k{n}" for n in range(40)])
        assert all(number in (-1, place) for place, number in enumerate(found.tolist()))
    key_table.kept("xxh3:0", "key", 40).write(index, good)
    assert kept.read(index) is None


@pytest.mark.parametrize("native_part", [True, False], ids=["compiled", "without"])
def test_a_large_index_stays_in_its_file(dataset: Dataset, native_part: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are looked up in the file, which processes share; one that is cut short meanwhile is an error in words."""
    monkeypatch.setattr(file_table, "READ_WHOLE", 0)
    if not native_part:
        monkeypatch.setattr(native, "library", lambda: None)
    wanted = [f"k{number}" for number in range(41)]
    assert dataset.find(wanted).tolist() == [*range(40), -1]
    (index,) = indexes(Path(dataset.path))
    os.truncate(index, index.stat().st_size // 2)
    with pytest.raises(ManifestError, match=f"{index.name}: cut short while it was open"):
        dataset.find(wanted)


_FIND = """
import sys, time
import shardio
from shardio.views import kept_table, key_table

kept_table.FEW, made, count = 0, key_table.made, 0

def slowly(*arguments):
    global count
    count += 1
    time.sleep(2)
    return made(*arguments)

key_table.made = slowly
print(shardio.open(sys.argv[1]).find(["k7", "x"]).tolist(), count, sep=";")
"""


@pytest.mark.long
def test_of_several_processes_one_makes_the_index(dataset: Dataset) -> None:
    """Processes that look for keys at once wait for the one that reads them, and find the same."""
    indexes(Path(dataset.path))[0].unlink()
    command = [sys.executable, "-c", _FIND, str(dataset.path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    found, counts = zip(*(process.communicate(timeout=100)[0].strip().split(";") for process in processes), strict=True)
    assert sorted(counts) == ["0", "0", "1"]
    assert {*found} == {"[7, -1]"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None)
@given(data=st.data(), numbers=st.booleans(), container=st.sampled_from(CONTAINERS))
def test_convert_and_append_write_the_index(
    always_kept: None, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, numbers: bool, container: str
) -> None:
    """Whatever is appended, the index that was written is the one of all keys; with repeated keys there is none."""
    place, kind = tmp_path_factory.mktemp("grown") / "d", NUMBERS if numbers else KEYS
    keys = list[Any]()
    has_index = True
    for part in range(data.draw(st.integers(1, 4))):
        more = data.draw(st.lists(kind, min_size=1, max_size=9))
        if data.draw(st.sampled_from([True, True, True, False])):
            more = [key for key in dict.fromkeys(more) if key not in keys] or [
                part - (1 << 60) if numbers else f"next {part}"
            ]
        keys += more
        source = shardio.from_samples([{"key": key} for key in more], {"key": "int64" if numbers else "text"})
        shardio.convert(source, place, container=container, shard_size="40B", append=part > 0)
        is_unique = len({*keys}) == len(keys)
        has_index = has_index and is_unique
        opened = shardio.open(place)
        index = key_table.kept(opened.digest, "key", opened.numbers)
        assert (index.read(place / index.name) is not None) == has_index
        if is_unique:
            made = key_table.made(opened, "key")
            read = index.read(place / index.name)
            assert read is not None
            assert np.asarray(read.hashes).tolist() == made.hashes.tolist()
            assert np.asarray(read.numbers).tolist() == made.numbers.tolist()
            assert opened.find(keys[::-1]).tolist() == [*range(len(keys))][::-1]
        else:
            with pytest.raises(ConfigError, match="repeat the 'key'"):
                opened.find(keys)


def test_the_index_is_a_file_of_the_dataset(tmp_path: Path, always_kept: None) -> None:
    """create writes it; verify and clean leave it, clean removes those of other fields, and what is new replaces it."""
    place = tmp_path / "d"
    packed(place, [{"key": f"k{n}", "n": n} for n in range(20)])
    (index,) = indexes(place)
    assert not shardio.verify(place).problems
    shardio.convert(shardio.from_samples([{"key": "x", "n": 20}]), place, append=True)
    (grown,) = indexes(place)
    assert grown != index
    shardio.open(place).find([1], on="n")
    (other,) = {*indexes(place)} - {grown}
    assert [info.name for info in shardio.clean(place, older_than="0s").removed] == [other.name]
    assert shardio.open(place).find(["k3", "x"]).tolist() == [3, 20]
    packed(place, [{"key": "y"}], overwrite=True)
    assert grown not in indexes(place)
    assert shardio.open(place).find(["x", "y"]).tolist() == [-1, 0]
    packed(place, [{"key": "y"}, {"key": "y"}], overwrite=True)
    assert not indexes(place)


def test_few_samples_have_no_index(tmp_path: Path) -> None:
    """Where reading all keys takes no time, conversions write no further file."""
    packed(tmp_path / "d", [{"key": f"k{n}"} for n in range(20)])
    assert not indexes(tmp_path / "d")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=st.lists(st.integers(0, 45), min_size=1, max_size=6), form=st.sampled_from(["in", "==", "reversed"]))
def test_a_condition_on_keys_chooses_the_same_through_the_index(dataset: Dataset, wanted: list[int], form: str) -> None:
    """`key == "..."` and `key in (...)` make the same view with an index as without, and read no other keys."""
    texts = [f"k{number}" for number in wanted]
    condition = {
        "in": f"key in {texts!r}",
        "==": f"key == {texts[0]!r}",
        "reversed": f"{texts[0]!r} == key",
    }[form]
    view = dataset.where(condition)
    again = shardio.from_samples([{"key": f"k{n}"} for n in range(40)]).where(f"({condition}) and not key == ''")
    assert view.origin(range(len(view))).tolist() == again.origin(range(len(again))).tolist()
    assert type(view._decided()) is type(again._decided())
    assert {*view.origin(range(len(view))).tolist()} == {n for n in (wanted if form == "in" else wanted[:1]) if n < 40}


def test_a_condition_on_keys_reads_few_of_them(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an index, only keys whose hashes match are read."""
    read: list[int] = []
    selection = Dataset.selection

    def counting(self: Dataset, indices: Any, *more: Any) -> Any:
        read.extend(np.asarray(indices).tolist())
        return selection(self, indices, *more)

    monkeypatch.setattr(Dataset, "selection", counting)
    assert len(dataset.where("key in ('k3', 'k31', 'x')")) == 2
    assert sorted(read) == [3, 31]
