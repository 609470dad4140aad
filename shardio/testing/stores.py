"""Stores for tests: one in memory, and one that fails as networks and servers do, by a seeded script."""

import hashlib
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, final

from ..errors import AccessDenied, ObjectChanged, ObjectNotFound, StoreUnavailable
from ..stores.base import Condition, Content, ObjectInfo, Store
from ..system.types import Buffer

T = TypeVar("T")


@final
class MemoryStore:
    """Objects in the memory of this process. Conditions of `write` are checked as a bucket does: one of two wins."""

    url: Final = "memory://"

    def __init__(self, objects: Mapping[str, bytes] | None = None) -> None:
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._lock = threading.Lock()
        for name, data in (objects or {}).items():
            self.write(name, data)

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> Content:
        info = self.info(name)
        if etag is not None and etag != info.etag:
            raise ObjectChanged(f"{self.url}{name}: its ETag is {info.etag}, not {etag}")
        return Content(self._objects[name][0][start:stop], start, info)

    def info(self, name: str) -> ObjectInfo:
        if (found := self._objects.get(name)) is None:
            raise ObjectNotFound(f"{self.url}{name}: there is no such object")
        return found[1]

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        names = sorted(self._objects)
        return iter([self.info(name) for name in names if not prefix or name.startswith(f"{prefix}/")])

    def write(self, name: str, data: Buffer, *, condition: Condition = None) -> ObjectInfo:
        with self._lock:
            now = self.info(name).etag if name in self._objects else None
            if condition is not None and now != (None if condition == "new" else condition):
                raise ObjectChanged(f"{self.url}{name}: its ETag is {now}, not {condition}")
            etag = hashlib.blake2b(data, digest_size=16).hexdigest()
            self._objects[name] = bytes(data), ObjectInfo(name, len(data), etag, time.time())
            return self.info(name)

    def upload(self, name: str, path: Path) -> ObjectInfo:
        return self.write(name, path.read_bytes())

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._objects.pop(name, None)

    def renew(self) -> None:
        pass

    def __reduce__(self) -> tuple[type["MemoryStore"], tuple[dict[str, bytes]]]:
        return MemoryStore, ({name: data for name, (data, _) in self._objects.items()},)


@final
@dataclass(frozen=True, slots=True)
class Faults:
    """The shares of requests that fail, each between 0 and 1.

    Attributes:
        refused: the server answers 503 Slow Down, or the connection is reset.
        short: the answer ends before its last byte.
        corrupt: a byte of the answer is another one.
        expired: the credentials have expired, until `renew`.
        delay: the longest wait before an answer, in seconds.
    """

    refused: float = 0.0
    short: float = 0.0
    corrupt: float = 0.0
    expired: float = 0.0
    delay: float = 0.0


@final
class FaultyStore:
    """A store that fails now and then.

    Args:
        store: what it passes requests on to.
        faults: how often it fails.
        seed: decides, with the number of the request, which ones fail.

    Attributes:
        count: the faults so far.
        reads: the reads so far, as (name, start, stop).
    """

    def __init__(self, store: Store, faults: Faults, seed: int = 0) -> None:
        self._store, self._faults = store, faults
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._expired = False
        self.count = 0
        self.reads: list[tuple[str, int, int | None]] = []

    @property
    def url(self) -> str:
        return self._store.url

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> Content:
        with self._lock:
            self.reads.append((name, start, stop))
        self._fail(name)
        content = self._store.read(name, start, stop, etag=etag)
        if content.data and self._happens(self._faults.short):
            raise StoreUnavailable(f"{self.url}/{name}: the answer ended early")
        if content.data and self._happens(self._faults.corrupt):
            data = bytearray(content.data)
            data[len(data) // 2] ^= 0xFF
            return Content(data, content.start, content.info)
        return content

    def info(self, name: str) -> ObjectInfo:
        self._fail(name)
        return self._store.info(name)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._fail(prefix)
        return self._store.list(prefix)

    def write(self, name: str, data: Buffer, *, condition: Condition = None) -> ObjectInfo:
        self._fail(name)
        written = self._store.write(name, data, condition=condition)
        self._fail(name)  # the answer is lost
        return written

    def upload(self, name: str, path: Path) -> ObjectInfo:
        self._fail(name)
        return self._store.upload(name, path)

    def delete(self, names: Sequence[str]) -> None:
        self._fail(names[0] if names else "")
        self._store.delete(names)

    def renew(self) -> None:
        self._expired = False

    def _fail(self, name: str) -> None:
        if self._faults.delay:
            time.sleep(self._random.random() * self._faults.delay)
        self._expired = self._expired or self._happens(self._faults.expired)
        if self._expired:
            raise AccessDenied(f"{self.url}/{name}: the credentials have expired")
        if self._happens(self._faults.refused):
            raise StoreUnavailable(f"{self.url}/{name}: status code: 503 Slow Down")

    def _happens(self, share: float) -> bool:
        with self._lock:
            happens = self._random.random() < share
            self.count += happens
        return happens
