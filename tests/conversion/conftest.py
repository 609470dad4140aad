"""Fixtures that tests of conversions into a folder and a store share."""

from pathlib import Path

import pytest
from _places import FolderPlace, StorePlace

from shardio.testing.stores import MemoryStore
from shardio_converters.imagefolder import imagefolder


@pytest.fixture(scope="session")
def whole(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the shards of the photos, converted into a directory without interruption."""
    place = FolderPlace(tmp_path_factory.mktemp("whole"))
    place.convert(imagefolder(photo_folder))
    return place.shards()


@pytest.fixture(params=["folder", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderPlace | StorePlace:
    """An empty place to write to."""
    if request.param == "folder":
        return FolderPlace(tmp_path)
    store = MemoryStore()
    monkeypatch.setattr("shardio.output.open_store", lambda url, options: store)
    return StorePlace(store)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that look and tell often."""
    for place in ("folder.FolderOutput", "store.StoreOutput"):
        monkeypatch.setattr(f"shardio.output.{place}.poll_seconds", 0.03)
    for name in ("_BEAT_SECONDS", "_LEADERS_BEAT_SECONDS"):
        monkeypatch.setattr(f"shardio.output.store.{name}", 0.03)
