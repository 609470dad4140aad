"""Views: samples chosen from a dataset, as a dataset that loaders read exactly."""

import pickle
from contextlib import suppress
from typing import Any, cast

import numpy as np
import pytest
from _datasets import load, photos
from _jobs import exact_over_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import shardio
from shardio.errors import ConfigError
from shardio.views import index_map
from shardio.views.index_map import BitMap, NumberMap, RangeMap, of_mask
from shardio.views.view import BaseDataset, Derived

COUNT = 60
DATA = shardio.from_samples(
    [{"n": n, "label": n % 5, "key": f"{'val' if n % 4 == 0 else 'train'}/{n}"} for n in range(COUNT)], shard_samples=7
)


@st.composite
def stacks(draw: Any) -> tuple[BaseDataset, list[Any]]:
    """A random stack of views over DATA, and the samples that it should have, of windows the rows."""
    view: BaseDataset = DATA
    expected: list[Any] = list(range(COUNT))
    kinds = ["slice", "select", "mask", "where", "split", "concat", "windows"]
    for _ in range(draw(st.integers(0, 3))):
        match draw(st.sampled_from(kinds)):
            case "slice":
                bound = st.none() | st.integers(-len(expected) - 2, len(expected) + 2)
                chosen = slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, -1, -3])))
                view, expected = view[chosen], expected[chosen]
            case "select":
                numbers = draw(st.lists(st.integers(0, len(expected) - 1), max_size=80)) if expected else []
                view, expected = view.select(numbers), [expected[number] for number in numbers]
            case "mask":
                mask = draw(st.lists(st.booleans(), min_size=len(expected), max_size=len(expected)))
                view = view.select(np.array(mask, np.bool_))
                expected = [number for number, there in zip(expected, mask, strict=True) if there]
            case "where":
                label = draw(st.integers(0, 5))
                view = view.where(f"label < {label} and n != 7 or key.startswith('val/1')")
                expected = [
                    n for n in expected if (n % 5 < label and n != 7) or (n % 4 == 0 and str(n).startswith("1"))
                ]
            case "split":
                if len(expected) < 4:
                    continue
                seed, by = draw(st.integers(0, 3)), draw(st.sampled_from([None, "label"]))
                with suppress(ConfigError):  # a part that gets no sample
                    parts = view.split({"a": 0.5, "b": 0.5}, by=by, seed=seed)
                    rows = {name: part.read(range(len(part)), ["n"])["n"].tolist() for name, part in parts.items()}
                    assert sorted(rows["a"] + rows["b"]) == sorted(expected)
                    name = draw(st.sampled_from(["a", "b"]))
                    view, expected = parts[name], rows[name]
            case "concat":
                if expected:
                    first = draw(st.integers(0, COUNT - 1))
                    view = shardio.concat({"stack": view, "rest": DATA[first:]})
                    expected = expected + list(range(first, COUNT))
            case "windows":
                length, stride = draw(st.integers(1, 5)), draw(st.integers(1, 6))
                view = view.windows(length, stride=stride, within="dataset")
                starts = range(0, len(expected) - length + 1, stride)
                expected = [expected[start : start + length] for start in starts]
                kinds = ["slice", "select", "mask"]
    return view, expected


def at_bottom(view: Any, indices: Any) -> Any:
    """The samples that `origin` leads to, read where the stack begins: in DATA, or in a concatenation."""
    bottom = view
    while isinstance(bottom, Derived):
        bottom = bottom.base
    numbers = view.origin(indices)
    found = bottom.read(numbers.reshape(-1), ["n"])["n"]
    return found.reshape(numbers.shape + found.shape[1:])


@given(stacks())
def test_a_stack_of_views_holds_what_its_choices_say(stack: Any) -> None:
    """Samples, numbers and origins are those of the choices, one after the other."""
    view, expected = stack
    assert len(view) == len(expected)
    assert view.read(range(len(view)), ["n"])["n"].tolist() == expected
    assert at_bottom(view, range(len(view))).tolist() == expected
    if expected:
        assert np.array_equal(view[-1]["n"], expected[-1])
        assert view.locate(len(view) - 1).index == len(view) - 1


@settings(max_examples=30)
@given(stacks(), st.integers(1, 4), st.integers(1, 9), st.sampled_from(["global", "block", None]), st.data())
def test_an_epoch_is_the_view_over_any_ranks(stack: Any, size: int, batch: int, shuffle: Any, data: Any) -> None:
    """The ranks together deliver the view as a multiset, and resume anywhere with another world."""
    view, expected = stack
    if not expected:
        with pytest.raises(ConfigError, match="at least one sample"):
            shardio.Loader(view, 1, threads=1)
        return

    assert _exact(view, size, batch, shuffle, data) == sorted(expected)


@settings(max_examples=30)
@given(stacks(), st.booleans(), st.integers(1, 4), st.integers(1, 9), st.sampled_from(["global", "block"]), st.data())
def test_a_weighed_stack_is_the_same_over_any_ranks(
    stack: Any, mixed: bool, size: int, batch: int, shuffle: Any, data: Any
) -> None:
    """Weights and mixtures over any stack deliver on any ranks what they deliver on one."""
    view, expected = stack
    if not expected:
        return
    weights, replacement = np.arange(len(expected)) % 4 + 1.0, data.draw(st.booleans())
    view = view.weighted(weights, 2 * len(expected), replacement=replacement)
    if mixed:
        other = view.base.select(range(len(expected)))
        view = shardio.mix({"weighed": view, "other": other}, {"weighed": 2, "other": 1}, samples=50)
    assert _exact(view, size, batch, shuffle, data) == _exact(view, 1, 16, shuffle, data)


def _exact(view: Any, size: int, batch: int, shuffle: Any, data: Any) -> list[Any]:
    """Ranks together deliver the epoch, also if others take over midway; each sample is where `origin` leads to."""

    def values(batches: Any) -> list[Any]:
        for each in batches:
            assert (at_bottom(view, each["index"].numpy()) == each["n"].numpy()).all()
        return [n for each in batches for n in each["n"][each["valid"]].tolist()]

    return sorted(exact_over_ranks(view, size, batch, data, values, shuffle=shuffle, block=3, window=2, seed=1))


@given(stacks(), stacks())
def test_digests_differ_where_contents_do(tmp_path_factory: pytest.TempPathFactory, one: Any, other: Any) -> None:
    """Views of one digest hold the same samples; a view that was pickled, or saved and opened, is the same view."""
    (view, expected), path = one, tmp_path_factory.getbasetemp() / "kept.json"
    if expected != other[1]:
        assert view.digest != other[0].digest
    if view is not DATA:
        view.save(path)
    opened = DATA if view is DATA else shardio.open(path, of=DATA)
    for copied in (pickle.loads(pickle.dumps(view)), opened):  # noqa: S301  # our own
        assert (copied.digest, type(copied)) == (view.digest, type(view))
        assert copied.read(range(len(copied)), ["n"])["n"].tolist() == expected


def test_names_of_classes_count_in_a_digest() -> None:
    """Equal samples whose classes have other names give other views by name, and so other digests."""
    rows = [{"label": n % 2} for n in range(6)]
    one, other = (shardio.from_samples(rows, metadata={"classes": names}) for names in (["a", "b"], ["b", "a"]))
    assert one.digest == other.digest
    assert one.where("label == 'a'").digest != other.where("label == 'a'").digest
    assert one.where("label == 1").digest == other.where("label == 1").digest


def test_slices_take_integers_of_any_type_and_size() -> None:
    """Bounds of NumPy's types and ones far outside are those of a list, and a digest names them."""
    assert DATA[np.int64(3) :: np.int8(9)].digest == DATA[3::9].digest
    for chosen in (slice(None, None, 10**30), slice(None, None, -(10**30)), slice(-(10**30), 10**30)):
        view = DATA[chosen]
        assert view.read(range(len(view)), ["n"])["n"].tolist() == [*range(COUNT)][chosen]


def test_repeats_are_augmented_differently() -> None:
    """A sample that comes twice draws other random choices each time."""
    pixels = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
    field = shardio.Field("pixels", shape=(64, 64), channels=3)
    data = shardio.from_samples([{"image": pixels}], {"image": field})
    loader = shardio.Loader(data.select([0, 0]), 2, transforms=[shardio.RandomCrop(8)], shuffle=None, threads=1)
    one, other = next(iter(loader))["image"]
    assert not (one == other).all()


@pytest.mark.parametrize("share", [0, 0.001, 0.01, 0.3, 0.9, 1])
@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 100_000])
def test_a_mask_becomes_the_smallest_map(count: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The map of a mask, given in parts, finds every chosen sample, in at most a bit and an eighth per sample."""
    monkeypatch.setattr(index_map, "_FEW_BYTES", 0)
    mask = np.random.default_rng(count).random(count) < share
    chosen, expected = of_mask(np.array_split(mask, 3)), np.flatnonzero(mask)
    assert chosen(np.arange(len(chosen))).tolist() == expected.tolist()
    for samples in {0, 1, count // 2, count}:
        assert chosen.leading(samples) == np.count_nonzero(expected < samples)
    match chosen:
        case BitMap():
            assert chosen.bits.nbytes + chosen.counts.nbytes <= count * 9 / 64 + 80
        case NumberMap():
            assert chosen.numbers.nbytes == 8 * len(expected)
        case _:
            assert isinstance(chosen, RangeMap)


@pytest.mark.parametrize(
    ("choose", "error", "message"),
    [
        (lambda: DATA.select([0, COUNT]), IndexError, r"index must be in \[0, 60\), got 60"),
        (lambda: DATA.select([True, False]), ConfigError, r"a mask for select must have 60 values, got \[2\]"),
        (lambda: DATA.select([0.5]), ConfigError, "indices must be integers, got float64"),
        (lambda: DATA[::0], ConfigError, "slice step cannot be zero"),
        (lambda: DATA["a":], ConfigError, "not a slice of samples"),
        (lambda: DATA.where("missing > 3"), ConfigError, "missing"),
        (lambda: DATA.where(np.ones(COUNT)), ConfigError, "a condition is a text, such as 'label == 3', got ndarray"),
        (lambda: DATA.select(np.array([2**64 - 1], np.uint64)), IndexError, "no sample has the number 18446744073709"),
        (lambda: DATA.origin([0.5]), ConfigError, "indices must be integers, got float64"),
        (lambda: shardio.concat(cast(Any, {1: DATA})), ConfigError, "the name of a source must be text, got 1"),
        (lambda: DATA[:5][9], IndexError, r"index must be in \[0, 5\), got 9"),
    ],
)
def test_wrong_choices_are_refused(choose: Any, error: type[Exception], message: str) -> None:
    """A choice that doesn't fit its dataset is an error when it is made."""
    with pytest.raises(error, match=message):
        choose()


@pytest.fixture(scope="module")
def stored_alike(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BaseDataset]:
    """The same photos in memory and in each container, in shards of different sizes."""
    sizes = {"memory": None, "tar": 6000, "hdf5": 9000, "lmdb": 20_000}
    folder = tmp_path_factory.mktemp("alike")
    return {name: photos(40, folder / name, container=name, shard_size=size) for name, size in sizes.items()}


def _chosen(data: Any) -> dict[str, Any]:
    """A view of each kind, of photos of `stored_alike`."""
    half = data.split({"a": 0.5, "b": 0.5}, by="label", seed=1)["a"]
    joined = shardio.concat({"some": data.where("label in (2, 3, 7) or key.startswith('k3')")[::-1], "half": half})
    weighed = joined.weighted(np.arange(len(joined)) % 3 + 1.0, samples=50)
    return {
        "dataset": data,
        "joined": joined.select(np.arange(len(joined)) % 4 > 0),
        "weighed": weighed,
        "balanced": joined.balanced("label"),
        "mixed": shardio.mix({"half": half, "weighed": weighed}, weights={"half": 1, "weighed": 2}),
        "windows": data.select(range(5, 35)).windows(3, stride=2, within="dataset"),
    }


def _crop(view: Any) -> Any:
    return [shardio.RandomResizedCrop(8)] if "image" in view.fields else None


def _samples(batches: Any) -> list[dict[str, Any]]:
    """Each sample of an epoch, in its order; arrays and pixels as nested lists."""
    return [
        {name: value if isinstance(value, str) else value.tolist() for name, value in zip(batch, values, strict=True)}
        for batch in batches
        for values in zip(*batch.values(), strict=True)
    ]


def _epoch_of(view: Any, **options: Any) -> list[dict[str, Any]]:
    return _samples(load(view, 5, seed=4, transforms=_crop(view), **options))


@pytest.mark.parametrize("kind", ["dataset", "joined", "weighed", "balanced", "mixed", "windows"])
def test_containers_and_threads_make_no_difference(stored_alike: dict[str, BaseDataset], kind: str) -> None:
    """A view delivers the same pixels in the same order, whatever stores them, and on however many threads."""
    expected = _epoch_of(_chosen(stored_alike["memory"])[kind], threads=1)
    assert len(expected) >= 10
    for name, data in stored_alike.items():
        view = _chosen(data)[kind]
        assert _epoch_of(view, threads=3) == expected, name
        assert _epoch_of(pickle.loads(pickle.dumps(view))) == expected, name  # noqa: S301  # our own


@pytest.mark.slow
def test_worker_processes_make_no_difference(stored_alike: dict[str, BaseDataset]) -> None:
    """Worker processes of a Loader, and of a DataLoader that spawns, deliver what threads do."""
    view = _chosen(stored_alike["hdf5"])["joined"]
    stored = [{k: v for k, v in sample.items() if k != "source"} for sample in _epoch_of(view, shuffle=None)]
    dataset = shardio.TorchDataset(view, transforms=_crop(view), seed=4)
    spawned = DataLoader(dataset, 5, drop_last=True, num_workers=1, multiprocessing_context="spawn")
    assert _samples(spawned) == stored
    assert _epoch_of(view, isolate=True) == _epoch_of(view)
