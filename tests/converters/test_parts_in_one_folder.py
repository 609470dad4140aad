"""Train and validation files in one folder are told apart by their names, by all sources that list files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr as zarr_library
from _builders import jpeg
from _cli import run
from _foreign import example, write_tar, write_tfrecord
from _hdf5_files import write_hdf5

import shardio
from shardio.conversion import source as sources
from shardio.errors import SourceError
from shardio.foreign.files import parts_among


@pytest.mark.parametrize(
    ("names", "parts"),
    [
        (
            ["imagenet-train-000000.tar", "imagenet-train-000001.tar", "imagenet-validation-000000.tar"],
            "train validation",
        ),
        (["train-00000-of-00010.parquet", "test-00000-of-00001.parquet"], "train test"),
        (["test.h5", "train.h5", "val.h5"], "test train val"),
        (["cifar_TRAIN.npz", "cifar_Test.npz"], "train test"),
        (["fold1.train.jsonl", "fold2.valid.jsonl"], "train valid"),
        (["2019-val-3.tfrecord", "2020-train-17.tfrecord"], "val train"),
    ],
)
def test_parts(names: list[str], parts: str) -> None:
    """Whole words tell parts, in names that are otherwise equal but for digits."""
    assert list(parts_among(names)) == parts.split()


ORDINARY = [
    ["train-000000.tar", "train-000001.tar"],
    ["00000.tar", "00001.tar", "00000.json"],
    ["shard-000000.tar", "shard-000001.tar", "index.json"],
    ["cc3m-train-0000.tar", "cc3m-train-0575.tar"],
    ["laion-00000.parquet", "laion-00001.parquet"],
    ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"],
    ["train-00000-of-01024", "train-01023-of-01024"],
    ["era5-2019-01.nc", "era5-2019-02.nc"],
    ["u10.nc", "v10.nc", "t2m.nc"],
    ["data-2000-01-01-00-0.h5", "data-2000-01-02-00-0.h5"],
    ["file1000001.h5", "file1000002.h5"],
    ["x.npy", "y.npy"],
    ["case_00000.npz", "case_00001.npz"],
    ["book1.txt", "book2.txt", "book3.txt"],
    ["c4-train.00000-of-01024.json.gz", "c4-train.00001-of-01024.json.gz"],
    ["train_images.npy", "train_labels.npy"],
    ["trainstation-1.tar", "testimony-1.tar"],
    ["train.csv", "sample_submission.csv", "test_labels.csv"],
    ["validated.tsv", "invalidated.tsv", "other.tsv"],
    ["pretrain-0.parquet", "finetune-0.parquet"],
]


@pytest.mark.parametrize("names", ORDINARY, ids=lambda names: names[0])
def test_ordinary_folders(names: list[str]) -> None:
    """One part alone, parts of words, and names that differ in more, tell nothing."""
    assert parts_among(names) == {}


def _zarr(path: Path) -> None:
    group = zarr_library.open_group(path, mode="w", zarr_format=3)
    group.create_array("x", shape=(3,), chunks=(3,), dtype="i4")[:] = 1


KINDS: list[tuple[str, str, Callable[[Path], Any]]] = [
    ("webdataset", ".tar", lambda path: write_tar(path, [("0.jpg", jpeg()), ("0.cls", b"1")])),
    ("tfrecord", ".tfrecord", lambda path: write_tfrecord(path, [example({"x": [1]})])),
    ("hdf5", ".h5", lambda path: write_hdf5(path, x=np.arange(3))),
    ("zarr", ".zarr", _zarr),
    ("text", ".jsonl", lambda path: path.write_text('{"text": "a"}\n')),
    ("numpy", ".npz", lambda path: np.savez(path, x=np.arange(3))),
    ("parquet", ".parquet", lambda path: pq.write_table(pa.table({"x": [1]}), path)),
]
IN_PLACE = ("webdataset", "tfrecord", "hdf5", "zarr")


@pytest.mark.parametrize(("converter", "suffix", "write"), KINDS, ids=[kind[0] for kind in KINDS])
def test_a_remark_that_files_ends(tmp_path: Path, converter: str, suffix: str, write: Callable[[Path], Any]) -> None:
    """Parts in one folder are a remark, an error with `strict`; a pattern takes one part, or all, without a remark."""
    folder = tmp_path / "in"
    folder.mkdir()
    for part in ("train-0", "train-1", "val-0"):
        write(folder / f"{part}{suffix}")
    convert = sources.find(converter)
    whole = convert(folder)
    (remark,) = [one for one in whole.remarks if "parts of a data set" in one]
    assert remark.startswith(f"{folder} holds train-0{suffix}, val-0{suffix}, which look like parts of a data set")
    assert remark.endswith(f"files='*train*' takes one of them, files='*{suffix}' all")
    with pytest.raises(SourceError, match="parts of a data set"):
        shardio.convert(convert(folder), tmp_path / "out", strict=True)
    train, again = convert(folder, files="*train*"), convert(folder, files=f"*{suffix}")
    assert not [one for source in (train, again) for one in source.remarks if "parts of a data set" in one]
    assert (len(train.sizes()) * 3, len(again.sizes())) == (len(whole.sizes()) * 2, len(whole.sizes()))
    if converter in IN_PLACE:
        out = tmp_path / "index"
        with pytest.raises(SourceError, match="parts of a data set"):
            shardio.index(folder, out, strict=True)
        assert len(shardio.index(folder, out, strict=True, files="val-*").manifest.shards) == 1
        run("index", folder, "-o", out, "--strict", "--overwrite", "--files", f"*{suffix}")
        assert len(shardio.open(out)) == len(whole.sizes())


def test_a_folder_whose_name_is_a_pattern(tmp_path: Path) -> None:
    """The pattern is one of names alone, whatever the folder is called."""
    folder = tmp_path / "a[1]*"
    for part in ("train", "val"):
        write_hdf5(folder / f"{part}.h5", x=np.arange(3))
    assert len(sources.find("hdf5")(folder, files="val*").sizes()) == 3
