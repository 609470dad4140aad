"""Optional fields: samples may lack values, in every container, and nothing takes the blanks for data."""

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import png
from _datasets import CONTAINERS, packed

import shardio
from shardio import Field
from shardio.errors import BadSample, ConfigError

FIELDS = {
    "image": Field("image", optional=True),
    "label": "int64",
    "caption": Field("text", optional=True),
    "score": Field("scalar", dtype="float32", optional=True),
    "box": Field("array", dtype="int16", shape=(4,), optional=True),
    "points": Field("array", dtype="float32", optional=True),
    "words": Field("json", optional=True),
}


def sample(number: int) -> dict[str, Any]:
    """A sample that has every optional value but those whose turn it is to be missing."""
    whole = {
        "image": png(height=6, width=8, seed=number),
        "label": number,
        "caption": "" if number == 3 else f"a caption {number}",
        "score": number / 2,
        "box": np.arange(4, dtype=np.int16) + number,
        "points": np.ones((number % 3, 2), np.float32),
        "words": {"n": number},
    }
    optional = [name for name in whole if name != "label"]
    return whole | ({} if number % 7 == 6 else {optional[number % 7]: None})


SAMPLES = [sample(number) for number in range(21)]


def written(container: str, path: Path, samples: list[dict[str, Any]] = SAMPLES) -> shardio.Dataset:
    return packed(path, samples, FIELDS, container=container, shard_size=1500)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other) and type(one) is type(other)


@pytest.mark.parametrize("container", [*CONTAINERS, "memory"])
def test_samples_read_as_they_were_written(container: str, tmp_path: Path) -> None:
    """A missing value is None, which is neither an empty text nor a zero; all others are what they were.

    Many samples at once are arrays with zeros, beside which a column says what is there, and lists with None.
    """
    dataset = written(container, tmp_path / "data")
    for number, expected in enumerate(SAMPLES):
        found = dataset[number]
        assert list(found) == list(FIELDS)
        assert [name for name in FIELDS if not same(found[name], expected[name])] == []
    columns = dataset.read(range(21), ["score", "box", "caption"])
    assert list(columns) == ["score", "score_present", "box", "box_present", "caption"]
    assert columns["caption"] == [one["caption"] for one in SAMPLES]
    for name in ("score", "box"):
        there = np.array([one[name] is not None for one in SAMPLES])
        assert (columns[f"{name}_present"] == there).all()
        assert not columns[name][~there].any()


def test_all_containers_have_one_digest(tmp_path: Path) -> None:
    """The digest tells a missing value from an empty one, and not one container from another."""
    digests = {written(container, tmp_path / container).digest for container in (*CONTAINERS, "memory")}
    assert len(digests) == 1
    filled = [one | {"caption": one["caption"] or ""} for one in SAMPLES]
    assert written("memory", tmp_path, filled).digest not in digests


def test_keys_may_be_left_out() -> None:
    """A sample without the key of an optional field lacks its value; any other field must be there."""
    made = shardio.from_samples([{"label": 3}], FIELDS)
    assert made[0] == dict.fromkeys(FIELDS) | {"label": 3}
    with pytest.raises(BadSample, match="missing label"):
        shardio.from_samples([{"caption": "a"}], FIELDS)
    with pytest.raises(BadSample, match="field 'label': there is no value, and the field is not optional"):
        shardio.from_samples([{"label": None}], FIELDS)


def test_a_tar_has_no_member_for_a_missing_value(tmp_path: Path) -> None:
    """Other readers of a tar see what the sample has, and nothing in place of what it lacks."""
    written("tar", tmp_path / "data")
    names: set[str] = set()
    for path in (tmp_path / "data").glob("*.tar"):
        with tarfile.open(path) as tar:
            names |= set(tar.getnames())
    extensions = {"image": "png", "label": "cls", "caption": "caption.txt", "score": "score.json", "box": "box.npy",
                  "points": "points.npy", "words": "words.json"}  # fmt: skip
    expected = {
        f"{number:012d}.{extensions[name]}"
        for number, one in enumerate(SAMPLES)
        for name, value in one.items()
        if value is not None
    }
    assert names == expected


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_it_is_cared_for(container: str, tmp_path: Path) -> None:
    """Verification finds nothing wrong, resharding keeps the content, and lost indexes are made anew."""
    dataset = written(container, tmp_path / "data")
    assert shardio.verify(tmp_path / "data", deep=True).found == ()
    for other in ("tar", "hdf5", "lmdb"):
        made = shardio.convert(tmp_path / "data", tmp_path / other, container=other)
        assert made.manifest.digest == dataset.digest
        assert shardio.verify(tmp_path / other).found == ()
    for index in (tmp_path / "data").glob("*0.idx.npy"):
        index.unlink()
    shardio.repair(tmp_path / "data")
    assert shardio.open(tmp_path / "data").digest == dataset.digest
    assert shardio.verify(tmp_path / "data", deep=True).found == ()


def test_names_of_the_columns_stay_free() -> None:
    """A field cannot be called as the column that says where another one has values."""
    with pytest.raises(ConfigError, match=r"field 'a_present' is what a batch calls .* optional field 'a' has values"):
        shardio.from_samples([], {"a": Field("text", optional=True), "a_present": "bool"})


def test_statistics_leave_it_out(tmp_path: Path) -> None:
    """What samples lack counts in no figure but its own."""
    found = shardio.stats(written("tar", tmp_path / "data"), sample="all")
    assert found.bad == ()
    for name in FIELDS:
        assert found.fields[name].missing == sum(one[name] is None for one in SAMPLES)
    score = found.fields["score"].values
    assert score.count == sum(one["score"] is not None for one in SAMPLES)
    assert score.mean == pytest.approx(np.mean([one["score"] for one in SAMPLES if one["score"] is not None]))
