"""The end of the interpreter: it closes objects, and waits for the threads that it must not strike.

While the interpreter ends, a thread that comes back from compiled code is unwound, up to Python 3.13, and where the
compiled code is C++ that aborts the process. So the end waits for shardio's threads. Threads that do not come back in
time are left, and `shardio_leave_threads` of the C part makes sure that they do no harm.
"""

import atexit
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Protocol, TypeAlias

from .. import native
from . import background

_LIMIT = 2.0
"""Seconds that the interpreter's end waits for what runs in the background, apart from `awaited_calls`."""


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


AwaitedCall: TypeAlias = tuple[Callable[[Any], str], Any, float]
"""A call that may take long, such as one of a user's function: a function that describes it, what that function is
given, and the time (`time.monotonic`) until which the interpreter's end waits for it."""

awaited_calls: dict[int, AwaitedCall] = {}
"""The calls in progress on threads of `background`, by thread. Whoever makes a call adds it, and removes it afterwards;
a `with` block for that would take longer than a small function does."""


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
    """Wait until no thread is busy, or none has been in an awaited call before its deadline for 2 s."""
    told, last = False, begun
    while background.busy():
        now = time.monotonic()
        calls = {thread: call for thread, call in list(awaited_calls.items()) if now < call[-1]}
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
    waits = "; ".join(
        f"{threads.get(thread, 'a thread')} is in {describe(given):.200}"
        for thread, (describe, given, _) in calls.items()
    )
    longest = max(deadline for _, _, deadline in calls.values()) - now
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # closed: nobody reads it
            print(f"shardio: the process waits up to {longest:.0f} s to end: {waits}", file=sys.stderr, flush=True)
