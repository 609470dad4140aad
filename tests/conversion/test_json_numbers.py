"""NaN and infinities, which are not JSON, make bad samples that are named, wherever they stand in a JSON value."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from _builders import write_files
from _datasets import packed
from _foreign import write_tar
from datasets import Dataset

import shardio
from shardio_converters.filelist import filelist
from shardio_converters.huggingface import huggingface
from shardio_converters.parquet import parquet
from shardio_converters.torch import torch
from shardio_converters.webdataset import webdataset

VALUES: list[Any] = [{"a": [1.5, {"b": math.nan}]}, {"a": [1.5, {"b": 2.0}]}, {"a": [-math.inf, {"b": 1.0}]}]
TABLE = [{"a": [1.5], "b": {"c": math.nan}}, {"a": [1.0], "b": {"c": 2.0}}, {"a": [3.0], "b": {"c": -math.inf}}]


def tar(folder: Path) -> Path:
    members = [(f"{n}.json", json.dumps(value).encode()) for n, value in enumerate(VALUES)]
    return write_tar(folder / "a.tar", members)


def lines(folder: Path) -> Path:
    rows = "".join(json.dumps({"path": f"{n}.bin", "x": value}) + "\n" for n, value in enumerate(VALUES))
    return write_files(folder, {"0.bin": "x", "1.bin": "x", "2.bin": "x", "a.jsonl": "\n" + rows}) / "a.jsonl"


def table(folder: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(TABLE), folder / "a.parquet")
    return folder / "a.parquet"


SOURCES: dict[str, tuple[Callable[[Path], Any], Any, str]] = {
    "tar": (tar, webdataset, "{folder}/a.tar, key '{row}', .json: not JSON: {name} is not JSON"),
    "jsonl": (lines, filelist, "{folder}/a.jsonl, line {line}, column 'x': {name} is not JSON"),
    "parquet": (table, parquet, "{folder}/a.parquet, row {row}, column 'b': {value} is not JSON"),
    "huggingface": (
        lambda _: Dataset.from_list(TABLE),
        huggingface,
        "the Dataset, row {row}, column 'b': {value} is not JSON",
    ),
    "torch": (
        lambda _: [{"x": value} for value in VALUES],
        torch,
        "list, sample {row}: field 'x': {value} is not JSON",
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_names_the_place(name: str, tmp_path: Path) -> None:
    """The message has the row, the line or the member, and the column; the other samples are converted."""
    make, converter, message = SOURCES[name]
    source = make(tmp_path)
    made = shardio.convert(source, tmp_path / "out", converter=converter, on_error="skip", max_bad=2)
    assert len(shardio.open(made.path)) == 1
    expected = [
        message.format(folder=tmp_path, row=0, line=2, name="NaN", value="nan"),
        message.format(folder=tmp_path, row=2, line=4, name="-Infinity", value="-inf"),
    ]
    assert len(made.skipped) == 2
    for skipped, text in zip(made.skipped, expected, strict=True):
        assert text in skipped.reason


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ["parquet", "huggingface"])
def test_numbers_of_a_table_may_be_nan(name: str, dtype: str, tmp_path: Path) -> None:
    """NaN and infinities in a column of floats are stored as they are, also in a dictionary-encoded column."""
    values = np.array([1.5, np.nan, np.inf, -np.inf], dtype)
    table = pa.table({"x": pa.array(values), "coded": pa.array(values.astype(np.float32)).dictionary_encode()})
    if name == "parquet":
        pq.write_table(table, tmp_path / "a.parquet")
    source = tmp_path / "a.parquet" if name == "parquet" else Dataset(table)
    made = shardio.convert(source, tmp_path / "out", converter=name)
    found = shardio.open(made.path)
    for field in ("x", "coded"):
        np.testing.assert_array_equal(np.array([found[n][field] for n in range(4)], dtype), values)
    chosen = shardio.convert(source, tmp_path / "few", converter=name, where="x == x and x < 2")
    assert chosen.manifest.samples == 2


def test_loading_names_the_sample(tmp_path: Path) -> None:
    """A dataset whose stored JSON holds NaN, which shardio never writes, gives a bad sample at loading."""
    packed(tmp_path / "d", [{"x": {"a": [1234]}}], {"x": "json"})
    (shard,) = (tmp_path / "d").glob("*.tar")
    data = shard.read_bytes()
    assert data.count(b"1234") == 1
    shard.write_bytes(data.replace(b"1234", b" NaN"))
    with pytest.raises(shardio.DatasetError, match=r"sample 0.*field 'x'.*NaN is not JSON"):
        shardio.open(tmp_path / "d")[0]
    loader = shardio.Loader(tmp_path / "d", batch_size=1, tail="pad")
    with pytest.raises(shardio.DatasetError, match="NaN is not JSON"):
        next(iter(loader))
