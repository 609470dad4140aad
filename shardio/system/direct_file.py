"""Files that are written past the page cache: its fresh memory costs several times what the disk asks for."""

import contextlib
import fcntl
import io
import mmap
import os
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, final

import numpy as np

from .background import Call, start
from .types import Buffer

BLOCK = 1 << 22
_BLOCKS = 3  # one is filled, one is written, and one waits
_DIRECT: int = getattr(os, "O_DIRECT", 0)


@final
class DirectFile:
    """Writes a file from an offset on; whole blocks of 4 MiB of the file go to the disk at once, in another thread.

    They pass by the page cache (O_DIRECT) where the file system can do that. What is left at the end does not.

    Args:
        file: the file, open for reading and writing, without a buffer. The caller closes it, after `wait`.
        offset: where to begin; what stands before it in its block stays as it is.
        seen: called in the other thread with each block, in order, the first with what stands before the offset.
    """

    def __init__(self, file: io.FileIO, offset: int, seen: Callable[[memoryview], object] = len) -> None:
        self._file, self._seen = file, seen
        self._begin = self._end = offset % BLOCK  # what is to be written of the block
        # Anonymous memory begins at a page, as O_DIRECT demands, and takes none before it is used.
        self._block, *spare = (np.frombuffer(mmap.mmap(-1, BLOCK), np.uint8) for _ in range(_BLOCKS))
        self._spare, self._full, self._place = SimpleQueue[Any](), SimpleQueue[Any](), offset - self._begin
        for block in spare:
            self._spare.put(block)
        self._block[: self._begin] = np.frombuffer(os.pread(file.fileno(), self._begin, self._place), np.uint8)
        self._writing: Call | None = None
        self._failed: BaseException | None = None
        self._pass_by_cache(_DIRECT)

    def write(self, data: Buffer) -> None:
        """Add some bytes. Raises OSError, also for those of earlier calls."""
        left = np.frombuffer(data, np.uint8)
        while len(left):
            part = left[: BLOCK - self._end]
            np.copyto(self._block[self._end : self._end + len(part)], part)  # without the GIL, unlike a memoryview
            self._end, left = self._end + len(part), left[len(part) :]
            if self._end == BLOCK:
                if self._writing is None:
                    self._writing = Call(self._write_blocks)
                    start(self._writing.run)
                self._full.put((self._block, self._begin, self._place))
                self._block, self._begin, self._end, self._place = self._spare.get(), 0, 0, self._place + BLOCK
                if self._failed is not None:
                    raise self._failed

    def wait(self) -> None:
        """Wait for the other thread. Raises OSError if it failed."""
        writing, self._writing = self._writing, None
        if writing is not None:
            self._full.put(None)
            writing.wait()
            if self._failed is not None:
                raise self._failed

    def flush(self) -> None:
        """Write all that was added, after `wait`; nothing can be added after that."""
        self._pass_by_cache(0)
        self._put(self._block[self._begin : self._end].data, self._place + self._begin)

    def _write_blocks(self) -> None:
        while (full := self._full.get()) is not None:
            block, begin, place = full
            try:
                self._seen(block.data)
                self._put(block[begin:].data, place + begin)
            except BaseException as error:  # noqa: BLE001  # raised in the thread that waits
                self._failed = error
            self._spare.put(block)

    def _put(self, data: memoryview, offset: int) -> None:
        while len(data):
            try:
                written = os.pwrite(self._file.fileno(), data, offset)
                data, offset = data[written:], offset + written
            except OSError:
                # Perhaps the alignment is not enough, as after a full disk has taken a part of the data.
                if not self._pass_by_cache(0):
                    raise

    def _pass_by_cache(self, flag: int) -> bool:
        """Set or clear O_DIRECT, where the file system knows it; return whether that is a change."""
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags & ~_DIRECT | flag)
        return flags != fcntl.fcntl(self._file, fcntl.F_GETFL)
