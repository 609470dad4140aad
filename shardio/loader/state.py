"""Where a loader stands in its epochs: moved batch by batch, saved as a few numbers, and checked when loaded."""

import warnings
from collections.abc import Mapping
from typing import Any, final

from ..errors import StateMismatch, StateWarning
from ..order.plan import Schedule

VERSION = 1


@final
class Progress:
    """How far a loader has come: the epoch, and the position in it up to which batches have been handed over.

    Attributes:
        epoch: the epoch, 0, 1, ...
        position: the first position that has not been delivered.
        midway: whether a loop has delivered a part of the epoch.
    """

    def __init__(self, epoch: int = 0, position: int = 0) -> None:
        self.epoch, self.position, self.midway = epoch, position, False

    def advance(self, schedule: Schedule, step: int) -> None:
        """Move past `step`; after the last step, to the beginning of the next epoch."""
        if step + 1 == len(schedule):
            self.epoch, self.position, self.midway = self.epoch + 1, 0, False
        else:
            self.position, self.midway = schedule.position_after(step), True


def checked_state(state: Mapping[str, Any], own: Mapping[str, Any], n: int, strict: bool) -> Progress:
    """Return where to go on from.

    Args:
        state: the state to load.
        own: the loader's own state, to compare it with.
        n: positions of an epoch.
        strict: raise StateMismatch for the state of another dataset, seed or order; warn otherwise.
    """
    for name in own:
        if name not in state:
            raise StateMismatch(f"not a loader's state: it has no {name!r}")
    if state["version"] != own["version"]:
        raise StateMismatch(f"the state's version is {state['version']!r}, this loader's is {own['version']!r}")
    epoch, position = state["epoch"], state["position"]
    if not all(type(number) is int and number >= 0 for number in (epoch, position)):
        raise StateMismatch(f"not a place in an epoch: epoch {epoch!r}, position {position!r}")
    differing = [name for name in ("digest", "samples", "seed", "order") if state[name] != own[name]]
    message = "; ".join(f"the state's {name} is {state[name]!r}, this loader's is {own[name]!r}" for name in differing)
    if differing and strict:
        raise StateMismatch(f"{message}. strict=False goes on all the same")
    if position > n and "samples" not in differing:
        raise StateMismatch(f"not a place in an epoch of {n}: epoch {epoch}, position {position}")
    if differing:
        restarts = "samples" in differing
        loss = "begins anew" if restarts else "may deliver samples twice or not at all"
        warnings.warn(f"{message}: epoch {epoch} {loss}", StateWarning, stacklevel=3)
        return Progress(epoch, 0 if restarts else position)
    return Progress(epoch, position)
