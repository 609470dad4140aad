"""Files that are written past the page cache: its fresh memory costs several times what the disk asks for."""

import contextlib
import fcntl
import io
import mmap
import os
from collections.abc import Callable
from functools import partial
from typing import final

import numpy as np
from numpy.typing import NDArray

from .background import Call, start
from .types import Buffer

BLOCK = 1 << 22
_DIRECT: int = getattr(os, "O_DIRECT", 0)
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


@final
class DirectFile:
    """Writes a file from an offset on; whole blocks of 4 MiB of the file go to the disk at once, in another thread.

    They pass by the page cache (O_DIRECT) where the file system can do that. What is left at the end does not.

    Args:
        file: the file, open for reading and writing, without a buffer. The caller closes it; a block that is written
            meanwhile has a descriptor of its own, so that dropping this object waits for nothing.
        offset: where to begin; what stands before it in its block stays as it is.
        seen: called in the other thread with each block, in order, the first with what stands before the offset.
    """

    def __init__(self, file: io.FileIO, offset: int, seen: Callable[[memoryview], object] | None = None) -> None:
        self._file, self._seen = file, seen
        self._begin = self._end = offset % BLOCK  # what is to be written of the block
        self._place = offset - self._begin
        # Such memory begins at a page, as O_DIRECT demands, and is taken as it is used.
        self._block, self._other = (np.frombuffer(mmap.mmap(-1, BLOCK, _PRIVATE), np.uint8) for _ in range(2))
        if seen is not None:
            self._block[: self._begin] = np.frombuffer(os.pread(file.fileno(), self._begin, self._place), np.uint8)
        self._writing: Call | None = None
        _pass_by_cache(file, _DIRECT)

    def write(self, data: Buffer) -> None:
        """Add some bytes. Raises OSError, also for those of earlier calls."""
        left = np.frombuffer(data, np.uint8)
        while len(left):
            part = left[: BLOCK - self._end]
            np.copyto(self._block[self._end : self._end + len(part)], part)  # without the GIL, unlike a memoryview
            self._end, left = self._end + len(part), left[len(part) :]
            if self._end == BLOCK:
                self.wait()
                file = io.FileIO(os.dup(self._file.fileno()), "rb+")
                writing = Call(partial(self._write_block, file, self._block, self._begin, self._place))
                start(writing.run)
                self._writing, self._block, self._other = writing, self._other, self._block
                self._begin, self._end, self._place = 0, 0, self._place + BLOCK

    def wait(self) -> None:
        """Wait for the other thread. Raises OSError if it failed."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.wait()

    def flush(self) -> None:
        """Write what is left, after `wait`; nothing can be added after that."""
        _pass_by_cache(self._file, 0)
        _put(self._file, self._block[self._begin : self._end].data, self._place + self._begin)

    def _write_block(self, file: io.FileIO, block: NDArray[np.uint8], begin: int, place: int) -> None:
        with file:
            if self._seen is not None:
                self._seen(block.data)
            _put(file, block[begin:].data, place + begin)


def _put(file: io.FileIO, data: memoryview, offset: int) -> None:
    while len(data):
        try:
            written = os.pwrite(file.fileno(), data, offset)
            data, offset = data[written:], offset + written
        except OSError:
            # Perhaps the alignment is not enough, as after a full disk has taken a part of the data.
            if not _pass_by_cache(file, 0):
                raise


def _pass_by_cache(file: io.FileIO, flag: int) -> bool:
    """Set or clear O_DIRECT, where the file system knows it; return whether that is a change."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    with contextlib.suppress(OSError):
        fcntl.fcntl(file, fcntl.F_SETFL, flags & ~_DIRECT | flag)
    return flags != fcntl.fcntl(file, fcntl.F_GETFL)
