"""Bytes that are read in spans, as an open file for programs that read one."""

import io
import os
from abc import abstractmethod
from typing import Any


class Seekable(io.RawIOBase):
    """An open file of `size` bytes, whose spans `read_at` reads. It has no path and no descriptor."""

    def __init__(self) -> None:
        super().__init__()
        self._position = 0

    @property
    @abstractmethod
    def size(self) -> int:
        """The bytes of the file."""

    @abstractmethod
    def read_at(self, offset: int, view: memoryview) -> int:
        """Fill a view from `offset` on, all within the file; return how many bytes came."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        if position < 0:
            raise ValueError(f"no byte {position}")
        self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        got = self.read_at(self._position, view[: max(0, min(len(view), self.size - self._position))])
        self._position += got
        return got
