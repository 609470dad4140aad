"""Joins: fields of another dataset or table beside those of a dataset, by key or by position."""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import jpeg, spoiled
from _clips import videos
from _datasets import CONTAINERS, load, packed
from _jobs import Job, exact_over_ranks, samples
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio.conversion.api import convert
from shardio.conversion.dataset_source import DatasetSource
from shardio.errors import BadSample, ConfigError, ShardCorrupt
from shardio.format.fields import with_hidden
from shardio.views import kept_table
from shardio.views.view import BaseDataset

COUNT = 40
EVERY = ("memory", *CONTAINERS)
FIELDS: Mapping[str, Any] = {
    "key": "text",
    "score": "float32",
    "caption": "text",
    "tokens": ("uint16", (None,)),
    "grid": ("int16", (2, 2)),
    "thumb": "image",
    "note": shardio.Field("json", optional=True),
    "rating": shardio.Field("scalar", "int32", optional=True),
}


def row(number: int) -> dict[str, Any]:
    """The fields to join of sample `number`, every third of which lacks the optional ones."""
    lacks = number % 3 == 0
    return {
        "key": f"k{number}",
        "score": number / 2,
        "caption": f"a caption of {number}",
        "tokens": np.arange(number % 5, dtype=np.uint16),
        "grid": np.full((2, 2), number, np.int16),
        "thumb": jpeg(8 + number % 3, 10, seed=number),
        "note": None if lacks else {"n": number},
        "rating": None if lacks else number,
    }


def base_row(number: int) -> dict[str, Any]:
    """A sample of the base: its number, its key and an image."""
    return {"n": number, "key": f"k{number}", "image": jpeg(12, 16, seed=100 + number)}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BaseDataset]:
    """A dataset of COUNT samples in each container."""
    root = tmp_path_factory.mktemp("bases")
    return {name: packed(root / name, map(base_row, range(COUNT)), container=name) for name in EVERY}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BaseDataset]:
    """Rows of every second sample and of some that the base lacks, in another order, in each container."""
    root, numbers = tmp_path_factory.mktemp("others"), [*range(COUNT + 10, 0, -2)]
    return {name: packed(root / name, map(row, numbers), FIELDS, container=name) for name in EVERY}


@pytest.fixture(scope="module")
def aligned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BaseDataset]:
    """Row i is for sample i, but the last ten samples have none."""
    root = tmp_path_factory.mktemp("aligned")
    return {name: packed(root / name, map(row, range(COUNT - 10)), FIELDS, container=name) for name in EVERY}


@pytest.fixture
def always_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tables of any number of samples are kept in files."""
    monkeypatch.setattr(kept_table, "FEW", 0)
    monkeypatch.setenv("SHARDIO_CACHE", str(tmp_path / "cache"))


def chosen(data: st.DataObject, view: BaseDataset, expected: list[Any], most: int = 2) -> tuple[BaseDataset, list[Any]]:
    """Choose samples in random ways; `expected` are the numbers of the view's samples."""
    for _ in range(data.draw(st.integers(0, most))):
        match data.draw(st.sampled_from(["slice", "select", "where", "split", "concat"])):
            case "slice":
                bound = st.none() | st.integers(-len(expected) - 2, len(expected) + 2)
                cut = slice(data.draw(bound), data.draw(bound), data.draw(st.sampled_from([None, 2, -1])))
                view, expected = view[cut], expected[cut]
            case "select" if expected:
                numbers = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=50))
                view, expected = view.select(numbers), [expected[number] for number in numbers]
            case "where":
                least = data.draw(st.integers(0, COUNT))
                view, expected = view.where(f"n >= {least}"), [number for number in expected if number >= least]
            case "split" if len(expected) > 8:
                view = view.split({"a": 0.5, "b": 0.5}, seed=data.draw(st.integers(0, 3)))["a"]
                expected = view.read(range(len(view)), ["n"])["n"].tolist()
            case "concat" if expected:
                again = view[: data.draw(st.integers(1, len(expected)))]
                view, expected = shardio.concat({"one": view, "again": again}), expected + expected[: len(again)]
    return view, expected


def shown(value: Any) -> Any:
    """A value that `==` compares."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def check(view: BaseDataset, expected: list[int], has: Any, how: str, names: Mapping[str, str]) -> None:
    """A join has the base's samples, and the fields of their rows where `has` says that there are any."""
    if how == "inner":
        expected = [number for number in expected if has(number)]
    assert len(view) == len(expected)
    assert view.read(range(len(view)), ["n"])["n"].tolist() == expected
    read = view.read(range(len(view)))
    for new, old in names.items():
        wanted = [row(number)[old] if has(number) else None for number in expected]
        present = read.get(f"{new}_present", np.array([value is not None for value in wanted]))
        assert present.tolist() == [value is not None for value in wanted]
        assert [shown(value) for value, there in zip(read[new], present, strict=True) if there] == [
            shown(value) for value in wanted if value is not None
        ]
        lengths = [0 if value is None else len(value) for value in wanted] if old == "tokens" else []
        if lengths:
            assert view.selection(np.arange(len(view))).column(f"_length.{new}").tolist() == lengths
    assert read["image"] == [base_row(number)["image"] for number in expected]


NAMES = {
    "caption": "caption",
    "s": "score",
    "tok": "tokens",
    "grid": "grid",
    "thumb": "thumb",
    "note": "note",
    "r": "rating",
}


@settings(max_examples=30)
@given(st.data(), st.sampled_from(EVERY), st.sampled_from(EVERY), st.sampled_from(["optional", "inner"]))
def test_a_join_by_key_has_the_fields_of_the_row_with_that_key(
    bases: Any, others: Any, data: Any, container: str, other: str, how: Any
) -> None:
    """Over any stack of views and below any, in any containers, whatever rows and samples lack each other."""
    view, expected = chosen(data, bases[container], [*range(COUNT)])
    joined: Any = view.join(others[other], on="key", fields=NAMES, how=how)
    has = lambda number: number % 2 == 0 and number > 0  # noqa: E731
    check(joined, expected, has, how, NAMES)
    if how == "inner":
        expected = [number for number in expected if has(number)]
    above, left = chosen(data, joined, expected)
    check(above, left, has, "optional", NAMES)
    for dataset in (joined, pickle.loads(pickle.dumps(joined))):  # noqa: S301  # our own
        dataset.check(np.arange(len(dataset)), {})


@settings(max_examples=30)
@given(st.data(), st.sampled_from(EVERY), st.sampled_from(EVERY), st.sampled_from(["optional", "inner"]))
def test_a_join_by_position_follows_a_view_to_the_dataset_at_its_bottom(
    bases: Any, aligned: Any, data: Any, container: str, other: str, how: Any
) -> None:
    """Order, repeats and choices of a view find the rows of the stored samples; samples beyond them have none."""
    view, expected = chosen(data, bases[container], [*range(COUNT)])
    if view.origin(range(len(view))).tolist() != expected:  # a concatenation has numbers of its own
        return
    joined = view.join(aligned[other], fields=NAMES, how=how)
    check(joined, expected, lambda number: number < COUNT - 10, how, NAMES)


@settings(max_examples=25)
@given(st.data(), st.integers(1, 4), st.integers(1, 9), st.sampled_from(["global", "block", None]))
def test_ranks_deliver_a_join_exactly_and_resume(
    bases: Any, others: Any, data: Any, size: int, batch: int, shuffle: Any
) -> None:
    """All ranks together deliver each sample once, with the fields of its row, also where other ranks go on."""
    view, expected = chosen(data, bases["hdf5"], [*range(COUNT)], 1)
    joined = view.join(others["tar"], on="key", fields=["caption", "score", "tokens"], how="optional")
    if not expected:
        return

    def values(batches: Any) -> list[Any]:
        found = []
        for one in batches:
            valid = one["valid"].tolist() if "valid" in one else [True] * len(one["n"])
            rows = zip(one["n"].tolist(), one["caption"], one["score_present"].tolist(), valid, strict=True)
            found += [(number, caption, there) for number, caption, there, whole in rows if whole]
        return found

    options = {"shuffle": shuffle, "fields": ["n", "caption", "score"]}
    found = exact_over_ranks(joined, size, batch, data, values, **options)
    wanted = [(n, row(n)["caption"] if n % 2 == 0 and n else None, n % 2 == 0 and n > 0) for n in expected]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


def test_pixels_and_ragged_values_arrive_as_those_of_one_dataset(bases: Any, tmp_path: Path) -> None:
    """A Loader delivers of a join, by threads and by processes, what it delivers of a dataset with all fields."""
    joined = bases["tar"].join(packed(tmp_path / "b", map(row, range(COUNT)), FIELDS, container="lmdb"), on="key")
    every = [base_row(number) | row(number) for number in range(COUNT)]
    fields = {"n": "int64", "key": "text", "image": "image", **FIELDS}
    whole = packed(tmp_path / "a", every, fields, container="hdf5")
    transforms = {
        "image": [shardio.RandomResizedCrop(8)],
        "thumb": [shardio.CenterCrop(6)],
        "tokens": [shardio.Ragged()],
    }
    batches = [[*load(one, transforms=transforms, seed=2)] for one in (whole, joined)]
    batches.append(
        [*shardio.Loader(joined, 8, transforms=transforms, seed=2, threads=2, isolate=True, world=shardio.World())]
    )
    for ours, theirs, isolated in zip(*batches, strict=True):
        assert {*ours} == {*theirs} == {*isolated}
        for name in ours:
            for other in (theirs[name], isolated[name]):
                assert repr(ours[name]) == repr(other) if isinstance(other, list) else bool((ours[name] == other).all())


def test_hidden_columns_go_to_the_side_that_has_the_field(bases: Any, others: Any) -> None:
    """Every hidden column of a join can be read, blank where there is no row, and conversion stores its samples."""
    joined = bases["tar"].join(others["hdf5"], on="key", fields=NAMES, how="optional")
    selection = joined.selection(np.array([1, 2, 3]))
    for name in with_hidden(joined.fields):
        assert len(selection.stored(name)) == 3, name
    assert selection.column("_shape.thumb").tolist() == [[0, 0], [10, 10], [0, 0]]
    assert selection.sizes("caption").tolist() == [0, len("a caption of 2"), 0]
    assert selection.sizes("grid").tolist() == [8, 8, 8]


def test_a_join_converts_to_one_dataset(bases: Any, others: Any, tmp_path: Path) -> None:
    """The samples of a join can be written as one dataset."""
    joined = bases["tar"].join(others["hdf5"], on="key", fields=NAMES, how="optional")
    convert(DatasetSource([joined]), tmp_path / "out", container="lmdb")
    stored = shardio.open(tmp_path / "out")
    assert repr(stored.read(range(COUNT))) == repr(joined.read(range(COUNT)))
    stored.check(np.arange(COUNT), {})


def test_samples_without_a_row_are_an_error_with_their_count_and_the_first(bases: Any, others: Any) -> None:
    """By default a join is of all samples."""
    with pytest.raises(
        ConfigError, match=r"no row for 21 of 40 samples of .*, the first is .*\(sample 0, key k0\); how="
    ):
        bases["tar"].join(others["tar"], on="key", fields=["caption"])
    with pytest.raises(ConfigError, match=r"no row for 2 of 5 samples"):
        bases["tar"][28:33].join({"score": np.arange(31)})
    assert len(bases["tar"][:31].join({"score": np.arange(31)})) == 31


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (({"n": np.arange(COUNT)},), r"has a field 'n' already: rename it, as with fields=\{'n_2': 'n'\}, or replace"),
        (({"key": ["a"] * COUNT},), r"has a field 'key' already: .*; to join by key, give on='key'$"),
        (({"x": np.arange(COUNT)}, "n"), r"no field 'n'; there are x"),
        (({"key": ["a"]}, "name"), r"no field 'name'; there are "),
        (({"key": np.arange(COUNT), "x": np.arange(COUNT)}, "key"), r"the key 'key' is text in .*, but scalar"),
        (({"key": [f"k{n // 2}" for n in range(COUNT)], "x": np.arange(COUNT)}, "key"), r"keys must be unique"),
        (({"x": np.arange(COUNT)}, "key"), "no field 'key'"),
        (({"key": [f"k{n}" for n in range(COUNT)], "x": np.arange(COUNT)}, "kye"), "no field 'kye'"),
        (({"x": np.arange(COUNT + 1)},), r"by position, row i is for sample i: .* has 41 rows, and .* 40 samples"),
        (({"x": np.arange(COUNT), "y": np.arange(3)},), r"columns of one length"),
        ((np.arange(COUNT),), r"join takes a dataset, a path, or arrays by name"),
        (({},), r"at least one|one length"),
    ],
)  # fmt: skip
def test_what_cannot_be_joined_is_refused_in_words(bases: Any, arguments: Any, words: str) -> None:
    """Names that are taken, keys of other kinds, repeated keys, too many rows, and what is no dataset."""
    with pytest.raises(ConfigError, match=words):
        bases["hdf5"].join(*arguments)


def test_unknown_words_and_fields_are_refused(bases: Any, others: Any) -> None:
    """`how` is one of three words, and fields are those of the other dataset."""
    base, other = bases["hdf5"], others["hdf5"]
    with pytest.raises(ConfigError, match=r"how must be one of 'error', 'optional', 'inner', got 'left'"):
        base.join(other, on="key", how="left")
    with pytest.raises(ConfigError, match=r"no field 'cap'; there are key, score"):
        base.join(other, on="key", fields=["cap"])
    with pytest.raises(ConfigError, match=r"each once"):
        base.join(other, on="key", fields={"a": "caption", "b": "caption"}, how="optional")
    with pytest.raises(ConfigError, match=r"fields must be a list of names, as in \['caption'\]"):
        base.join(other, on="key", fields="caption", how="optional")


def test_views_that_make_samples_of_others_are_joined_first(bases: Any) -> None:
    """Windows, packed rows and weighted views refuse a join; all of them can be made of one."""
    base = bases["hdf5"]
    documents = shardio.from_samples([{"d": np.arange(n % 4 + 1)} for n in range(COUNT)], {"d": ("int64", (None,))})
    joined = base.join({"score": np.arange(COUNT) / 4}).join(documents)
    for made in (
        joined.windows(3, within="dataset"),
        joined.packed("d", 4),
        joined.cut("d", 4),
        joined.weighted("score"),
    ):
        with pytest.raises(ConfigError, match=r"join these first|choose first"):
            made.join({"x": np.arange(len(made))})
        with pytest.raises(ConfigError, match=r"join these first|choose first"):
            base.join(made)
    windows = joined.windows(3, within="dataset")
    assert windows[2]["score"].tolist() == [0.5, 0.75, 1.0]
    assert windows[2]["n"].tolist() == [2, 3, 4]
    assert len(joined.packed("d", 4)) == 25
    assert {int(n) for batch in load(joined.weighted("score"), 8) for n in batch["n"]} <= {*range(1, COUNT)}


def test_a_field_takes_the_place_of_another_one(bases: Any, tmp_path: Path) -> None:
    """New labels come with the names of their classes, and another kind or shape is named."""
    old = packed(tmp_path / "old", [{"n": n, "label": n % 2} for n in range(COUNT)], metadata={"classes": ["a", "b"]})
    new = packed(
        None, [{"label": n % 3} for n in range(COUNT)], {"label": "int32"}, metadata={"classes": ["x", "y", "z"]}
    )
    joined = old.join(new, replace=True)
    assert (joined.classes, joined.read(range(6))["label"].tolist()) == (["x", "y", "z"], [0, 1, 2, 0, 1, 2])
    assert joined.fields["label"].dtype == "int32"
    assert [*joined.where("label == 'z'").origin(range(3))] == [2, 5, 8]
    assert old.join({"label": np.zeros(COUNT, int)}, replace=True).classes is None
    renamed = old.join(new, fields={"fine": "label"})
    assert (renamed.classes, renamed.metadata["classes.fine"]) == (["a", "b"], ["x", "y", "z"])
    assert [*renamed.where("fine == 'z' and label == 'a'").origin(range(2))] == [2, 8]
    with pytest.raises(
        ConfigError, match=r"keeps a field's kind and shape: 'label' is scalar, int64 in .*, and would be array"
    ):
        old.join({"label": np.zeros((COUNT, 2))}, replace=True)
    with pytest.raises(ConfigError, match="already"):
        old.join(new)
    grey = {"image": shardio.Field("image", channels=1)}
    with pytest.raises(ConfigError, match=r"'image' is image, RGB.*, and would be image, grey"):
        bases["tar"].join(packed(None, [{"image": jpeg(12, 16, 1)}] * COUNT, grey), replace=True)
    joined.check(np.arange(COUNT), joined.read(range(COUNT)))


def test_classes_are_renumbered_on_the_side_that_has_them(tmp_path: Path) -> None:
    """A concatenation of joins numbers classes by name, whichever side names them."""

    def side(names: list[str]) -> Any:
        labels = packed(None, [{"label": n % 2} for n in range(6)], metadata={"classes": names})
        return packed(None, [{"n": n} for n in range(6)]).join(labels)

    both = shardio.concat({"one": side(["cat", "dog"]), "two": side(["dog", "owl"])}, classes="union")
    assert both.metadata["classes"] == ["cat", "dog", "owl"]
    assert both.read(range(12))["label"].tolist() == [0, 1] * 3 + [1, 2] * 3
    with pytest.raises(ConfigError, match="renumbers"):
        both.datasets["two"].save(tmp_path / "two.json")


def test_boxes_lie_on_the_image_they_are_joined_to(bases: Any) -> None:
    """Fields that refer to others keep what they refer to, under its new name if it is joined as well."""
    fields = {
        "boxes": shardio.Field("array", "float32", (None, 4), role="boxes", on="image"),
        "classes": shardio.Field("array", "int64", (None,), per="boxes"),
    }
    own = [
        {"boxes": np.array([[1, 1, 5, 5]] * (n % 3), np.float32).reshape(-1, 4), "classes": np.arange(n % 3)}
        for n in range(COUNT)
    ]
    alone = {**fields, "image": shardio.Field("image")}
    rows = [one | {"image": jpeg(12, 16)} for one in own]
    boxes = packed(None, rows, alone)
    joined = bases["tar"].join(boxes, fields={"b": "boxes", "c": "classes"})
    assert (joined.fields["b"].on, joined.fields["c"].per) == ("image", "b")
    batch = next(
        iter(
            load(joined, 4, shuffle=None, fields=["image", "b", "c"], transforms={"image": [shardio.Resize((24, 32))]})
        )
    )
    assert batch["index"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match=r"lies on 'image', which must be an image"):
        packed(None, [{"n": n} for n in range(COUNT)]).join(boxes, fields=["boxes"])


def test_damage_is_named_by_the_side_that_has_it(bases: Any, tmp_path: Path) -> None:
    """Checksums of both sides are compared, and a bad row is a bad sample of the join."""
    packed(tmp_path / "other", map(row, range(COUNT)), FIELDS, container="hdf5", shard_size="1MB")
    (shard,) = (tmp_path / "other").glob("*.h5")
    whole = shard.read_bytes()
    place = whole.index(b"a caption of 17")
    shard.write_bytes(whole[:place] + b"A" + whole[place + 1 :])
    joined = bases["tar"].join(shardio.open(tmp_path / "other"), on="key", fields=["caption"])
    with pytest.raises(ShardCorrupt, match=r"other/.*row 17 \(sample 17, key k17\): checksum"):
        joined.check(np.arange(COUNT), {})
    loader = load(joined, 8, verify=True, on_bad_sample="replace", max_bad=1, fields=["n", "caption"])
    delivered = [number for batch in loader for number in batch["n"].tolist()]
    assert (17 not in delivered, len(delivered), loader.quarantine()[0].location.index) == (True, COUNT, 17)


def test_an_image_that_does_not_decode_is_named_with_where_it_was_joined_from(bases: Any, tmp_path: Path) -> None:
    """The place of a bad sample is that of the base; its message also names the dataset that has the field."""
    images = [{"key": f"k{n}", "second": spoiled(jpeg(8, 8)) if n == 5 else jpeg(8, 8)} for n in range(COUNT)]
    joined = bases["tar"].join(packed(tmp_path / "other", images), on="key")[::-1]
    resized: Any = {"second": [shardio.Resize((8, 8))]}
    with pytest.raises(BadSample, match=r"row 5 \(sample 34, key k5\), field 'second', joined from .*/other: "):
        list(load(joined, 8, fields=["second"], transforms=resized))
    own = packed(None, [{"image": spoiled(jpeg(8, 8))}]).join({"n": [1]})
    with pytest.raises(BadSample, match=r"field 'image': "):
        list(load(own, 1, transforms=[shardio.Resize((8, 8))]))


@pytest.mark.parametrize("how", ["optional", "inner"])
@pytest.mark.parametrize("on", ["key", None])
def test_training_resumes_after_both_sides_have_grown(tmp_path: Path, on: str | None, how: Any) -> None:
    """Appended samples and rows come after those that were there: a state of before goes on with the same samples."""

    def grown(place: str, make: Any, fields: Any, numbers: range) -> BaseDataset:
        if not (tmp_path / place).exists():
            return packed(tmp_path / place, map(make, numbers), fields)
        convert(DatasetSource([packed(None, map(make, numbers), fields)]), tmp_path / place, append=True)
        return shardio.open(tmp_path / place)

    kinds = {"n": "int64", "key": "text", "image": "image"}
    base, other = grown("base", base_row, kinds, range(20)), grown("other", row, FIELDS, range(20))
    before: Any = base.join(other, on, fields=["caption"], how=how)
    job = Job(before, batch_size=3, shuffle=None, tail="pad")
    state = job.run(4)
    more = grown("base", base_row, kinds, range(20, 30)).join(other, on, fields=["caption"], how=how)
    assert more.earlier == {before.digest: 20}
    both = shardio.open(tmp_path / "base").join(
        grown("other", row, FIELDS, range(20, 30)), on, fields=["caption"], how=how
    )
    assert both.earlier[before.digest] == 20
    assert both.digest not in both.earlier
    if how == "optional":
        assert more.digest not in both.earlier  # its last samples had no captions
    assert (len(before), len(more), len(both)) == (20, 20 if how == "inner" else 30, 30)
    resumed = Job(both, batch_size=3, state=state, shuffle=None, tail="pad")
    resumed.run()
    assert [*samples(job.batches), *samples(resumed.batches)][:20] == [*range(20)]


def test_a_row_that_came_later_makes_another_join(tmp_path: Path) -> None:
    """A sample that has got its row since is another one: such a join is none that the new one extends."""
    base = packed(tmp_path / "base", map(base_row, range(10)))
    other = packed(tmp_path / "other", map(row, range(5)), FIELDS)
    before = base.join(other, on="key", fields=["caption"], how="optional")
    convert(DatasetSource([packed(None, map(row, range(5, 10)), FIELDS)]), tmp_path / "other", append=True)
    after = base.join(shardio.open(tmp_path / "other"), on="key", fields=["caption"], how="optional")
    assert before.digest not in after.earlier


def test_a_derived_dataset_joins_what_it_was_derived_from(bases: Any, tmp_path: Path) -> None:
    """A dataset that states its input joins that by its numbers, whatever is chosen above it, and nothing else."""
    base = bases["tar"]
    view = base.where("n >= 10")

    def derived(digest: str, count: int) -> Any:
        place = tmp_path / f"{digest[:9]}{count}".replace(":", "")
        packed(place, [{"feature": float(n)} for n in range(count)])
        content = json.loads((place / "shardio.json").read_text())
        content["conversion"] = {"derived": {"digest": digest, "samples": count}}
        (place / "shardio.json").write_text(json.dumps(content))
        return shardio.open(place)

    features = derived(view.digest, 30)
    assert view[::-1].join(features).read(range(3), ["n", "feature"])["feature"].tolist() == [29.0, 28.0, 27.0]
    assert view.select([3, 3]).join(features)[1]["feature"] == 3.0
    whole = derived(base.digest, COUNT)
    assert view[::-1].join(whole)[0]["feature"] == 39.0
    for wrong in (base, base.where("n >= 11"), bases["hdf5"].where("n > 9")):
        with pytest.raises(ConfigError, match=rf"derived from a dataset with the digest {view.digest}"):
            wrong.join(features)


def test_a_join_of_joins_reads_every_side(bases: Any, others: Any, aligned: Any) -> None:
    """Joins stack, on either side, and one that is joined again takes its own digest."""
    scores = {"key": [f"k{n}" for n in range(COUNT)], "weight": np.arange(COUNT) * 10}
    inner = others["lmdb"].join(scores, on="key", how="inner")
    joined = bases["tar"].join(aligned["hdf5"], fields={"first": "caption"}, how="optional")
    joined = joined.join(inner, on="key", fields=["caption", "weight"], how="inner")
    assert joined.read(range(2), ["n", "first", "caption", "weight"])["weight"].tolist() == [20, 40]
    assert joined[1]["first"] == joined[1]["caption"] == "a caption of 4"
    again = bases["tar"].join({"caption": inner}, on="key", how="optional")
    assert ([*again.fields][-1], again[2]["caption"]) == ("caption", "a caption of 2")
    digests = {joined.digest, again.digest, bases["tar"].join({"caption": inner}, on="key", how="inner").digest}
    assert len(digests) == 3
    assert bases["hdf5"].join({"caption": inner}, on="key", how="optional").digest == again.digest


def test_choices_among_derived_rows_join_only_with_the_same_numbers(bases: Any, tmp_path: Path) -> None:
    """Rows of a derived dataset are for samples by number, so a view that numbers them anew is refused."""
    base = bases["tar"].where("n >= 10")
    made = shardio.derive(
        base, lambda batch: {"feature": batch["n"].double()}, tmp_path / "made", version="1", batch_size=8, fields=["n"]
    )
    for other in (made, made.join({"more": np.arange(30)}), made.join({"more": np.arange(30)}, how="inner")):
        assert base.join(other).read(range(30), ["feature"])["feature"].tolist() == [*range(10, 40)]
    first = base.join(made[:20], how="inner")
    assert first.read(range(20), ["feature"])["feature"].tolist() == [*range(10, 30)]
    for other in (made[::-1], made.where("feature > 15"), made[1:].join({"more": np.arange(30)})):
        with pytest.raises(ConfigError, match=r"rows have other numbers in .* than as they were derived: join all"):
            base[:5].join(other, how="optional")


def test_a_copy_of_a_derived_dataset_joins_if_it_has_its_rows(bases: Any, tmp_path: Path) -> None:
    """Resharded, it still joins its input; with rows chosen, reordered or added, it joins nothing by position."""
    base = bases["hdf5"].where("n >= 10")
    made = shardio.derive(
        base, lambda batch: {"feature": batch["n"].double()}, tmp_path / "made", version="1", batch_size=8, fields=["n"]
    )
    for number, source in enumerate([[made], [made[::-1]], [made[:20]], [made, made]]):
        convert(DatasetSource(source), tmp_path / f"{number}", container="tar", shard_size="100B")
    copy, *others = (shardio.open(tmp_path / f"{number}") for number in range(4))
    convert(DatasetSource([copy]), tmp_path / "again")
    for same in (copy, shardio.open(tmp_path / "again")):
        assert base[::-1].join(same)[0]["feature"] == 39.0
    for other in others:
        with pytest.raises(ConfigError, match="of which rows were chosen or added, and by position joins only"):
            base.join(other, how="optional")


def test_a_map_is_kept_once_and_a_damaged_one_is_made_anew(always_kept: None, tmp_path: Path) -> None:
    """The table of rows is 4 bytes per sample beside the base; bytes changed anywhere give no wrong row."""
    base = packed(tmp_path / "base", map(base_row, range(COUNT)))
    other = packed(tmp_path / "other", map(row, range(0, COUNT, 2)), FIELDS)
    joined: Any = base.join(other, on="key", fields=["caption"], how="optional")
    expected = joined.read(range(COUNT), ["caption"])
    (kept,) = (tmp_path / "base").glob("shardio.join-*.bin")
    assert joined._decided().rows.dtype == np.dtype("<i4")
    whole, made = kept.read_bytes(), kept.stat().st_ino
    assert len(whole) < 4 * COUNT + 2048
    base.join(other, on="key", fields=["caption"], how="optional")
    assert kept.stat().st_ino == made  # opened, not written again
    for place in range(0, len(whole), 7):
        kept.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        again = base.join(other, on="key", fields=["caption"], how="optional")
        assert again.read(range(COUNT), ["caption"]) == expected
    for length in (0, 10, len(whole) // 2):
        kept.write_bytes(whole[:length])
        assert (
            base.join(other, on="key", fields=["caption"], how="optional").read(range(COUNT), ["caption"]) == expected
        )


def test_videos_are_read_and_stored_with_their_tables(tmp_path: Path) -> None:
    """Clips of a joined video are those of the dataset that has it, and a join that lacks some converts as well."""
    owned = videos()
    base = packed(None, [{"n": n} for n in range(len(owned) + 2)])
    joined = base.join(owned, fields={"film": "video"}, how="optional")
    assert joined.read(range(len(owned)), ["film"])["film"] == owned.read(range(len(owned)), ["video"])["video"]
    frames = [
        load(one, 2, shuffle=None, fields=[name], transforms={name: [shardio.CenterClip(2), shardio.CenterCrop(32)]})
        for one, name in ((owned, "video"), (joined[: len(owned)].where("film is not None"), "film"))
    ]
    for ours, theirs in zip(*frames, strict=True):
        assert bool((ours["video"] == theirs["film"]).all())
    convert(DatasetSource([joined]), tmp_path / "out", container="hdf5")
    stored = shardio.open(tmp_path / "out")
    assert repr(stored.read(range(len(base)))) == repr(joined.read(range(len(base))))
    stored.check(np.arange(len(base)), {})
