"""Access to datasets in stores and by way of the cache of the node: the options of both, and the manifest."""

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from ..errors import ConfigError
from ..format import manifest
from ..output.remote_manifest import load_remote
from ..stores import open_store
from ..stores.url import Url, as_url
from ..views.view import BaseDataset

KEYWORDS = ("cache", "cache_size", "store_options")


@final
@dataclass(frozen=True, slots=True)
class StoreAccess:
    """The arguments of `shardio.open` for URLs, and for paths on slow file systems; None leaves one to its default.

    Attributes:
        cache: the folder that keeps what was fetched, for all processes of this node and for later runs. For a URL it
            is by default $SHARDIO_CACHE, or shardio in the user's cache directory; a path is read without a cache
            unless you name its folder.
        cache_size: the most bytes that the cache holds, such as 200GB. By default, half of what the disk has free.
        store_options: an option of the store, such as endpoint=http://10.0.0.1:9000, region=eu-west-1 or
            skip_signature=true; may be given several times. Give keys by the environment: other users see arguments.
    """

    cache: str | os.PathLike[str] | None = None
    cache_size: int | str | None = None
    store_options: Mapping[str, str] | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        *places: Any,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = None,
        store_options: Mapping[str, str] | None = None,
    ) -> "StoreAccess":
        """Return the access to some places; raise ConfigError if an option is given that is for none of them."""
        access = cls(cache, cache_size, store_options)
        if store_options is not None and not any(map(_is_remote, places)):
            raise ConfigError("{store_options} goes with the URL of a dataset, got {}", _told(places))
        if (cache is not None or cache_size is not None) and not any(map(access.goes_by_cache, places)):
            if cache is not None:
                raise ConfigError("{cache} goes with the path or URL of a dataset, got {}", _told(places))
            raise ConfigError("{cache_size} goes with {cache} or the URL of a dataset, got {}", _told(places))
        return access

    def goes_by_cache(self, place: Any) -> bool:
        """Whether what is read of a place goes by a cache: of a URL, of a path with `cache`, or opened like that."""
        return _is_remote(place) or (self.cache is not None and isinstance(place, str | os.PathLike))


DEFAULTS = StoreAccess()


def _is_remote(place: Any) -> bool:
    if isinstance(place, str | os.PathLike):
        return as_url(place) is not None
    return isinstance(place, BaseDataset) and place.in_store


def _told(places: Iterable[Any]) -> str:
    """Return what was given instead of a URL, for messages."""
    told = [repr(os.fspath(one)) if isinstance(one, str | os.PathLike) else type(one).__name__ for one in places]
    return ", ".join(told) or "no dataset"


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


def without_secrets(plain: dict[str, Any]) -> dict[str, Any]:
    """Return plain values, such as those of a configuration: datasets as text, `store_options` as names."""
    return {name: _without_secrets(name, value) for name, value in plain.items()}


def _without_secrets(name: str, value: Any) -> Any:
    if name == "store_options" and value:
        return dict.fromkeys(value, "...")
    if isinstance(value, BaseDataset):
        return repr(value)
    if isinstance(value, list):
        return [_without_secrets("", one) for one in value]
    return without_secrets(value) if isinstance(value, dict) else value
