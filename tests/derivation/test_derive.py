"""Promises of `shardio.derive`: the function's values, a row per sample, whatever the ranks; and what it refuses."""

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _datasets import load, photos, tensors
from _functions import Batch, doubled

import shardio
from shardio.care.verify import verify
from shardio.errors import BadSample, ConfigError, MapError, ShardioError, SourceWarning, TooManyBad
from shardio.order.world import World
from shardio.testing.stores import MemoryStore

OPTIONS: dict[str, Any] = {"version": "1", "batch_size": 4, "shard_samples": 8, "world": World()}


def derive(data: Any, function: Any, out: Any, **options: Any) -> shardio.Dataset:
    """Derive in shards of two batches of four, on one rank."""
    return shardio.derive(data, function, out, **OPTIONS | options)


def image_sums(batch: Batch) -> Batch:
    """A number for each image, and its place in the view."""
    return {"sum": batch["image"].float().sum(dim=(1, 2, 3)), "at": batch["index"]}


SQUARE = {"image": [shardio.Resize(8), shardio.CenterCrop(8)]}


@pytest.mark.parametrize("container", ["hdf5", "tar", "lmdb"])
def test_values_are_the_functions(tmp_path: Path, container: str) -> None:
    """Sample i has what the function returns for sample i: numbers, arrays of one shape or several, and texts."""
    made = derive(tensors(50), doubled, tmp_path / "out", container=container)
    found = made.read(range(50))
    assert found["twice"].tolist() == [2 * number for number in range(50)]
    assert found["square"] == [f"{number * number}" for number in range(50)]
    assert [row.tolist() for row in found["few"]] == [[number] * (number % 3) for number in range(50)]
    expected = np.arange(50, dtype=np.float32)[:, None] * np.arange(1, 51, dtype=np.float32)
    assert (found["sums"] == expected).all()
    assert made.manifest.shards.samples.tolist() == [8] * 6 + [2]
    assert verify(made, deep=True).problems == ()


def test_one_tensor_is_a_field_too(tmp_path: Path) -> None:
    """A function may return a tensor instead of a dict, of booleans or half floats, and an array."""
    made = derive(tensors(9), lambda batch: batch["array"].half(), tmp_path / "out")
    assert made.fields["output"] == shardio.Field("array", "float16", (50,))
    flags = derive(tensors(9), lambda batch: (batch["label"] > 4).numpy(), tmp_path / "flags")
    assert flags.read(range(9))["output"].tolist() == [False] * 5 + [True] * 4


def test_the_function_gets_a_loaders_batches(tmp_path: Path) -> None:
    """Batches are those of a Loader in stored order, cut from each shard's beginning, without gradients."""
    data, got = photos(22), []

    def keep(batch: Batch) -> Batch:
        assert torch.is_inference_mode_enabled()
        got.append({name: batch[name].clone() for name in ("image", "index", "label")})
        return image_sums(batch)

    derive(data, keep, tmp_path / "out", transforms=SQUARE)
    expected = list(load(data, 4, shuffle=None, tail="pad", transforms=SQUARE))
    assert [batch["index"].tolist() for batch in got] == [[*range(at, min(at + 4, 22))] for at in range(0, 22, 4)]
    for batch, other in zip(got, expected, strict=True):
        for name in batch:
            assert torch.equal(batch[name], other[name][: len(batch[name])])


def test_views_are_derived_from(tmp_path: Path) -> None:
    """A view's samples have the view's numbers, and what is derived names the view's digest."""
    data = tensors(40)
    for name, view in {
        "slice": data[5:33],
        "where": data.where("label >= 11"),
        "part": data.split({"a": 0.5, "b": 0.5})["b"],
        "two": shardio.concat({"a": data[:7], "b": data[30:]}),
    }.items():
        made = derive(view, doubled, tmp_path / name)
        assert (made.read(range(len(view)))["twice"] == 2 * view.read(range(len(view)))["label"]).all()
        derived = made.manifest.conversion["derived"]
        assert (derived["digest"], derived["samples"]) == (view.digest, len(view))
    with pytest.raises(ConfigError, match="draws its samples anew"):
        derive(data.weighted(np.ones(40)), doubled, tmp_path / "weighted")


def test_ranks_write_the_same_bytes(tmp_path: Path) -> None:
    """Two and three ranks write the files that one rank writes, in whatever order they begin."""
    data = tensors(50, tmp_path / "data")
    one = files_of(derive(data, doubled, tmp_path / "1"))
    for size in (2, 3):
        made = by_ranks(size, data, doubled, tmp_path / f"{size}")
        assert [len(each) for each in made] == [50] * size
        assert files_of(made[-1]) == one


def by_ranks(size: int, *arguments: Any, **options: Any) -> list[Any]:
    """Derive by ranks, on a thread each; return the dataset or the error of each."""
    results: list[Any] = [None] * size

    def work(rank: int) -> None:
        try:
            results[rank] = derive(*arguments, world=World(rank, size), **options)
        except (ShardioError, LookupError) as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in reversed(threads):
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def files_of(dataset: shardio.Dataset) -> dict[str, bytes]:
    """The files of a dataset by their names."""
    assert isinstance(dataset, shardio.Dataset), dataset
    return {path.name: path.read_bytes() for path in sorted(Path(dataset.path).iterdir())}


@pytest.mark.parametrize("at", [0, 3])
def test_a_function_that_raises(tmp_path: Path, at: int) -> None:
    """Its own error comes through, with the samples, and nothing passes for a dataset."""

    def fails(batch: Batch) -> Batch:
        if int(batch["index"][0]) == 4 * at:
            raise LookupError("no such weight")
        return doubled(batch)

    out = tmp_path / "out"
    with pytest.raises(LookupError, match="no such weight") as caught:
        derive(tensors(30), fails, out)
    assert caught.value.__notes__ == [f"samples {4 * at} to {4 * at + 3}: the function failed"]
    assert not (out / "shardio.json").exists()


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ({"x": torch.zeros(4, 3)}, r"samples 8 to 11: .* x \(array, float32, \[3\]\), .*float32, \[2\]\)"),
        ({"x": torch.zeros(4, 2).double()}, r"samples 8 to 11: .* x \(array, float64, \[2\]\)"),
        ({"y": torch.zeros(4, 2)}, r"samples 8 to 11: .* y \(array"),
        ({"x": torch.zeros(4, 2), "y": torch.zeros(4)}, r"samples 8 to 11: .* y \(scalar"),
        ({"x": torch.zeros(3, 2)}, r"samples 8 to 11: 'x' must have a value for each of 4 samples, got 3"),
        ({"x": torch.zeros(())}, r"samples 8 to 11: 'x' must be a tensor.*with a value per sample, got array\(0"),
        ({"x": [np.zeros(2), np.zeros((2, 2))] * 2}, r"samples 8 to 11: .* x \(array, float64, \[any\]\)"),
        ({"x": torch.tensor([[0.0, 1]] * 3 + [[0, float("nan")]])}, r"samples 8 to 11: 'x' of sample 11 is NaN; nan="),
        ({"x": torch.zeros(4, 2).bfloat16()}, r"samples 8 to 11: 'x' is bfloat16"),
        ({"x": None}, r"samples 8 to 11: 'x' must be a tensor"),
    ],
)  # fmt: skip
def test_a_later_batch_must_be_like_the_first(tmp_path: Path, later: Batch, message: str) -> None:
    """Fields, dtypes, shapes and lengths that differ, and NaN, are errors that name the samples and both values."""

    def changes(batch: Batch) -> Batch:
        return later if batch["index"][0] == 8 else {"x": torch.zeros(len(batch["index"]), 2)}

    with pytest.raises(MapError, match=message):
        derive(tensors(20), changes, tmp_path / "out")
    assert not (tmp_path / "out" / "shardio.json").exists()


def test_rows_of_a_list_must_be_alike(tmp_path: Path) -> None:
    """An array of another rank in a list is an error that names its sample."""

    def odd(batch: Batch) -> Batch:
        return {"x": [np.zeros(2 if number != 9 else (2, 2)) for number in batch["index"].tolist()]}

    with pytest.raises(BadSample, match=r"sample 9: field 'x': expected shape \(None,\), got \(2, 2\)"):
        derive(tensors(20), odd, tmp_path / "out")


@pytest.mark.parametrize("kind", [float, np.float32, torch.tensor])
def test_nan_in_a_list_of_numbers(tmp_path: Path, kind: Any) -> None:
    """A list's numbers of Python, NumPy and torch are looked through as a tensor's are; without NaN they are stored."""

    def listed(batch: Batch) -> Batch:
        return {"x": [kind(float("nan") if number == 9 else number) for number in batch["index"].tolist()]}

    with pytest.raises(MapError, match=r"samples 8 to 11: 'x' of sample 9 is NaN; nan="):
        derive(tensors(20), listed, tmp_path / "out")
    made = derive(tensors(9), listed, tmp_path / "few")
    assert made.read(range(9))["x"].tolist() == [*range(9)]


def test_a_value_without_an_axis_for_samples(tmp_path: Path) -> None:
    """A mean of a whole batch is an error for a batch of one sample as well."""
    with pytest.raises(MapError, match=r"samples 0 to 0: 'output' must be .* with a value per sample, got array\(0"):
        derive(tensors(1), lambda batch: batch["label"].float().mean(), tmp_path / "out")


def test_a_function_may_return_the_same_memory(tmp_path: Path) -> None:
    """Values in one array that each call fills anew are those of their own batch, copy, and repetition."""
    crop, told, calls = {"image": [shardio.RandomCrop(8)]}, [], iter(range(100))
    kept = {"image": np.zeros((4, 8, 8, 3), np.uint8)}

    def same(batch: Batch) -> Batch:
        filled = kept["image"][: len(batch["index"])]
        filled[:] = batch["image"]
        return {"image": filled}

    made = derive(photos(10), same, tmp_path / "same", transforms=crop, copies=2)
    own = derive(photos(10), lambda batch: {"image": batch["image"]}, tmp_path / "own", transforms=crop, copies=2)
    assert made.digest == own.digest
    shared = torch.zeros(4)
    derive(tensors(8), lambda batch: shared.fill_(next(calls)), tmp_path / "drift", check=2, tell=told.append)
    assert told == ["field 'output' differs in 2 of 2 batches, computed twice, by up to 1"]


def test_nan_is_kept_on_request(tmp_path: Path) -> None:
    """With `nan="keep"` it is stored like any number."""
    made = derive(tensors(6), lambda batch: batch["label"] * float("nan"), tmp_path / "out", nan="keep")
    assert np.isnan(made.read(range(6))["output"]).all()


def test_bad_samples_keep_their_places(tmp_path: Path) -> None:
    """A sample that cannot be read is an error, or within a budget a row whose values are missing."""
    data, out = photos(30, bad=(5, 17)), tmp_path / "out"
    with pytest.raises(BadSample, match="sample 5"):
        derive(data, image_sums, out, transforms=SQUARE)
    with pytest.warns(SourceWarning, match=r"2 samples cannot be read and got no values; the first: .*sample 5"):
        made = derive(data, image_sums, out, transforms=SQUARE, max_bad=2, overwrite=True)
    whole = derive(photos(30), image_sums, tmp_path / "whole", transforms=SQUARE).read(range(30))
    found = made.read(range(30))
    there = np.isin(np.arange(30), (5, 17), invert=True)
    assert (found["sum_present"] == there).all()
    assert (found["sum"][there] == whole["sum"][there]).all()
    assert len(made) == 30
    with pytest.raises(TooManyBad, match="2 of 30 samples are bad, max_bad=1 allows 1"):
        derive(data, image_sums, tmp_path / "few", transforms=SQUARE, max_bad=1)


def test_copies_are_a_loaders_epochs(tmp_path: Path) -> None:
    """Copy k of a sample is made of the draws that a Loader of that seed has in epoch k."""
    data, crop = photos(10), {"image": [shardio.RandomResizedCrop(8)]}
    made = derive(data, lambda batch: batch["image"], tmp_path / "out", transforms=crop, copies=3, seed=4)
    found = made.read(range(10))["output"]
    assert found.shape == (10, 3, 8, 8, 3)
    loader = load(data, 5, transforms=crop, seed=4, tail="pad")
    for copy in range(3):
        loader.set_epoch(copy)
        for batch in loader:
            assert (found[batch["index"].numpy(), copy] == batch["image"].numpy()).all()
    with pytest.raises(MapError, match="cannot be stored: a dtype must be one of"):
        derive(data, lambda batch: ["a"] * len(batch["index"]), tmp_path / "b", transforms=crop, copies=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transforms": {"image": [shardio.RandomCrop(8)]}}, r"RandomCrop\(.* is random: copies=k computes"),
        ({"transforms": {"image": [shardio.Resize(8), shardio.ColorJitter(0.5)]}}, "ColorJitter.* is random"),
        ({"copies": 2, "transforms": SQUARE}, "copies=2 needs a random transform"),
        ({"copies": 0, "transforms": SQUARE}, "copies must be at least 1, got 0"),
        ({"version": ""}, "version must be text, such as '1', got ''"),
        ({"version": 2}, "version must be text, such as '1', got 2"),
        ({"nan": "drop"}, "nan must be 'raise' or 'keep', got 'drop'"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"check": -1}, "check must be at least 1, got -1"),
        ({"check": 1.5}, "check must be an integer, got 1.5"),
        ({"shard_samples": 0}, "shard_samples must be at least 1, got 0"),
        ({"container": "memory"}, "memory"),
        ({"max_bad": -1}, "max_bad must be a count"),
        ({"fields": ["pixels"]}, "pixels"),
    ],
)
def test_options_are_checked_before_anything_is_written(tmp_path: Path, options: Any, message: str) -> None:
    """Each rule's error has the option and the value, and there is no output."""
    with pytest.raises(ConfigError, match=message):
        derive(photos(8), image_sums, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("how", ["resume", "if_missing"])
def test_what_is_there_must_fit(tmp_path: Path, how: str) -> None:
    """A finished dataset is returned as it is; one of another input, version or options is named, with both values."""
    data, out, calls = tensors(20), tmp_path / "out", []

    def counted(batch: Batch) -> Batch:
        calls.append(len(batch["index"]))
        return doubled(batch)

    derive(data, counted, out)
    before = files_of(shardio.open(out))
    calls.clear()
    again = derive(data, counted, out, **{how: True})
    assert (files_of(again), calls) == (before, [4] if how == "resume" else [])  # the first batch tells the fields
    for options, message in (
        ({"version": "2"}, "has version '1', not '2'"),
        ({"batch_size": 5}, "has batch_size 4, not 5"),
        ({"transforms": {"array": [shardio.ToFloat()]}}, "has transforms .*, not .*ToFloat"),
    ):
        with pytest.raises(ConfigError, match=message):
            derive(data, counted, out, **{how: True} | options)
    with pytest.raises(ConfigError, match=rf"has digest '{data.digest}', not '{data[:19].digest}'"):
        derive(data[:19], counted, out, **{how: True})
    with pytest.raises(ConfigError, match="must be empty"):
        derive(data, counted, out)
    assert files_of(shardio.open(out)) == before
    assert len(derive(data[:19], counted, out, **{how: True}, overwrite=True)) == 19


def test_the_input_is_no_output(tmp_path: Path) -> None:
    """A dataset that a view reads is not replaced by what is derived from the view."""
    data = tensors(20, tmp_path / "data")
    (tmp_path / "link").symlink_to(tmp_path)
    for place in (tmp_path / "data", tmp_path / "link" / "data"):
        with pytest.raises(ConfigError, match=r"out must be another place than what is derived from, got .*data"):
            derive(data[:5], doubled, place, overwrite=True)
    assert shardio.open(tmp_path / "data").digest == data.digest


def test_if_missing_goes_on_with_what_was_cut_off(tmp_path: Path) -> None:
    """Two ranks of a job compute the shards that have no record, then open the dataset, and a second time only that."""
    data, out, first = tensors(50, tmp_path / "data"), tmp_path / "out", threading.Event()

    def once(batch: Batch) -> Batch:
        if int(batch["index"][0]) == 40 and not first.is_set():
            first.set()
            raise LookupError
        return doubled(batch)

    with pytest.raises(LookupError):
        derive(data, once, out)
    made = by_ranks(2, data, once, out, if_missing=True)
    assert files_of(made[0]) == files_of(made[1]) == files_of(derive(data, once, tmp_path / "one"))
    assert [len(each) for each in by_ranks(2, data, once, out, if_missing=True)] == [50, 50]


def test_a_function_that_does_not_repeat_is_told(tmp_path: Path) -> None:
    """`check` computes batches twice, and tells which fields differ and by how much, or that all are equal."""
    told: list[str] = []
    derive(tensors(20), doubled, tmp_path / "a", check=3, tell=told.append)
    assert told == ["0 of 3 batches differ, computed twice"]
    counter = iter(range(100))

    def drifts(batch: Batch) -> Batch:
        return {"same": batch["label"], "drift": batch["label"] + next(counter)}

    with pytest.warns(SourceWarning, match="field 'drift' differs in 2 of 2 batches, computed twice, by up to 1"):
        derive(tensors(20), drifts, tmp_path / "b", check=2)
    with pytest.warns(SourceWarning, match="field 'x' differs in 2 of 2 batches, computed twice, by up to inf"):
        derive(tensors(8), lambda batch: {"x": np.full(4, f"{next(counter)}")}, tmp_path / "c", check=2)


def test_a_damaged_shard_is_made_again(tmp_path: Path) -> None:
    """A record whose shard is damaged or gone passes for nothing: resume computes it again, and the others not."""
    data, out, seen, broken = tensors(50, tmp_path / "data"), tmp_path / "out", [], [True]

    def last_fails(batch: Batch) -> Batch:
        seen.append(int(batch["index"][0]))
        if seen[-1] == 48 and broken:
            raise LookupError
        return doubled(batch)

    with pytest.raises(LookupError):
        derive(data, last_fails, out)
    gone, cut, *_ = sorted(out.rglob("shard-*.h5"))
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-9])
    seen.clear()
    broken.clear()
    made = derive(data, last_fails, out, resume=True)
    assert sorted({*seen}) == [0, 4, 8, 12, 48]
    assert files_of(made) == files_of(derive(data, last_fails, tmp_path / "one"))


@pytest.mark.parametrize("size", [1, 2])
def test_a_store_takes_what_is_derived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """OUT may be a URL, to which each rank uploads its shards; the samples are those of a folder."""
    store, data = MemoryStore({}), tensors(20)
    monkeypatch.setenv("SHARDIO_CACHE", str(tmp_path / "cache"))
    for module in ("output", "dataset.dataset"):
        monkeypatch.setattr(f"shardio.{module}.open_store", lambda url, options: store)
    for how in ("resume", "if_missing"):
        made = by_ranks(size, data, doubled, "s3://bucket/out", **{how: True})
        for found in made:
            assert found.digest == derive(data, doubled, tmp_path / how, overwrite=True).digest
            assert found.read([19])["square"] == ["361"]


def test_nothing_of_it_stays_in_memory(tmp_path: Path) -> None:
    """The Loader's batches go with the call, and wait for no garbage collector."""
    gc.collect()
    gc.disable()
    try:
        derive(tensors(9), lambda batch: batch["label"], tmp_path / "out")
        assert not [each for each in gc.get_objects() if isinstance(each, shardio.Loader)]
    finally:
        gc.enable()
