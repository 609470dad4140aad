"""A dataset staged: all of it fetched into the cache of the node beforehand, as jobs would fetch it while they run."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from typing import Any, final

from ..dataset.dataset import Dataset
from ..dataset.opening import as_dataset, at_bottom
from ..dataset.remote_shards import RemoteShards
from ..dataset.store_access import StoreAccess
from ..errors import CacheError, ConfigError, StoreError
from ..system.threads import in_order
from ..system.units import format_size
from ..views.view import BaseDataset

THREADS = 8  # shards at once, each of which has several requests under way


@final
@dataclass(frozen=True, slots=True)
class Staged:
    """The result of `stage`.

    Attributes:
        folder: the folder of the cache.
        shards: the number of shards.
        bytes: bytes of them and their indexes that the cache has now.
        fetched: bytes that came now; the others were there, or came by other processes.
        requests: the requests that they came in.
        seconds: how long it took.
        problems: what is missing, each named by its shard.
    """

    folder: str
    shards: int
    bytes: int
    fetched: int
    requests: int
    seconds: float
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return asdict(self)


def stage(
    dataset: str | os.PathLike[str] | BaseDataset,
    *,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    store_options: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Staged:
    """Fetch all of a dataset into the cache of this node, so that an epoch reads nothing from elsewhere.

    What is there is not fetched again, so call it again after an interrupt. Processes of a node share the work.

    Args:
        dataset: what `shardio.open` takes, or what it returned with these arguments. Of a view, all that it reads from
            is fetched.
        cache, cache_size, store_options: see `shardio.open`. A path needs `cache`.
        progress: called with the bytes that are there, and all.

    Raises ConfigError for a path without `cache`, CacheError if the cache or its disk is too small, which is found out
    before anything is fetched, and what `shardio.open` raises.
    """
    begun = time.monotonic()
    access = StoreAccess.of(dataset, cache=cache, cache_size=cache_size, store_options=store_options)
    with ExitStack() as opened:
        source = as_dataset(dataset, access)
        found: dict[str, tuple[Dataset, RemoteShards]] = {}
        for one in at_bottom(source):
            if not isinstance(dataset, BaseDataset):
                opened.enter_context(closing(one))
            if not isinstance(one.shards, RemoteShards):
                raise ConfigError("{cache} must name a folder on a fast disk for the pieces of {}", one.path)
            found[f"{one.path}"] = one, one.shards
        shards = [shards for _, shards in found.values()]
        _check_room(", ".join(found), shards)
        before = [one.fetched for one in shards]
        items = [(one, number) for dataset, one in found.values() for number in range(len(dataset.manifest.shards))]
        done, total, lock = 0, sum(one.stored_bytes for one in shards), threading.Lock()

        def fetch(item: tuple[RemoteShards, int]) -> str | None:
            """Stage a shard; return what is wrong with it."""
            nonlocal done
            try:
                for size in item[0].stage(item[1]):
                    with lock:
                        done += size
                        if progress is not None:
                            progress(done, max(total, done))
            except StoreError as error:
                return str(error)
            return None

        problems = [text for text in in_order(fetch, items, THREADS) if text is not None]
        problems += [
            f"{one.path(number)}: other processes took its room in the cache"
            for one, number in (() if problems else items)
            if not one.is_staged(number)
        ]
        fetched = [one.fetched - old for one, old in zip(shards, before, strict=True)]
    return Staged(
        folder=str(shards[0].cache.folder),
        shards=len(items),
        bytes=done,
        fetched=sum(one.bytes for one in fetched),
        requests=sum(one.requests for one in fetched),
        seconds=time.monotonic() - begun,
        problems=tuple(problems),
    )


def _check_room(name: str, shards: list[RemoteShards]) -> None:
    """Raise CacheError unless a cache has room for all of some datasets."""
    cache, needed = shards[0].cache, sum(one.staged_bytes for one in shards)
    if needed > cache.most:
        raise CacheError(
            "{}: the cache holds {}, and {} takes {}: give a {cache_size} of at least {}",
            cache.folder,
            format_size(cache.most),
            name,
            format_size(needed),
            format_size(needed * 8 / 7),  # what a loader takes for room for all of it
        )
    usage = os.statvfs(cache.place)
    room = usage.f_bavail * usage.f_frsize + cache.used
    if needed > room:
        raise CacheError(
            f"{cache.folder}: its disk has room for {format_size(room)}, and {name} takes {format_size(needed)}: free "
            "space on it, or give a folder on another disk"
        )
