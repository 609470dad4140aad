"""Tables read into memory: files of every kind give the fields and values of arrays."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardio
from shardio.dataset.tables import is_table, table
from shardio.errors import ConfigError, SourceError

ROWS = [{"key": f"k{n}", "n": n, "share": n / 4, "text": f"t, {n}"} for n in range(5)]


def csv(path: Path) -> None:
    path.write_text("key,n,share,text\n" + "".join(f'{r["key"]},{r["n"]},{r["share"]},"{r["text"]}"\n' for r in ROWS))


def tsv(path: Path) -> None:
    path.write_text("key\tn\tshare\ttext\n" + "".join("\t".join(map(str, r.values())) + "\n" for r in ROWS))


def json_lines(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def parquet(path: Path) -> None:
    arrow, write = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    write.write_table(arrow.Table.from_pylist(ROWS), path)


def npz(path: Path) -> None:
    np.savez(path, **{name: np.array([row[name] for row in ROWS]) for name in ROWS[0]})


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("t.csv", csv), ("t.tsv", tsv), ("t.jsonl", json_lines), ("T.NDJSON", json_lines), ("t.parquet", parquet),
        ("t.npz", npz),
    ],
)  # fmt: skip
def test_a_file_is_the_table_of_its_columns(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    """Numbers become scalars and text stays text; equal content has one digest, whatever file it came from."""
    write(tmp_path / name)
    assert is_table(tmp_path / name)
    found = table(tmp_path / name)
    assert {field: kind.dtype or kind.kind for field, kind in found.fields.items()} == {
        "key": "text", "n": "int64", "share": "float64", "text": "text",
    }  # fmt: skip
    assert [found[number] for number in range(len(found))] == ROWS
    assert found.digest == table({name: [row[name] for row in ROWS] for name in ROWS[0]}).digest
    assert found.path == tmp_path / name


def test_missing_cells_make_optional_fields(tmp_path: Path) -> None:
    """An empty cell, null or None is a missing value, of numbers as of text."""
    (tmp_path / "t.csv").write_text("key,n,text\na,1,x\nb,,\nc,3,z\n")
    (tmp_path / "t.jsonl").write_text('{"key":"a","n":1,"text":"x"}\n{"key":"b"}\n{"key":"c","n":3,"text":"z"}\n')
    arrays = {"key": ["a", "b", "c"], "n": [1, None, 3], "text": ["x", None, "z"]}
    for given in (tmp_path / "t.csv", tmp_path / "t.jsonl", arrays):
        found = table(given)
        assert [found[number] for number in range(3)] == [
            {"key": "a", "n": 1, "text": "x"}, {"key": "b", "n": None, "text": None}, {"key": "c", "n": 3, "text": "z"},
        ]  # fmt: skip
        assert [field.optional for field in found.fields.values()] == [False, True, True]


def test_arrays_keep_their_dtypes_and_shapes(tmp_path: Path) -> None:
    """An array is a field with a row for each sample; lists of numbers of one length are arrays, others JSON."""
    array = np.arange(12, dtype=np.float16).reshape(4, 3)
    np.save(tmp_path / "scores.npy", array)
    found = table(tmp_path / "scores.npy")
    assert (found.fields["scores"].shape, found.fields["scores"].dtype) == ((3,), "float16")
    assert np.array_equal(found.read(range(4))["scores"], array)
    lists = table({"even": [[1, 2], [3, 4]], "ragged": [[1], [2, 3]], "flag": [True, False], "file": [b"\1", b"\2\3"]})
    assert [field.kind for field in lists.fields.values()] == ["array", "json", "scalar", "bytes"]
    assert (lists[1]["ragged"], lists[1]["even"].tolist(), lists[1]["file"]) == ([2, 3], [3, 4], b"\2\3")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"a": np.zeros(3), "b": np.zeros(2)}, r"columns of one length"),
        ({"a": []}, "column 'a' has no values"),
        ({"a": [None]}, "column 'a' has no values"),
        ({"a": 3}, "column 'a' must be an array or a list, got int"),
        ({"a": {"b": [1]}}, "column 'a' must be an array or a list, got dict"),
        ({"a": np.array(3)}, "column 'a' must be an array or a list, got int"),
        ({"a b": [1]}, "a field's name must be"),
        ({}, "columns of one length"),
    ],
)
def test_what_is_no_table_is_refused(given: Any, words: str) -> None:
    """Columns have one length and values, and names that fields may have."""
    with pytest.raises(ConfigError, match=words):
        table(given)


def test_columns_that_would_have_one_name_are_refused(tmp_path: Path) -> None:
    """Names are made valid ones of fields; a column whose field another one has is never left out."""
    (tmp_path / "t.csv").write_text("key,a b,a_b\nk0,0,1\n")
    with pytest.raises(ConfigError, match=r"t\.csv: two columns would be one field, as key, a_b are all"):
        table(tmp_path / "t.csv")


def test_masked_values_are_missing() -> None:
    """A masked array is an optional field, which lacks its masked values."""
    found = table({"n": np.ma.masked_equal([1, 2, 3], 2), "whole": np.ma.array([1.0, 2.0, 3.0])})
    assert [found[number]["n"] for number in range(3)] == [1, None, 3]
    assert [field.optional for field in found.fields.values()] == [True, False]


def test_objects_in_numpy_files_are_never_loaded(tmp_path: Path) -> None:
    """A pickle in an array is refused, and damage is an error that names the file."""
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], object))
    (tmp_path / "damaged.npz").write_bytes(b"PK\3\4 and no more")
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "damaged.csv").write_bytes(b'a,b\n1,2\n3,"4')
    for name in ("objects.npy", "damaged.npz", "damaged.parquet", "damaged.csv"):
        with pytest.raises(SourceError, match=name):
            table(tmp_path / name)
    with pytest.raises(SourceError, match="missing"):
        table(tmp_path / "missing.csv")


def test_a_folder_that_is_called_like_a_table_is_a_dataset(tmp_path: Path) -> None:
    """Only files are tables: the name of a dataset may end in anything."""
    with shardio.create(tmp_path / "photos.csv", fields={"n": "int64"}) as writer:
        writer.append({"n": 1})
    assert not is_table(tmp_path / "photos.csv")
    assert not is_table("s3://bucket/table.csv")
    assert shardio.open(tmp_path / "photos.csv").join(tmp_path / "photos.csv", fields={"m": "n"})[0] == {"n": 1, "m": 1}
