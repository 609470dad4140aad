"""Files are found by path, pattern and content, read at offsets, and decompressed; records of many are located."""

import bz2
import gzip
import lzma
import os
import pickle
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pytest
from _foreign import example, write_tar, write_tfrecord

from shardio.errors import MissingDependency, SourceError
from shardio.foreign.files import File, find_files, open_file
from shardio.foreign.formats import find_by_content
from shardio.foreign.locations import ValueLocations, scan_files

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zlib": zlib.compress,
    "zstd": lambda data: pa.compress(data, "zstd", asbytes=True),
}
DATA = np.random.default_rng(0).bytes(300_000) + bytes(3 << 20)


def is_tar(name: str) -> bool:
    """Whether a name is that of a wanted file."""
    return name.endswith(".tar")


def names(src: str | Path) -> list[str]:
    """The names of the files found."""
    return [path.name for path in find_files(src, is_tar, "tars")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of empty files."""
    for number in range(12):
        (tmp_path / f"a-{number:03d}.tar").touch()
    for name in (".hidden.tar", "b.txt", "a-9.tar", "-rf ü.tar", "x{1..2}.tar"):
        (tmp_path / name).touch()
    (tmp_path / "c.tar" / "a" / "b").mkdir(parents=True)
    return tmp_path


class TestFind:
    def test_a_folder(self, folder: Path) -> None:
        """A folder gives its wanted files sorted by name, without hidden ones and folders."""
        running = [f"a-{number:03d}.tar" for number in range(12)]
        assert names(folder) == ["-rf ü.tar", *running, "a-9.tar", "x{1..2}.tar"]

    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("a-00*.tar", [f"a-{number:03d}.tar" for number in range(10)]),
            ("a-01[01].tar", ["a-010.tar", "a-011.tar"]),
            ("a-{009..011}.tar", ["a-009.tar", "a-010.tar", "a-011.tar"]),
            ("a-0{0..1}{0..1}.tar", ["a-000.tar", "a-001.tar", "a-010.tar", "a-011.tar"]),
            ("a-{9..9}.tar", ["a-9.tar"]),
            ("a-{010..011}*", ["a-010.tar", "a-011.tar"]),
            *((name, [name]) for name in ("b.txt", ".hidden.tar", "x{1..2}.tar", "-rf ü.tar")),
        ],
    )
    def test_patterns(self, folder: Path, pattern: str, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """Wildcards and numeric ranges with padding select files, as absolute paths; a file is taken by any name."""
        assert names(folder / pattern) == names(str(folder / pattern)) == expected
        monkeypatch.chdir(folder)
        assert find_files(pattern, is_tar, "tars") == [folder / name for name in expected]

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("none.tar", r"none.tar does not exist"),
            ("a-{010..012}.tar", r"a-012.tar does not exist"),
            ("z*.tar", r"z\*.tar: no file fits this"),
            ("c.tar", r"c.tar: holds no tars itself, but folders: a; give one of them$"),
            ("a-{3..1}.tar", r"a range begins with its smaller number, got \{3..1\}"),
            ("{0..999}{0..9999}.tar", r"names 10000000 files, at most 1000000 are allowed"),
            ("a\0b", r"null|does not exist"),
            ("a" * 300, r"too long|does not exist"),
        ],
    )
    def test_nothing_there(self, folder: Path, name: str, told: str) -> None:
        """An error names what is missing."""
        with pytest.raises(SourceError, match=told):
            find_files(f"{folder}/{name}", is_tar, "tars")


class TestOpen:
    @pytest.mark.parametrize("compression", PACKERS)
    @pytest.mark.parametrize("data", [DATA, b"", b"x"], ids=["long", "empty", "short"])
    def test_unpacked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str, data: bytes) -> None:
        """Compression is recognised by the first bytes, not the name, and no temporary file is left."""
        (tmp_path / "a").write_bytes(PACKERS[compression](data))
        (tmp_path / "temporary").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))  # other tests use the system's
        file = open_file(tmp_path / "a", PACKERS)
        assert (file.size, file.compression, file.path) == (len(data), compression, tmp_path / "a")
        assert file.read(0, len(data) + 1) == data
        assert not list((tmp_path / "temporary").iterdir())

    @pytest.mark.parametrize("compression", ["gzip", "bzip2", "xz", "zstd"])
    def test_parts_end_to_end(self, tmp_path: Path, compression: str) -> None:
        """Concatenated compressed streams, as from `cat a.gz b.gz`, are read completely."""
        pack = PACKERS[compression]
        (tmp_path / "a").write_bytes(pack(b"one") + pack(DATA) + pack(b"two"))
        assert open_file(tmp_path / "a", PACKERS).read(0, 1 << 30) == b"one" + DATA + b"two"

    @pytest.mark.parametrize("compression", PACKERS)
    def test_cut_off_or_damaged(self, tmp_path: Path, compression: str) -> None:
        """Truncated data is refused, and damaged data except in Zstandard without a checksum, which may not notice."""
        packed = PACKERS[compression](DATA)
        damaged = packed[:1000] + bytes(100) + packed[1100:]
        cut = [packed[:size] for size in (len(packed) - 1, len(packed) // 2, 13)]
        for data in cut if compression == "zstd" else [*cut, damaged]:
            (tmp_path / "a").write_bytes(data)
            with pytest.raises(SourceError, match="a cannot be unpacked: damaged or cut off: "):
                open_file(tmp_path / "a", PACKERS)

    def test_only_what_is_asked_for(self, tmp_path: Path) -> None:
        """Only the allowed compressions are recognised, and a format may exclude files by their first bytes."""
        data = gzip.compress(b"x")
        (tmp_path / "a").write_bytes(data)
        assert open_file(tmp_path / "a", ("zlib",)).read(0, 100) == data
        assert open_file(tmp_path / "a", ("gzip",), lambda head: head == data[:12]).read(0, 100) == data

    def test_no_room(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """If the temporary folder is full, the error names it and not the file."""
        (tmp_path / "a").write_bytes(gzip.compress(b"x"))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        told = r"a cannot be unpacked to the temporary folder .*none \(TMPDIR\): No such file"
        with pytest.raises(SourceError, match=told):
            open_file(tmp_path / "a", PACKERS)

    def test_zstd_without_pyarrow(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only Zstandard needs a package, and the error says which."""
        (tmp_path / "a").write_bytes(PACKERS["zstd"](b"x"))
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(MissingDependency, match="reading a, compressed with Zstandard, needs pyarrow"):
            open_file(tmp_path / "a", PACKERS)

    @pytest.mark.parametrize("make", [lambda path: None, os.mkfifo, os.mkdir])
    def test_no_file(self, tmp_path: Path, make: Callable[[Path], object]) -> None:
        """A pipe is refused, because opening it would block."""
        make(tmp_path / "a")
        with pytest.raises(SourceError, match=r"a cannot be read: (No such file|not a regular file|Is a directory)"):
            open_file(tmp_path / "a", PACKERS)

    def test_near(self, tmp_path: Path) -> None:
        """Any range is read in any order, also across the read-ahead's boundaries and past the end."""
        (tmp_path / "a").write_bytes(DATA[:20_000])
        file = File(tmp_path / "a")
        random = np.random.default_rng(0)
        file.fill_buffer(5000, 9000)
        for offset, size in zip(random.integers(0, 20_500, 300), random.integers(0, 6000, 300), strict=True):
            assert file.read_buffered(int(offset), int(size)) == DATA[:20_000][offset : offset + size]


def open_plain(path: Path) -> File:
    """An opener that can be pickled."""
    return open_file(path, ())


def spans(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """One record for each byte of a file."""
    size = path.stat().st_size
    return np.arange(size), np.ones(size, np.int64)


def open_below(folder: Path) -> int:
    """The number of files below `folder` that this process has open."""
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return sum(os.readlink(link).startswith(str(folder)) for link in links if os.path.lexists(link))


class TestPlaces:
    def test_records_of_many_files(self, tmp_path: Path) -> None:
        """Records are in the order of the files, files without records are skipped, and few files stay open."""
        paths = []
        for number, size in enumerate([0, 3, 0, 0, 2, *[1] * 20, 0]):
            (tmp_path / f"{number}").write_bytes(bytes([number]) * size)
            paths.append(tmp_path / f"{number}")
        places = ValueLocations(paths, scan_files(paths, spans), open_plain)
        expected = [(1, 0), (1, 1), (1, 2), (4, 0), (4, 1), *((number, 0) for number in range(5, 25))]
        assert len(places) == 25
        for source in (places, pickle.loads(pickle.dumps(places))):  # noqa: S301
            before = open_below(tmp_path)
            for index in (*range(25), *reversed(range(25))):
                file, row, offset, size = source.locate(index)
                assert (int(file.path.name), row) == expected[index]
                assert file.read(offset, size) == bytes([expected[index][0]])
            assert 0 < open_below(tmp_path) - before <= 8

    def test_probes(self, tmp_path: Path) -> None:
        """Probes are the first hundred records and the last, without repeats."""
        (tmp_path / "a").write_bytes(bytes(250))
        for count, expected in [(1, [0]), (3, [0, 1, 2]), (101, [*range(101)]), (250, [*range(100), 249])]:
            found = (np.arange(count), np.ones(count, np.int64))
            assert ValueLocations([tmp_path / "a"], [found], open_plain).probes().tolist() == expected

    def test_the_first_failure_is_told(self, tmp_path: Path) -> None:
        """The first failure in the order of the files is raised, whichever happens first."""
        with pytest.raises(SourceError, match="/0 cannot be read"):
            scan_files([tmp_path / f"{number}" for number in range(50)], open_plain)


# Which files `shardio index` takes, by their content.

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
    for kind, told in ((None, "found no tar, TFRecord, LMDB, HDF5 or Zarr file"), ("hdf5", r"found no HDF5 file$")):
        with pytest.raises(SourceError, match=told):
            find_by_content([str(tmp_path)], kind)
    (tmp_path / "a.npz").write_bytes(b"PK")
    for given in (tmp_path, tmp_path / "a.npz"):
        with pytest.raises(SourceError, match=f"file; `shardio convert numpy {given} OUT` takes NumPy files$"):
            find_by_content([str(given)])
