"""Zarr stores are read in place: their numbers are those that zarr reads, and a chunk that changes is named."""

import errno
import io
import json
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr as library
from _builders import overwrite, zipped
from _zarr_stores import column, grouped, lose, rewrite
from zarr import codecs

import shardio
from shardio.care.repair import repair
from shardio.containers import zarr_index
from shardio.containers.chunk_cache import CHUNKS
from shardio.conversion.source import find
from shardio.errors import BadSample, ConfigError, ShardCorrupt, SourceError, SourceWarning
from shardio.native import rows as compiled
from shardio.system.directory import Directory

pytestmark = pytest.mark.filterwarnings(
    "ignore:left out", "ignore:.*chunks are not there", "ignore:Numcodecs codecs", "ignore:.*fork"
)


class TestDigests:
    @pytest.mark.parametrize("form", [2, 3])
    def test_a_converted_dataset_has_the_same_digest(self, tmp_path: Path, form: int) -> None:
        """With checksums, a store in place has the digest of what it is converted to, resharded too."""
        store = grouped(tmp_path / "a.zarr", form)
        shardio.convert(store, tmp_path / "c", converter="zarr", container="hdf5", converter_options={"fields": "x,t"})
        shardio.index(store, tmp_path / "d", fields="x,t", checksums=True)
        shardio.index(store, tmp_path / "e", fields="x,t")
        digests = [shardio.open(tmp_path / name).digest for name in "cde"]
        assert digests[0] == digests[1] != digests[2]
        shardio.convert(tmp_path / "e", tmp_path / "f")
        assert shardio.open(tmp_path / "f").digest == digests[0]


class TestIndex:
    @pytest.mark.parametrize("form", [2, 3])
    def test_an_axis_by_its_name(self, tmp_path: Path, form: int) -> None:
        """The arrays that have the axis become fields, with the axis first; the others are told."""
        made = shardio.index(grouped(tmp_path / "a.zarr", form), tmp_path / "d", axis="lat")
        assert [note for note in made.notes if "left out" in note] == ["left out 't': it has no axis 'lat'"]
        dataset = shardio.open(tmp_path / "d")
        assert dataset.fields["x"].shape == (24, 8)
        assert len(dataset) == 6
        expected = np.arange(24 * 48).reshape(24, 6, 8)[:, [5, 0]].swapaxes(0, 1)
        np.testing.assert_array_equal(column(dataset, [5, 0], "x"), expected)
        with pytest.raises(SourceError, match="holds no arrays with rows"):
            shardio.index(tmp_path / "a.zarr", tmp_path / "e", axis="height")

    def test_no_chunk_is_read(self, tmp_path: Path) -> None:
        """Without checksums nothing but metadata and names is read: damage in every chunk does not stop it."""
        store = grouped(tmp_path / "a.zarr")
        for chunk in store.rglob("c/*"):
            if chunk.is_file():
                chunk.write_bytes(b"damage")
        shardio.index(store, tmp_path / "d", axis="time")
        found = shardio.verify(tmp_path / "d")
        assert not found.found
        assert found.unchecked
        assert shardio.verify(tmp_path / "d", deep=True).count == 24
        with pytest.raises(BadSample, match=r"field 't', row 0: the chunk c/0 is damaged: zstd"):
            shardio.index(store, tmp_path / "e", axis="time", checksums=True)

    def test_several_stores_are_shards(self, tmp_path: Path) -> None:
        """The stores of a folder, or of a pattern, are shards in the order of their names."""
        for month in (1, 2):
            grouped(tmp_path / "months" / f"m{month}.zarr", rows=10 * month)
        shardio.index(tmp_path / "months", tmp_path / "d", axis="time")
        assert len(shardio.open(tmp_path / "d")) == 30
        shardio.index(str(tmp_path / "months" / "*.zarr"), tmp_path / "d", axis="time", overwrite=True)
        assert column(shardio.open(tmp_path / "d"), [9, 10, 29], "t").tolist() == [9, 0, 19]
        assert shardio.index(tmp_path / "months", tmp_path / "d", axis="time", resume=True).datasets

    def test_beside_the_store(self, tmp_path: Path) -> None:
        """In the store's own folder nothing but an index and the manifest is written."""
        store = grouped(tmp_path / "a.zarr")
        shardio.index(store, tmp_path, axis="time")
        assert sorted(os.listdir(tmp_path)) == ["a.zarr", "a.zarr.idx.npy", "a.zarr.sums.idx.npy", "shardio.json"]
        assert not shardio.verify(tmp_path, deep=True).found

    @pytest.mark.parametrize("form", [2, 3])
    def test_chunks_that_are_not_there_are_told(self, tmp_path: Path, form: int) -> None:
        """A store of which chunks were lost before it was indexed, or never written, or bear other names, is told."""
        store = grouped(tmp_path / "a.zarr", form)
        told = shardio.index(store, tmp_path / "d", axis="time").notes
        assert not [note for note in told if "not there" in note]
        for name in ("c/1/0/0", "1.0.0", "c/5/1/0", "5.1.0"):
            (store / "x" / name).unlink(missing_ok=True)
        key = {2: "1.0.0", 3: "c/1/0/0"}[form]
        words = "field 'x': 2 of 12 chunks are not there, the first is {} of a.zarr: their values are the "
        with pytest.warns(SourceWarning, match=re.escape(f"{words.format(key)}fill value, 0.0")):
            shardio.index(store, tmp_path / "e", axis="time", checksums=True)
        if form == 2:
            path = store / "x" / ".zarray"
            path.write_text(path.read_text().replace('"."', '"/"'))
            with pytest.raises(SourceError, match=r"12 of 12 chunks are not there, .*chunks under other names"):
                shardio.index(store, tmp_path / "f", axis="time")

    def test_metadata_of_two_formats(self, tmp_path: Path) -> None:
        """Metadata of both formats beside each other are refused where they name other chunks, and else agree."""
        one, other = (grouped(tmp_path / f"{form}.zarr", form, compressors=None) for form in (2, 3))
        (one / "x" / "zarr.json").write_bytes((other / "x" / "zarr.json").read_bytes())
        told = "left out 'x': has metadata of format 2 and of format 3, which differ in its shape"
        with pytest.raises(SourceError, match=told):
            shardio.index(one, tmp_path / "d", axis="time", strict=True)
        text = (other / "x" / "zarr.json").read_text()
        named = json.loads(text) | {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}}
        (one / "x" / "zarr.json").write_text(json.dumps(named))
        shardio.index(one, tmp_path / "d", axis="time")
        np.testing.assert_array_equal(column(shardio.open(tmp_path / "d"), [5], "x").ravel(), np.arange(240, 288))

    def test_what_random_order_costs_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Chunks of many rows that are not kept are told, as those of HDF5 files are, packed or not."""
        monkeypatch.setattr(CHUNKS, "most", 1 << 9)
        array = library.create_array(tmp_path / "a.zarr", shape=(24, 6, 8), chunks=(12, 6, 8), dtype="f4")
        array[...] = 1
        array.attrs["scale_factor"] = 0.5  # float64, so that a row is of twice the bytes
        for decode, times in ((True, 6), (False, 12)):
            options: dict[str, Any] = {"decode_cf": decode, "tell": lambda note: None}
            notes = shardio.index(tmp_path / "a.zarr", tmp_path / f"{decode}", **options).notes
            words = "'array' is in chunks of 12 samples"
            assert any(words in note and f"decompresses {times} times" in note for note in notes)

    def test_what_is_no_number_is_refused(self, tmp_path: Path) -> None:
        """Texts are not read in place: the error names the array and what to do."""
        group = library.open_group(tmp_path / "a.zarr", mode="w")
        group.create_array("names", shape=(3,), dtype=str, chunks=(3,))[...] = np.array(["a", "b", "c"], object)
        told = r"'names' is not read in place, .* choose others with fields, or convert"
        with pytest.raises(SourceError, match=told):
            shardio.index(tmp_path / "a.zarr", tmp_path / "d")

    def test_verify_needs_checksums(self, tmp_path: Path) -> None:
        """A Loader that is to compare checksums, where there are none, says so at once."""
        shardio.index(grouped(tmp_path / "a.zarr"), tmp_path / "d", axis="time")
        told = r"its samples have no checksums to compare: .* reads them with checksums=True"
        with pytest.raises(ConfigError, match=told):
            shardio.Loader(tmp_path / "d", batch_size=2, verify=True)
        shardio.index(tmp_path / "a.zarr", tmp_path / "d", axis="time", checksums=True, overwrite=True)
        batches = list(shardio.Loader(tmp_path / "d", batch_size=6, verify=True))
        assert sorted(np.concatenate([np.asarray(batch["t"]) for batch in batches]).tolist()) == list(range(24))


def lengthen(chunk: Path) -> None:
    chunk.write_bytes(chunk.read_bytes() + b"\0")


def link(chunk: Path) -> None:
    """Put a link to the same bytes in its place."""
    chunk.rename(chunk.with_name("moved"))
    chunk.symlink_to(chunk.with_name("moved"))


def link_folder(chunk: Path) -> None:
    """Put a link to the same folder in the place of its folder."""
    link(chunk.parent)


class TestChanges:
    @pytest.mark.parametrize("sharded", [False, True])
    @pytest.mark.parametrize(
        ("change", "told"),
        [
            (lose, "is missing"),
            (rewrite, "was written anew since it was indexed"),
            (lengthen, "was written anew since it was indexed: it has"),
            (link, "is behind a link"),
            (link_folder, "is behind a link"),
        ],
    )
    @pytest.mark.parametrize("in_one_call", [True, False])
    def test_a_chunk_that_is_not_as_it_was(
        self, tmp_path: Path, change: Callable[[Path], None], told: str, sharded: bool, in_one_call: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        """A chunk lost or written anew makes bad samples, named by store, array, chunk and row; verify finds it."""
        if not in_one_call:  # as where the system has no openat2
            monkeypatch.setattr(compiled, "open_below", lambda folder, name: -errno.ENOSYS)
        shards = {"shards": (8, 6, 8)} if sharded else {}
        store = tmp_path / "a.zarr"
        array = library.create_array(store, shape=(24, 6, 8), chunks=(4, 3, 8), dtype="f4", **shards)
        array[...] = data = np.random.default_rng(0).random((24, 6, 8), np.float32)
        shardio.index(store, tmp_path / "d")
        change(store / "c" / "1" / "0" / "0")
        bad = range(8, 16) if sharded else range(4, 8)
        dataset = shardio.open(tmp_path / "d")
        good = [row for row in range(24) if row not in bad]
        np.testing.assert_array_equal(column(dataset, good), data[good])
        place = rf"shard-000000.zarr, field '', row {bad[1]}: the chunk c/1/0/0 {told}"
        with pytest.raises(ShardCorrupt, match=place):
            column(dataset, [bad[1]])
        (problem,) = shardio.verify(tmp_path / "d").problems
        assert f"the chunk c/1/0/0 {told}" in problem
        loader = shardio.Loader(tmp_path / "d", batch_size=4, on_bad_sample="replace", max_bad=24)
        assert sum(1 for _ in loader) == 6
        assert loader.quarantine()

    def test_a_chunk_that_there_was_not(self, tmp_path: Path) -> None:
        """A chunk written after indexing is told, where the fill value was indexed."""
        array = library.create_array(tmp_path / "a.zarr", shape=(8,), chunks=(2,), dtype="i4", fill_value=7)
        array[:4] = np.arange(4)
        shardio.index(tmp_path / "a.zarr", tmp_path / "d")
        assert column(shardio.open(tmp_path / "d"), range(8)).tolist() == [0, 1, 2, 3, 7, 7, 7, 7]
        array[4:6] = 1
        shardio.open(tmp_path / "d")
        with pytest.raises(ShardCorrupt, match="row 4: the chunk c/2 was written since the store was indexed"):
            column(shardio.open(tmp_path / "d"), [4])

    @pytest.mark.parametrize("location", ["start", "end"])
    @pytest.mark.parametrize("cut", [1, 40, 400])
    def test_a_shard_cut_short(self, tmp_path: Path, location: str, cut: int) -> None:
        """A shard that lost its end is named, also where no index tells its size: its own index has a checksum."""
        codec = codecs.ShardingCodec(chunk_shape=(2, 8), index_location=location)
        how: dict[str, Any] = {"shape": (8, 8), "chunks": (8, 8), "dtype": "f8", "zarr_format": 3, "codecs": [codec]}
        array = library.create(store=tmp_path / "a", **how)
        array[...] = np.random.default_rng(0).random((8, 8))
        shard = tmp_path / "a" / "c" / "0" / "0"
        shard.write_bytes(shard.read_bytes()[:-cut])
        source = find("zarr")(tmp_path / "a")
        with pytest.raises(BadSample, match="row 7: the chunk c/0/0 "):
            source[7]

    def test_a_zip_file_that_changed(self, tmp_path: Path) -> None:
        """A zip file written anew is refused as a whole."""
        shardio.index(zipped(grouped(tmp_path / "a.zarr")), tmp_path / "d", axis="time")
        os.utime(tmp_path / "a.zip", ns=(1, 1))
        with pytest.raises(ShardCorrupt, match=r"shard-000000.zip: was written anew since it was indexed"):
            column(shardio.open(tmp_path / "d"), [0], "t")
        assert "written anew" in shardio.verify(tmp_path / "d").problems[0]

    @pytest.mark.parametrize("arguments", [
        {"shape": (12, 8), "chunks": (4, 8)},
        {"shape": (12, 2048), "chunks": (4, 2048)},  # rows that are read without their chunk
        {"shape": (12, 8), "chunks": (2, 8), "shards": (4, 8)},
    ])  # fmt: skip
    def test_the_checksums_of_a_zip_file(self, arguments: dict[str, Any], tmp_path: Path) -> None:
        """Where samples are read for their checksums, or converted, those of the zip's members are compared."""
        array = library.create_array(tmp_path / "a.zarr", dtype="i8", compressors=None, **arguments)
        array[...] = np.arange(array.size).reshape(array.shape)
        path = zipped(tmp_path / "a.zarr")
        path.write_bytes(path.read_bytes().replace(array[5].tobytes(), bytes(array[5].nbytes), 1))
        shardio.index(path, tmp_path / "d")  # reads no chunk
        for name, read in (
            ("e", partial(shardio.index, checksums=True)),
            ("f", partial(shardio.convert, converter="zarr")),
        ):
            with pytest.raises(BadSample, match=r"the chunk c/1/0 is damaged: its CRC-32 \w+ is not \w+"):
                read(path, tmp_path / name)
            read(path, tmp_path / name, on_error="skip", max_bad=4)
            kept = shardio.open(tmp_path / name)
            assert column(kept, range(len(kept)))[:, 0].tolist() == array[[*range(4), *range(8, 12)], 0].tolist()

    @pytest.mark.parametrize(("at", "value"), [
        (0, 0),  # no header
        (8, 8),  # another method
        (14, 255),  # another CRC-32
        (18, 255),  # other bytes
        (30, 255),  # another name
    ])  # fmt: skip
    def test_a_member_that_its_zip_file_describes_twice(self, at: int, value: int, tmp_path: Path) -> None:
        """A member whose own header says something else than the directory is refused."""
        path = zipped(grouped(tmp_path / "a.zarr"))
        with zipfile.ZipFile(path) as file:
            begin = file.getinfo("t/c/0").header_offset
        overwrite(path, begin + at, bytes([value]))
        with pytest.raises(SourceError, match=r"a.zip, t/c/0: (its own header differs|the zip file is damaged)"):
            shardio.index(path, tmp_path / "d", axis="time")

    @pytest.mark.parametrize("zip64", [False, True])
    def test_a_zip_file_that_is_streamed(self, zip64: bool, tmp_path: Path) -> None:
        """Members whose sizes follow them, or stand in an extra field, are read."""

        class Pipe(io.RawIOBase):
            def write(self, data: Any) -> int:
                return out.write(data)

        store = grouped(tmp_path / "a.zarr")
        with open(tmp_path / "a.zip", "wb") as out, zipfile.ZipFile(Pipe(), "w") as file:
            for one in filter(Path.is_file, store.rglob("*")):
                with file.open(str(one.relative_to(store)), "w", force_zip64=zip64) as member:
                    member.write(one.read_bytes())
        shardio.index(tmp_path / "a.zip", tmp_path / "d", axis="time", checksums=True)
        assert len(shardio.open(tmp_path / "d")) == 24

    def test_metadata_that_changed(self, tmp_path: Path) -> None:
        """Metadata written anew do not change how the indexed chunks are read, and verify tells."""
        store = grouped(tmp_path / "a.zarr")
        shardio.index(store, tmp_path / "d", axis="time")
        text = (store / "t" / "zarr.json").read_text()
        (store / "t" / "zarr.json").write_text(text.replace('"fill_value": 0', '"fill_value": 1'))
        (problem,) = shardio.verify(tmp_path / "d").problems
        assert problem.endswith("field 't': its metadata are not those that were indexed")

    def test_repair_makes_no_index(self, tmp_path: Path) -> None:
        """An index that is lost, or whole, is not made anew of stores that may have changed since; index does that."""
        store = grouped(tmp_path / "a.zarr")
        shardio.index(store, tmp_path / "d", axis="time")
        for lose_one in (False, True):
            if lose_one:
                (tmp_path / "d" / "shard-000000.zarr.idx.npy").unlink()
                assert "shard-000000.zarr.idx.npy is missing" in shardio.verify(tmp_path / "d").problems[0]
            with pytest.raises(ConfigError, match=r"repair makes no index of zarr stores: .* `shardio index STORES -o"):
                repair(tmp_path / "d")
        shardio.index(store, tmp_path / "e", axis="time")
        assert len(shardio.open(tmp_path / "e")) == 24


class TestHostile:
    @pytest.mark.parametrize("name", ["x/c", "x", "x/c/0"])
    def test_links_in_a_store_lead_nowhere(self, tmp_path: Path, name: str) -> None:
        """A link in a store is refused, or passed over and told; a link to a store is one."""
        store = grouped(tmp_path / "a.zarr")
        (store / name).rename(tmp_path / "outside")
        (store / name).symlink_to(tmp_path / "outside")
        (tmp_path / "link.zarr").symlink_to(store)
        if name == "x":
            made = shardio.index(tmp_path / "link.zarr", tmp_path / "d", axis="time")
            assert "left out 'x': it is a link, which is not followed" in made.notes
            return
        with pytest.raises(SourceError, match="is a link"):
            shardio.index(tmp_path / "link.zarr", tmp_path / "d", axis="time")

    @pytest.mark.parametrize("path", ["../outside", "/etc", "x/../../outside", "a/./b"])
    def test_an_index_names_nothing_outside(self, tmp_path: Path, path: str) -> None:
        """The path of an array in an index does not leave the store."""
        library.create_array(tmp_path / "outside", shape=(4,), chunks=(2,), dtype="i4")[...] = np.arange(4)
        shardio.index(grouped(tmp_path / "a.zarr", rows=4), tmp_path / "d", fields="t")
        index = zarr_index.read(tmp_path / "d" / "shard-000000.zarr")
        changed = {"t": replace(index.arrays["t"], path=path)}
        zarr_index.write(Directory(tmp_path / "d"), "shard-000000.zarr", replace(index, arrays=changed))
        with pytest.raises(ShardCorrupt, match="is no path of an array"):
            column(shardio.open(tmp_path / "d"), [0], "t")
