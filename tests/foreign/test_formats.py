"""`shardio index` finds files by their content, whatever their names are, and says why it cannot take others."""

import gzip
from collections.abc import Callable
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest
from _foreign import example, write_tar, write_tfrecord

from shardio.errors import SourceError
from shardio.foreign.formats import find_by_content

from .test_files import PACKERS

MEMBERS = [("a.cls", b"1"), ("b.cls", b"2")]


def hdf5(path: Path, user_block: int = 0) -> Path:
    with h5py.File(path, "w", userblock_size=user_block) as file:
        file["x"] = np.arange(6.0).reshape(3, 2)
        file.create_dataset("y", data=np.arange(3), chunks=(1,), compression="gzip")
    return path


def tar(path: Path) -> Path:
    return write_tar(path, MEMBERS)


def old_tar(path: Path) -> Path:
    """A tar in the format of V7, which has no mark of its own."""
    data = bytearray(tar(path).read_bytes())
    for at in (0, 1024):
        data[at + 257 : at + 512] = bytes(255)
        data[at + 148 : at + 156] = b" " * 8
        data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    path.write_bytes(data)
    return path


def tfrecord(path: Path) -> Path:
    return write_tfrecord(path, [example({"x": [1.0]}), example({"x": [2.0]})])


MAKERS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "hdf5": ("hdf5", hdf5),
    "hdf5 at 512": ("hdf5", lambda path: hdf5(path, 512)),
    "hdf5 at 4096": ("hdf5", lambda path: hdf5(path, 4096)),
    "tar": ("webdataset", tar),
    "old tar": ("webdataset", old_tar),
    "tfrecord": ("tfrecord", tfrecord),
}


@pytest.mark.parametrize("name", ["data", "data.bin", "data.h5", "data.tar", "a.tfrecord"])
@pytest.mark.parametrize("what", MAKERS)
def test_files_are_found_by_content(what: str, name: str, tmp_path: Path) -> None:
    """The content alone decides, for a file and for a directory, and other files there are named."""
    kind, make = MAKERS[what]
    path = make(tmp_path / name)
    (tmp_path / "README").write_text("words")
    found = find_by_content([str(path)])
    assert (found.kind, found.paths, found.remarks) == (kind, (path,), ())
    found = find_by_content([str(tmp_path)])
    assert (found.kind, found.paths) == (kind, (path,))
    (remark,) = found.remarks
    assert remark.startswith("left out 1 file beside the ")
    assert remark.endswith(f" files in {tmp_path}: README")


def test_a_tar_of_hdf5_files_is_a_tar(tmp_path: Path) -> None:
    """HDF5's signature at byte 512 of a tar is that of its first member."""
    path = write_tar(tmp_path / "data", [("a.h5", hdf5(tmp_path / "a.h5").read_bytes())])
    assert find_by_content([str(path)]).kind == "webdataset"


def test_an_lmdb_is_found_with_its_lock(tmp_path: Path) -> None:
    """The lock beside the data of an LMDB is no file that was left out."""
    lmdb.open(str(tmp_path / "x")).close()
    found = find_by_content([str(tmp_path / "x")])
    assert (found.kind, found.paths, found.remarks) == ("lmdb", (str(tmp_path / "x"),), ())


@pytest.mark.parametrize(("what", "words"), [("tar", "tar"), ("tfrecord", "TFRecord")])
@pytest.mark.parametrize("compression", PACKERS)
def test_compressed_files_are_refused_in_words(what: str, words: str, compression: str, tmp_path: Path) -> None:
    """A compressed file, whatever its name, is named with its compression and what to do about it."""
    kind, make = MAKERS[what]
    path = make(tmp_path / "data")
    path.write_bytes(PACKERS[compression](path.read_bytes()))
    expected = f"{path} is a {words} file compressed by {compression}, which cannot be read in place: unpack it, or"
    same_fields = " SRC OUT --no-key" if what == "tar" else ""
    for given, form in ((path, None), (tmp_path, None), (path, kind)):
        with pytest.raises(SourceError) as caught:
            find_by_content([str(given)], form)
        assert str(caught.value) == f"{expected} convert it: shardio convert {kind}{same_fields}"


def test_compressed_files_among_others_can_be_left_out(tmp_path: Path) -> None:
    """With `on_error="skip"` a compressed file among plain ones is left out with a remark; alone it is refused."""
    path = tar(tmp_path / "a.tar")
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(SourceError, match=r"b\.tar\.gz is a tar file .* --no-key; on_error='skip' leaves it out"):
        find_by_content([str(tmp_path)])
    found = find_by_content([str(tmp_path)], on_error="skip")
    assert found.paths == (path,)
    assert [remark.partition(",")[0] for remark in found.remarks] == [
        f"left out {tmp_path}/b.tar.gz: it is a tar file compressed by gzip"
    ]
    with pytest.raises(SourceError, match=r"--no-key$"):
        find_by_content([str(tmp_path / "b.tar.gz")], on_error="skip")


def test_a_damaged_file_is_not_left_out(tmp_path: Path) -> None:
    """A file in a directory whose name promises a format is taken, so that its damage is an error."""
    tar(tmp_path / "a.tar")
    (tmp_path / "b.tar").write_bytes(b"damage" * 1000)
    assert len(find_by_content([str(tmp_path)]).paths) == 2


def test_formats_do_not_mix_unless_one_is_named(tmp_path: Path) -> None:
    """Files of two formats are an error, which names one of each; `kind` takes one and names the rest."""
    tar(tmp_path / "a")
    hdf5(tmp_path / "b")
    with pytest.raises(SourceError, match=r"files must be of one format: .*/a is webdataset, .*/b is hdf5; name it"):
        find_by_content([str(tmp_path)])
    found = find_by_content([str(tmp_path)], "hdf5")
    assert found.paths == (tmp_path / "b",)
    assert found.remarks == (f"left out 1 file beside the HDF5 files in {tmp_path}: a",)


def test_nothing_to_be_found(tmp_path: Path) -> None:
    """A directory without any such file is refused, in the words of the format that was asked for."""
    (tmp_path / "README").write_text("words")
    for kind, told in ((None, "found no tar, TFRecord, LMDB or HDF5 file"), ("hdf5", r"found no HDF5 file$")):
        with pytest.raises(SourceError, match=told):
            find_by_content([str(tmp_path)], kind)
    (tmp_path / "a.npz").write_bytes(b"PK")
    for given in (tmp_path, tmp_path / "a.npz"):
        with pytest.raises(SourceError, match=f"file; `shardio convert numpy {given} OUT` takes NumPy files$"):
            find_by_content([str(given)])
