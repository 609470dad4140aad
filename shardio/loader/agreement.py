"""Finds ranks that disagree: each compares the beginning of its loop with the others'.

A rank with another seed, another version of a growing dataset, or a state that only it has loaded would deliver samples
twice, and leave others out, without a word. So each rank describes the beginning of its loop in the store of
torch.distributed: the first one sets the value of a key, every other compares its own. That takes one round trip, no
wait and no collective. A rank that differs raises, and leaves its error in the store for the others, who look for it
twice.

A loop is compared when it asks for its second batch: one that is left before is a peek, which rank 0 alone may take. A
loop's key is the same on all ranks that run the same script:

    shardio/RESTART/GROUP/MEMBERS/PLACE/LOADER/LOOP

of torchrun's restarts, the process groups of this process so far, the ranks of the Loader's world, the lines that made
the Loader, the Loaders that they made before, and the loops of this Loader that began at other positions. So a
Loader that one rank alone makes is compared with none.
"""

import json
import os
import re
import sys
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from traceback import walk_stack
from typing import Any, final

from ..errors import ConfigError, StateWarning
from ..order.plan import Schedule
from ..order.world import World, restarts
from ..system import forks
from ..system.units import shown
from .state import LoaderState, joined

LOOKS = 4
"""A loop looks for an error of another rank before its batches up to this number."""

_FOLDER = os.path.dirname(__file__)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object, in its `repr`
_LINES = 3


@final
class Agreement:
    """One Loader's part in the comparison of ranks.

    Args:
        world: the Loader's world.
        transforms: the Loader's transforms and mixing; ranks that differ in them are warned.
    """

    def __init__(self, world: World, transforms: Mapping[str, Any]) -> None:
        self._world, self._transforms = world, transforms
        # The hash of integers is the same in every process.
        self._name = _counted(f"{hash(world.members or ())}/{_place()}") if world.size > 1 else ""
        self._loops, self._last = -1, (-1, -1)
        self._state: dict[str, Any] | None = None
        _stores.count_group()  # also where nothing will be compared, as ranks must count alike

    def begin(self, state: LoaderState, schedule: Schedule) -> None:
        """Begin a loop.

        Args:
            state: where it begins.
            schedule: the steps of the loop.
        """
        if not self._name:
            return
        self._steps = len(schedule)
        parts = joined(state.save())
        self._state = parts | {
            "order": str(parts["order"]),
            "buckets": str(parts["buckets"]),
            "global_batch": schedule.global_batch,  # that of a state may be another loader's
            "world size": schedule.world.size,
            "tail": schedule.tail,
            "assign": schedule.assign,
        }

    def look(self, step: int) -> None:
        """Before the batch of a step, compare, or look for the error of another rank.

        Raises ConfigError, with both values, if ranks differ.
        """
        if self._state is None:
            return
        compared = min(1, self._steps - 1)  # a loop of one step is no peek
        if step < compared or (found := _stores.current(self._world)) is None:
            return
        store, rank, group = found
        try:
            if step == compared:
                self._compare(store, rank, group, self._state)
            elif store.check([self._error]):
                raise ConfigError(store.get(self._error).decode())
        except (RuntimeError, OSError, UnicodeError):  # no such store, or it failed: that is no reason to end a job
            self._state = None

    def _compare(self, store: Any, rank: int, group: int, state: dict[str, Any]) -> None:
        if self._last != (state["epoch"], state["position"]):
            self._last, self._loops = (state["epoch"], state["position"]), self._loops + 1
        key = f"shardio/{restarts()}/{group}/{self._name}/{self._loops}"
        self._error = f"{key}/error"
        own = {"rank": rank, "state": state, "transforms": dict(_described(self._transforms))}
        first = _parsed(store.compare_set(key, "", json.dumps(own)))
        if first is None:
            return
        if differing := _differing(own, first, "state"):
            message = (
                f"the ranks of a job must load the same: {differing}; give all ranks the same dataset, arguments and "
                "state; a Loader for one rank alone takes world=shardio.World()"
            )
            store.set(self._error, message)
            raise ConfigError(message)
        if differing := _differing(own, first, "transforms"):
            warnings.warn(f"ranks transform samples differently: {differing}", StateWarning, stacklevel=4)


def _differing(own: Mapping[str, Any], first: Mapping[str, Any], what: str) -> str:
    """Return in words in which of some values this rank differs from the first one, each with both values."""
    names = [name for name in {**own[what], **first[what]} if own[what].get(name) != first[what].get(name)]
    return "; ".join(
        f"{name} is {shown(own[what].get(name))} on rank {own['rank']} and {shown(first[what].get(name))} on rank "
        f"{first['rank']}"
        for name in names
    )


def _described(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each transform in nested lists and mappings by its place, as `transforms['image'][0]`, and in words."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _described(inner, f"{name}[{key!r}]" if name else key)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, inner in enumerate(value):
            yield from _described(inner, f"{name}[{number}]")
    else:
        yield name, _ADDRESS.sub("", repr(value))


def _parsed(value: bytes) -> dict[str, Any] | None:
    """Return what another rank set; None if it is not ours, as of a store that keeps nothing."""
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"rank", "state", "transforms"} <= found.keys() else None


def _place() -> str:
    """Return the innermost lines of the calls that make a Loader, as `data.py:12 train.py:345 train.py:678`."""
    outside = (one for one in walk_stack(None) if os.path.dirname(one[0].f_code.co_filename) != _FOLDER)
    return " ".join(f"{os.path.basename(frame.f_code.co_filename)}:{line}" for frame, line in islice(outside, _LINES))


_made: Counter[str] = Counter()
_counting = threading.Lock()


def _counted(place: str) -> str:
    """Return a name for the next Loader that is made at a place."""
    with _counting:
        _made[place] += 1
        return f"{place}/{_made[place]}"


def _default_group() -> Any:
    """Return the default process group of torch.distributed; None if it is not initialised."""
    dist: Any = sys.modules.get("torch.distributed")  # not imported means not initialised
    return dist.group.WORLD if dist is not None and dist.is_available() and dist.is_initialized() else None


@final
class _Stores:
    """The stores of the default process groups that this process has, one after the other."""

    def __init__(self) -> None:
        self._counted: weakref.WeakSet[Any] = weakref.WeakSet()  # a group that is kept does not end
        self._inherited: weakref.WeakSet[Any] = weakref.WeakSet()
        self._groups = 0
        forks.reset_in_children(self)

    def reset_in_child(self) -> None:
        """Leave the store to the parent: both would read the answers on one connection."""
        if (group := _default_group()) is not None:
            self._inherited.add(group)

    def count_group(self) -> Any:
        """Return the default group, and count it if it is a new one."""
        group = _default_group()
        if group is not None and group not in self._counted:
            self._counted.add(group)
            self._groups += 1
        return group

    def current(self, world: World) -> tuple[Any, int, int] | None:
        """Return the store of the default group that a world is of, the rank in it, and the group's number.

        None if there is no group or no store, and for a world of unknown ranks of the group.
        """
        if (group := self.count_group()) is None or group in self._inherited:
            return None
        if world.members is None and (world.rank, world.size) != (group.rank(), group.size()):
            return None
        find = getattr(sys.modules["torch.distributed.distributed_c10d"], "_get_default_store", None)
        return None if find is None else (find(), group.rank(), self._groups)


_stores = _Stores()
