"""LMDB files become samples: Caffe's Datum messages and image files, written by the lmdb library."""

import os
import struct
from pathlib import Path
from random import Random
from typing import Any

import lmdb as library
import numpy as np
import pytest
from _builders import decoded, jpeg, overwrite, pixels, png, webp
from _cli import python
from _datasets import packed
from _foreign import Datum
from _sources import all_of, column
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio.containers.lmdb_pages import Pages
from shardio.errors import BadSample, ConfigError, SourceError
from shardio.format.fields import Field
from shardio.testing import check_source
from shardio_converters.lmdb import lmdb, open_lmdb, scan

PAGE = 4096


MAIN: dict[str, Any] = {"key": None}


def write(path: Path, entries: dict[bytes, bytes], deleted: int = 0, database: Any = MAIN, **options: Any) -> Path:
    """Write a database of an environment in several transactions; every `deleted`-th key is put and deleted again."""
    environment = library.open(str(path), map_size=1 << 28, max_dbs=2, **options)
    handle = environment.open_db(**database)
    keys = list(entries)
    for part in (keys[::2], keys[1::2]):
        with environment.begin(write=True, db=handle) as transaction:
            for key in part:
                transaction.put(key, entries[key])
    if deleted:
        with environment.begin(write=True) as transaction:
            for key in keys[::deleted]:
                transaction.delete(key)
                del entries[key]
    environment.close()
    return path


def datum(array: Any = None, label: int | None = None, data: bytes | None = None) -> bytes:
    """A Datum of raw uint8 or float [c, h, w], or of an encoded image."""
    message = Datum()
    if array is not None:
        message.channels, message.height, message.width = array.shape
        if array.dtype == np.uint8:
            message.data = array.tobytes()
        else:
            message.float_data.extend(array.reshape(-1).tolist())
    if data is not None:
        message.data, message.encoded = data, True
    if label is not None:
        message.label = label
    serialized: bytes = message.SerializeToString()
    return serialized


def as_caffe(rgb: Any) -> Any:
    """An RGB image in Caffe's layout: blue, green, red, each [h, w]."""
    return np.ascontiguousarray(rgb[..., ::-1].transpose(2, 0, 1))


class TestDatums:
    def test_encoded_images(self, tmp_path: Path) -> None:
        """Encoded images keep their bytes; samples are in the order of the keys."""
        images = [jpeg(seed=0), png(seed=1), webp(seed=2), jpeg(40, 60, seed=3)]
        entries = {b"%08d_a b.jpg" % (9 - n): datum(data=image, label=n - 1) for n, image in enumerate(images)}
        source = lmdb(write(tmp_path / "größe 1", entries))
        expected = [{"image": images[n], "label": n - 1, "key": f"{9 - n:08d}_a b.jpg"} for n in (3, 2, 1, 0)]
        check_source(source, expected, tmp_path / "out", image="image", label="int64", key="text")
        assert source.metadata == {"source": "lmdb"}
        assert source.sizes().tolist() == [len(entries[key]) for key in sorted(entries)]

    @pytest.mark.parametrize("bgr", [True, False])
    def test_raw_colors(self, tmp_path: Path, bgr: bool) -> None:
        """Raw pixels, blue first in Caffe, become PNG without loss."""
        pictures = [pixels(5 + n, 7, seed=n) for n in range(4)]
        stored = [as_caffe(rgb) if bgr else np.ascontiguousarray(rgb.transpose(2, 0, 1)) for rgb in pictures]
        pictures.append(grey := pixels(28, 28, 1))
        stored.append(grey[None])
        entries = {b"%02d" % n: datum(array, label=n) for n, array in enumerate(stored)}
        source = lmdb(write(tmp_path / "db", entries), bgr=bgr)
        for n, sample in enumerate(all_of(source)):
            np.testing.assert_array_equal(decoded(sample["image"]), pictures[n])
        check_source(source, all_of(source), tmp_path / "out", image="image", label="int64", key="text")

    @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
    @pytest.mark.parametrize("alike", [True, False])
    def test_arrays(self, tmp_path: Path, dtype: type, alike: bool) -> None:
        """Floats, and other numbers of channels, are arrays, of fixed shape if the first and the last agree."""
        random = np.random.default_rng(0)
        arrays = [random.integers(0, 255, (5, 2, 3 if alike else 3 + n)).astype(dtype) for n in range(4)]
        entries = {b"%d" % n: datum(array, n) for n, array in enumerate(arrays)}
        source = lmdb(write(tmp_path / "db", entries))
        expected = [{"array": array, "label": n, "key": f"{n}"} for n, array in enumerate(arrays)]
        field = Field("array", dtype=np.dtype(dtype).name, shape=(5, 2, 3) if alike else None)
        check_source(source, expected, tmp_path / "out", array=field)


@pytest.mark.parametrize("layout", ["auto", "image"])
def test_image_files(tmp_path: Path, layout: str) -> None:
    """Image files may have any keys, also such that are not text."""
    entries = {b"n01440764/x.JPEG": jpeg(), b"\xff\x00\xfe": png(), b"../../etc": jpeg(seed=4)}
    entries["größe".encode()] = webp()
    source = lmdb(write(tmp_path / "db", entries), layout=layout)
    names = ["../../etc", "größe", "n01440764/x.JPEG", "\\xff\0\\xfe"]
    expected = [{"image": entries[key], "key": name} for key, name in zip(sorted(entries), names, strict=True)]
    check_source(source, expected, tmp_path / "out", image="image", key="text")


class TestBadSamples:
    @pytest.mark.parametrize(
        ("value", "told"),
        [
            (b"\x0a\xff\xff", "not a Datum: byte 1: a number is cut short"),
            (datum(data=jpeg()[:-50]), "the jpeg image is cut short"),
            (datum(np.zeros((3, 2, 2), np.uint8))[:-3], "not a Datum"),
            (datum(np.zeros((4, 2, 2), np.uint8)), "its Datum holds an array, expected an image"),
            (
                Datum(channels=3, height=2, width=2, data=b"x").SerializeToString(),
                "a Datum of 3 x 2 x 2 holds 1 values",
            ),
            (Datum(channels=1, height=-1, width=-1, data=b"x").SerializeToString(), "1 x -1 x -1 holds 1 values"),
        ],
    )
    def test_among_images(self, tmp_path: Path, value: bytes, told: str) -> None:
        """A bad image is named by file and key, and its neighbours are read."""
        good = datum(data=jpeg(), label=1)
        source = lmdb(write(tmp_path / "db", {b"a": good, b"b": value, b"c": good}))
        with pytest.raises(BadSample, match=rf"data.mdb, key 'b': .*{told}"):
            source[1]
        assert source[2]["key"] == "c"

    def test_the_first_one(self, tmp_path: Path) -> None:
        """If the layout is given, a bad first value does not hide the others."""
        path = write(tmp_path / "db", {b"a": b"\xff", b"b": datum(np.zeros((5, 2, 2), np.uint8), 3)})
        told = r"the first value is neither an image nor a Datum; .*key 'a': not a Datum"
        with pytest.raises(SourceError, match=told):
            lmdb(path)
        assert lmdb(path, layout="datum")[1]["label"] == 3


class TestRefusals:
    def test_shards_of_shardio(self, tmp_path: Path) -> None:
        """Shards of shardio are refused with the command to use instead."""
        packed(tmp_path / "data", [{"image": jpeg()}], container="lmdb")
        for path in (tmp_path / "data", tmp_path / "data" / "shard-000000.lmdb"):
            with pytest.raises(SourceError, match=r"was written by shardio; .* by `shardio reshard`"):
                lmdb(path)

    @pytest.mark.parametrize(
        ("entries", "layout", "told"),
        [
            ({}, "auto", "data.mdb holds no entries"),
            ({b"a": b"some text"}, "auto", "the first value is neither an image nor a Datum"),
            ({b"a": b""}, "auto", "not a Datum: it has no values"),
            ({b"a": b"\xff"}, "datum", r"no Datum can be read: .*key 'a': not a Datum"),
            (None, "auto", r"lmdb takes a directory that holds data.mdb, or a file; .*No such file"),
            ({}, "caffe", "layout must be one of auto, datum, image, got 'caffe'"),
        ],
    )
    def test_nothing_to_be_had(
        self, tmp_path: Path, entries: dict[bytes, bytes] | None, layout: str, told: str
    ) -> None:
        """An environment that is empty or has other values, a folder without one, and unknown layouts are refused."""
        with pytest.raises((SourceError, ConfigError), match=told):
            lmdb(tmp_path if entries is None else write(tmp_path / "db", entries), layout=layout)


# The pages, as the lmdb library wrote them.


def found(path: Path) -> list[tuple[bytes, bytes]]:
    """Keys and values of all entries, in the order of the scan."""
    file = open_lmdb(path)
    entries = []
    for place in scan(file):
        key, key_size, offset, size = (int(number) for number in place)
        entries.append((file.read_exactly(key, key_size), file.read_exactly(offset, size)))
    return entries


def entries_of(count: int, largest: int, longest: int = 8, seed: int = 0) -> dict[bytes, bytes]:
    """Entries in random order, with keys of 8 to 8 + `longest` bytes and values of up to `largest` bytes."""
    numbers = Random(seed)
    return {
        numbers.randbytes(8 + numbers.randrange(longest)): numbers.randbytes(numbers.randrange(largest + 1))
        for _ in range(count)
    }


class TestEntries:
    @pytest.mark.parametrize(
        ("count", "largest", "longest"),
        [
            (0, 0, 1),
            (1, 10, 1),
            (3, 0, 1),
            (3000, 30, 8),
            (300, 5000, 8),
            (40, 70_000, 8),
            (3000, 100, 500),
            (9, 2050, 1),
        ],
    )
    @pytest.mark.parametrize("deleted", [0, 3])
    def test_what_lmdb_wrote(self, tmp_path: Path, count: int, largest: int, longest: int, deleted: int) -> None:
        """Trees of any depth, overflow pages, long keys and deleted entries are read as the lmdb library does."""
        entries = entries_of(count, largest, longest)
        path = write(tmp_path / "db", entries, deleted)
        assert found(path) == sorted(entries.items())

    def test_places_are_those_of_the_lookup(self, tmp_path: Path) -> None:
        """Offsets are those of a lookup by key; reading makes no lock, and others may have the file open."""
        path = write(tmp_path / "a.mdb", entries_of(500, 5000), subdir=False, lock=False)
        with library.open(str(path), subdir=False, readonly=True, lock=False):
            file = open_lmdb(path)
            pages = Pages(file.fileno(), file.size)
            for place in scan(file):
                key = file.read_exactly(int(place["key"]), int(place["key_size"]))
                assert pages.find(key) == (place["offset"], place["size"])
            assert os.listdir(tmp_path) == ["a.mdb"]


@pytest.mark.parametrize("data", [b"", b"x" * 10, b"x" * 10_000, bytes(10_000)])
def test_not_an_lmdb(tmp_path: Path, data: bytes) -> None:
    """A file is refused if its first page is not LMDB's."""
    (tmp_path / "a.mdb").write_bytes(data)
    with pytest.raises(SourceError, match=r"a.mdb: not an LMDB file"):
        scan(open_lmdb(tmp_path / "a.mdb"))


class TestDamagedPages:
    def test_cut_anywhere(self, tmp_path: Path) -> None:
        """A file that is truncated anywhere is refused before any value is read."""
        path = write(tmp_path / "db", entries_of(60, 5000)) / "data.mdb"
        data = path.read_bytes()
        for size in range(2 * PAGE, len(data) - 6 * PAGE, 5 * PAGE + 1000):
            path.write_bytes(data[:size])
            with pytest.raises(SourceError, match=r"data.mdb: damaged or cut off: "):
                found(path)

    def test_pages_that_lead_round(self, tmp_path: Path) -> None:
        """A branch page that refers to itself or repeatedly to others is an error, not an endless loop."""
        path = write(tmp_path / "db", entries_of(3000, 30)) / "data.mdb"
        data = bytearray(path.read_bytes())
        branches = [at for at in range(2 * PAGE, len(data), PAGE) if data[at + 10] == 1]
        for at in branches:
            first = int.from_bytes(data[at + 16 : at + 18], "little")
            data[at + first : at + first + 6] = (at // PAGE).to_bytes(6, "little")
        path.write_bytes(data)
        with pytest.raises(SourceError, match=r"damaged: page \d+ contradicts the pages above it"):
            scan(open_lmdb(path))

    def test_entries_that_are_missing(self, tmp_path: Path) -> None:
        """A leaf page with fewer entries than the tree claims is an error, so that no samples are silently missing."""
        path = write(tmp_path / "db", entries_of(20, 30)) / "data.mdb"
        data = bytearray(path.read_bytes())
        for at in (at for at in range(2 * PAGE, len(data), PAGE) if data[at + 10] == 2):
            lower = int.from_bytes(data[at + 12 : at + 14], "little")
            data[at + 12 : at + 14] = (lower - 2).to_bytes(2, "little")
        path.write_bytes(data)
        with pytest.raises(SourceError, match="damaged: it has 20 entries, 19 are found"):
            scan(open_lmdb(path))

    @settings(max_examples=100, deadline=None)
    @given(
        damage=st.lists(
            st.tuples(st.integers(0, 10**6), st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=6
        )
    )
    def test_random_damage(self, whole: Path, damage: list[tuple[int, int, int]]) -> None:
        """Any damage in the pages gives offsets within the file or SourceError, and never ends the process."""
        data = bytearray(whole.read_bytes())
        for page, at, value in damage:
            data[(page * PAGE + at) % len(data)] = value
        damaged = whole.with_name("damaged.mdb")
        damaged.write_bytes(data)
        file = open_lmdb(damaged)
        try:
            places = scan(file)
        except SourceError:
            return
        for place in places.tolist():
            file.read_exactly(place[0], place[1])
            file.read_exactly(place[2], place[3])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data file with a branch page, values of all sizes and deleted entries."""
    return write(tmp_path_factory.mktemp("whole"), entries_of(200, 2500), 5) / "data.mdb"


# Layouts of other programs.


class TestOtherLayouts:
    def test_pairs_of_text_recognition(self, tmp_path: Path) -> None:
        """Images and the texts on them are pairs, in the order of their numbers, also in place."""
        images = {b"image-%09d" % n: jpeg(n) for n in range(1, 12)}
        texts = {b"label-%09d" % n: f"wörd {n}".encode() for n in range(1, 12)}
        path = write(tmp_path / "db", {**images, **texts, b"num-samples": b"11"})
        expected = [{"image": jpeg(n), "text": f"wörd {n}", "key": f"image-{n:09d}"} for n in range(1, 12)]
        check_source(lmdb(path), expected, tmp_path / "out")
        shardio.index(path, tmp_path / "index", tell=lambda note: None)
        assert shardio.open(tmp_path / "index")[10]["text"] == "wörd 11"

    def test_pairs_that_do_not_pair(self, tmp_path: Path) -> None:
        """A label that is missing is named, rather than that texts and images are shifted."""
        entries = {b"image-%09d" % n: jpeg(n) for n in (1, 2, 3)} | {b"label-%09d" % n: b"a" for n in (1, 3)}
        with pytest.raises(SourceError, match=r"its keys must pair, .*: expected b'label-000000003', got b''"):
            lmdb(write(tmp_path / "db", {**entries, b"num-samples": b"3"}))

    def test_counts_are_no_samples(self, tmp_path: Path) -> None:
        """Entries that count or list the others neither decide what the values are, nor are samples."""
        entries = {b"__keys__": b"img0,img1", b"__len__": b"2", b"img0": jpeg(2), b"img1": jpeg(1), b"length": b"2"}
        source = lmdb(write(tmp_path / "db", entries))
        assert column(source, "key") == ["img0", "img1"]
        assert "no samples: '__keys__', '__len__', 'length'" in source.hints[-1]

    def test_a_named_database(self, tmp_path: Path) -> None:
        """The only named database is taken, of several the one that is chosen; keys that are integers are numbers."""
        numbered = {struct.pack("<Q", n): jpeg(n) for n in (300, 5)}
        path = write(tmp_path / "db", numbered, database={"key": b"train", "integerkey": True})
        assert [lmdb(path)[n]["key"] for n in (0, 1)] == ["5", "300"]
        write(path, {b"a": jpeg(7)}, database={"key": b"val"})
        with pytest.raises(SourceError, match="holds named databases: database takes one of 'train', 'val'"):
            lmdb(path)
        assert lmdb(path, database="val")[0] == {"image": jpeg(7), "key": "a"}
        with pytest.raises(ConfigError, match=r"its named databases are 'train', 'val', got database='test'"):
            lmdb(path, database="test")
        one = write(tmp_path / "one", {b"a": jpeg(7)}, database={"key": b"x"})
        shardio.index(one, tmp_path / "out", tell=lambda note: None)
        assert shardio.open(tmp_path / "out")[0]["key"] == "a"

    def test_several_values_for_a_key(self, tmp_path: Path) -> None:
        """A database with several values for a key is refused, with a way out, whether it has a name or none."""
        unnamed = write(tmp_path / "unnamed", {b"a": b"b"})
        for at in (92, PAGE + 92):
            overwrite(unnamed / "data.mdb", at, b"\4")  # MDB_DUPSORT, which py-lmdb sets for no database without a name
        for path in (unnamed, write(tmp_path / "db", {b"a": b"1"}, database={"key": b"db", "dupsort": True})):
            with pytest.raises(SourceError, match=r"\(DUPSORT\): copy it to a database with a key for each"):
                lmdb(path)

    @pytest.mark.skipif(library.__version__ < "3", reason="this lmdb knows no format but that of 0.9")
    def test_the_format_of_lmdb_1(self, tmp_path: Path) -> None:
        """A file in the format of LMDB 1.0 is refused by name; shards are in that of 0.9 in any case."""
        with library.open(str(tmp_path / "db"), lib_version=1) as environment, environment.begin(write=True) as one:
            one.put(b"a", jpeg(1))
        with pytest.raises(SourceError, match=r"written in the format of LMDB 1\.0, .*: copy it with py-lmdb 3"):
            lmdb(tmp_path / "db")
        code = (
            "import shardio\n"
            "with shardio.create('out', container='lmdb', fields={'x': 'int64'}) as writer: writer.append({'x': 7})\n"
            "print(shardio.open('out')[0])"
        )
        environ = {**os.environ, "LMDB_DEFAULT_LIB_VERSION": "1"}
        assert python("-c", code, cwd=tmp_path, env=environ).stdout == "{'x': 7}\n"
