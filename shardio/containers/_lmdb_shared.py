"""LMDB environments that all readers in a process share, and LMDB's errors as OSError.

LMDB forbids a process to open a file twice, and a forked child to use an environment that it inherits.
"""

import contextlib
import errno
import importlib
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from . import store
from ._files import RawFile
from .row_locator import RowLocator

_FORK_WAIT_SECONDS = 10.0


@final
class _Gate:
    """Lets any number of reads run, and makes a fork wait until none runs: `with GATE: read`.

    py-lmdb counts the calls that run without the GIL, and closes a file only when there are none. A child forked during
    such a call inherits a count that none of its threads will ever lower: it could neither close nor reopen the file.

    Attributes:
        changed: also guards the environments; it is held across a fork.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._reads = self._forks = 0
        self._watching = False

    def __enter__(self) -> None:
        with self.changed:
            while self._forks:
                self.changed.wait()
            self._reads += 1

    def __exit__(self, *error: object) -> None:
        with self.changed:
            self._reads -= 1
            if not self._reads:
                self.changed.notify_all()

    def watch_forks(self) -> None:
        """Register with `os.fork`, once; called when LMDB is first used, because an import must have no effects."""
        if not self._watching:
            self._watching = True
            os.register_at_fork(before=self._shut, after_in_parent=self._open, after_in_child=self._restart)

    def _shut(self) -> None:
        self.changed.acquire()
        self._forks += 1
        self.changed.wait_for(lambda: not self._reads, _FORK_WAIT_SECONDS)

    def _open(self) -> None:
        self._forks -= 1
        self.changed.notify_all()
        self.changed.release()

    def _restart(self) -> None:
        # The child has none of the threads that were reading, waiting or forking.
        self._reads = self._forks = 0
        self.changed.release()


GATE = _Gate()


@final
class Environment:
    """An LMDB file that is open in this process, once for all its readers."""

    def __init__(self, path: Path, key: tuple[int, int, int]) -> None:
        self.key = key
        self.leases = 0
        self._local = threading.local()
        with disk_errors():
            self.handle = store.open_lmdb(path)

    def transaction(self) -> Any:
        """Return this thread's read transaction; its values are views of the file's pages."""
        try:
            return self._local.transaction
        except AttributeError:
            self._local.transaction = self.handle.begin(buffers=True)
            return self._local.transaction


@final
class Lease:
    """A reader's share in an environment, returned when the reader and its last running read have dropped it.

    Attributes:
        environment: the shared one.
        file: the file itself.
        first: the index of its first sample.
        count: its number of samples.
        extent: the bytes that the file must have.
        locators: where the fields are, for lookups that bypass LMDB; empty where these are not possible.
    """

    __slots__ = ("__weakref__", "count", "environment", "extent", "file", "first", "locators")

    def __init__(self, environment: Environment, file: RawFile) -> None:
        environment.leases += 1
        self.environment, self.file = environment, file
        self.first = self.count = 0
        self.extent = extent_of(environment.handle)
        self.locators: dict[str, RowLocator] = {}
        # At exit the system closes the file: to close it here could take it from a thread that is still reading.
        weakref.finalize(self, _release, environment).atexit = False


_ENVIRONMENTS: dict[tuple[int, int, int], Environment] = {}


def take_lease(file: RawFile) -> Lease:
    """Return a share in a file's environment, opened if this process has none yet; lmdb.Error if LMDB refuses it."""
    with GATE.changed:
        GATE.watch_forks()
        process, status = os.getpid(), os.fstat(file.fd)
        key = (process, status.st_dev, status.st_ino)
        for other in [k for k in _ENVIRONMENTS if k[1:] == key[1:] and k[0] != process]:
            # Inherited by fork: LMDB requires that a child opens its own.
            _ENVIRONMENTS.pop(other).handle.close()
        environment = _ENVIRONMENTS.get(key)
        if environment is None:
            environment = _ENVIRONMENTS[key] = Environment(file.path, key)
        return Lease(environment, file)


def _release(environment: Environment) -> None:
    with GATE.changed:
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
