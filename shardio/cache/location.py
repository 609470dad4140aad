"""Where the cache of a node lies, and how large it may be, unless the user says so."""

import os
import sys
from pathlib import Path

from ..system.units import format_size, parse_size
from .node_cache import NodeCache

VARIABLE = "SHARDIO_CACHE"
SHARE = 0.5
"""The share of the free space that a cache takes by default."""

_open: dict[Path, NodeCache] = {}


def open_cache(folder: str | os.PathLike[str] | None, size: int | str | None) -> NodeCache:
    """Open a cache; the datasets of a process share one for each folder and size.

    Args:
        folder: the folder; None for `$SHARDIO_CACHE` or `shardio` in the user's cache directory.
        size: the most bytes, as a number or as text such as `"200GB"`; None for half of what is free, said on stderr.

    Raises:
        ConfigError: the size is none.
        CacheError, OSError: see `NodeCache`.
    """
    place = (default_folder() if folder is None else Path(folder)).absolute()
    place.mkdir(parents=True, exist_ok=True)
    limit = None if size is None else parse_size(size, "cache_size")
    if limit is None:
        if place in _open:
            return _open[place]
        usage = os.statvfs(place)
        free = usage.f_bavail * usage.f_frsize
        limit = round(SHARE * (free + _taken(place)))
        print(
            f"shardio: what is fetched stays in {place}, {format_size(limit)} at most; cache= and cache_size= choose "
            "another place and size",
            file=sys.stderr,
        )
    cache = _open[place] = NodeCache.shared(place, limit)
    return cache


def default_folder() -> Path:
    """Return the folder of the cache if the user names none."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardio"


def _taken(folder: Path) -> int:
    """Return the bytes that the files of a cache take on the disk now."""
    files = folder / "files"
    return sum(path.stat().st_blocks * 512 for path in files.rglob("*") if path.is_file()) if files.exists() else 0
