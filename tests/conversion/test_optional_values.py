"""Missing values of sources: None in a field that is optional, a bad sample that names its place in any other."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from _builders import jpeg, png
from _cli import run
from _foreign import write_tar

import shardio
from shardio.errors import BadSample, ConfigError, SourceError

N = 9
CAPTIONS = [None if number % 3 == 1 else f"a caption {number}" for number in range(N)]
SCORES = [None if number % 4 == 2 else number / 2 for number in range(N)]
IMAGES = [None if number == 5 else jpeg(seed=number) for number in range(N)]


def parquet(folder: Path) -> tuple[str, str]:
    rows = {"image": pa.array(IMAGES, pa.binary()), "caption": pa.array(CAPTIONS), "score": pa.array(SCORES)}
    pq.write_table(pa.table(rows), folder / "a.parquet", row_group_size=4)
    return "parquet", str(folder / "a.parquet")


def huggingface(folder: Path) -> tuple[str, str]:
    datasets = pytest.importorskip("datasets")
    rows = {"image": IMAGES, "caption": CAPTIONS, "score": SCORES}
    datasets.Dataset.from_dict(rows).save_to_disk(folder / "hf")
    return "huggingface", str(folder / "hf")


def webdataset(folder: Path) -> tuple[str, str]:
    members = []
    for number in range(N):
        values = {"jpg": IMAGES[number], "caption.txt": CAPTIONS[number], "score.json": SCORES[number], "n.cls": number}
        for extension, value in values.items():
            data = value if isinstance(value, bytes | None) else str(value).encode()
            members += [(f"{number:012d}.{extension}", data)] if data is not None else []
    return "webdataset", str(write_tar(folder / "a.tar", members))


def _listed(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for number, data in enumerate(IMAGES):
        if data is not None:
            (folder / f"{number}.jpg").write_bytes(data)
        rows.append({"path": f"{number}.jpg" if data else None, "caption": CAPTIONS[number], "score": SCORES[number]})
    return rows


def jsonl(folder: Path) -> tuple[str, str]:
    rows = _listed(folder)
    for row in rows[3:]:  # a key may be missing as well
        if row["caption"] is None:
            del row["caption"]
    (folder / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "filelist", str(folder / "list.jsonl")


def table(folder: Path) -> tuple[str, str]:
    lines = [",".join("" if value is None else str(value) for value in row.values()) for row in _listed(folder)]
    (folder / "list.csv").write_text("\n".join(["path,caption,score", *lines]) + "\n")
    return "filelist", str(folder / "list.csv")


SOURCES = [parquet, huggingface, webdataset, jsonl, table]


@pytest.mark.parametrize("make", SOURCES)
def test_missing_values_are_none(make: Any, tmp_path: Path) -> None:
    """Each source that knows missing values gives the same samples, with None where they lack one."""
    converter, source = make(tmp_path)
    made = shardio.convert(source, tmp_path / "out", converter=converter, optional=["image", "caption", "score"])
    dataset = shardio.open(made.path)
    assert all(dataset.fields[name].optional for name in ("image", "caption", "score"))
    found = [dataset[number] for number in range(N)]
    assert [sample["caption"] for sample in found] == CAPTIONS
    assert [sample["score"] for sample in found] == SCORES
    assert [sample["image"] for sample in found] == IMAGES


@pytest.mark.parametrize("make", SOURCES)
def test_the_place_is_named_where_a_field_is_not_optional(make: Any, tmp_path: Path) -> None:
    """Without the option, the first sample that lacks a value ends the conversion, with its file and row or line."""
    converter, source = make(tmp_path)
    place = {"parquet": r"a\.parquet, row 1, column 'caption': null", "huggingface": "row 1, column 'caption': null",
             "webdataset": r"a\.tar, key '000000000001': it has no \.caption\.txt", "filelist": "line"}  # fmt: skip
    with pytest.raises((BadSample, SourceError), match=place[converter]):
        shardio.convert(source, tmp_path / "out", converter=converter, optional="image")


def test_tars_are_adopted_with_missing_members(tmp_path: Path) -> None:
    """`index` reads the same samples in place."""
    _, source = webdataset(tmp_path)
    run("index", source, "-o", str(tmp_path / "in"), "--optional", "image,caption,score")
    dataset = shardio.open(tmp_path / "in")
    assert [dataset[number]["caption"] for number in range(N)] == CAPTIONS
    assert [dataset[number]["image"] for number in range(N)] == IMAGES
    assert shardio.verify(tmp_path / "in", deep=True).found == ()


def test_a_field_that_is_not_there(tmp_path: Path) -> None:
    """An optional field must be one of the source's."""
    converter, source = parquet(tmp_path)
    with pytest.raises(ConfigError, match="optional: there is no field 'captoin'; there are image, caption, score"):
        shardio.convert(source, tmp_path / "out", converter=converter, optional="captoin")


def test_other_changes_leave_missing_values_alone(tmp_path: Path) -> None:
    """Casts, resizes and pixels are made of what is there."""
    rows = {"image": [png(seed=1), None, png(seed=2)], "score": [1, None, 3]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    options: dict[str, Any] = {"converter": "parquet", "optional": "image,score", "dtype": {"score": "float32"}}
    shardio.convert(tmp_path / "a.parquet", tmp_path / "out", store_pixels=True, resize=(4, 4), **options)
    dataset = shardio.open(tmp_path / "out")
    assert [dataset[number]["score"] for number in range(3)] == [1.0, None, 3.0]
    assert dataset[1]["image"] is None
    assert np.shape(dataset[2]["image"]) == (4, 4, 3)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("score > 1", [3, 4, 5, 7, 8]),  # a missing score is not above 1 ...
        ("not score > 1", [0, 1]),  # ... nor is it not
        ("score is None", [2, 6]),
        ("score is not None", [0, 1, 3, 4, 5, 7, 8]),
        ("score is None or score < 1", [0, 1, 2, 6]),
        ("not (score is None or n < 3)", [3, 4, 5, 7, 8]),
        ("score > 1 or n == 2", [2, 3, 4, 5, 7, 8]),  # what is known decides
        ("not (score > 1 and n < 4)", [0, 1, 4, 5, 6, 7, 8]),
        ("score * n != 0", [1, 3, 4, 5, 7, 8]),
        ("caption is None and n > 2", [4, 7]),  # of any kind of field
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_conditions_on_missing_values(condition: str, expected: list[int], whole: bool, tmp_path: Path) -> None:
    """A missing value fails every condition but `NAME is None`, read from a source or from a dataset."""
    pq.write_table(pa.table({"caption": CAPTIONS, "score": SCORES, "n": range(N)}), tmp_path / "a.parquet")
    options: dict[str, Any] = {"converter": "parquet", "optional": "caption,score"}
    if not whole:
        made = shardio.convert(tmp_path / "a.parquet", tmp_path / "out", where=condition, **options)
    else:
        shardio.convert(tmp_path / "a.parquet", tmp_path / "all", **options)
        made = shardio.convert(tmp_path / "all", tmp_path / "out", where=condition)
    assert shardio.open(made.path).read(range(made.manifest.samples), ["n"])["n"].tolist() == expected
