"""Where a loader stands, as a few numbers that are the same on every rank, and whether they are another's."""

import warnings
from collections.abc import Mapping
from typing import Any

from ..errors import StateMismatch, StateWarning

VERSION = 1


def checked_state(state: Mapping[str, Any], mine: Mapping[str, Any], n: int, strict: bool) -> tuple[int, int]:
    """The epoch and the position to go on from.

    Args:
        state: what is to be loaded.
        mine: the loader's own state, to compare it with.
        n: positions of an epoch.
        strict: raise StateMismatch for a state of another dataset, seed or order; else warn.
    """
    for name in mine:
        if name not in state:
            raise StateMismatch(f"not a loader's state: it has no {name!r}")
    if state["version"] != mine["version"]:
        raise StateMismatch(f"the state's version is {state['version']!r}, this loader's is {mine['version']!r}")
    epoch, position = state["epoch"], state["position"]
    if not all(type(number) is int and number >= 0 for number in (epoch, position)):
        raise StateMismatch(f"not a place in an epoch: epoch {epoch!r}, position {position!r}")
    others = [name for name in ("digest", "samples", "seed", "order") if state[name] != mine[name]]
    told = "; ".join(f"the state's {name} is {state[name]!r}, this loader's is {mine[name]!r}" for name in others)
    if others and strict:
        raise StateMismatch(f"{told}. strict=False goes on all the same")
    if position > n and "samples" not in others:
        raise StateMismatch(f"not a place in an epoch of {n}: epoch {epoch}, position {position}")
    if others:
        anew = "samples" in others
        lost = "begins anew" if anew else "may deliver samples twice or not at all"
        warnings.warn(f"{told}: epoch {epoch} {lost}", StateWarning, stacklevel=3)
        return epoch, 0 if anew else position
    return epoch, position
