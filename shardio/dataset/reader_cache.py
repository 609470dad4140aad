"""The open shards of a dataset. Threads share the open files; a forked or unpickled dataset opens its own."""

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from .. import containers
from ..containers.base import Reader
from ..errors import ShardCorrupt
from ..format import manifest
from ..format.fields import Field
from ..system import processes

MOST_OPEN = 10_000  # shards; each takes some of the kernel's 65,530 memory maps


@final
class ReaderCache:
    """Keeps the most recently used shards open: a dataset may have more shards than a process may open files."""

    def __init__(self, described: manifest.Manifest, path: Path, fields: Mapping[str, Field]) -> None:
        self._container = containers.get(described.container)
        self._names = described.shards.names
        self._samples = described.shards.samples
        self._path = path
        self._fields = fields
        # A shard takes up to two descriptors, and pending reads keep readers alive that the cache has dropped.
        self.limit = max(16, processes.allow_open_files(4 * min(len(self._names), MOST_OPEN) + 256) // 4)
        self._open: OrderedDict[int, Reader] = OrderedDict()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def __getitem__(self, shard: int) -> Reader:
        if self._pid != os.getpid():
            # After a fork: a thread of the parent may have held the lock, which nothing would release in the child.
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            reader = self._open.get(shard)
            if reader is not None:
                self._open.move_to_end(shard)
                return reader
        path = self._path / self._names[shard]
        reader = self._container.reader(path, self._fields)
        if len(reader) != self._samples[shard]:
            raise ShardCorrupt(f"{path}: {len(reader)} samples, but the manifest says {self._samples[shard]}")
        with self._lock:
            reader = self._open.setdefault(shard, reader)
            while len(self._open) > self.limit:
                # Not closed, as another thread may be reading: its files close when the last user drops it.
                self._open.popitem(last=False)
        return reader

    def close(self) -> None:
        """Drop all readers; their files close when the last user drops them. In-memory shards stay."""
        if not self._container.on_disk:
            return
        with self._lock:
            self._open.clear()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_lock": None, "_open": OrderedDict()}
        if not self._container.on_disk:  # in-memory shards: the samples themselves must be pickled
            state["_open"] = OrderedDict((shard, self[shard]) for shard in range(len(self._names)))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock(), _pid=os.getpid())
