"""Work that ends before it is done: threads follow a mark, which they look at between one value and the next."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from .. import native
from ..errors import PipelineClosed


@final
class StopMark:
    """Says to all threads that follow it that their work is over."""

    def __init__(self) -> None:
        self._value = ctypes.c_int32()

    def set(self) -> None:
        """Say that the work is over."""
        self._value.value = 1

    @property
    def is_set(self) -> bool:
        """Whether the work is over."""
        return bool(self._value.value)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Have this thread's work end within the `with` block once the mark is set; compiled code also looks at it."""
        compiled = native.library()
        _current.mark = self
        if compiled is not None:
            compiled.shardio_follow(ctypes.byref(self._value))
        try:
            yield
        finally:
            _current.mark = None
            if compiled is not None:
                compiled.shardio_follow(None)


def check() -> None:
    """Raise PipelineClosed if the mark that this thread follows is set."""
    mark: StopMark | None = getattr(_current, "mark", None)
    if mark is not None and mark.is_set:
        raise PipelineClosed("the loop is over")


_current = threading.local()
"""`mark`: what a thread follows."""
