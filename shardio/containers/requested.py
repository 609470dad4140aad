"""How many bytes of arrays were asked of files."""

import threading
from typing import final

from ..system.forks import reset_in_children


@final
class ByteCount:
    """A number of bytes; any number of threads add to it."""

    def __init__(self) -> None:
        self.total = 0
        self.reset_in_child()
        reset_in_children(self)

    def reset_in_child(self) -> None:
        """Have a lock of this process: a thread of the parent may have held the other one."""
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self.total += size


REQUESTED = ByteCount()
"""The bytes of fixed fields that this process has asked of files and their memory maps."""
