"""Objects that are closed before the interpreter ends.

Daemon threads inside native code would bring the process down with an abort, and whatever closes later finds the
modules that it needs gone.
"""

import atexit
import weakref
from contextlib import ExitStack
from typing import Protocol

from . import background

_LIMIT = 2.0
"""Seconds that the interpreter's end waits for what runs in the background."""


class ClosesAtExit(Protocol):
    """An object with threads or libraries that must not outlive the interpreter."""

    def at_exit(self) -> None:
        """Close the object; called when the interpreter is about to end."""


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
        stack.callback(background.end, _LIMIT)  # the last one
        for reference in list(_open):
            resource = reference()
            if resource is not None:
                stack.callback(resource.at_exit)
