"""Damage that holds libhdf5 for ever costs the samples that it concerns, and a bounded time."""

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from _hdf5_files import write_hdf5
from _held_hdf5 import TEXTS, hold, hold_at

import shardio
from shardio import World, containers
from shardio.containers import hdf5_index
from shardio.conversion.adopt import adopt
from shardio.errors import BadSample, ShardCorrupt, SourceError
from shardio.format.fields import as_fields
from shardio.source import find
from shardio.system import helper_process
from shardio.system.directory import Directory

HDF5 = containers.get("hdf5")
FIELDS = as_fields({"x": "text", "number": "int64"})


def write(path: Path) -> Path:
    """A file of another program: texts and numbers."""
    return write_hdf5(path, x={"data": TEXTS, "dtype": h5py.string_dtype()}, number=np.arange(len(TEXTS)))


def hold_opening(path: Path) -> None:
    """Damage a file's structure so that libhdf5 reads it for ever."""
    data = bytearray(path.read_bytes())
    heap = data.index(b"HEAP")
    size, _, names = struct.unpack_from("<QQQ", data, heap + 8)
    struct.pack_into("<Q", data, heap + 16, size - 16)  # the list of free blocks begins with the last one,
    struct.pack_into("<QQ", data, names + size - 16, size - 16, 16)  # which is followed by itself
    path.write_bytes(data)


def test_values(tmp_path: Path) -> None:
    """A value that holds libhdf5 is named as a time-out, at once if it is asked for again; the others are read."""
    path = write(tmp_path / "a.h5")
    held = hold(path)
    good = [row for row in range(len(TEXTS)) if row not in held]
    assert len(held) > 1
    assert len(good) > 1
    hdf5_index.write(Directory(path.parent), path.name, hdf5_index.Layout({"x": "x", "number": "number"}), {})
    reader = HDF5.reader(path, FIELDS)
    with helper_process.time_limit(0.8):
        begun = time.monotonic()
        for _ in range(20):
            with pytest.raises(ShardCorrupt, match=rf"a.h5, field 'x', row {held[0]}: timed out: libhdf5 .* 0.8 s"):
                reader.read(np.array([good[0], held[0]]), "x")
        assert time.monotonic() - begun < 8.0
    assert reader.read(np.array(good), "x") == [TEXTS[row].encode() for row in good]
    np.testing.assert_array_equal(reader.read(np.array(held), "number"), held)


def test_opening_an_adopted_file(tmp_path: Path) -> None:
    """A file of another program that holds libhdf5 while it is opened is refused as a time-out."""
    path = write(tmp_path / "a.h5")
    columns = {"number": np.arange(len(TEXTS))}
    hdf5_index.write(Directory(path.parent), path.name, hdf5_index.Layout({"x": "x"}), columns)
    hold_opening(path)
    with helper_process.time_limit(0.5):
        for _ in range(2):
            with pytest.raises(ShardCorrupt, match=r"a.h5: cannot be opened: timed out: libhdf5 .* 0.5 s"):
                HDF5.reader(path, FIELDS)


def test_fields_of_a_shard(tmp_path: Path) -> None:
    """The description of the fields that a shard holds for its repair may hold libhdf5 too."""
    path = tmp_path / "s.h5"
    HDF5.writer(path, FIELDS, 0).close()
    assert HDF5.read_fields(path) == FIELDS
    hold_at(path, path.read_bytes().index(b"GCOL"))
    with helper_process.time_limit(0.5), pytest.raises(ShardCorrupt, match="timed out"):
        HDF5.read_fields(path)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
def test_loading(tmp_path: Path, isolate: bool) -> None:
    """A loader passes over them, within a quarter of its timeout, and records that they timed out."""
    path = write(tmp_path / "a.h5")
    adopt(find("hdf5")(path), tmp_path / "data")
    held = hold(path)
    options: dict[str, Any] = {"world": World(), "threads": 1, "on_bad_sample": "mask", "max_bad": len(TEXTS)}
    loader = shardio.Loader(tmp_path / "data", 3, timeout=12.0 if isolate else 6.0, isolate=isolate, **options)
    delivered = {
        int(index): text
        for batch in loader
        for index, text, valid in zip(batch["index"], batch["x"], batch["valid"], strict=True)
        if valid
    }
    assert delivered == {row: text for row, text in enumerate(TEXTS) if row not in held}
    records = loader.quarantine()
    assert sorted(record.location.index for record in records) == held
    assert all("timed out: libhdf5 took longer than" in record.reason for record in records)


@pytest.mark.slow
def test_converting(tmp_path: Path) -> None:
    """A conversion passes over them, and records that they timed out, by processes too."""
    path = write(tmp_path / "a.h5")
    held = hold(path)
    options: dict[str, Any] = {"read_timeout": 0.8}
    with pytest.raises(BadSample, match=rf"a.h5, x, row {held[0]}: timed out: libhdf5 took longer than"):
        find("hdf5")(path, **options)[held[0]]
    allowed = {"on_error": "skip", "max_bad": len(TEXTS), "workers": 2}
    made = shardio.convert(path, tmp_path / "out", converter="hdf5", converter_options=options, **allowed)
    assert [skipped.number for skipped in made.skipped] == held
    assert all("timed out" in skipped.reason for skipped in made.skipped)
    assert len(shardio.open(tmp_path / "out")) == len(TEXTS) - len(held)


@pytest.mark.parametrize(
    ("filters", "damage", "what"),
    [
        # a first block whose size lies far beyond the chunk's end
        (hdf5plugin.Bitshuffle(nelems=16), lambda c: c[:12] + struct.pack(">I", 2**31 - 1) + c[16:], "libhdf5 crashed"),
        (hdf5plugin.BZip2(), lambda c: c[:-20], "timed out: libhdf5"),  # the filter waits for its end for ever
    ],
    ids=["bitshuffle", "bzip2"],
)
def test_a_filter(tmp_path: Path, filters: Any, damage: Callable[[bytes], bytes], what: str) -> None:
    """A chunk that crashes or holds a filter costs its samples, and that only once; the others are read."""
    numbers = np.cumsum(np.random.default_rng(3).integers(0, 3, 96)).astype(np.uint16)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        # A compound table in three chunks, so that only libhdf5 reads it.
        stored = file.create_dataset("t", data=numbers.astype([("a", "<u2")]), chunks=(32,), **filters).id
        file["plain"] = numbers
        file.flush()
        stored.write_direct_chunk((32,), damage(stored.read_direct_chunk((32,))[1]))
    source = find("hdf5")(tmp_path / "a.h5", read_timeout=0.5)
    begun = time.monotonic()
    for row in range(32, 64):
        with pytest.raises(BadSample, match=f"a.h5, t, row {row}: {what}"):
            source[row]
    assert time.monotonic() - begun < 5.0
    for row in (0, 31, 64, 95):
        assert (source[row]["plain"], source[row]["t.a"]) == (numbers[row], numbers[row])


@pytest.mark.parametrize("filters", [hdf5plugin.Bitshuffle(nelems=16), hdf5plugin.BZip2(), {"compression": "gzip"}])
def test_numbers_need_no_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filters: Any) -> None:
    """Chunks of numbers are read in this process if shardio undoes their filters itself, at full speed."""
    data = np.arange(1200, dtype=">i4").reshape(300, 4)
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file.create_dataset("x", data=data, chunks=(70, 3), **filters)
    source = find("hdf5")(tmp_path / "a.h5")
    source[0]
    monkeypatch.setattr(helper_process, "call", None)
    assert [source[row]["x"].tolist() for row in range(300)] == data.tolist()


def test_a_source_that_cannot_be_opened(tmp_path: Path) -> None:
    """A source whose structure takes libhdf5 for ever, and memory without end, is refused."""
    path = write(tmp_path / "a.h5")
    hold_opening(path)
    with pytest.raises(SourceError, match=r"a.h5 cannot be read.*: timed out: libhdf5 took longer than 1 s"):
        find("hdf5")(path, read_timeout=1.0)
