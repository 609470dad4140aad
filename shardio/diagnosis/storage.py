"""Storage of a dataset: its file system, or the store and the cache of this node; and whether it fits in memory."""

import os
import random
import tempfile
import time
from pathlib import Path
from statistics import median

from ..bench.storage import StorageRates, file_rates
from ..cache.location import given_folder, usual_limit
from ..cache.node_cache import NO_HOLES
from ..cache.private_folder import private_place
from ..containers import CONTAINERS
from ..dataset.store_access import DEFAULTS, StoreAccess, folder_of, load_manifest
from ..errors import ShardioError
from ..format import manifest
from ..stores import open_store
from ..stores.url import Url, as_url
from ..system import holes
from ..system.file_systems import file_system
from ..system.units import counted, format_size, parse_size
from .machine import Finding, memory

_SMALL_REQUESTS = 5
_LARGE_REQUEST = 16_000_000  # bytes
_LEAST = 1_000_000  # bytes to measure a rate by
_FILES, _THREADS, _SECONDS = 16, 8, 0.6  # for each of the rates of disks
_WRITTEN = 128_000_000  # bytes, to the folder of a cache
_WORTH = 1.5  # times as fast


def storage(dataset: str, access: StoreAccess = DEFAULTS) -> list[Finding]:
    """Return a dataset's size, and its file system or store; and whether a cache of the node pays.

    Its manifest is read, and some of its shards to time it: the beginning of one in a store, random parts of a few in a
    folder.
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
    folder = Path(dataset) if os.path.isdir(dataset) else Path(dataset).parent
    return [found, *_file_system(Path(dataset)), _page_cache(size), *_disks(folder, loaded, access)]


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


def _disks(dataset: Path, loaded: manifest.Manifest, access: StoreAccess) -> list[Finding]:
    """Return how fast a dataset's shards are read, and whether a cache on a disk of the node pays."""
    names = loaded.shards.names
    chosen = random.Random(0).sample(range(len(names)), min(_FILES, len(names)))
    files = [path for path in (dataset / names[number] for number in chosen) if path.is_file()]
    if sum(path.stat().st_size for path in files) < _LEAST:
        return []  # too little to measure a rate
    size = int(loaded.shards.bytes.sum()) / max(1, loaded.samples)
    try:
        slow = file_rates(files, size, threads=_THREADS, seconds=_SECONDS)
    except OSError as error:
        return [Finding("reads", "broken", f"{error.filename or dataset}: {error.strerror or error}")]
    return [Finding("reads", "ok", _told(slow), figures=_figures(slow)), _pays(files[0], dataset, slow, loaded, access)]


def _pays(file: Path, dataset: Path, slow: StorageRates, loaded: manifest.Manifest, access: StoreAccess) -> Finding:
    try:
        folder = private_place(given_folder(access.cache))
        there = next(one for one in (folder, *folder.parents) if os.path.isdir(one))
        if there.stat().st_dev == file.stat().st_dev:
            return Finding(
                "cache", "ok", f"{folder} is on the disk of the data, so it does not pay: name one by --cache"
            )
        with tempfile.NamedTemporaryFile(dir=there, prefix=".shardio-doctor-") as written:
            usage = os.statvfs(there)
            block = os.urandom(1 << 20)
            for _ in range(min(_WRITTEN, usage.f_bavail * usage.f_frsize // 4) >> 20):
                written.write(block)
            written.flush()
            os.fsync(written.fileno())
            fast = file_rates([Path(written.name)], slow.random_bytes, threads=_THREADS, seconds=_SECONDS)
        limit = usual_limit(folder) if access.cache_size is None else parse_size(access.cache_size, "cache_size")
    except (ShardioError, OSError, RuntimeError, ZeroDivisionError) as error:
        return Finding("cache", "note", str(error), "name a folder on a local disk by --cache")
    total, ratio = int(loaded.shards.bytes.sum()), fast.random / max(1.0, slow.random)
    figures = {**_figures(fast), "times_as_fast": round(ratio, 2), "limit_bytes": limit, "dataset_bytes": total}
    told = f"{folder}: {_told(fast)}, {ratio:.1f} times as fast as the data's own"
    if ratio < _WORTH:
        return Finding("cache", "ok", f"{told}: it does not pay", figures=figures)
    size = "" if access.cache_size is None else f" --cache-size {access.cache_size}"
    room = "" if total <= limit else f", of which it holds {format_size(limit)}"
    told += f": it pays for {format_size(total)}{room}"
    what = "stage" if total <= limit * 7 // 8 else "train"
    return Finding("cache", "note", told, f"shardio {what} {dataset} --cache {folder}{size}", figures)


def _told(rates: StorageRates) -> str:
    one = f"{format_size(rates.random_bytes)} at random takes {1000 * rates.seconds:.2f} ms"
    both = f"{format_size(rates.random)}/s, in order {format_size(rates.sequential)}/s"
    return f"{one}, {rates.threads} at once bring {both}"


def _figures(rates: StorageRates) -> dict[str, float]:
    return {
        "random_bytes": rates.random_bytes,
        "random_read_seconds": rates.seconds,
        "random_bytes_per_second": round(rates.random),
        "sequential_bytes_per_second": round(rates.sequential),
        "past_page_cache": rates.direct,
    }


def _store(url: Url, loaded: manifest.Manifest, access: StoreAccess) -> Finding:
    """Return how long small requests to a dataset's store take, and how many bytes a large one brings per second."""
    opened = open_store(url, access.store_options or {})
    shards = loaded.shards
    largest = int(shards.bytes.argmax()) if len(shards) else 0
    name, kind = shards.names[largest] if len(shards) else manifest.FILE_NAME, CONTAINERS.get(loaded.container)
    if len(shards) and kind is not None and kind.read_where_it_lies:  # no object is called so
        (name,) = kind.companions(name, adopted=True)
    place = (url / name).path
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
    """Return the folder of this node's cache, existing or not, and whether the dataset fits into it."""
    advice = "name a folder on a local disk by --cache, or --cache /dev/shm for memory"
    try:
        folder = private_place(given_folder(access.cache))
    except RuntimeError as error:  # the user has no home
        return Finding("cache", "note", str(error), "name a folder by --cache")
    except ShardioError as error:
        return Finding("cache", "broken", str(error), advice)
    size, told = int(loaded.shards.bytes.sum()), str(folder)
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
