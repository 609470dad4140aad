"""The manifest of a dataset in a store."""

import os
import tempfile
from pathlib import Path

from ..format import manifest
from ..output.remote_manifest import load_remote
from ..stores import open_store
from ..stores.url import Url, as_url
from .store_access import StoreAccess


def load_manifest(place: str | os.PathLike[str], access: StoreAccess) -> manifest.Manifest:
    """Read the manifest of a dataset at a path or a URL, without a cache.

    Raises what `shardio.open` raises.
    """
    if (url := as_url(place)) is None:
        return manifest.load(place)
    folder = folder_of(url)
    with tempfile.TemporaryDirectory() as temporary:  # a table of shards stays mapped when its file is gone
        return load_remote(open_store(folder, access.store_options or {}), folder, Path(temporary))


def folder_of(url: Url) -> Url:
    """Return the place of a dataset, given by itself or by its `shardio.json`."""
    return url.parent if url.name == manifest.FILE_NAME else url
