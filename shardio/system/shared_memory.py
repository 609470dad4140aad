"""Values for several processes at once, which share the memory of their arrays instead of copying it."""

import mmap
import os
import pickle
import weakref
from multiprocessing.reduction import DupFd
from typing import Any, final

_ALIGN = 64


@final
class Shared:
    """A value to pass to processes as they start; its arrays are in anonymous memory (memfd) that all of them map.

    The mapping is copy-on-write: a process keeps its changes to itself. This matters because a source of a hundred
    million files has gigabytes of names and sizes.

    Args:
        value: anything that pickles; the NumPy arrays within it are shared.
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
        # DupFd must be created while the process starts: created earlier, it serves the file by a named socket.
        return _Received, (DupFd(self._handle), self._pickled, self._spans)

    def load(self) -> Any:
        """Return a new value, separate from those of other calls."""
        return _load(self._handle, self._pickled, self._spans)


@final
class _Received:
    """A `Shared` value as the started process receives it."""

    def __init__(self, handle: Any, pickled: bytes, spans: list[tuple[int, int]]) -> None:
        self._handle, self._pickled, self._spans = handle.detach(), pickled, spans

    def load(self) -> Any:
        """Return the value; call this once."""
        try:
            return _load(self._handle, self._pickled, self._spans)
        finally:
            os.close(self._handle)


def _load(handle: int, pickled: bytes, spans: list[tuple[int, int]]) -> Any:
    size = os.fstat(handle).st_size
    memory = memoryview(mmap.mmap(handle, size, access=mmap.ACCESS_COPY) if size else bytearray())
    # Trusted: `Shared` pickled it in the parent process.
    return pickle.loads(pickled, buffers=[memory[start : start + size] for start, size in spans])  # noqa: S301
