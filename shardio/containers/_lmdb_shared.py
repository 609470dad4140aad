"""LMDB environments that all readers in a process share, and LMDB's errors as OSError.

LMDB forbids a process to open a file twice, and a forked child to use an environment that it inherits.
"""

import contextlib
import errno
import importlib
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from . import store
from ._files import RawFile
from ._lmdb_pages import Pages
from .row_locator import RowLocator

_FORK_WAIT_SECONDS = 10.0


@final
class _Gate:
    """Lets any number of reads run, and makes a fork wait until none runs: `with GATE: read`.

    py-lmdb counts the calls that run without the GIL, and closes a file only when there are none. A child forked during
    such a call inherits a count that none of its threads will ever lower: it could neither close nor reopen the file.

    Attributes:
        lock: guards the number of reads, and the environments; it is held across a fork. An interrupt in a Condition,
            which would tell a fork that no read runs any more, could leave it locked for ever.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._reads = 0
        self._watching = False

    def __enter__(self) -> None:
        with self.lock:
            self._reads += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self._reads -= 1

    def watch_forks(self) -> None:
        """Register with `os.fork`, once; called when LMDB is first used, because an import must have no effects."""
        if not self._watching:
            self._watching = True
            os.register_at_fork(before=self._shut, after_in_parent=self._open, after_in_child=self._restart)

    def _shut(self) -> None:
        deadline = time.monotonic() + _FORK_WAIT_SECONDS
        self.lock.acquire()
        while self._reads and time.monotonic() < deadline:
            self.lock.release()
            time.sleep(0.0005)
            self.lock.acquire()

    def _open(self) -> None:
        self.lock.release()

    def _restart(self) -> None:
        self._reads = 0  # the child has none of the threads that were reading
        self.lock.release()


GATE = _Gate()


@final
class Environment:
    """An LMDB file that is open in this process, once for all its readers."""

    def __init__(self, path: Path, key: tuple[int, int, int]) -> None:
        self.key = key
        self.leases = 0
        with disk_errors():
            self.handle = store.open_lmdb(path)


@final
class Lease:
    """A reader's share in an environment, returned when the reader and its last running read have dropped it.

    Attributes:
        environment: the shared one.
        file: the file itself.
        first: the index of its first sample.
        count: its number of samples.
        pages: the file's pages.
        mapped: the file in memory, uint8 [size].
        columns: the hidden columns, by name, uint8 [n, row bytes].
        locators: where the fields are, for compiled lookups; empty without the compiled part.
    """

    __slots__ = ("__weakref__", "columns", "count", "environment", "file", "first", "locators", "mapped", "pages")

    def __init__(self, environment: Environment, file: RawFile, pages: Pages) -> None:
        environment.leases += 1
        self.environment, self.file, self.pages, self.mapped = environment, file, pages, file.map()
        self.first = self.count = 0
        self.columns: dict[str, NDArray[np.uint8]] = {}
        self.locators: dict[str, RowLocator] = {}
        # At exit the system closes the file: to close it here could take it from a thread that is still reading.
        weakref.finalize(self, _release, environment).atexit = False


_ENVIRONMENTS: dict[tuple[int, int, int], Environment] = {}


def take_lease(file: RawFile, pages: Pages) -> Lease:
    """Return a share in a file's environment, opened if this process has none yet; lmdb.Error if LMDB refuses it."""
    with GATE.lock:
        GATE.watch_forks()
        process, status = os.getpid(), os.fstat(file.fd)
        key = (process, status.st_dev, status.st_ino)
        for other in [k for k in _ENVIRONMENTS if k[1:] == key[1:] and k[0] != process]:
            # Inherited by fork: LMDB requires that a child opens its own.
            _ENVIRONMENTS.pop(other).handle.close()
        environment = _ENVIRONMENTS.get(key)
        if environment is None:
            environment = _ENVIRONMENTS[key] = Environment(file.path, key)
        return Lease(environment, file, pages)


def _release(environment: Environment) -> None:
    with GATE.lock:
        environment.leases -= 1
        if not environment.leases and _ENVIRONMENTS.get(environment.key) is environment:
            del _ENVIRONMENTS[environment.key]
            environment.handle.close()


def extent_of(environment: Any) -> int:
    """Return the bytes that the file must have, by its own account."""
    return int((environment.info()["last_pgno"] + 1) * environment.stat()["psize"])


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Turn errors of the system into OSError, as files raise them: LMDB has their numbers in its messages only."""
    lmdb = importlib.import_module("lmdb")
    try:
        yield
    except lmdb.MapFullError:
        raise
    except lmdb.Error as error:
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EMFILE):
            if os.strerror(number) in str(error):
                raise OSError(number, str(error)) from error
        raise
