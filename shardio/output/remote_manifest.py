"""The manifest of a dataset in a store, as readers and writers find it."""

import hashlib
from pathlib import Path

from ..cache.private_folder import refusing_links
from ..errors import ManifestError, NotADataset, ObjectNotFound
from ..format import manifest
from ..stores.base import ObjectInfo, Store
from ..stores.stream import TRIES, read_unharmed
from ..stores.url import Url
from ..system.directory import Directory


def find_object(store: Store, name: str) -> ObjectInfo | None:
    """Return what a store says of an object; None if there is no such object."""
    try:
        return store.info(name)
    except ObjectNotFound:
        return None


def load_remote(store: Store, url: Url, cache: Path) -> manifest.Manifest:
    """Read the manifest of the dataset at `url`.

    Args:
        store: the store that the URL is in.
        url: the dataset.
        cache: a folder of this user for the table of its shards, if it has one, which all processes of the node map.

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
    key = hashlib.blake2b(f"{url}\n".encode() + data, digest_size=16).hexdigest()
    cache.mkdir(parents=True, exist_ok=True)
    with refusing_links():
        folder = Directory(cache, private=True).make("manifests", exist_ok=True).make(key, exist_ok=True)
        if folder.kind(table_name) == "link":
            folder.unlink(table_name)
    table = folder.path / table_name
    for _ in range(TRIES):  # the cache's copy may be damaged, or what came
        try:
            return manifest.Manifest.from_json(data, str(place), table)
        except ManifestError:
            folder.write(table_name, bytes(store.read((url / table_name).path).data))
    return manifest.Manifest.from_json(data, str(place), table)
