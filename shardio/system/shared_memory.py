"""Values for several processes at once, which share the memory of their arrays instead of copying it."""

import mmap
import os
import pickle
import weakref
from contextvars import ContextVar
from multiprocessing.reduction import DupFd
from typing import Any, final

from .portable import anonymous_file

_ALIGN = 64
_sharing: ContextVar[bool] = ContextVar("sharing", default=False)


def is_sharing() -> bool:
    """Return whether a `Shared` pickles its value now: arrays that could be made again may go along, without a copy."""
    return _sharing.get()


@final
class Shared:
    """A value to pass to processes as they start, through an anonymous file (memfd) that all of them map.

    The mapping is copy-on-write: a process keeps its changes to itself. This matters because a source of a hundred
    million files has gigabytes of names and sizes. And a process that starts gets a few bytes: an argument larger than
    the 64 KiB of its pipe would keep the parent until that process reads, so that processes start one after another.

    Args:
        value: anything that pickles; the NumPy arrays within it are shared.
    """

    def __init__(self, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        before = _sharing.set(True)
        try:
            pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        finally:
            _sharing.reset(before)
        handle, spans = anonymous_file("shardio"), list[tuple[int, int]]()
        with os.fdopen(os.dup(handle), "wb") as file:
            for buffer in buffers:
                file.write(bytes(-file.tell() % _ALIGN))
                data = buffer.raw()
                spans.append((file.tell(), data.nbytes))
                file.write(data)
            self._hold(handle, file.tell())
            pickle.dump((spans, pickled), file)

    def _hold(self, handle: int, end_of_arrays: int) -> None:
        self._handle, self._end_of_arrays = handle, end_of_arrays
        weakref.finalize(self, os.close, handle)

    def __reduce__(self) -> tuple[Any, ...]:
        # DupFd must be created while the process starts: created earlier, it serves the file by a named socket.
        return _received, (DupFd(self._handle), self._end_of_arrays)

    def load(self) -> Any:
        """Return a new value, separate from those of other calls."""
        memory = memoryview(mmap.mmap(self._handle, 0, access=mmap.ACCESS_COPY))
        # Trusted: `Shared` pickled both in the parent process.
        spans, pickled = pickle.loads(memory[self._end_of_arrays :])  # noqa: S301
        return pickle.loads(pickled, buffers=[memory[start : start + size] for start, size in spans])  # noqa: S301


def _received(handle: Any, end_of_arrays: int) -> Shared:
    shared = object.__new__(Shared)
    shared._hold(handle.detach(), end_of_arrays)
    return shared
