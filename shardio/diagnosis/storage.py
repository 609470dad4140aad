"""Where does a dataset lie, and does it fit in memory?"""

from pathlib import Path

from ..errors import ShardioError
from ..format import manifest
from ..system.file_systems import file_system
from ..system.units import counted, format_size
from .finding import Finding
from .machine import memory


def storage(dataset: Path) -> list[Finding]:
    """Return a dataset's size and its file system; nothing but its manifest is read."""
    found = [_dataset(dataset)]
    try:
        disk = file_system(dataset)
    except OSError:  # _dataset has said so
        return found
    kind = "network" if disk.network else "local"
    details = [f"blocks of {_binary(disk.block_size)}"]
    if disk.read_ahead is not None:
        details.append(f"read-ahead {_binary(disk.read_ahead)}")
    details.append(f"{format_size(disk.free)} of {format_size(disk.total)} free")
    where = f"{disk.type} ({kind}) at {disk.mount_point}, {disk.source}"
    return [*found, Finding("file system", "ok", f"{where}: {', '.join(details)}"), *_page_cache(dataset)]


def _binary(size: int) -> str:
    """Return the size of a block, a power of two, as people know it: `4 KiB`."""
    return f"{size >> 10} KiB" if size and size % 1024 == 0 else f"{size} B"


def _dataset(path: Path) -> Finding:
    try:
        loaded = manifest.load(path)
    except (ShardioError, OSError) as error:
        return Finding("dataset", "broken", str(error))
    size = format_size(int(loaded.shards.bytes.sum()))
    shards = counted(len(loaded.shards), f"{loaded.container} shard", ",")
    return Finding("dataset", "ok", f"{path}: {counted(loaded.samples, 'sample', ',')} in {shards}, {size}")


def _page_cache(path: Path) -> list[Finding]:
    try:
        size = int(manifest.load(path).shards.bytes.sum())
    except (ShardioError, OSError):
        return []
    room = memory()
    if size < room // 2:
        return [Finding("page cache", "ok", f"it fits in memory ({format_size(room)}): later epochs need no disk")]
    advice = 'every epoch reads from the disk; on disks and networks shuffle="block" reads more at a time'
    return [Finding("page cache", "note", f"it does not fit in half of the memory ({format_size(room)})", advice)]
