"""The order of files in folders and patterns: by name or by number, told where the two differ."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from _builders import png, write_files
from _foreign import example, write_tar, write_tfrecord
from _hdf5_files import write_hdf5

import shardio
from shardio.errors import ConfigError
from shardio.foreign.files import Sort, order_hints

NUMBERS = (1, 2, 3, 10, 20)
BY_NAME = [1, 10, 2, 20, 3]


WRITERS: dict[str, tuple[str, Callable[[Path, int], Any]]] = {
    "webdataset": (".tar", lambda path, n: write_tar(path, [(f"{0:012d}.n.json", b"%d" % n)])),
    "tfrecord": (".tfrecord", lambda path, n: write_tfrecord(path, [example({"n": [n]})])),
    "hdf5": (".h5", lambda path, n: write_hdf5(path, n=np.array([n]))),
    "parquet": (".parquet", lambda path, n: pq.write_table(pa.table({"n": [n]}), path)),
    "numpy": (".npz", lambda path, n: np.savez(path, n=np.array(n))),
    "imagefolder": (".png", lambda path, n: path.write_bytes(png(n, 12))),
}


def series(folder: Path, converter: str) -> Path:
    """A folder of s_1, s_2, s_3, s_10 and s_20, each of which holds its number."""
    suffix, write = WRITERS[converter]
    folder.mkdir()
    for number in NUMBERS:
        write(folder / f"s_{number}{suffix}", number)
    return folder


def numbers(path: Any) -> list[int]:
    """The numbers of the files, in the order of a dataset."""
    dataset = shardio.open(path)
    if "image" in dataset.fields:
        return [int(dataset[n]["key"].partition(".")[0].partition("_")[2]) for n in range(len(dataset))]
    return [int(dataset[n]["n"]) for n in range(len(dataset))]


@pytest.mark.parametrize(
    ("converter", "pattern"), [*((name, False) for name in WRITERS), ("webdataset", True), ("parquet", True)]
)
def test_a_series_is_in_the_order_of_names_or_of_numbers(converter: str, pattern: bool, tmp_path: Path) -> None:
    """A hint tells where they differ, also with `strict`; `sort="natural"` takes the numbers, and needs no hint."""
    source: Any = series(tmp_path / "in", converter)
    source = f"{source}/s_*" if pattern else source
    suffix, what = WRITERS[converter][0], "images" if converter == "imagefolder" else "files"
    hint = (
        f"the {what} are in the order of their names, where s_10{suffix} comes before s_2{suffix}; "
        "sort='natural' goes by the numbers"
    )
    orders: list[tuple[Sort, Any, list[str]]] = [("name", BY_NAME, [hint]), ("natural", list(NUMBERS), [])]
    for sort, expected, hints in orders:
        options = {"sort": sort}
        made = shardio.convert(source, tmp_path / sort, converter=converter, converter_options=options, strict=True)
        assert numbers(made.path) == expected
        assert [note for note in made.notes if "order of their names" in note] == hints
        if converter in ("webdataset", "tfrecord", "hdf5"):
            told: list[str] = []
            adopted = shardio.index(source, tmp_path / f"{sort} index", sort=sort, strict=True, tell=told.append)
            assert numbers(adopted.path) == expected
            assert [*adopted.notes] == told == hints
    with pytest.raises(ConfigError, match="sort must be one of name, natural, got 'size'"):
        shardio.convert(source, tmp_path / "no", converter=converter, converter_options={"sort": "size"})


def test_classes_are_sorted_too(tmp_path: Path) -> None:
    """Class folders with numbers get labels in the order of the names, or of the numbers."""
    folders = write_files(tmp_path / "in", {f"{name}/0.png": png() for name in ("c1", "c2", "c10")})
    for sort, classes in (("name", ["c1", "c10", "c2"]), ("natural", ["c1", "c2", "c10"])):
        options = {"sort": sort}
        made = shardio.convert(folders, tmp_path / sort, converter="imagefolder", converter_options=options)
        assert made.manifest.metadata["classes"] == classes
        told = "the classes are in the order of their names, where c10 comes before c2; "
        assert [note.startswith(told) for note in made.notes] == [True] * (sort == "name")


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (["s_1", "s_10", "s_2"], True),
        (["s_01", "s_02", "s_10"], False),  # as many digits each
        (["s_2", "s_10"], False),  # in the order of the numbers already
        (["s_10", "s_2", "s_1"], False),  # the user's own order
        (["s_10", "t_2"], False),  # two series
        (["12ab", "3f"], False),  # no series: hashes
        (["a1-b10", "a1-b9"], True),
        (["2024-1-10.h5", "2024-1-9.h5"], True),
        (["run1/x10", "run1/x9", "run2/x1"], True),
        (["9" * 200, "9" * 100], False),
    ],
)
def test_a_series_is_known_by_what_its_names_share(names: list[str], hint: bool) -> None:
    """Names that differ in their numbers only are a series."""
    assert bool(order_hints(names)) == hint
