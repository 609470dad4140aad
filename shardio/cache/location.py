"""Where the cache of a node lies, and how large it may be, unless the user says so."""

import os
import socket
import sys
import warnings
from pathlib import Path

from ..errors import CacheWarning, ConfigError
from ..system import holes
from ..system.file_systems import file_system
from ..system.units import format_size, parse_size
from .in_memory import open_in_memory
from .node_cache import NodeCache

VARIABLE = "SHARDIO_CACHE"
SHARE = 0.5
"""The share of the free space that a cache takes by default."""

_open: dict[Path, tuple[int | None, NodeCache]] = {}  # with the limit that was asked for last


def open_cache(folder: str | os.PathLike[str] | None, size: int | str | None) -> NodeCache:
    """Open a cache; the datasets of a process share one for each folder, and the size that was given last holds.

    Args:
        folder: the folder; None for `$SHARDIO_CACHE` or `shardio` in the user's cache directory.
        size: the most bytes, as a number or as text such as `"200GB"`; None for half of what is free, said on stderr.

    Where the folder cannot be written, or its file system cannot free parts of files, the cache lies in memory, with a
    warning.

    Raises:
        ConfigError: the size is none, or the folder's name has a NUL byte.
        CacheError: see `NodeCache`; or there is no memory for a cache, either.
    """
    place = (default_folder() if folder is None else Path(folder)).absolute()
    if "\0" in str(place):
        raise ConfigError(f"the folder of a cache must have no NUL byte in its name, got {str(place)!r}")
    limit = None if size is None else parse_size(size, "cache_size")
    asked, known = _open.get(place, (None, None))
    if known is not None and limit in (None, asked) and not known.removed:
        known.make_folders()
        return known
    try:
        cache = _open_at(place, limit)
    except (OSError, _Unsuitable) as error:
        cache = open_in_memory(limit)
        warnings.warn(
            f"{place}: cannot hold a cache ({error}): what is fetched stays in memory, {format_size(cache.limit)} at "
            "most and for this process alone; cache= chooses another folder",
            CacheWarning,
            stacklevel=3,
        )
    _open[place] = limit, cache
    return cache


class _Unsuitable(Exception):
    """A folder on a file system that cannot hold a cache."""


def _open_at(place: Path, limit: int | None) -> NodeCache:
    place.mkdir(parents=True, exist_ok=True)
    if file_system(place).network:  # its processes on other nodes share neither memory nor locks with this one
        place /= socket.gethostname()
        place.mkdir(exist_ok=True)
    if not holes.are_possible(place):
        raise _Unsuitable("its file system cannot free parts of files")
    if limit is None:
        limit = usual_limit(place)
        print(
            f"shardio: what is fetched stays in {place}, {format_size(limit)} at most; cache= and cache_size= choose "
            "another place and size",
            file=sys.stderr,
        )
    return NodeCache.shared(place, limit)


def default_folder() -> Path:
    """Return the folder of the cache if the user names none."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardio"


def usual_limit(folder: Path) -> int:
    """Return how many bytes a cache holds unless the user says so; its folder need not be there yet."""
    there = next(one for one in (folder, *folder.parents) if os.path.exists(one))
    usage = os.statvfs(there)
    return round(SHARE * (usage.f_bavail * usage.f_frsize + _taken(folder)))


def _taken(folder: Path) -> int:
    """Return the bytes that the files of a cache take on the disk now."""
    files = folder / "files"
    return sum(path.stat().st_blocks * 512 for path in files.rglob("*") if path.is_file()) if files.exists() else 0
