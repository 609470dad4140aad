"""Arrays whose shapes differ where the first samples do not show it: `ragged` stores them, and messages say so."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from _cli import run
from _foreign import write_tar

import shardio
from shardio.errors import BadSample, SourceError

N = 7
ROWS = [np.arange(5 if number == 3 else 4, dtype=np.float32) + number for number in range(N)]
"""One row is longer than the others, neither the first nor the last."""


class Rows:
    """A map-style Dataset."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": ROWS[index], "label": index}


def tar(folder: Path) -> Path:
    """A tar of .npy members and labels."""
    members = []
    for number, row in enumerate(ROWS):
        np.save(stream := io.BytesIO(), row)
        members += [(f"{number:03d}.x.npy", stream.getvalue()), (f"{number:03d}.cls", b"%d" % number)]
    return write_tar(folder / "a.tar", members)


def hdf5(folder: Path) -> Path:
    """A folder of HDF5 files, one per row."""
    (folder / "h5").mkdir()
    for number, row in enumerate(ROWS):
        with h5py.File(folder / "h5" / f"{number}.h5", "w") as file:
            file["x"], file["label"] = row[None], np.array([number])
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
