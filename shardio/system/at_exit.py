"""The end of the interpreter: it closes objects, and waits for the threads that it must not strike.

While the interpreter ends, a thread that comes back from compiled code is unwound, up to Python 3.13, and where the
compiled code is C++ that aborts the process. So the end waits for shardio's threads. Those that do not come back in
time are left behind, and `shardio_leave_threads` of the C part sees to it that they do no harm.
"""

import atexit
import time
import weakref
from contextlib import ExitStack, suppress
from typing import Protocol

from .. import native
from . import background

_LIMIT = 2.0
"""Seconds that the interpreter's end waits for what runs in the background."""


class ClosesAtExit(Protocol):
    """An object with threads or libraries that must not outlive the interpreter."""

    def at_exit(self) -> None:
        """Close the object, but do not wait for threads; called when the interpreter is about to end."""


# By weak reference, as a WeakSet has them; but a WeakSet runs Python code when an object goes, see `background`.
_open: dict[weakref.ref[ClosesAtExit], None] = {}


def close_at_exit(resource: ClosesAtExit) -> None:
    """Have `resource.at_exit` called before the interpreter ends; it is not kept alive for that."""
    atexit.unregister(_close_all)
    atexit.register(_close_all)  # so that it runs before what was imported meanwhile ends
    _open[weakref.ref(resource, _open.pop)] = None


def _close_all() -> None:
    background.begin_exit()
    with ExitStack() as stack:  # one that fails does not keep the others from closing
        stack.callback(_end_threads, time.monotonic())  # the last one
        for reference in list(_open):
            resource = reference()
            if resource is not None:
                stack.callback(resource.at_exit)


def _end_threads(begun: float) -> None:
    background.end_keeper()
    try:
        with suppress(KeyboardInterrupt):  # whoever waits has waited long enough
            _wait(begun)
    finally:
        if background.busy() and (compiled := native.library()) is not None:
            compiled.shardio_leave_threads()


def _wait(begun: float) -> None:
    while background.busy() and time.monotonic() < begun + _LIMIT:
        time.sleep(0.001)
