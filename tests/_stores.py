"""The stores that hold what a cache reads: each test of a cache takes them in turn."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from shardio.stores.base import Store
from shardio.stores.folder import FolderStore
from shardio.testing.stores import MemoryStore

Fill = Callable[[Mapping[str, bytes]], Store]
"""Makes a store that holds some objects."""


@pytest.fixture(params=["memory", "folder"])
def fill(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Fill:
    """A bucket in memory, or files of a folder."""
    return (
        MemoryStore if request.param == "memory" else lambda objects: in_folder(tmp_path_factory.mktemp("s"), objects)
    )


def in_folder(folder: Path, objects: Mapping[str, bytes]) -> FolderStore:
    """Write objects as files; return these as a store."""
    for name, data in objects.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return FolderStore(folder)


def replace(store: Store, name: str, data: bytes) -> None:
    """Put another object in the place of one."""
    if isinstance(store, FolderStore):
        place = Path(store.url) / name
        place.with_name("new").write_bytes(data)
        place.with_name("new").replace(place)
    else:
        store.write(name, data)
