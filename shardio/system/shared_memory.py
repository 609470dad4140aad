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
        self._handle = anonymous_file("shardio")
        weakref.finalize(self, os.close, self._handle)
        spans: list[tuple[int, int]] = []
        with os.fdopen(os.dup(self._handle), "wb") as file:
            for buffer in buffers:
                file.write(bytes(-file.tell() % _ALIGN))
                data = buffer.raw()
                spans.append((file.tell(), data.nbytes))
                file.write(data)
            self._end_of_arrays = file.tell()
            pickle.dump((spans, pickled), file)

    def __reduce__(self) -> tuple[Any, ...]:
        # DupFd must be created while the process starts: created earlier, it serves the file by a named socket.
        return _Received, (DupFd(self._handle), self._end_of_arrays)

    def load(self) -> Any:
        """Return a new value, separate from those of other calls."""
        return _load(self._handle, self._end_of_arrays)


@final
class _Received:
    """A `Shared` value as the started process receives it."""

    def __init__(self, handle: Any, end_of_arrays: int) -> None:
        self._handle, self._end_of_arrays = handle.detach(), end_of_arrays

    def load(self) -> Any:
        """Return the value; call this once."""
        try:
            return _load(self._handle, self._end_of_arrays)
        finally:
            os.close(self._handle)


def _load(handle: int, end_of_arrays: int) -> Any:
    memory = memoryview(mmap.mmap(handle, 0, access=mmap.ACCESS_COPY))
    # Trusted: `Shared` pickled both in the parent process.
    spans, pickled = pickle.loads(memory[end_of_arrays:])  # noqa: S301
    return pickle.loads(pickled, buffers=[memory[start : start + size] for start, size in spans])  # noqa: S301
