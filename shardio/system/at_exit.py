"""The end of the interpreter: it closes objects, and waits for the threads that it must not strike.

While the interpreter ends, a thread that comes back from compiled code is unwound, up to Python 3.13, and where the
compiled code is C++ that aborts the process. So the end waits for shardio's threads. Those that do not come back in
time are left behind, and `shardio_leave_threads` of the C part sees to it that they do no harm.
"""

import _thread
import atexit
import sys
import threading
import time
import weakref
from contextlib import ExitStack, suppress
from typing import Protocol, final

from .. import native
from . import background

_LIMIT = 2.0
"""Seconds that the interpreter's end waits for what runs in the background, but for an AwaitedCall."""


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


@final
class AwaitedCall:
    """A `with` block for a call that may take long, such as one of a user's function, on a thread of `background`.

    Args:
        name: names the call in the line that the interpreter's end prints if it waits.
        timeout: seconds from its beginning that the interpreter's end waits for it.
    """

    __slots__ = ("deadline", "name")

    def __init__(self, name: str, timeout: float) -> None:
        self.name, self.deadline = name, time.monotonic() + timeout

    def __enter__(self) -> None:
        _calls[_thread.get_ident()] = self

    def __exit__(self, *_: object) -> None:
        del _calls[_thread.get_ident()]


_calls: dict[int, AwaitedCall] = {}
"""The calls in progress, by thread."""


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
    """Wait until no thread is busy, or none has been in an AwaitedCall before its deadline for 2 s."""
    told, last = False, begun
    while background.busy():
        now = time.monotonic()
        calls = {thread: call for thread, call in list(_calls.items()) if now < call.deadline}
        if calls:
            last = now
        if now - last >= _LIMIT:
            return
        if calls and not told and now - begun >= _LIMIT:
            told = True
            _tell(calls, now)
        time.sleep(0.02 if told else 0.001)


def _tell(calls: dict[int, AwaitedCall], now: float) -> None:
    """Print which calls the interpreter's end waits for."""
    threads = {thread.ident: thread.name for thread in threading.enumerate()}
    waits = "; ".join(f"{threads.get(thread, 'a thread')} is in {call.name:.200}" for thread, call in calls.items())
    longest = max(call.deadline for call in calls.values()) - now
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # closed: nobody reads it
            print(f"shardio: the process waits up to {longest:.0f} s to end: {waits}", file=sys.stderr, flush=True)
