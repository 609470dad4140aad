"""Joins kept in files: both sides are found or given again, and no file leads elsewhere."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _datasets import packed

import shardio
from shardio.dataset.tables import table
from shardio.errors import ConfigError, ManifestError

COUNT = 12


@pytest.fixture
def photos(tmp_path: Path) -> shardio.Dataset:
    """A dataset of numbers and keys."""
    return packed(tmp_path / "data" / "photos", [{"n": n, "key": f"k{n}"} for n in range(COUNT)])


@pytest.fixture
def captions(tmp_path: Path) -> shardio.Dataset:
    """A caption for each key, in another order."""
    rows = [{"key": f"k{n}", "caption": f"caption {n}"} for n in reversed(range(COUNT))]
    return packed(tmp_path / "data" / "captions", rows, container="lmdb")


def test_both_sides_move_with_the_file(photos: Any, captions: Any, tmp_path: Path) -> None:
    """A join of datasets below the folder of its file opens wherever all of it goes, with the choices around it."""
    view = photos.where("n > 2").join({"text": captions.select([*range(11)])}, on="key", how="inner")[::-1]
    view.save(tmp_path / "view.json")
    shutil.copytree(tmp_path, tmp_path.parent / "moved")
    opened = shardio.open(tmp_path.parent / "moved" / "view.json")
    assert opened.digest == view.digest
    assert ([opened[n]["text"] for n in (0, 1)], len(opened)) == (["caption 11", "caption 10"], 9)
    node = json.loads((tmp_path / "view.json").read_text())["view"]["of"]
    assert (node["join"], node["on"], node["how"]) == ({"text": "caption"}, "key", "inner")
    assert (node["of"]["of"]["dataset"], node["with"]["of"]["dataset"]) == ("data/photos", "data/captions")


def test_a_side_elsewhere_is_given_by_name(photos: Any, captions: Any, tmp_path: Path) -> None:
    """The base is called `base`, and what was joined by the name of its first field."""
    view = photos.join(captions, on="key")
    view.save(tmp_path / "views" / "view.json")
    path = tmp_path / "views" / "view.json"
    with pytest.raises(ConfigError, match=r"the dataset of source 'base' of this view is not below its folder"):
        shardio.open(path)
    with pytest.raises(ConfigError, match=r"the dataset of source 'caption' of this view is not below its folder"):
        shardio.open(path, of={"base": photos})
    with pytest.raises(ConfigError, match=r"of must name sources of .* \(base, caption\), got other"):
        shardio.open(path, of={"other": photos})
    with pytest.raises(ConfigError, match=r"of must give datasets by name, for .* is of base, caption"):
        shardio.open(path, of=photos)
    assert shardio.open(path, of={"base": photos, "caption": tmp_path / "data" / "captions"}).digest == view.digest
    with pytest.raises(ManifestError, match=r"source 'caption' of this view has changed, or is another one"):
        shardio.open(path, of={"base": photos, "caption": captions[1:]})


def test_tables_are_named_by_their_content(photos: Any, tmp_path: Path) -> None:
    """A table leaves its checksum in the file and no path; it's given again, from wherever it lies now."""
    table = tmp_path / "scores.csv"
    table.write_text("key,score\n" + "".join(f"k{n},{n}.5\n" for n in range(COUNT)))
    view = photos.join(table, on="key")
    view.save(tmp_path / "view.json")
    assert "scores.csv" not in (tmp_path / "view.json").read_text()
    with pytest.raises(
        ConfigError, match=r"the dataset of source 'score' of this view is not below its folder: give it"
    ):
        shardio.open(tmp_path / "view.json")
    moved = table.rename(tmp_path / "elsewhere.csv")
    opened = shardio.open(tmp_path / "view.json", of={"score": moved})
    assert (opened.digest, opened[3]["score"]) == (view.digest, 3.5)
    as_arrays = photos.join({"key": [f"k{n}" for n in range(COUNT)], "score": np.arange(COUNT) + 0.5}, on="key")
    assert as_arrays.digest == view.digest
    moved.write_text(moved.read_text().replace("5.5", "5.6"))
    with pytest.raises(ManifestError, match=r"source 'score' of this view has changed"):
        shardio.open(tmp_path / "view.json", of={"score": moved})


def test_arrays_are_no_dataset_of_the_working_directory(
    photos: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name that messages give to arrays is never taken for a folder."""
    shutil.copytree(tmp_path / "data" / "photos", tmp_path / "table")
    monkeypatch.chdir(tmp_path)
    photos.join({"x": np.arange(COUNT)}).save(tmp_path / "view.json")
    assert json.loads((tmp_path / "view.json").read_text())["view"]["with"]["dataset"] is None


def test_a_field_that_was_joined_twice_has_two_names(photos: Any, tmp_path: Path) -> None:
    """Each side of a stack of joins can be given, also where fields have taken each other's place."""
    first, second = {"x": np.arange(COUNT)}, {"x": np.arange(COUNT) * 2}
    view = photos.join(first).join(second, replace=1)
    assert view.digest == photos.join(first).join(second, replace=True).digest
    view.save(tmp_path / "view.json")
    with pytest.raises(ConfigError, match=r"\(base, x, x'\), got y"):
        shardio.open(tmp_path / "view.json", of={"y": photos})
    opened = shardio.open(tmp_path / "view.json", of={"x": table(first), "x'": table(second)})
    assert opened.read(range(3), ["x"])["x"].tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda node: node.pop("with"), "must be an object"),
        (lambda node: node.pop("of"), "must have of, concat, mix or dataset"),
        (lambda node: node.update(join={}), "must be an object of fields"),
        (lambda node: node.update(join=["caption"]), "must be an object of fields"),
        (lambda node: node.update(join={"caption": "key_"}), "no field 'key_'"),
        (lambda node: node.update(join={"n": "caption"}), "has a field 'n' already"),
        (lambda node: node.update(join={"../x": "caption"}), "name must be letters"),
        (lambda node: node.update(on=7), "on"),
        (lambda node: node.update(on="caption"), "no field 'caption'"),
        (lambda node: node.update(how="left"), "Invalid enum value 'left'"),
        (lambda node: node.update(replace="yes"), "replace"),
        (lambda node: node.update(more=1), "more"),
        (lambda node: node["with"].update(dataset="../captions"), "no path below the folder"),
        (lambda node: node["with"].update(digest="0" * 32), "has changed, or is another one"),
    ],
)  # fmt: skip
def test_a_hostile_description_is_refused_in_words(
    photos: Any, captions: Any, tmp_path: Path, change: Any, words: str
) -> None:
    """Whatever the file says, an error names it, and nothing outside its folder is opened."""
    photos.join(captions, on="key").save(tmp_path / "view.json")
    content = json.loads((tmp_path / "view.json").read_text())
    change(content["view"])
    (tmp_path / "view.json").write_text(json.dumps(content))
    with pytest.raises((ManifestError, ConfigError), match=words):
        shardio.open(tmp_path / "view.json")
