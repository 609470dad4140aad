"""A folder that belongs to this user, that nobody else may read or write, and that no link leads to.

Other users of the machine may have made the folder that was given, or may write to it: links in it would lead what is
written out of it, and its owner could choose the values that are read. Where the folder that was given is such a one,
the folder `shardio-UID` in it takes its place.

Links above the folder that was given are followed. A folder above may belong to somebody else, who could put another
folder in its place: so the folder stays open, and everything below it is opened from there.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import CacheError, ConfigError
from ..system.directory import Directory

OTHER_FOLDER = "give a folder on a local disk with cache=, or cache='/dev/shm' to keep the pieces in memory"
"""Advice for errors about a folder that cannot hold a cache."""

_OTHERS_READ, _OTHERS_WRITE = 0o077, 0o022
_OWN_NAMES = re.compile(r"lock|state|unfinished|leases|tables|files|folders|manifests|kept|shardio-\d+")


def no_cache(folder: Path, why: str) -> CacheError:
    """Return the error for a folder that cannot hold a cache, or cannot any more."""
    return CacheError(f"{folder}: cannot hold a cache: {why}: {OTHER_FOLDER}")


def private_place(folder: Path) -> Path:
    """Return the place of this user's cache where `folder` is given; nothing is made or changed.

    It is the folder itself if there is none yet, or if it is this user's, nobody else may write to it, and it is closed
    to others or holds nothing but a cache; else `shardio-UID` in it.

    Raises CacheError if somebody else put a link there.
    """
    try:
        status = os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return folder
    if not stat.S_ISLNK(status.st_mode):
        with suppress(PermissionError):  # somebody else's
            if _is_private(Directory(folder)):
                return folder
    elif status.st_uid not in (0, os.geteuid()):
        raise no_cache(folder, f"it is a link that user {status.st_uid} made")
    return folder / f"shardio-{os.geteuid()}"


def _is_private(folder: Directory) -> bool:
    """Return whether a folder is this user's alone, or can be closed to others without cost to them."""
    status = folder.status()
    if status.st_uid != os.geteuid() or status.st_mode & _OTHERS_WRITE:
        return False
    return not status.st_mode & _OTHERS_READ or all(map(_OWN_NAMES.fullmatch, folder.names()))


def private_folder(place: Path) -> Directory:
    """Make and open the folder of this user's cache at `place`, which `private_place` returned.

    Raises:
        CacheError: that folder is a link, belongs to somebody else, or others may write to it.
        OSError: it cannot be made or opened.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        opened = Directory(place.parent, private=True).make(place.name, exist_ok=True)
    except ConfigError as error:
        raise no_cache(place, "it is a link") from error
    status = opened.status()
    if status.st_uid != os.geteuid():
        raise no_cache(place, f"it belongs to user {status.st_uid}")
    if status.st_mode & _OTHERS_WRITE:
        raise no_cache(place, f"other users may write to it (mode {stat.S_IMODE(status.st_mode):o})")
    if status.st_mode & _OTHERS_READ:
        opened.close_to_others()
    return opened


def no_part(error: ConfigError) -> CacheError:
    """Return the error for a link, or another odd entry, where a part of a cache is to be."""
    return CacheError(f"{error}: it is no part of a cache, remove it")


@contextmanager
def refusing_links() -> Iterator[None]:
    """Raise the error of `no_part` for any error of a `Directory` below the folder of a cache."""
    try:
        yield
    except ConfigError as error:
        raise no_part(error) from error


def lasting_path(folder: Directory) -> Path:
    """Return a path to a private folder that nobody else can lead elsewhere while it is open.

    It is its own path without links, if all folders above are root's or this user's, and others can rename nothing in
    them; else its place by its descriptor.
    """
    real = Path(os.path.realpath(folder.path))
    if all(map(_stays, real.parents)) and os.path.samestat(os.stat(real), folder.status()):
        return real
    return folder.place()


def _stays(above: Path) -> bool:
    """Return whether only root and this user can rename or replace what they have in a folder."""
    status = os.stat(above)
    own_only = bool(status.st_mode & stat.S_ISVTX) or not status.st_mode & _OTHERS_WRITE
    return own_only and status.st_uid in (0, os.geteuid())
