"""The position of a loader in its epochs: it advances batch by batch, and a loaded state is checked."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from ..errors import StateMismatch, StateWarning
from ..order.plan import Schedule

VERSION = 1
_OPTIONAL = ("global_batch",)  # states of older versions lack it
MOST_PEEKS = 3
"""After so many loops in a row that are left after one batch, the loader warns that they deliver the same batch."""

_LIMIT = 1 << 63


@final
@dataclass(frozen=True, slots=True)
class EpochPlace:
    """The epoch of a loader, and the position in it up to which batches have been delivered.

    Attributes:
        epoch: the epoch, 0, 1, ...
        position: the first position that has not been delivered.
        midway: whether a loop has delivered some batches of the epoch, but not the last one.
        if_dropped: the place before the loop, to which the loader returns if the loop is dropped here; None once the
            loop has delivered two batches, or the epoch's last one.
        peeks: how many loops in a row have been dropped after their first batch, and so delivered the same one.
        resumed: whether the place is a loaded state's, and no loop has moved it since.
    """

    epoch: int = 0
    position: int = 0
    midway: bool = False
    if_dropped: EpochPlace | None = None
    peeks: int = 0
    resumed: bool = False

    def begin(self) -> EpochPlace:
        """Return the place at which a new loop begins: in the next epoch if the last loop was left midway."""
        return replace(EpochPlace(self.epoch + 1) if self.midway else self, if_dropped=self)

    def rest_of(self, epoch: int) -> EpochPlace | None:
        """Return the place if it was loaded from a state of `epoch`, and no loop has moved it since."""
        return replace(self, if_dropped=None) if self.resumed and self.epoch == epoch else None

    def after(self, schedule: Schedule, step: int) -> EpochPlace:
        """Return the place after `step`; after the last step, the beginning of the next epoch."""
        if step + 1 == len(schedule):
            return EpochPlace(self.epoch + 1)
        before = self.if_dropped if step == 0 else None
        if before is not None:
            before = replace(before, peeks=before.peeks + 1)
        return EpochPlace(self.epoch, schedule.position_after(step), midway=True, if_dropped=before)


@final
class EpochProgress:
    """The place of a loader, which its loop moves.

    Attributes:
        place: the place; a single assignment moves it, so that no interrupt can come in between.
    """

    def __init__(self, place: EpochPlace = EpochPlace()) -> None:
        self.place = place


def checked_state(state: Mapping[str, Any], current: Mapping[str, Any], n: int, strict: bool) -> EpochProgress:
    """Check a state and return the progress to resume from.

    Args:
        state: the state to load.
        current: the loader's current state, to compare it with.
        n: the number of positions in an epoch.
        strict: whether to raise StateMismatch for the state of another dataset, seed or order; False warns instead.

    Raises StateMismatch for what is no state, for one of another version, and for values that are no position.
    """
    _check_form(state, current)
    epoch, position = state["epoch"], state["position"]
    if not all(0 <= number < _LIMIT for number in (epoch, position)):
        raise StateMismatch(f"not a position in an epoch: epoch {_shown(epoch)}, position {_shown(position)}")
    differing = [name for name in ("digest", "samples", "seed", "order") if state[name] != current[name]]
    message = "; ".join(
        f"the state's {name} is {_shown(state[name])}, this loader's is {_shown(current[name])}" for name in differing
    )
    restarts = "samples" in differing
    loss = f"epoch {_shown(epoch)} {'starts over' if restarts else 'may deliver samples twice or not at all'}"
    if differing and strict:
        raise StateMismatch(
            f"{message}. loader.load_state_dict(state, strict=False) resumes all the same, but then {loss}; "
            "docs/resuming.md tells more, also of Lightning's checkpoints"
        )
    if position > n and not restarts:
        raise StateMismatch(f"not a position in an epoch of {n}: epoch {epoch}, position {position}")
    if differing:
        warnings.warn(f"{message}: {loss}", StateWarning, stacklevel=3)
        return EpochProgress(EpochPlace(epoch, 0 if restarts else position, resumed=True))
    return EpochProgress(EpochPlace(epoch, position, resumed=True))


def _check_form(state: Any, current: Mapping[str, Any]) -> None:
    """Raise StateMismatch unless `state` has the version, the names and the types of `current`."""
    if not isinstance(state, Mapping):
        raise StateMismatch(f"a loader's state must be a mapping with {', '.join(current)}, got {_shown(state)}")
    if "version" in state and (type(state["version"]) is not int or state["version"] != current["version"]):
        raise StateMismatch(f"the state's version is {_shown(state['version'])}, this loader's is {current['version']}")
    for name in current:
        if name not in state and name not in _OPTIONAL:
            raise StateMismatch(f"not a loader's state: it has no {name!r}")
    for name, value in state.items():
        if name not in current:
            raise StateMismatch(f"not a loader's state: it has {_shown(name)}")
        if type(value) is not type(current[name]):
            kind = "text" if isinstance(current[name], str) else "a whole number (int)"
            raise StateMismatch(f"the state's {name} must be {kind}, got {_shown(value)} ({type(value).__name__})")


def _shown(value: Any) -> str:
    """Return a value for a message, in at most 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole numbers of more than 4300 digits
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
