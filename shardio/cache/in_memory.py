"""A cache in memory, where a folder cannot hold one: it has a limit, and nothing of it stays when its processes end."""

import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from ..errors import CacheError
from ..system import holes
from . import leases
from .node_cache import NodeCache

MOST = 1 << 30
"""The most bytes of a cache in memory."""

_SHARE, _LEAST = (
    16,
    32 << 20,
)  # of what is free, since each rank has one; but this much if half of what is free allows it
_PREFIX = "shardio-cache-"
_OLD = 60.0  # seconds: whoever made a folder has begun to use it by then

# Waits until no process has a lease, however they ended, and removes the folder. It runs without shardio, so that it is
# small and starts fast.
_REMOVE = """
import fcntl, os, shutil, sys
folder = sys.argv[1]
places = [os.path.join(folder, "leases", str(number)) for number in range(int(sys.argv[2]))]
waited = True
while waited:
    waited = False
    for place in places:
        if os.path.exists(place):
            with open(place) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    waited = True
                    fcntl.flock(file, fcntl.LOCK_EX)
shutil.rmtree(folder, ignore_errors=True)
"""


def open_in_memory(limit: int | None) -> NodeCache:
    """Open a cache of this process and those that it starts, in memory.

    A small process of its own removes its files when they have ended, by SIGKILL, too.

    Args:
        limit: the most bytes; None for as many as are in order.

    Raises:
        CacheError: no folder in memory can hold it.
    """
    shared = _memory()
    _remove_what_is_left(shared)
    usage = os.statvfs(shared)
    free = usage.f_bavail * usage.f_frsize
    most = min(MOST, max(free // _SHARE, min(_LEAST, free // 2)), MOST if limit is None else limit)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=shared))
    cache = NodeCache(folder, most)
    null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    command = [sys.executable, "-I", "-S", "-c", _REMOVE, str(folder), str(leases.MOST)]
    # In a session of its own: a signal to the group of the job is not for it.
    os.posix_spawn(sys.executable, command, os.environ, file_actions=null, setsid=True)
    return cache


def _memory() -> Path:
    """Return a folder whose files lie in memory, or, where there is none, one for temporary files."""
    for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        with suppress(OSError):
            if holes.are_possible(folder):
                return folder
    raise CacheError(
        f"neither /dev/shm nor {tempfile.gettempdir()} can hold a cache: give a folder that can, with cache="
    )


def _remove_what_is_left(shared: Path) -> None:
    """Remove caches whose processes were killed together with what removes them, as when a container is stopped."""
    for folder in shared.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            mine = status.st_uid == os.geteuid() and not folder.is_symlink()
            if mine and time.time() - status.st_mtime > _OLD and not leases.held(folder / "leases"):
                shutil.rmtree(folder, ignore_errors=True)
