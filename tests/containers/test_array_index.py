"""The index beside an HDF5 file or a Zarr store is whole, or it is refused."""

import io
import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from _cli import python
from _damage import any_array_index, damaged_bytes, sealed_array_index
from _damage import array_index as parsed
from _time_limit import within

import shardio
from shardio import containers
from shardio.containers import array_index, hdf5_index, zarr_index
from shardio.errors import BadSample, ConfigError, ShardCorrupt
from shardio.format import checksums
from shardio.format.fields import CHECKSUM, with_hidden
from shardio.system.directory import Directory

COUNT = 6
TAKEN = np.array([0, 1, 3, 5])
"""The rows that are samples."""
KINDS = ["hdf5", "zarr"]


def hdf5(folder: Path) -> Path:
    """A file that is indexed: contiguous, chunked, packed and ragged data, texts, scalars and a stack."""
    rows = np.arange(COUNT, dtype="f4")[:, None] * np.ones((1, 3), "f4")
    with h5py.File(folder / "a.h5", "w") as file:
        file["plain"], file["number"] = rows, np.arange(COUNT)
        file.create_dataset("chunked", data=rows, chunks=(2, 3), compression="gzip")
        file.create_dataset("packed", data=rows.astype("i2"), chunks=(2, 3))
        file["packed"].attrs["scale_factor"] = np.float32(0.5)
        file["text"] = [f"text {row}" for row in range(COUNT)]
        file["u"], file["v"] = rows + 1, rows + 2
    shardio.index(folder / "a.h5", folder, decode_cf=True, stack="s=u,v")
    layout, columns = hdf5_index.read(folder / "a.h5")
    some = {name: np.asarray(column)[TAKEN] for name, column in columns.items()}
    hdf5_index.write(Directory(folder), "a.h5", layout, {**some, array_index.ROWS: TAKEN})
    return folder / "a.h5"


def store(folder: Path) -> Path:
    """A store that is indexed: chunks of several rows, packed and sharded ones, one that is missing, and a stack."""
    group = zarr.open_group(folder / "a.zarr", mode="w")
    rows = np.arange(COUNT, dtype="f4")[:, None] * np.ones((1, 3), "f4")
    for name in ("plain", "number", "packed", "sharded", "u", "v"):
        data = np.arange(COUNT) if name == "number" else rows.astype("i2") if name == "packed" else rows
        more: Any = {"chunks": (2, 3)[: data.ndim], "shards": (4, 3) if name == "sharded" else None}
        array: Any = group.create_array(name, shape=data.shape, dtype=data.dtype, **more)
        array[: COUNT - 2 if name == "plain" else COUNT] = data[: COUNT - 2 if name == "plain" else COUNT]
    group["packed"].attrs["scale_factor"] = 0.5
    with pytest.warns(shardio.SourceWarning):
        shardio.index(folder / "a.zarr", folder, decode_cf=True, stack="s=u,v", checksums=True)
    index = zarr_index.read(folder / "a.zarr")
    columns = {CHECKSUM: np.asarray(index.columns[CHECKSUM])[TAKEN], array_index.ROWS: TAKEN}
    zarr_index.write(Directory(folder), "a.zarr", replace(index, columns=columns))
    return folder / "a.zarr"


MAKERS: dict[str, Callable[[Path], Path]] = {"hdf5": hdf5, "zarr": store}


class Indexed:
    """An indexed file or store, and what is read of it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.path, self.container = MAKERS[kind](folder), containers.get(kind)
        self.index = array_index.path_of(self.path)
        self.content = self.index.read_bytes()
        self.fields = with_hidden(shardio.open(folder).fields)
        self.values = self.read()

    def read(self) -> dict[str, Any]:
        """Read all that the file has."""
        reader = self.container.reader(self.path, self.fields)
        rows = np.arange(len(reader))
        try:
            for name in self.fields:
                reader.spans(rows, name)
                reader.locator(name)
            self.container.check(self.path)
            return {name: reader.read(rows, name) for name in self.fields}
        finally:
            reader.close()

    def refuses(self, content: bytes) -> bool:
        """Whether an index of other content is refused; otherwise what is read is right, or its checksums tell."""
        self.index.write_bytes(content)
        try:
            found = self.read()
        except (ShardCorrupt, BadSample):
            return True
        named = sorted(name for name in self.fields if not name.startswith("_"))
        if any(not equal(found[name], self.values[name]) for name in named):
            assert (checksums.of_samples(found, named) != found[CHECKSUM]).any()
        return False


def equal(one: Any, other: Any) -> bool:
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)


@contextmanager
def little_memory() -> Iterator[None]:
    """Let the process take a gigabyte more than it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(("damages", "forged"), [(300, 120), pytest.param(20_000, 5_000, marks=pytest.mark.attack)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:.*chunks are not there")
def test_damage(tmp_path: Path, kind: str, damages: int, forged: int) -> None:
    """Whatever is damaged in an index, also with a right checksum, is refused, or its values are seen to be wrong."""
    indexed = Indexed(kind, tmp_path)
    random, refused = Random(f"{kind} {damages}"), 0
    with little_memory():
        for _ in range(damages):
            content = damaged_bytes(indexed.content, random)
            with within(30):
                assert indexed.refuses(content) == (content != indexed.content)
        for number in range(forged):
            indexed.index.write_bytes(indexed.content)
            seed = random.random()
            any_array_index(indexed.index, Random(seed))
            content = indexed.index.read_bytes()
            try:
                with within(30):
                    refused += indexed.refuses(content)
            except BaseException as error:
                error.add_note(f"damage {number}: {seed}")
                raise
    assert forged // 2 < refused < forged


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:.*chunks are not there")
def test_parts_of_two_indexes(tmp_path: Path, kind: str) -> None:
    """An index that is missing, ends early, goes on, or is put together of an old and a new one is refused."""
    indexed = Indexed(kind, tmp_path)
    old = indexed.content
    head, tables = parsed(old)
    new = sealed_array_index(json.dumps(head).encode(), [np.copy(table[::-1]) for table in tables])
    assert len(old) == len(new)
    for place in range(64, len(old), 64):
        for content in (old[:place], new[:place], old[:place] + new[place:], new[:place] + old[place:], old + old):
            if content not in (old, new):
                assert indexed.refuses(content)
    indexed.index.unlink()
    read = hdf5_index.read if kind == "hdf5" else zarr_index.read
    with pytest.raises(ShardCorrupt, match=rf"{indexed.index.name}: there is no such file"):
        read(indexed.path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:.*chunks are not there")
def test_what_an_index_requires(tmp_path: Path, kind: str) -> None:
    """An index of another container, version or format, or with a feature that is unknown, is refused in words."""
    indexed = Indexed(kind, tmp_path)
    head, tables = parsed(indexed.content)
    assert head["requires"] == []
    for change, message in (
        ({"requires": ["columns"]}, r"idx.npy: needs 'columns', which this version of shardio doesn't know"),
        ({"requires": "columns"}, "requires must be a list of strings"),
        ({"container": "tar"}, "it is that of a file of the container 'tar'"),
        ({"version": 2}, "another format or version"),
        ({"format": "other"}, "another format or version"),
    ):
        indexed.index.write_bytes(sealed_array_index(json.dumps({**head, **change}).encode(), tables))
        with pytest.raises(ShardCorrupt, match=message):
            indexed.read()


@pytest.mark.parametrize("mapped", [False, True])
def test_layout(tmp_path: Path, mapped: bool) -> None:
    """An index is a series of arrays that NumPy reads, and gives back what was written."""
    tables: dict[str, Any] = {
        "numbers": np.arange(200_001),
        "sizes": np.arange(6, dtype="i4").reshape(3, 2),
        "none": np.zeros(0, zarr_index.ENTRY),
        "entries": np.arange(9).view(zarr_index.ENTRY),
    }
    layout = hdf5_index.Layout({"x": "a/b", "größe": "c"}, {"x": {"units": "K"}}, {"x": 1})
    hdf5_index.write(Directory(tmp_path), "a.h5", layout, tables)
    with open(tmp_path / "a.h5.idx.npy", "rb") as file:
        arrays = [np.load(file)]
        for table in tables.values():
            file.seek(-file.tell() % 64, io.SEEK_CUR)
            arrays.append(np.load(file))
            assert np.array_equal(arrays[-1], table)
    assert json.loads(arrays[0].tobytes())["tables"] == [*tables]
    found, columns = array_index.read(tmp_path / "a.h5", "hdf5", hdf5_index.Layout, mapped=mapped)
    assert found == layout
    for name, table in tables.items():
        assert isinstance(columns[name], np.ndarray) != mapped
        assert np.array_equal(columns[name].take(np.arange(len(table)), axis=0), table)


def test_most_json(tmp_path: Path) -> None:
    """Fields whose description takes more than 1 MiB are refused, and the index that is there stays."""
    hdf5_index.write(Directory(tmp_path), "a.h5", hdf5_index.Layout({"x": "y"}), {})
    layout = hdf5_index.Layout({"x": "y" * (1 << 20)})
    with pytest.raises(ConfigError, match=r"a.h5.idx.npy: an index describes fields in at most 1048576 bytes, and the"):
        hdf5_index.write(Directory(tmp_path), "a.h5", layout, {})
    assert hdf5_index.read(tmp_path / "a.h5")[0].names == {"x": "y"}


def test_reading_takes_no_h5py(tmp_path: Path) -> None:
    """The index of an HDF5 file is read without h5py."""
    hdf5_index.write(Directory(tmp_path), "a.h5", hdf5_index.Layout({"x": "y"}), {"n": np.arange(3)})
    code = (
        "import sys; from pathlib import Path; from shardio.containers import hdf5_index; "
        f"print(hdf5_index.read(Path({str(tmp_path / 'a.h5')!r}))[0].names, 'h5py' in sys.modules)"
    )
    assert python("-c", code).stdout == "{'x': 'y'} False\n"
