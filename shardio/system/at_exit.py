"""Objects that are closed before the interpreter ends.

Daemon threads inside native code would bring the process down with an abort, and whatever closes later finds the
modules that it needs gone.
"""

import atexit
import weakref
from contextlib import ExitStack
from typing import Protocol


class ClosesAtExit(Protocol):
    """An object with threads or libraries that must not outlive the interpreter."""

    def at_exit(self) -> None:
        """Close the object; called when the interpreter is about to end."""


_open: "weakref.WeakSet[ClosesAtExit]" = weakref.WeakSet()


def close_at_exit(resource: ClosesAtExit) -> None:
    """Have `resource.at_exit` called before the interpreter ends; it is not kept alive for that."""
    atexit.unregister(_close_all)
    atexit.register(_close_all)  # so that it runs before what was imported meanwhile ends
    _open.add(resource)


def _close_all() -> None:
    with ExitStack() as stack:  # one that fails does not keep the others from closing
        for resource in list(_open):
            stack.callback(resource.at_exit)
