"""LMDB files shared by all readers in a process, and LMDB's errors as the system's.

LMDB forbids one process to open a file twice and a forked child to use what it inherits.
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

from ._files import RawFile
from .row_locator import RowLocator

_FORK_WAIT_SECONDS = 10.0


@final
class _Gate:
    """Lets any number of reads run, and a fork wait until none does: `with GATE: read`.

    py-lmdb counts the calls that run without the GIL, and closes a file when there are none. A child forked during such
    a call inherits a count that no thread of its own will ever lower, and could neither close the file nor reopen it.

    Attributes:
        changed: the lock that also guards the environments; it is held across a fork.
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
        """Registers with `os.fork`, once; left until LMDB is used, for importing does nothing."""
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
        # The threads that were reading, waiting or forking are not in the child.
        self._reads = self._forks = 0
        self.changed.release()


GATE = _Gate()


@final
class Environment:
    """One LMDB file open in this process, however many readers it has: LMDB forbids opening a file twice."""

    def __init__(self, path: Path, key: tuple[int, int, int]) -> None:
        self.key = key
        self.leases = 0
        self._local = threading.local()
        # Without a lock file there is no table of readers and max_readers sets no limit. A spare transaction, which
        # py-lmdb would keep for reuse, must not be there when the process forks.
        options = {"readonly": True, "create": False, "lock": False, "readahead": False, "max_readers": 1024}
        with disk_errors():
            self.handle = importlib.import_module("lmdb").open(str(path), subdir=False, max_spare_txns=0, **options)

    def transaction(self) -> Any:
        """This thread's read transaction; its values are views of the file's pages."""
        try:
            return self._local.transaction
        except AttributeError:
            self._local.transaction = self.handle.begin(buffers=True)
            return self._local.transaction


@final
class Lease:
    """A reader's share in an environment, given back when the reader and its last running read have let go."""

    __slots__ = ("__weakref__", "count", "direct", "environment", "extent", "file", "first")

    def __init__(self, environment: Environment, file: RawFile) -> None:
        environment.leases += 1
        self.environment, self.file = environment, file
        self.first = self.count = 0
        self.extent = extent_of(environment.handle)
        self.direct: dict[str, RowLocator] = {}
        # At exit the system closes the file: doing so here could take it from a thread that is still reading.
        weakref.finalize(self, _release, environment).atexit = False


_ENVIRONMENTS: dict[tuple[int, int, int], Environment] = {}


def take_lease(file: RawFile) -> Lease:
    """A share in the environment of a file, opened if this process has none yet; lmdb.Error if it can't be."""
    with GATE.changed:
        GATE.watch_forks()
        process, found = os.getpid(), os.fstat(file.fd)
        key = (process, found.st_dev, found.st_ino)
        for other in [k for k in _ENVIRONMENTS if k[1:] == key[1:] and k[0] != process]:
            # Inherited by fork: LMDB wants a child to open its own.
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
    """The bytes that a whole file has, by its own account."""
    return int((environment.info()["last_pgno"] + 1) * environment.stat()["psize"])


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """What the system refused comes as OSError, as it does from a file: LMDB keeps its number in the message only."""
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
