"""Data that a source leaves out or renames is told in a note, one each, and is an error with `strict`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr as zarr_library
from _builders import jpeg, write_files
from _cli import run
from _foreign import example, write_tar, write_tfrecord
from _hdf5_files import write_hdf5

import shardio
from shardio.conversion.adopt import adopt
from shardio.conversion.notes import find_chunk_hints
from shardio.errors import SourceError
from shardio_converters.hdf5 import hdf5
from shardio_converters.tfrecord import tfrecord
from shardio_converters.torch import torch
from shardio_converters.webdataset import webdataset

RULE = "a field's name is letters, digits, '_', '-' and '.'"
LONG = " (a long double, which differs from machine to machine: write it as float64)"


def scans(folder: Path) -> Path:
    """An HDF5 file of numbers that a field holds, under a name that no field has, and of six datasets that none can."""
    ragged = np.empty(3, object)
    ragged[:] = [np.arange(n + 1) for n in range(3)]
    with h5py.File(folder / "scans.h5", "w") as file:
        file["x"] = np.zeros((3, 2), np.float32)
        file["group/y"] = np.arange(3)
        file["long"] = np.zeros((3, 2), np.longdouble)
        file["complex"] = np.zeros(3, np.clongdouble)
        file.create_dataset("swapped", data=ragged, dtype=h5py.vlen_dtype(">i4"))
        file.create_dataset("lists", data=np.full((3, 2), ragged[0:1], object), dtype=h5py.vlen_dtype("<i4"))
        file["version"] = 7
        file.create_dataset("references", (3,), h5py.ref_dtype)
    return folder / "scans.h5"


def tars(folder: Path) -> Path:
    """Two tars whose later samples have members that the first sample lacks."""
    members = [("a.jpg", jpeg()), ("a.cls", b"1"), ("b.png", b""), ("b.cls", b"1"), ("b.depth.npy", b"")]
    write_tar(folder / "0.tar", members)
    many = [(f"{n:04d}.{part}", b"1") for n in range(300) for part in ("jpg", "cls")]
    write_tar(folder / "1.tar", [*many, ("z.jpg", b""), ("z.cls", b"2"), ("z.mask", b"")])
    return folder


def records(folder: Path) -> Path:
    """A TFRecord file whose first record has no value for one of its features, and lacks another."""
    rows = {"image/label": [1], "box": []}, {"image/label": [2], "box": [3.0], "text": [b"x"]}
    return write_tfrecord(folder / "a.tfrecord", map(example, rows))


@pytest.mark.parametrize("fields", [None, "txt"])
def test_other_files_of_a_folder(fields: str | None, tmp_path: Path) -> None:
    """Files of other kinds beside those of a source are told, but not those of shardio, hidden ones or folders."""
    write_tar(tmp_path / "a.tar", [("a.txt", b"x")])
    write_files(tmp_path, dict.fromkeys((".hidden", "a.idx.npy", "shardio.json"), b""))
    (tmp_path / "folder").mkdir()
    assert webdataset(tmp_path, fields=fields).remarks == ()
    (tmp_path / "part-0.tfrecord").write_bytes(b"")
    told = f"left out 1 file beside the tars in {tmp_path}: part-0.tfrecord"
    assert webdataset(tmp_path, fields=fields).remarks == (told,)
    assert webdataset(tmp_path / "a.tar", fields=fields).remarks == ()
    assert told in run("convert", "webdataset", tmp_path, tmp_path / "out", "--strict", "--dry-run", code=1)


def test_hdf5_columns_that_no_field_holds_are_named(tmp_path: Path) -> None:
    """Long doubles, foreign vlen numbers, references and single values are named with the reason; so are renames."""
    assert sorted(hdf5(scans(tmp_path)).remarks) == [
        f"'group/y' becomes the field 'group.y': {RULE}",
        f"left out 'complex': no field holds complex256{LONG}",
        "left out 'lists': no field holds [2] of variable-length int32",
        f"left out 'long': no field holds float128{LONG}",
        "left out 'references': no field holds references",
        "left out 'swapped': no field holds variable-length >i4: h5py confuses their byte order",
        "left out 'version': it has no rows",
    ]
    assert hdf5(tmp_path / "scans.h5", fields="x,y=group/y").remarks == ()


def test_members_that_the_first_sample_lacks_are_named(tmp_path: Path) -> None:
    """Members that appear late, however late, are named with the first sample that has them."""
    found = webdataset(tars(tmp_path))
    after = "fields takes it, and every sample without it is then bad, unless optional=['{}'] allows that"
    assert found.remarks == (
        f"left out .depth.npy, which 1 of 303 samples have, the first in {tmp_path}/0.tar, key 'b'; "
        + after.format("depth"),
        f"left out .mask, which 1 of 303 samples have, the first in {tmp_path}/1.tar, key 'z'; {after.format('mask')}",
    )
    assert webdataset(tmp_path, fields="image=jpg,label=cls").remarks == ()


def test_what_a_note_names_can_be_taken(tmp_path: Path) -> None:
    """`fields` takes an extension that no sample near an end has, in any order of the tars, with its dot or without."""
    label, mask = [(f"{n}.cls", b"1") for n in range(150)], jpeg()
    write_tar(tmp_path / "0.tar", label)
    write_tar(tmp_path / "1.tar", [("y.cls", b"2"), ("y.mask.png", mask), ("z.cls", b"2"), ("z.mask.png", mask)])
    write_tar(tmp_path / "2.tar", [(f"b{name}", data) for name, data in label])
    names = [str(tmp_path / f"{n}.tar") for n in (0, 1, 2)]
    for given in ("label=cls,mask=mask.png", "label=cls, mask=.mask.png", {"label": "cls", "mask": ".mask.png"}):
        for paths in (names, names[::-1]):
            found = webdataset(paths, fields=given, key=False)
            assert found[150] == {"label": 2, "mask": mask}
            assert found.remarks == ()
    options = ("--fields", "label=cls,mask=mask.png", "--on-error", "skip", "--max-bad", "300")
    assert "2 samples in 1 indexed shard" in run("index", *names, "-o", tmp_path / "out", *options)
    told = run("index", *names, "-o", tmp_path / "all")
    assert "left out .mask.png, which 2 of 302 samples have" in told
    assert "--fields takes it, and every sample without it is then bad, unless --optional mask allows that" in told


def test_features_that_the_first_record_lacks_are_named(tmp_path: Path) -> None:
    """A feature that is empty or missing in record 0 is named with the first record that has values for it."""
    found = tfrecord(records(tmp_path))
    why = f"which the first record lacks: {tmp_path}/a.tfrecord, record 1 is the first that has values for it"
    assert sorted(found.remarks) == [
        f"'image/label' becomes the field 'image.label': {RULE}",
        f"left out the feature 'box', {why}; fields takes it",
        f"left out the feature 'text', {why}; fields takes it",
    ]
    assert tfrecord(tmp_path / "a.tfrecord", fields="label=image/label").remarks == ()


def test_other_sources_name_what_they_rename(tmp_path: Path) -> None:
    """Names of columns, arrays and keys that no field can have are told by every source."""
    names = {"x y": np.zeros(3), "x": np.arange(3)}
    np.savez(tmp_path / "a.npz", **names)
    (tmp_path / "a.csv").write_text("path,x y\na.npz,1\n")
    group = zarr_library.create_group(tmp_path / "a.zarr")
    group.create_array("x y", data=names["x y"])
    group.create_array("one", shape=(), dtype="i4")
    renamed = f"'x y' becomes the field 'x_y': {RULE}"
    write_tar(tmp_path / "a.tar", [("a.jpg", jpeg()), ("a.cls", b"1"), ("a.left eye.txt", b"x"), ("a.b.json", b"{}")])
    assert webdataset(tmp_path / "a.tar").remarks == (f"'left eye.txt' becomes the field 'left_eye': {RULE}",)
    find = shardio.source.find
    assert find("numpy")(tmp_path / "a.npz").remarks == (renamed,)
    assert find("filelist")(tmp_path / "a.csv").remarks == (renamed,)
    assert find("zarr")(tmp_path / "a.zarr").remarks == ("left out 'one': it has no rows", renamed)
    assert torch([{"x y": 1}, {"x y": 2}]).remarks == (renamed,)


@pytest.mark.parametrize(
    ("make", "kind"), [(scans, hdf5), (tars, webdataset), (records, tfrecord)], ids=["hdf5", "tar", "tfrecord"]
)
def test_strict_refuses_what_is_left_out(make: Callable[[Path], Path], kind: Any, tmp_path: Path) -> None:
    """`strict` makes an error of every remark, for `convert` and `index`, before anything is written."""
    path = make(tmp_path)
    with pytest.raises(SourceError, match=r"strict allows nothing to be left out or renamed: .*; "):
        shardio.convert(path, tmp_path / "out", converter=kind, strict=True)
    with pytest.raises(SourceError, match="strict allows nothing"):
        adopt(kind(path), tmp_path / "out", strict=True)
    assert not (tmp_path / "out").exists()


def test_python_warns_of_what_is_left_out(tmp_path: Path) -> None:
    """Without `tell`, each remark is a warning at the caller's line; with it, the function gets all notes instead."""
    path, told = scans(tmp_path), list[str]()
    with pytest.warns(shardio.SourceWarning) as warned:
        made = shardio.convert(path, tmp_path / "a", converter="hdf5")
    assert [str(warning.message) for warning in warned] == list(made.notes)
    assert {warning.filename for warning in warned} == {__file__}
    shardio.convert(path, tmp_path / "b", converter="hdf5", tell=told.append)
    assert told == list(made.notes)


@pytest.mark.parametrize(
    ("layout", "rows", "times", "blocks"),
    [
        ({}, 0, 0, ""),  # contiguous
        ({"chunks": (1, 200, 200), "compression": "gzip"}, 0, 0, ""),
        ({"chunks": (3, 200, 200), "compression": "gzip"}, 0, 0, ""),  # too few times to matter
        ({"chunks": (50, 200, 200)}, 0, 0, ""),  # not compressed: rows are read alone
        ({"chunks": (50, 200, 200), "compression": "gzip"}, 50, 50, "block=50, window=15 "),
        ({"chunks": (10, 200, 200), "compression": "gzip"}, 10, 10, "block=10, window=16 "),
        ({"chunks": (800, 200, 150), "compression": "gzip"}, 800, 1200, ""),  # two tiles, wider than the rows
        ({"chunks": (100, 200, 200), "scaleoffset": 2}, 100, 100, ""),  # libhdf5 reads it, and keeps nothing
    ],
)
def test_what_chunks_of_many_samples_cost(
    tmp_path: Path, layout: dict[str, Any], rows: int, times: int, blocks: str
) -> None:
    """The hint names the field, what reading it in random order costs, and the blocks whose chunks are kept."""
    with h5py.File(tmp_path / "air.h5", "w") as file:
        file.create_dataset("air", (2000, 200, 200), "f4", **layout)[7:9] = 1
        file["time"] = np.arange(2000)
    hints = find_chunk_hints(hdf5(tmp_path / "air.h5"))
    assert [hint.partition(", each")[0] for hint in hints] == [f"field 'air' is in chunks of {rows} samples"][:rows]
    for hint in hints:
        assert f"decompresses {times} times the bytes that it uses; convert the files" in hint
        assert hint.endswith(f"{blocks}(about 2 times)" if blocks else "convert the files")


def test_chunks_of_many_samples_are_told(tmp_path: Path) -> None:
    """`index` says what chunks of many samples cost, as a note or a warning that `strict` does not refuse."""
    # Of a filter that libhdf5 undoes, so that nothing is kept.
    air = {"data": np.zeros((600, 5), np.float32), "chunks": (10, 5), "scaleoffset": 2}
    write_hdf5(tmp_path / "air.nc", air=air)
    with pytest.warns(shardio.SourceWarning) as warned:
        made = shardio.index(tmp_path / "air.nc", tmp_path / "out", strict=True)
    hint = (
        "field 'air' is in chunks of 10 samples, each read and decompressed whole: in random order, loading "
        "decompresses 10 times the bytes that it uses; convert the files"
    )
    assert [str(warning.message) for warning in warned] == list(made.notes) == [hint]
    assert f"note: {hint}\n" in run("index", tmp_path / "air.nc", "-o", tmp_path / "again", "--strict")
    assert not shardio.convert(tmp_path / "air.nc", tmp_path / "converted", converter="hdf5").notes
