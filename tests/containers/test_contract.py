"""Every container passes the contract of `shardio.testing`."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from _builders import zipped

from shardio import containers
from shardio.containers import zarr_index
from shardio.conversion.source import find
from shardio.format.fields import CHECKSUM, Field
from shardio.system.directory import Directory
from shardio.testing import ContainerContract, ReaderContract
from shardio.testing.samples import COUNT, FIELDS, sample


class Compressed:
    """An HDF5 container that always compresses."""

    def __init__(self, compression: str) -> None:
        self._inner, self._compression = containers.get("hdf5"), compression

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def writer(self, path: Path, fields: Mapping[str, Field], first: int, **options: Any) -> containers.Writer:
        return self._inner.writer(path, fields, first, compression=self._compression, **options)


class TestTar(ContainerContract):
    container = containers.get("tar")


class TestHdf5(ContainerContract):
    container = containers.get("hdf5")


class TestHdf5Gzip(ContainerContract):
    container = Compressed("gzip")


class TestHdf5Lzf(ContainerContract):
    container = Compressed("lzf")


class TestLmdb(ContainerContract):
    container = containers.get("lmdb")


class TestMemory(ContainerContract):
    container = containers.get("memory")


class TestZarr(ReaderContract):
    """Stores that zarr wrote: folders of chunks."""

    container = containers.get("zarr")
    fields = {name: FIELDS[name] for name in ("tensor", "wide", "label", "weight", "good")}
    sharded = False

    def write(self, path: Path, count: int = COUNT) -> Path:
        store = path.with_name("store")
        group = zarr.open_group(store, mode="w")
        for name, field in self.fields.items():
            values = np.array([sample(row)[name] for row in range(count)], field.row_dtype)
            chunk = (5, *(side // 2 for side in field.row_shape))
            shards = tuple(2 * side for side in chunk) if self.sharded else None
            shape = (count, *field.row_shape)
            made = group.create_array(name, shape=shape, chunks=chunk, shards=shards, dtype=values.dtype)
            made[...] = values.reshape(shape)
        self.place(store, path)
        source: Any = find("zarr")(path)
        found = source.adoption.index(0)
        sums = {CHECKSUM: np.array([2**64 - 1 - row for row in range(count)], np.uint64)}
        zarr_index.write(Directory(path.parent), path.name, replace(found, columns=sums))
        return path

    def place(self, store: Path, path: Path) -> None:
        """Put a store in its place."""
        shutil.rmtree(path, ignore_errors=True)
        store.rename(path)

    def files(self, path: Path) -> tuple[Path, ...]:
        """The index, and a chunk of each array."""
        chunks = [max(one for one in (path / name / "c").rglob("*") if one.is_file()) for name in self.fields]
        return *self.container.files(path), *chunks


class TestZarrShards(TestZarr):
    """The same with inner chunks in shards."""

    sharded = True


class TestZarrZip(TestZarr):
    """The same in zip files."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "shard-000000.zip"

    def place(self, store: Path, path: Path) -> None:
        zipped(store).replace(path)

    def files(self, path: Path) -> tuple[Path, ...]:
        return path, *self.container.files(path)
