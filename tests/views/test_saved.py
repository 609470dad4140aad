"""Views kept in files: what is opened again is what was saved, or an error in words, whatever a file says."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _datasets import packed
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio.conversion.api import convert
from shardio.conversion.dataset_source import DatasetSource
from shardio.errors import ConfigError, ManifestError
from shardio.system.directory import Directory


def written(path: Path, count: int = 40, first: int = 0) -> shardio.Dataset:
    """A dataset on disk, of numbers and labels."""
    rows = [{"n": number, "label": number % 3} for number in range(first, first + count)]
    return packed(path, rows, shard_size="1MB", overwrite=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the dataset `data/train`."""
    path = tmp_path_factory.mktemp("views")
    written(path / "data" / "train")
    return path


def test_a_folder_moves_with_its_data(folder: Path, tmp_path: Path) -> None:
    """The dataset below the folder of a view is found wherever the folder goes; elsewhere it must be given."""
    view = shardio.open(folder / "data" / "train").where("label == 1").select([5, 0, 5])
    view.save(folder / "rare.json")
    shutil.copytree(folder, tmp_path / "moved")
    moved = shardio.open(tmp_path / "moved" / "rare.json")
    assert moved.digest == view.digest
    assert moved.path == tmp_path / "moved" / "data" / "train"
    copied = pickle.loads(pickle.dumps(moved))  # noqa: S301  # our own
    assert (copied.digest, copied[1]["n"]) == (view.digest, 1)
    cached = shardio.open(tmp_path / "moved" / "rare.json", cache=tmp_path / "cache", cache_size="1GB")
    assert (cached.digest, cached[1]["n"], cached.in_store) == (view.digest, copied[1]["n"], True)
    view.save(folder / "views" / "rare.json")
    with pytest.raises(ConfigError, match=r"rare\.json: the dataset of this view is not below its folder: give it"):
        shardio.open(folder / "views" / "rare.json")
    for of in (folder / "data" / "train", str(folder / "data" / "train"), shardio.open(folder / "data" / "train")):
        assert shardio.open(folder / "views" / "rare.json", of=of).digest == view.digest


def test_sources_are_given_by_name(tmp_path: Path) -> None:
    """A view of several datasets takes them by the names of sources, nested ones by both names."""
    one, other = written(tmp_path / "one"), written(tmp_path / "other", 30, 40)
    view = shardio.mix({"x": one, "y": shardio.concat({"z": other[5:], "one": one})}, {"x": 2, "y": 1})
    view.save(tmp_path / "views" / "mixed.json")
    path = tmp_path / "views" / "mixed.json"
    assert shardio.open(path, of={"x": one, "y/z": tmp_path / "other", "y/one": one}).digest == view.digest
    with pytest.raises(ConfigError, match=r"of must give datasets by name, for .*mixed\.json is of x, y/z, y/one"):
        shardio.open(path, of=one)
    with pytest.raises(ConfigError, match=r"of must name sources of .* \(x, y/z, y/one\), got w"):
        shardio.open(path, of={"w": one})
    with pytest.raises(ConfigError, match="source 'y/z' of this view is not below its folder"):
        shardio.open(path, of={"x": one})
    with pytest.raises(ManifestError, match="the source 'y/z' of this view has changed, or is another one"):
        shardio.open(path, of={"x": one, "y/z": one, "y/one": one})
    with pytest.raises(ConfigError, match=r"of goes with the file of a view, got "):
        shardio.open(tmp_path / "one", of=one)


def test_a_view_that_needs_what_is_unknown_is_refused(folder: Path) -> None:
    """A file names features that its reader must know; an empty list is as none."""
    view = shardio.open(folder / "data" / "train").where("label == 1")
    view.save(folder / "new.json")
    content = json.loads((folder / "new.json").read_text())
    assert "requires" not in content
    (folder / "new.json").write_text(json.dumps(content | {"requires": []}))
    assert shardio.open(folder / "new.json").digest == view.digest
    for requires, told in ((["joins", "far"], "needs 'far', 'joins', which this version of shardio"), (1, "a list of")):
        (folder / "new.json").write_text(json.dumps(content | {"requires": requires, "unknown": 1}))
        with pytest.raises(ManifestError, match=rf"new\.json: this view: .*{told}"):
            shardio.open(folder / "new.json")


def test_a_path_of_a_view_is_taken_as_a_dataset(folder: Path) -> None:
    """A Loader, `concat` and `stats` open a saved view."""
    shardio.open(folder / "data" / "train").where("label == 2").save(folder / "two.json")
    loader = shardio.Loader(folder / "two.json", 4, threads=1, tail="pad")
    assert sorted(np.concatenate([batch["n"][batch["valid"]] for batch in loader])) == list(range(2, 40, 3))
    joined = shardio.concat({"two": folder / "two.json", "all": folder / "data" / "train"})
    assert len(joined) == 13 + 40
    assert shardio.stats(folder / "two.json").samples == 13


def test_changed_data_is_refused(tmp_path: Path) -> None:
    """A view isn't opened on other samples than those it was saved of, and data that has grown is told."""
    written(tmp_path / "data")[3:9].save(tmp_path / "part.json")
    written(tmp_path / "more")
    assert len(shardio.open(tmp_path / "part.json")) == 6
    convert(DatasetSource([tmp_path / "more"]), tmp_path / "data", append=True)
    with pytest.raises(ManifestError, match=r"has 80 samples .* of 40 .*\(it has grown since\); make the view anew"):
        shardio.open(tmp_path / "part.json")
    changed = written(tmp_path / "data", 41)
    with pytest.raises(
        ManifestError, match=rf"has 41 samples with digest {changed.digest}, and the view was saved of 40"
    ):
        shardio.open(tmp_path / "part.json")
    rows = [{"label": 0}, {"label": 1}]
    for names in (["cat", "dog"], ["dog", "cat"]):  # which are no part of a dataset's digest
        data = shardio.from_samples(rows, metadata={"classes": names})
        if names[0] == "cat":
            data.where("label == 'cat'").save(tmp_path / "cats.json")
    with pytest.raises(ManifestError, match="names of classes count, too"):
        shardio.open(tmp_path / "cats.json", of=data)


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither the path of a dataset nor an array leads through a link."""
    written(tmp_path / "data" / "train").select([1, 2]).save(tmp_path / "part.json")
    (array,) = tmp_path.glob("part.*.npy")
    array.rename(tmp_path / "elsewhere.npy")
    array.symlink_to("elsewhere.npy")
    with pytest.raises((ManifestError, ConfigError), match="link"):
        shardio.open(tmp_path / "part.json")
    (tmp_path / "data").rename(tmp_path / "other")
    (tmp_path / "data").symlink_to("other")
    with pytest.raises(ConfigError, match="or a link leads to it"):
        shardio.open(tmp_path / "part.json")
    (tmp_path / "data").unlink()
    (tmp_path / "other").rename(tmp_path / "data")
    array.unlink()
    with pytest.raises(ManifestError, match=rf"{array.name} is missing"):
        shardio.open(tmp_path / "part.json")


def test_a_save_replaces_the_view_in_one_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If saving fails, the view that was there opens; a finished save leaves no arrays of the one before."""
    data, path = shardio.open(folder / "data" / "train"), folder / "step.json"
    data.select([3, 1]).save(path)
    with monkeypatch.context() as patched:
        patched.setattr(Directory, "write", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            data.select([7, 8, 9]).save(path)
    assert shardio.open(path).read([0, 1], ["n"])["n"].tolist() == [3, 1]
    data.select([7, 8, 9]).save(path)
    assert shardio.open(path).read([2], ["n"])["n"].tolist() == [9]
    assert len([*folder.glob("step.*.npy")]) == 1


def test_what_cannot_be_saved_is_refused(folder: Path) -> None:
    """A dataset itself, renumbered labels, a file that is no view, and other names."""
    data = shardio.open(folder / "data" / "train")
    with pytest.raises(ConfigError, match="is a whole dataset, which is stored already"):
        data.save(folder / "all.json")
    for name in ("view.txt", "shardio.json"):
        with pytest.raises(ConfigError, match=r"a view is kept in a file such as rare\.json"):
            data[:3].save(folder / name)
    with pytest.raises(ConfigError, match="must have a name of at most 200 bytes, got 201: ää"):
        data[:3].save(folder / f"{'ä' * 98}.json")
    with pytest.raises(ConfigError, match="a path must be text that a file system takes"):
        data[:3].save(folder / "rare\ud800.json")
    (folder / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="this file is no view, and would be lost"):
        data[:3].save(folder / "config.json")
    named = [
        shardio.from_samples([{"label": 0}, {"label": 1}], metadata={"classes": names})
        for names in (["cat", "dog"], ["dog", "cat"])
    ]
    mixed = shardio.concat({"a": named[0], "b": named[1][:]}, classes="union")
    for part in (mixed.datasets["b"], mixed.datasets["b"][:1], mixed.datasets["b"].balanced("label")):
        with pytest.raises(ConfigError, match="that a mixture or concatenation of several datasets renumbers"):
            part.save(folder / "part.json")
    mixed.save(folder / "union.json")
    opened = shardio.open(folder / "union.json", of={"a": named[0], "b": named[1]})
    assert opened.read([0, 1, 2, 3])["label"].tolist() == [0, 1, 1, 0]
    deep = data
    for _ in range(70):
        deep = deep[:]
    with pytest.raises(ConfigError, match="at most 64 choices"):
        deep.save(folder / "deep.json")


@pytest.fixture(scope="module")
def said(folder: Path) -> Any:
    """A view with every kind of choice, as its file describes it."""
    data = shardio.open(folder / "data" / "train")
    chosen = data.where("label in (0, 2)").split({"a": 0.6, "b": 0.4})["a"][::-1].select([0, 3, 1, 2, 5])
    view = shardio.mix({"x": chosen, "y": shardio.concat({"z": data[3:]})}, {"x": 1, "y": 2})
    view.save(folder / "hostile.json")
    return json.loads((folder / "hostile.json").read_text())


def _at(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of a JSON value with another one in some place."""
    if not path:
        return new
    return (
        {key: _at(old, path[1:], new) if key == path[0] else old for key, old in value.items()}
        if isinstance(value, dict)
        else [_at(old, path[1:], new) if key == path[0] else old for key, old in enumerate(value)]
    )


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values within a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in _places(one, (*path, key)))]


DATASET = ("view", "mix", "y", "concat", "z", "of", "dataset")
SELECT = ("view", "mix", "x")
WRONG: list[tuple[tuple[Any, ...], Any, str]] = [
    (DATASET, "/etc", "no path below the folder"),
    (DATASET, "../views/data/train", "no path below the folder"),
    (DATASET, "data/./train", "no path below the folder"),
    (DATASET, "data/train\0", "no path below the folder"),
    (DATASET, "s3://bucket/train", "no directory 's3://bucket/train'"),
    (DATASET, "\ud800", "no directory"),
    (DATASET, "d" * 300, "no directory"),
    (DATASET, "", "no path below the folder"),
    (DATASET, 3, "Expected `str \\| null`"),
    (("view", "mix", "y"), {"dataset": None, "digest": "", "samples": 0, "path": "/etc"}, "unknown field `path`"),
    (("format",), "shardio", "requires"),  # it is taken for a manifest
    (("version",), 2, "version 2 was written by another release"),
    (("digest",), "view:0", "it describes a view of"),
    (("samples",), 1 << 40, "it describes a view of"),
    ((*SELECT, "select"), "../x", "names no array"),
    ((*SELECT, "select"), "0" * 32, "is missing"),
    ((*SELECT, "count"), 4, "not 4"),
    ((*SELECT, "count"), 1 << 60, "Expected `int` <"),
    (("view", "mix", "x", "of", "of", "part"), "c", "part must be one of a, b"),
    (("view", "mix", "x", "of", "of", "of", "where"), "__import__('os')", "a condition is made of"),
    (("view", "mix", "x", "of", "of", "of", "where"), "text == '\ud800'", "surrogates not allowed"),
    (("view", "mix", "x", "of", "of", "by"), "\ud800", "no field"),
    (("view", "mix", "y"), {"run": "x", "of": {}}, "must have of, concat, mix or dataset"),
    (("view", "mix", "y"), {"mix": 5, "concat": {}}, "unknown field `mix`"),
    (("view", "mix", "y"), {"concat": {"a": 5}, "of": {"dataset": None}}, "missing required field"),
    (("view",), {"run": "x", "of": {"dataset": "data/train", "digest": "?", "samples": 1}}, "has changed"),
]


@pytest.mark.parametrize(("place", "value", "message"), WRONG)
def test_a_wrong_description_is_refused(folder: Path, said: Any, place: Any, value: Any, message: str) -> None:
    """A file chooses no path, and says nothing but choices."""
    file = folder / "hostile.json"
    content = _at(said, place, value)
    file.write_text(json.dumps(content))
    with pytest.raises((ManifestError, ConfigError), match=message):
        shardio.open(file)


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_beyond_float_are_refused(folder: Path, said: Any, sign: int) -> None:
    """Where a share or a step belongs."""
    steps = {"windows": [2, 1, 1], "within": "dataset", "contiguous": ["n", sign * 10**400]}
    for content, message in (
        (_at(said, ("view", "mix", "x", "of", "of", "split", "a"), sign * 10**400), "a split's share must be above 0"),
        (said | {"view": steps | {"of": said["view"]["mix"]["y"]}}, "too large"),
    ):
        (folder / "hostile.json").write_text(json.dumps(content))
        with pytest.raises(ManifestError, match=message):
            shardio.open(folder / "hostile.json")


def test_sizes_and_depths_are_bounded(folder: Path, said: Any) -> None:
    """A file of megabytes or of a hundred choices is refused before anything is made of it."""
    content, file = said, folder / "hostile.json"
    node = content["view"]
    for _ in range(100):
        node = {"slice": [None, None, None], "of": node}
    file.write_text(json.dumps(content | {"view": node}))
    with pytest.raises(ManifestError, match="at most 64 choices"):
        shardio.open(file)
    file.write_text(json.dumps(content | {"more": "x" * (1 << 20)}))
    with pytest.raises(ConfigError, match="has more than 1048576 bytes"):
        shardio.open(file)
    node = {"where": "n > 3", "of": content["view"]}  # draws by weight below a choice
    file.write_text(json.dumps(content | {"view": node}))
    with pytest.raises(ManifestError, match="not from what draws them by weight"):
        shardio.open(file)


@settings(max_examples=100)
@given(st.data())
def test_whatever_a_file_says(folder: Path, said: Any, data: Any) -> None:
    """Only errors of a description come of a file in which anything is changed, or the view that it was."""
    content = said
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(_places(content)[1:]))
        junk = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
        junk |= st.sampled_from([10**400, "label", {}, [], said["view"], said["view"]["mix"]["y"]])
        content = _at(content, place, data.draw(junk | st.lists(junk, max_size=3)))
    (folder / "hostile.json").write_text(json.dumps(content))
    try:
        opened = shardio.open(folder / "hostile.json")
    except (ManifestError, ConfigError):
        return
    assert opened.digest == said["digest"]


@settings(max_examples=60)
@given(st.data())
def test_whatever_an_array_holds(folder: Path, said: Any, data: Any) -> None:
    """A damaged array is refused."""
    (folder / "hostile.json").write_text(json.dumps(said))
    (array,) = folder.glob("hostile.*.npy")
    good = array.read_bytes()
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(bad[: data.draw(st.integers(0, len(bad)))])
    array.write_bytes(cut)
    try:
        assert shardio.open(folder / "hostile.json").digest == said["digest"]
    except (ManifestError, ConfigError):
        assert cut != good
    array.write_bytes(good)
