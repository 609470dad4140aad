"""The file system or store of a dataset, and whether the dataset fits in memory."""

from pathlib import Path

from ..dataset.store_access import StoreAccess, folder_of, load_manifest
from ..errors import ShardioError
from ..stores.url import as_url
from ..system.file_systems import file_system
from ..system.units import counted, format_size
from . import remote_storage
from .finding import Finding
from .machine import memory

_DEFAULTS = StoreAccess()


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
        return [found, remote_storage.store(folder_of(url), loaded, access), remote_storage.cache(loaded, access)]
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
