"""Storage of a dataset: its file system, or the store and the cache of this node; and whether it fits in memory."""

import os
import time
from pathlib import Path
from statistics import median

from ..cache.location import default_folder, usual_limit
from ..cache.node_cache import NO_HOLES
from ..dataset.store_access import StoreAccess, folder_of, load_manifest
from ..errors import ShardioError
from ..format import manifest
from ..stores import open_store
from ..stores.url import Url, as_url
from ..system import holes
from ..system.file_systems import file_system
from ..system.units import counted, format_size, parse_size
from .machine import Finding, memory

_DEFAULTS = StoreAccess()
_SMALL_REQUESTS = 5
_LARGE_REQUEST = 16_000_000  # bytes
_LEAST = 1_000_000  # bytes that tell a rate


def storage(dataset: str, access: StoreAccess = _DEFAULTS) -> list[Finding]:
    """Return a dataset's size, and the file system that it lies on, or the store and the cache of this node.

    Nothing but its manifest is read, and in a store the beginning of one shard, to time it.
    """
    try:
        loaded = load_manifest(dataset, access)
    except (ShardioError, OSError) as error:
        told = Finding("dataset", "broken", str(error))
        return [told] if as_url(dataset) is not None else [told, *_file_system(Path(dataset))]
    size = int(loaded.shards.bytes.sum())
    shards = counted(len(loaded.shards), f"{loaded.container} shard", ",")
    lies = f"{dataset}: {counted(loaded.samples, 'sample', ',')} in {shards}, {format_size(size)}"
    found = Finding("dataset", "ok", lies)
    if (url := as_url(dataset)) is not None:
        return [found, _store(folder_of(url), loaded, access), _cache(loaded, access)]
    return [found, *_file_system(Path(dataset)), _page_cache(size)]


def _file_system(dataset: Path) -> list[Finding]:
    try:
        disk = file_system(dataset)
    except OSError:  # the dataset is broken
        return []
    kind = "network" if disk.network else "local"
    details = [f"blocks of {_binary(disk.block_size)}"]
    if disk.read_ahead is not None:
        details.append(f"read-ahead {_binary(disk.read_ahead)}")
    details.append(f"{format_size(disk.free)} of {format_size(disk.total)} free")
    where = f"{disk.type} ({kind}) at {disk.mount_point}, {disk.source}"
    return [Finding("file system", "ok", f"{where}: {', '.join(details)}")]


def _binary(size: int) -> str:
    """Return the size of a block, a power of two, as people know it: `4 KiB`."""
    return f"{size >> 10} KiB" if size and size % 1024 == 0 else f"{size} B"


def _page_cache(size: int) -> Finding:
    room = memory()
    if size < room // 2:
        return Finding("page cache", "ok", f"it fits in memory ({format_size(room)}): later epochs need no disk")
    advice = 'every epoch reads from the disk; on disks and networks shuffle="block" reads more at a time'
    return Finding("page cache", "note", f"it does not fit in half of the memory ({format_size(room)})", advice)


def _store(url: Url, loaded: manifest.Manifest, access: StoreAccess) -> Finding:
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


def _cache(loaded: manifest.Manifest, access: StoreAccess) -> Finding:
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
