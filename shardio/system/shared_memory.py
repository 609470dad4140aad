"""A value for several processes at once, whose arrays they share instead of having a copy each."""

import mmap
import os
import pickle
import weakref
from multiprocessing.reduction import DupFd
from typing import Any, final

_ALIGN = 64


@final
class Shared:
    """A value that goes to processes as they are started. Its arrays lie in memory without a name that all of them map.

    What a process changes in them is its own. Sources of a hundred million files have gigabytes of names and sizes.

    Args:
        value: anything that pickles; NumPy arrays within it are shared.
    """

    def __init__(self, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        self._pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        self._handle = os.memfd_create("shardio", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self._handle)
        self._spans: list[tuple[int, int]] = []
        with os.fdopen(os.dup(self._handle), "wb") as file:
            for buffer in buffers:
                file.write(bytes(-file.tell() % _ALIGN))
                data = buffer.raw()
                self._spans.append((file.tell(), data.nbytes))
                file.write(data)

    def __reduce__(self) -> tuple[Any, ...]:
        # DupFd must be made here, while the process is being started: made earlier it is served by a named socket.
        return _Received, (DupFd(self._handle), self._pickled, self._spans)

    def load(self) -> Any:
        """The value anew: every call gives another one."""
        return _load(self._handle, self._pickled, self._spans)


@final
class _Received:
    """The same in a process that was started."""

    def __init__(self, handle: Any, pickled: bytes, spans: list[tuple[int, int]]) -> None:
        self._handle, self._pickled, self._spans = handle.detach(), pickled, spans

    def load(self) -> Any:
        """The value."""
        try:
            return _load(self._handle, self._pickled, self._spans)
        finally:
            os.close(self._handle)


def _load(handle: int, pickled: bytes, spans: list[tuple[int, int]]) -> Any:
    size = os.fstat(handle).st_size
    memory = memoryview(mmap.mmap(handle, size, access=mmap.ACCESS_COPY) if size else bytearray())
    # Our own pickle, made above.
    return pickle.loads(pickled, buffers=[memory[start : start + size] for start, size in spans])  # noqa: S301
