"""Every container passes the contract of `shardio.testing`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardio import containers
from shardio.format.fields import Field
from shardio.testing import ContainerContract


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
