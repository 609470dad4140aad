"""Mixtures select sources by weight, each in whole epochs of its own; their order is exact and elastic."""

import json
import pickle
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _datasets import CONTAINERS, load, numbers, packed, photo
from _jobs import Job, samples
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio.errors import BadSample, ConfigError, StateMismatch, StateWarning
from shardio.order.mixed_plan import MOST_TURNS, MixedPlan, whole_weights

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4)


@given(
    sizes=SIZES,
    weights=st.lists(st.integers(1, 5), min_size=4, max_size=4),
    count=st.integers(20, 80),
    worlds=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    batches=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    stop=st.integers(1, 30),
    threads=st.integers(1, 3),
)
@settings(max_examples=30, deadline=None)
def test_elastic_resume(
    sizes: list[int],
    weights: list[int],
    count: int,
    worlds: tuple[int, int],
    batches: tuple[int, int],
    stop: int,
    threads: int,
) -> None:
    """Stopped after any step and resumed with another world and batch size, a mixture continues in the same order."""
    starts = np.cumsum([0, *sizes])
    sources = {f"s{n}": numbers(size, int(starts[n])) for n, size in enumerate(sizes)}
    mixed = shardio.mix(sources, dict(zip(sources, weights, strict=False)), samples=count)

    first = Job(mixed, worlds[0], batches[0], seed=5, threads=threads)
    state = first.run(stop)
    assert len(json.dumps(state)) < 1024
    second = Job(mixed, worlds[1], batches[1], state, seed=5, threads=threads)
    second.run()
    whole = [int(i) for e in (0, 1) for i in _plan(mixed, 5, e).indices(0, count)]
    assert first.samples + second.samples == whole[: count * (state["epoch"] + 1)]


def _plan(mixed: shardio.Mixture, seed: int, epoch: int) -> MixedPlan:
    plan = mixed.plan(seed, "global", 64, 16)
    assert isinstance(plan, MixedPlan)
    return replace(plan, epoch=epoch)


def test_counts_and_sources() -> None:
    """`source` names the source of each sample, statistics count by source, and a small source repeats."""
    mixed = shardio.mix({"big": numbers(300), "small": numbers(5, 300)}, {"big": 3, "small": 1}, samples=80)
    loader = load(mixed, 8)
    batches = list(loader)
    sources = torch.cat([batch["source"] for batch in batches])
    assert sources.bincount().tolist() == [60, 20]
    assert loader.stats().sources == {"big": 60, "small": 20}
    for batch in batches:
        assert batch["source"].bincount().tolist() == [6, 2]  # at each step, because the window divides the batch
        assert torch.equal(batch["source"] == 1, batch["number"] >= 300)
    more = torch.cat([batch["number"] for batch in loader])
    seen = {*torch.cat([batch["number"] for batch in batches]).tolist(), *more[more < 300].tolist()}
    assert len(seen - set(range(300, 305))) == 120


def test_without_weights_every_sample_comes_once() -> None:
    """Without weights every sample comes once, as in a single dataset."""
    mixed = shardio.mix({"a": numbers(30), "b": numbers(11, 30)})
    for _ in range(2):
        found = samples(load(mixed, 4, tail="pad"))
        assert sorted(found) == list(range(41))
        assert found != list(range(41))


def photos(count: int, first: int, bad: int = -1) -> list[dict[str, Any]]:
    """Photos with labels and keys, and a `note` that other sources lack; one of them is broken."""
    return [photo(n, classes=100, bad=n == bad) | {f"note{first}": [n]} for n in range(first, first + count)]


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_images_of_different_containers(tmp_path: Path, isolate: bool) -> None:
    """Sources may use different containers, and a sample's crop does not depend on the rest of its batch."""
    sources: dict[str, Any] = {"memory": shardio.from_samples(photos(9, 0), shard_samples=4)}
    for number, container in enumerate(CONTAINERS, 1):
        sources[container] = packed(
            tmp_path / container, photos(9, 9 * number), container=container, shard_size=4000
        ).path
    mixed = shardio.mix(sources, dict.fromkeys(sources, 1))
    assert list(mixed.fields) == ["image", "label", "key"]
    options: dict[str, Any] = {"transforms": [shardio.RandomResizedCrop(8)], "seed": 2, "verify": True}
    batches = list(load(mixed, 9, isolate=isolate, **options))
    alone = list(load(mixed, 1, threads=1, **options))
    assert torch.equal(torch.cat([b["image"] for b in batches]), torch.cat([b["image"] for b in alone]))
    assert torch.cat([b["label"] for b in batches]).sort().values.tolist() == list(range(36))
    assert [key for b in batches for key in b["key"]] == [f"k{n}" for b in batches for n in b["label"].tolist()]
    assert torch.equal(torch.cat([b["index"] for b in batches]), torch.cat([b["label"] for b in batches]))


def test_a_bad_sample_is_replaced_by_one_of_its_source() -> None:
    """A replacement comes from the same source, so that weights stay exact, and its record names that source."""
    sources = {"a": shardio.from_samples(photos(10, 0)), "b": shardio.from_samples(photos(10, 10, bad=13))}
    mixed = shardio.mix(sources, {"a": 1, "b": 1})
    loader = load(mixed, 4, transforms=[shardio.RandomResizedCrop(8)], on_bad_sample="replace", max_bad=5)
    batches = list(loader)
    assert torch.cat([batch["source"] for batch in batches]).bincount().tolist() == [10, 10]
    (bad,) = loader.quarantine()
    assert bad.location.shard.startswith("b/shard-")
    assert (bad.location.index, bad.location.key) == (13, "k13")
    assert bad.replaced_by in range(10, 20)


def test_mixtures_of_mixtures_and_weighted_views() -> None:
    """A mixture's sources may draw by orders of their own: counts and replacements are by the outer source."""
    inner = shardio.mix(
        {"a": shardio.from_samples(photos(10, 0)), "b": shardio.from_samples(photos(10, 10, bad=13))}, {"a": 1, "b": 3}
    )
    rare = shardio.from_samples(photos(8, 20, bad=21)).weighted([0, 5, 0, 0, 1, 1, 1, 0], samples=4)
    mixed = shardio.mix({"inner": inner, "rare": rare}, {"inner": 2, "rare": 1}, samples=60)
    assert (len(mixed), mixed.numbers) == (60, 28)
    options: dict[str, Any] = {"transforms": [shardio.RandomResizedCrop(8)], "on_bad_sample": "replace", "max_bad": 60}
    loader = load(mixed, 6, **options)
    batches = list(loader)
    assert loader.stats().sources == {"inner": 40, "rare": 20}
    index = torch.cat([batch["index"] for batch in batches])
    assert (index < 10).sum() == 10
    assert {*index[index >= 20].tolist()} == {24, 25, 26}
    replaced = {(bad.location.index, bad.location.shard.split("/")[0], bad.replaced_by) for bad in loader.quarantine()}
    assert {(number, source) for number, source, _ in replaced} == {(13, "inner"), (21, "rare")}
    for number, _, other in replaced:
        assert other in ({24, 25, 26} if number == 21 else {*range(10, 20)} - {13})
    crops = [image.tobytes() for batch in batches for image in batch["image"].numpy()]
    assert len({*crops}) > 50  # of 20 photos: each comes with another crop


def test_a_state_of_another_mixture_is_refused() -> None:
    """The digest covers sources, weights and the length of an epoch; only the weights may change."""
    sources = {"a": numbers(20), "b": numbers(20, 20)}
    state = load(shardio.mix(sources, {"a": 1, "b": 1})).state_dict()
    again = shardio.mix(sources, {"b": 0.5, "a": 0.5})
    load(again).load_state_dict(state)
    load(pickle.loads(pickle.dumps(again))).load_state_dict(state)  # noqa: S301
    others = [
        shardio.mix(sources, {"a": 1, "b": 1}, samples=39),
        shardio.mix({"a": numbers(20, 1), "b": sources["b"]}, {"a": 1, "b": 1}),
        shardio.mix(sources),
        shardio.mix({"b": sources["b"], "a": sources["a"]}, {"a": 1, "b": 1}),
        sources["a"],
    ]
    for other in others:
        with pytest.raises(StateMismatch, match=r"the state's (digest is 'mix:|samples is 40, this loader's is 39)"):
            load(other).load_state_dict(state)


def labelled(labels: list[int], classes: list[str], dtype: str = "int64", **metadata: Any) -> shardio.Dataset:
    """Samples with these labels and their class names, in shards of three."""
    rows = [{"label": label, "name": classes[label] if 0 <= label < len(classes) else ""} for label in labels]
    fields = {"label": dtype, "name": "text"}
    return shardio.from_samples(rows, fields, shard_samples=3, metadata={"classes": classes} | metadata)


CAT_DOG, FARM = labelled([0, 1, 1, 0], ["cat", "dog"]), labelled([2, 0, 1, -1, 1, 0], ["cow", "dog", "cat"])


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([CAT_DOG, FARM], "classes of 'label' differ: class 0 is 'cat' in 'a', but 'cow' in 'b'; classes='union'"),
        ([CAT_DOG, CAT_DOG, labelled([0], ["cat"])], "1 is 'dog' in 'a', but unnamed in 'c'"),
        ([labelled([0], []), CAT_DOG], "0 is unnamed in 'a', but 'cat' in 'b'"),
        (  # the class names of a field, as Parquet and CIFAR-100 have them
            [labelled([0], [], **{"classes.label": ["x"]}), labelled([0], [], **{"classes.label": ["y"]})],
            "0 is 'x' in 'a', but 'y' in 'b'",
        ),
    ],
)
def test_classes_that_differ_are_refused(sources: list[shardio.Dataset], message: str) -> None:
    """Sources that number their classes differently are refused with the first class that differs."""
    with pytest.raises(ConfigError, match=message):
        shardio.mix(dict(zip("abc", sources, strict=False)))


def test_classes_by_name() -> None:
    """With "union" a label means its name whatever source it comes from; labels below 0 stay."""
    mixed = shardio.mix({"a": CAT_DOG, "b": FARM}, {"a": 1, "b": 2}, samples=60, classes="union")
    assert mixed.classes == ["cat", "dog", "cow"]
    found = set()
    for batch in load(mixed, 5, verify=True):
        assert batch["name"] == [mixed.classes[n] if n >= 0 else "" for n in batch["label"].tolist()]
        found |= {*zip(batch["source"].tolist(), batch["name"], strict=True)}
    assert found == {(0, "cat"), (0, "dog"), (1, "cat"), (1, "dog"), (1, "cow"), (1, "")}
    assert FARM.read([0, 1], ["label"])["label"].tolist() == [2, 0]  # the source itself stays as it is


def test_a_missing_label_is_no_class() -> None:
    """A label that a sample lacks is 0 however classes are renumbered, as any missing value is."""
    fields = {"label": shardio.Field("scalar", dtype="int64", optional=True)}
    rows = [{"label": None}, {"label": 0}]
    sources = {name: shardio.from_samples(rows, fields, metadata={"classes": [name]}) for name in "ab"}
    found = shardio.concat(sources, classes="union").read(range(4))
    assert found["label"].tolist() == [0, 0, 0, 1]
    assert found["label_present"].tolist() == [False, True, False, True]


def test_classes_by_name_on_two_levels() -> None:
    """A concatenation within another one renumbers labels first, and the outer one renumbers the result."""
    inner = shardio.concat({"a": CAT_DOG, "b": FARM}, classes="union")
    outer = shardio.concat({"x": labelled([0, 1], ["cow", "emu"]), "y": inner.where("label >= 0")}, classes="union")
    assert outer.classes == ["cow", "emu", "cat", "dog"]
    rows = outer.read(range(len(outer)), ["label", "name"])
    assert [outer.classes[number] for number in rows["label"]] == rows["name"]
    assert outer.where("label == 'cow'").read([0, 1], ["name"])["name"] == ["cow", "cow"]


def test_classes_of_a_field_that_is_left_out_do_not_matter() -> None:
    """Classes are compared only if the mixture has their labels."""
    unlabelled = shardio.from_samples([{"name": "x"}])
    assert shardio.mix({"a": CAT_DOG, "b": unlabelled}).classes is None
    assert shardio.mix({"a": CAT_DOG, "b": CAT_DOG}).classes == ["cat", "dog"]


def test_a_state_tells_how_classes_are_numbered() -> None:
    """A state of labels by name is none of labels as they are; equal classes leave the digest as it was."""
    by_name, as_stored = (shardio.mix({"a": CAT_DOG, "b": FARM}, classes=word) for word in ("union", "ignore"))
    with pytest.raises(StateMismatch, match="the state's digest is 'mix:"):
        load(as_stored, 2).load_state_dict(load(by_name, 2).state_dict())
    same = {"a": CAT_DOG, "b": CAT_DOG}
    assert len({shardio.mix(same, classes=word).digest for word in (None, "union", "ignore")}) == 1
    copied = pickle.loads(pickle.dumps(by_name))  # noqa: S301
    load(copied, 2).load_state_dict(load(by_name, 2).state_dict())
    assert [n for batch in load(copied, 2) for n in batch["label"].tolist()] == [
        n for batch in load(by_name, 2) for n in batch["label"].tolist()
    ]


def test_a_label_without_a_name_is_a_bad_sample() -> None:
    """A label that its source gives no name cannot be numbered by name: it would pass for another source's class."""
    sources = {"a": labelled([0, 2, 1, 0], ["cat", "dog"]), "b": FARM}
    mixed = shardio.mix(sources, classes="union")
    with pytest.raises(BadSample, match=r"shard-000000\.memory, row 1, field 'label': label 2 names no class"):
        list(load(mixed, 5))
    loader = load(mixed, 5, on_bad_sample="replace", max_bad=2)
    assert {n for batch in loader for n in batch["label"].tolist()} <= {-1, 0, 1, 2}
    (bad,) = loader.quarantine()
    assert bad.location.index == 1


@pytest.mark.parametrize(
    ("other", "classes", "message"),
    [
        (labelled([0], []), "union", "numbers classes by name, and 'b' names none of 'label'"),
        (labelled([0], ["x", "y", "x"]), "union", "and 'b' has two called 'x'"),
        (FARM, "intersection", "classes must be 'union' or 'ignore', got 'intersection'"),
    ],
)
def test_classes_that_have_no_union(other: shardio.Dataset, classes: Any, message: str) -> None:
    """Classes that names do not tell apart, and other words, are refused."""
    with pytest.raises(ConfigError, match=message):
        shardio.mix({"a": CAT_DOG, "b": other}, classes=classes)


def test_labels_must_hold_the_numbers_of_all_classes() -> None:
    """A union of more classes than the label's dtype has numbers is refused."""
    sources = {name: labelled([0], [f"{name}{n}" for n in range(100)], "int8") for name in "ab"}
    with pytest.raises(ConfigError, match="200 classes of all datasets are too many for 'label', which is int8"):
        shardio.mix(sources, classes="union")


def test_classes_of_an_unknown_field() -> None:
    """Where several fields may have the classes, differing ones are refused and cannot be numbered by name."""
    sources = {n: shardio.from_samples([{"x": 0, "y": 0}], metadata={"classes": [n]}) for n in "ab"}
    for classes, message in (
        (None, "the classes differ: class 0 is 'a' in 'a', but 'b' in 'b'"),
        ("union", "needs a field 'label', as any of x, y may have the classes"),
    ):
        with pytest.raises(ConfigError, match=message):
            shardio.mix(sources, classes=classes)


def test_numbers_too_large_to_count_with() -> None:
    """Epochs and seeds beyond what can be counted or saved are refused by name, on the way in."""
    mixed = shardio.mix({"a": numbers(20), "b": numbers(20, 20)}, {"a": 1, "b": 1})
    loader = load(mixed)
    limit = 2**62 // 40
    with pytest.raises(ConfigError, match=f"epoch must be below {limit} in a mixture of 40 samples .*, got {2**62}"):
        loader.set_epoch(2**62)
    with pytest.raises(StateMismatch, match=f"epoch must be below {limit} in a mixture of 40"):
        loader.load_state_dict(loader.state_dict() | {"epoch": 2**62})
    loader.set_epoch(limit - 1)
    assert len(list(loader)) == 5
    assert loader.state_dict()["turns"] == [limit * 20, limit * 20]
    with pytest.raises(ConfigError, match="epoch must be below"):
        iter(loader)
    for dataset in (mixed, numbers(40)):
        with pytest.raises(ConfigError, match="epoch must be"):
            load(dataset).set_epoch(2**63)
    with pytest.raises(ConfigError, match="samples must have at most 1024 bits, got a number of 16610"):
        load(shardio.mix({"a": numbers(3)}, {"a": 1}, samples=10**5000))


@pytest.mark.parametrize(
    ("weights", "turns", "told"),
    [
        ({"a": 1e-300, "b": 1e300}, {"a": 1, "b": 4095}, r"2\.44e\+596 times"),
        ({"a": 1e-5, "b": 1}, {"a": 1, "b": 4095}, r"'a' gets 1 of 4,096 turns, 24\.4 times the share that its weight"),
        ({"a": 1 / 4096, "b": 1}, {"a": 1, "b": 4095}, None),
        ({"a": 10**5000, "b": 10**5000}, {"a": 1, "b": 1}, None),  # more digits than Python writes
        ({"a": 1.7e308, "b": 1.7e308}, {"a": 1, "b": 1}, None),  # whose sum is no float
        ({"a": np.float32(0.1), "b": np.float64(0.9)}, {"a": 1, "b": 9}, None),
        ({"a": np.int64(3), "b": np.uint8(200)}, {"a": 3, "b": 200}, None),
        ({"a": 0.7, "b": 0.2}, {"a": 7, "b": 2}, None),  # integers that a reader expects
    ],
)
def test_weights_of_any_size(weights: dict[str, Any], turns: dict[str, int], told: str | None) -> None:
    """Weights may be any positive numbers, NumPy's too, whose proportions no float holds."""
    sources = {"a": numbers(4), "b": numbers(4)}
    with nullcontext() if told is None else pytest.warns(StateWarning, match=told):
        assert shardio.mix(sources, weights).weights == turns


@settings(max_examples=25)
@given(st.dictionaries(st.text(min_size=1, max_size=3), st.floats(1e-3, 1e3), min_size=1, max_size=6))
def test_whole_weights_are_close(weights: dict[str, float]) -> None:
    """Rounded weights are off by at most one turn."""
    whole = whole_weights(weights)
    total, turns = sum(weights.values()), sum(whole.values())
    assert turns <= MOST_TURNS + len(weights)
    for name, weight in weights.items():
        assert whole[name] >= 1
        assert abs(whole[name] / turns - weight / total) <= (1 + len(weights)) / MOST_TURNS


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda a, b: shardio.mix({}), "at least one source"),
        (lambda a, b: shardio.mix({"a": a, "b": b}, {"a": 1}), "weights must name the sources a, b, got a"),
        (lambda a, b: shardio.mix({"a": a, "b": a}, [1, 2]), r"a dict by source, as in {.*}, or .*, got \[1, 2\]"),
        (lambda a, b: shardio.mix({"a": a}, {"a": 0}), "all weights are 0; at least one must be positive"),
        (lambda a, b: shardio.mix({"a": a}, {"a": -(10**5000)}), "got a huge int"),
        (lambda a, b: shardio.mix({"a": 3}), "source 'a' must be a path or a dataset, got 3"),
        (lambda a, b: shardio.mix({"a": a}, {"a": True}), "must be a positive number or 0, got True"),
        (lambda a, b: shardio.concat({"m": shardio.mix({"a": a}, {"a": 1})}), "source 'm' draws its samples anew"),
        (lambda a, b: shardio.mix({"a": a}, {"a": 1}).select([0]), "select chooses from stored samples, and <Mixture"),
        (lambda a, b: shardio.TorchDataset(shardio.mix({"a": a}, {"a": 1})), "TorchDataset takes no mixture and no"),
        (lambda a, b: shardio.mix({"a": a}, samples=5), "samples= needs weights="),
        (lambda a, b: shardio.mix({"a": a}, {"a": 1}, samples=0), "samples must be .*, got 0"),
        (lambda a, b: shardio.mix({"a": a, "b": b}), "field 'number' is .*int64.* in source 'a', but .* in 'b'"),
        (
            lambda a, b: shardio.mix({"a": a, "t": shardio.from_samples([{"t": "x"}])}),
            "must have a field in common: 'a' has number \\(scalar, int64\\).*; 't' has t \\(text\\)$",
        ),
        (lambda a, b: shardio.mix([a, b]), "sources must be a dict of datasets or paths by name, .*got list"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, message: str) -> None:
    """Sources that do not match are refused by name and value."""
    with pytest.raises(ConfigError, match=message):
        make(numbers(3), shardio.from_samples([{"number": 1.5}]))


def test_fields_that_a_source_lacks_are_named() -> None:
    """The mixture lists what it holds and leaves out, and for a field left out names the sources that lack it."""
    both = shardio.from_samples([{"number": n, "params": float(n)} for n in range(4)])
    mixture = shardio.mix({"a": both, "b": numbers(4), "c": both})
    assert mixture.left_out == {"params": ("b",)}
    assert "}: fields number, without params, which the source 'b' lacks>" in repr(mixture)
    with pytest.raises(ConfigError, match=r"concat\(a, b, c\): no field 'params', which the source 'b' lacks"):
        load(mixture, 4, fields=["number", "params"])
    with pytest.raises(ConfigError, match="no field 'x'; there are number"):
        load(mixture, 4, fields=["x"])
