"""Arrays whose shapes differ where the first samples do not show it: `ragged` stores them, and messages say so."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import npy
from _cli import run
from _foreign import write_tar
from _hdf5_files import write_hdf5
from numpy.typing import NDArray

import shardio
from shardio.errors import BadSample, ConfigError, SourceError
from shardio_converters.torch import torch

N = 7
ROWS = [np.arange(5 if number == 3 else 4, dtype=np.float32) + number for number in range(N)]
"""One row is longer than the others, neither the first nor the last."""


class Rows:
    """A map-style Dataset of rows."""

    def __init__(self, rows: Sequence[NDArray[Any]] = ROWS) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.rows[index], "label": index}


def tar(folder: Path) -> Path:
    """A tar of .npy members and labels."""
    members = []
    for number, row in enumerate(ROWS):
        members += [(f"{number:03d}.x.npy", npy(row)), (f"{number:03d}.cls", b"%d" % number)]
    return write_tar(folder / "a.tar", members)


def hdf5(folder: Path) -> Path:
    """A folder of HDF5 files, one per row."""
    for number, row in enumerate(ROWS):
        write_hdf5(folder / "h5" / f"{number}.h5", x=row[None], label=np.array([number]))
    return folder / "h5"


@pytest.mark.parametrize(
    ("converter", "make", "error", "message"),
    [
        ("webdataset", tar, BadSample, r"sample 3 .*: field 'x': expected shape \(4,\), got \(5,\); shapes may differ"),
        ("torch", lambda folder: Rows(), BadSample, r"sample 3 .*expected shape \(4,\), got \(5,\); shapes may differ"),
        ("hdf5", hdf5, SourceError, r"field 'x' is .*\[5\] in .*3.h5, and .*\[4\] in .*0.h5; converted"),
    ],
    ids=["webdataset", "torch", "hdf5"],
)
@pytest.mark.parametrize("container", ["tar", "hdf5"])
def test_ragged_arrays_are_stored(
    tmp_path: Path, converter: str, make: Callable[[Path], Any], error: Any, message: str, container: str
) -> None:
    """`ragged` stores every array as it is; without it the error names the sample or the file, and the option."""
    source = make(tmp_path)
    with pytest.raises(error, match=f"{message}.* ragged='x'"):
        shardio.convert(source, tmp_path / "no", converter=converter)
    made = shardio.convert(source, tmp_path / "out", converter=converter, ragged="x", container=container)
    assert made.fields["x"] == shardio.Field("array", dtype="float32", shape=(None,))
    data = shardio.open(tmp_path / "out")
    assert [data[n]["x"].tolist() for n in range(N)] == [row.tolist() for row in ROWS]


def test_any_axis_may_vary(tmp_path: Path) -> None:
    """`NAME=all` stores arrays of any shape, and the message names it where the first axis is not the one."""
    rows = [np.full((2, 5 if number == 3 else 4), number, np.float32) for number in range(N)]
    for ragged in ("", "x"):
        with pytest.raises(BadSample, match=r"got \(2, 5\); shapes may differ with ragged='x=all'"):
            shardio.convert(Rows(rows), tmp_path / "no", converter="torch", ragged=ragged)
    made = shardio.convert(Rows(rows), tmp_path / "out", converter="torch", ragged="x=all")
    assert made.fields["x"] == shardio.Field("array", dtype="float32")
    assert [sample["x"].shape for sample in shardio.open(tmp_path / "out")] == [row.shape for row in rows]
    with pytest.raises(ConfigError, match="ragged takes a field as NAME, or as NAME=all, got 'x=first'"):
        shardio.convert(Rows(rows), tmp_path / "no", converter="torch", ragged="x=first")


def test_the_first_sample_tells_the_other_axes(tmp_path: Path) -> None:
    """Where a source states no shape at all, `ragged` fixes all axes but the first."""
    rows = [np.zeros((2, 4)), np.zeros((3, 4)), np.zeros((3, 5))]  # the first and the last differ in both
    assert torch(Rows(rows)).fields["x"].shape is None
    with pytest.raises(BadSample, match=r"sample 2 .* expected shape \(None, 4\), got \(3, 5\)"):
        shardio.convert(Rows(rows), tmp_path / "no", converter="torch", ragged="x")
    made = shardio.convert(Rows(rows), tmp_path / "out", converter="torch", ragged="x", limit=2)
    assert made.fields["x"].shape == (None, 4)


@pytest.mark.slow
def test_messages_name_the_option(tmp_path: Path) -> None:
    """Commands advise --ragged, and not to leave such samples out."""
    path = tar(tmp_path)
    told = run("convert", "webdataset", path, tmp_path / "out", code=1)
    assert "shapes may differ with --ragged x\n" in told
    assert "--on-error skip" not in told
    run("convert", "webdataset", path, tmp_path / "out", "--ragged", "x")
    indexed = run("index", path, "-o", tmp_path / "indexed", code=1)
    assert "sample 3, field 'x': expected shape (4,), got (5,); shapes may differ if you convert" in indexed
    assert "--on-error skip" not in indexed
