"""How fast does the store of a dataset answer, and where does the node keep what is fetched?"""

import os
import time
from pathlib import Path
from statistics import median

from ..cache.location import default_folder, usual_limit
from ..cache.node_cache import NO_HOLES
from ..dataset.store_access import StoreAccess
from ..errors import ShardioError
from ..format import manifest
from ..stores import open_store
from ..stores.url import Url
from ..system import holes
from ..system.file_systems import file_system
from ..system.units import format_size, parse_size
from .finding import Finding

_SMALL_REQUESTS = 5
_LARGE_REQUEST = 16_000_000  # bytes
_LEAST = 1_000_000  # bytes that tell a rate


def store(url: Url, loaded: manifest.Manifest, access: StoreAccess) -> Finding:
    """Return how long small requests to a dataset's store take, and how many bytes a large one brings per second."""
    opened = open_store(url, access.store_options or {})
    shards = loaded.shards
    largest = int(shards.bytes.argmax()) if len(shards) else 0
    place = (url / (shards.names[largest] if len(shards) else manifest.FILE_NAME)).path
    taken = []
    try:
        for _ in range(1 + _SMALL_REQUESTS):  # the first one makes the connection
            begun = time.perf_counter()
            opened.read(place, 0, 1)
            taken.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        got = len(opened.read(place, 0, _LARGE_REQUEST).data)
        rate = got / (time.perf_counter() - begun)
    except ShardioError as error:
        return Finding("store", "broken", str(error))
    told = f"{opened.url}: answers in {1000 * median(taken[1:]):.1f} ms, the first time in {1000 * taken[0]:.0f} ms"
    if got >= _LEAST:
        told += f"; one request brings {format_size(rate)}/s"
    return Finding("store", "ok", told)


def cache(loaded: manifest.Manifest, access: StoreAccess) -> Finding:
    """Return where the cache of this node lies, or would lie, and whether the dataset fits into it."""
    try:
        folder = (default_folder() if access.cache is None else Path(access.cache)).absolute()
    except RuntimeError as error:  # the user has no home
        return Finding("cache", "note", str(error), "name a folder by --cache")
    size = int(loaded.shards.bytes.sum())
    told, advice = str(folder), "name a folder on a local disk by --cache, or --cache /dev/shm/shardio for memory"
    try:
        there = next(one for one in (folder, *folder.parents) if os.path.exists(one))
        disk = file_system(there)
        told += f", {disk.type} ({'network' if disk.network else 'local'})"
        if not holes.are_possible(there):
            return Finding("cache", "broken", f"{told}: {NO_HOLES}", advice)
        limit = usual_limit(folder) if access.cache_size is None else parse_size(access.cache_size, "cache_size")
    except OSError as error:
        return Finding("cache", "broken", f"{told}: it takes no files: {error.strerror}", advice)
    told += f": {format_size(limit)} at most"
    if disk.network:
        return Finding("cache", "note", told, "a local disk is faster, and its locks work: name one by --cache")
    if size > limit:
        advice = 'later epochs fetch the rest again; shuffle="block" fetches each piece once per epoch'
        return Finding("cache", "note", f"{told}, less than the dataset's {format_size(size)}", advice)
    return Finding("cache", "ok", f"{told}, which holds the whole dataset")
