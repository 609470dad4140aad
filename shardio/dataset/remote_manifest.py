"""The manifest of a dataset in a store."""

import hashlib
import os
import tempfile
from pathlib import Path

from ..errors import ManifestError, NotADataset, ObjectChanged, ObjectNotFound
from ..format import manifest
from ..stores import open_store
from ..stores.base import Condition, Store
from ..stores.unharmed import TRIES, read_unharmed
from ..stores.url import Url, as_url
from ..system.directory import Directory
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


def save_remote(store: Store, url: Url, described: manifest.Manifest, condition: Condition) -> None:
    """Write the manifest of a dataset in a store, after the table of its shards if it needs one.

    Args:
        store: the store that the URL is in.
        url: the dataset.
        described: the manifest.
        condition: the state that the manifest there must have, see `stores.base.Condition`.

    Raises ObjectChanged if another process wrote it meanwhile.
    """
    content, table = manifest.in_store(described)
    if table is not None:
        store.write((url / table[0]).path, table[1])
    try:
        store.write((url / manifest.FILE_NAME).path, content, condition=condition)
    except ObjectChanged as error:
        raise ObjectChanged(
            f"{url / manifest.FILE_NAME}: another process wrote it meanwhile; its dataset stays"
        ) from error


def load_remote(store: Store, url: Url, cache: Path) -> manifest.Manifest:
    """Read the manifest of the dataset at `url`.

    Args:
        store: the store that the URL is in.
        url: the dataset.
        cache: a folder for the table of its shards, if it has one, which all processes of the node map.

    Raises:
        NotADataset: there is none.
        ManifestError: it cannot be trusted.
    """
    place = url / manifest.FILE_NAME
    try:
        data = read_unharmed(store, place.path)
    except ObjectNotFound as error:
        raise NotADataset(f"{url}: no {manifest.FILE_NAME} there") from error
    if (table_name := manifest.table_named_in(data)) is None:
        return manifest.Manifest.from_json(data, str(place))
    folder = cache / "manifests" / hashlib.blake2b(f"{url}\n".encode() + data, digest_size=16).hexdigest()
    table = folder / table_name
    for _ in range(TRIES):  # the cache's copy may be damaged, or what came
        try:
            return manifest.Manifest.from_json(data, str(place), table)
        except ManifestError:
            folder.mkdir(parents=True, exist_ok=True)
            Directory(folder).write(table.name, bytes(store.read((url / table_name).path).data))
    return manifest.Manifest.from_json(data, str(place), table)
