"""Objects that begin anew in a forked child: it must share no lock with its parent, nor a file that bears one."""

import os
import weakref
from typing import Protocol


class ResetInChildren(Protocol):
    """An object that begins anew in a forked child."""

    def reset_in_child(self) -> None:
        """Begin anew; called in the child before anything else runs there."""


_resources: dict[weakref.ref[ResetInChildren], None] = {}


def reset_in_children(resource: ResetInChildren) -> None:
    """Have `resource.reset_in_child` called in each forked child; it is not kept alive for that."""
    _resources[weakref.ref(resource, _resources.pop)] = None


def _reset_all() -> None:
    for reference in list(_resources):
        if (resource := reference()) is not None:
            resource.reset_in_child()


os.register_at_fork(after_in_child=_reset_all)
