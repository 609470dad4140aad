"""Every container passes the contract of `shardio.testing`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shardio import containers
from shardio.containers import Container, Reader, Writer
from shardio.errors import ConfigError
from shardio.format.fields import Field
from shardio.testing import ContainerContract


@dataclass(frozen=True)
class Configured:
    """A container whose writer has options."""

    inner: Container
    given: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def options(self) -> Mapping[str, str]:
        return self.inner.options

    @property
    def suffix(self) -> str:
        return self.inner.suffix

    @property
    def index_suffix(self) -> str:
        return self.inner.index_suffix

    @property
    def on_disk(self) -> bool:
        return self.inner.on_disk

    def writer(self, path: Path, fields: Mapping[str, Field], first: int, **options: Any) -> Writer:
        return self.inner.writer(path, fields, first, **self.given, **options)

    def reader(self, path: Path, fields: Mapping[str, Field]) -> Reader:
        return self.inner.reader(path, fields)

    def files(self, path: Path) -> tuple[Path, ...]:
        return self.inner.files(path)

    def read_fields(self, path: Path) -> Mapping[str, Field] | None:
        return self.inner.read_fields(path)


class TestTar(ContainerContract):
    container = containers.get("tar")


class TestHdf5(ContainerContract):
    container = containers.get("hdf5")


class TestHdf5Gzip(ContainerContract):
    container = Configured(containers.get("hdf5"), {"compression": "gzip"})


class TestHdf5Lzf(ContainerContract):
    container = Configured(containers.get("hdf5"), {"compression": "lzf"})


class TestLmdb(ContainerContract):
    container = containers.get("lmdb")


class TestMemory(ContainerContract):
    container = containers.get("memory")


def test_registry() -> None:
    """Containers are found by name, the registry is read-only, and an unknown name raises with the list."""
    assert {name: c.name for name, c in containers.CONTAINERS.items()} == {n: n for n in containers.CONTAINERS}
    assert not hasattr(containers.CONTAINERS, "__setitem__")
    with pytest.raises(ConfigError, match="one of tar, hdf5, lmdb, got 'zip'"):
        containers.get("zip")
