"""A store whose requests are tried again while the network or the server fails."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, final

from ..errors import AccessDenied, ObjectChanged, ObjectNotFound, StoreError, StoreUnavailable
from ..system import forks
from ..system.types import Buffer
from .base import Condition, Content, ObjectInfo, Store

T = TypeVar("T")
SECONDS = 180.0
DENIED_SECONDS = 30.0
"""The time for which a store that has answered before may also refuse new credentials."""

FIRST_WAIT, LONGEST_WAIT = 0.2, 20.0  # seconds


@final
class RetryingStore:
    """Tries requests again that fail for a reason that may pass, after waits of random length that double.

    The wait is drawn between 0 and its longest, so that the ranks of a job do not come back all at once ("full jitter",
    Brooker 2015). A request that the server refuses for its credentials is tried again at once with new ones. If it
    refuses these as well, that is the error, unless the store has answered before: where credentials expire, their
    successors may come a while later.

    Args:
        store: the store.
        seconds: the time after which a request is not tried again.
        sleep, draw: for tests: how to wait, and how to draw a number in [0, 1).

    Attributes:
        retries: tries after the first one of a request, added up over all threads of this process.
    """

    def __init__(
        self,
        store: Store,
        *,
        seconds: float = SECONDS,
        sleep: Callable[[float], None] = time.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._store, self._seconds, self._sleep, self._draw = store, seconds, sleep, draw
        self.retries, self._has_succeeded = 0, False
        self.reset_in_child()
        forks.reset_in_children(self)

    def reset_in_child(self) -> None:
        """Have a lock of this process: a thread of the parent may have held the other one."""
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self._store.url

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> Content:
        return self._again(lambda: self._store.read(name, start, stop, etag=etag))

    def info(self, name: str) -> ObjectInfo:
        return self._again(lambda: self._store.info(name))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(self._again(lambda: list(self._store.list(prefix))))

    def write(self, name: str, data: Buffer, *, condition: Condition = None) -> ObjectInfo:
        tried = False

        def write() -> ObjectInfo:
            nonlocal tried
            again, tried = tried, True
            try:
                return self._store.write(name, data, condition=condition)
            except ObjectChanged:
                # An earlier try may have written it, and only the answer was lost.
                if again and (found := self._store.read(name)).data == data:
                    return found.info
                raise

        return self._again(write)

    def upload(self, name: str, path: Path) -> ObjectInfo:
        return self._again(lambda: self._store.upload(name, path))

    def delete(self, names: Sequence[str]) -> None:
        self._again(lambda: self._store.delete(names))

    def renew(self) -> None:
        self._store.renew()

    def _again(self, request: Callable[[], T]) -> T:
        begun, tries, denied = time.monotonic(), 0, 0
        while True:
            tries += 1
            try:
                answer = request()
            except StoreError as error:
                waited = time.monotonic() - begun
                if isinstance(error, AccessDenied):
                    denied += 1
                    self.renew()
                    longest = self._seconds if denied < 2 else DENIED_SECONDS if self._has_succeeded else 0.0
                elif isinstance(error, ObjectNotFound | ObjectChanged):
                    self._has_succeeded = True  # it takes the credentials
                    longest = 0.0
                else:
                    longest = self._seconds if isinstance(error, StoreUnavailable) else 0.0
                if waited >= longest:
                    raise _after(tries, waited, error) from error
            else:
                self._has_succeeded = True
                return answer
            with self._lock:
                self.retries += 1
            self._sleep(0.0 if denied == 1 else self._draw() * min(LONGEST_WAIT, FIRST_WAIT * 2**tries))

    def __getstate__(self) -> tuple[Store, float]:
        return self._store, self._seconds

    def __setstate__(self, state: tuple[Store, float]) -> None:
        RetryingStore.__init__(self, state[0], seconds=state[1])


def _after(tries: int, seconds: float, error: StoreError) -> StoreError:
    """Return an error that says how often a request was tried."""
    if tries == 1:
        return error
    return type(error)(f"{error} (tried {tries} times in {seconds:.0f} s)")
