"""The default folder and the default size limit of a node's cache."""

import os
import socket
import sys
from pathlib import Path

from ..errors import ConfigError
from ..system.file_systems import file_system
from ..system.units import format_size, parse_size
from .node_cache import NodeCache
from .private_folder import no_cache, private_folder, private_place

VARIABLE = "SHARDIO_CACHE"
SHARE = 0.5
"""The share of the free space that a cache takes by default."""


def open_cache(folder: str | os.PathLike[str] | None, size: int | str | None) -> NodeCache:
    """Open a cache; the datasets of a process share one for each folder, and the size that was given last holds.

    Args:
        folder: the folder; None for `$SHARDIO_CACHE` or `shardio` in the user's cache directory.
        size: the most bytes, as a number or as text such as `"200GB"`; None for half of what is free, said on stderr.

    Raises:
        ConfigError: `size` is no size, or the folder's name has a NUL byte.
        CacheError: the folder cannot hold a cache, see `NodeCache`.
    """
    given = given_folder(folder)
    limit = None if size is None else parse_size(size, "cache_size")
    place = _places.get(given, given)
    try:
        if (known := NodeCache.opened(place)) is None:
            place = _places[given] = _made(given)
            known = NodeCache.opened(place)
        if limit is None and known is not None:
            return known
        if limit is None:
            limit = usual_limit(place)
            print(
                f"shardio: what is fetched stays in {place}, {format_size(limit)} at most; cache= and cache_size= "
                "choose another place and size",
                file=sys.stderr,
            )
        return NodeCache.shared(place, limit)
    except OSError as error:
        raise no_cache(place, error.strerror or f"{error}") from error


_places: dict[Path, Path] = {}
"""The folders of the caches that this process has opened, by those that were given."""


def _made(given: Path) -> Path:
    """Make the folder of this user's cache where `given` is given; return it, or the one for this node in it."""
    place = private_place(given)
    is_new = place != given and not place.exists()
    private_folder(place)
    if is_new:
        print(
            f"shardio: {given} is not this user's alone, so its cache is {place}; the cache of each user takes space "
            "on the disk",
            file=sys.stderr,
        )
    # The processes on other nodes share neither memory nor locks with this one.
    return place / socket.gethostname() if file_system(place).network else place


def given_folder(folder: str | os.PathLike[str] | None) -> Path:
    """Return the absolute path of the folder that is given for a cache, the default one for None."""
    given = (default_folder() if folder is None else Path(folder)).absolute()
    if "\0" in str(given):
        raise ConfigError(f"the folder of a cache must have no NUL byte in its name, got {str(given)!r}")
    return given.resolve() if given.name == ".." else given


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
