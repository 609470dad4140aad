"""The position of a loader in its epochs: it advances batch by batch, and a loaded state is checked."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from ..errors import ConfigError, StateMismatch, StateWarning
from ..order.plan import Order, Schedule
from ..system.units import counted, shown
from .arguments import whole_number

VERSION = 1
_OPTIONAL = ("global_batch", "drawn")  # states of older versions lack them, and those of other orders `drawn`
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
    """The place of a loader, which one loop moves.

    Attributes:
        reached: the place that the loop has come to; a single assignment moves it, so that no interrupt can come in
            between.
        closed: whether the loop is over: its threads have ended, or are about to.
    """

    def __init__(self, place: EpochPlace = EpochPlace()) -> None:
        self.reached = place
        self.closed = False
        self._loop: weakref.ref[object] | None = None

    def follow(self, loop: object) -> None:
        """Take `loop` for the one that moves this place."""
        self._loop = weakref.ref(loop)

    @property
    def place(self) -> EpochPlace:
        """The place, which is that before the loop once a loop is dropped or closed as a peek."""
        place = self.reached
        lives = not self.closed and self._loop is not None and self._loop() is not None
        return place if lives or place.if_dropped is None else place.if_dropped


@final
class LoaderState:
    """The place of a loader in its epochs: loops move it, and a saved state restores it.

    Args:
        order: the order of any epoch.
        schedule: the steps of a whole epoch.
        digest: the digest of the dataset.
        sources: the names of the sources of a mixture; () for other datasets.
    """

    def __init__(self, order: Order, schedule: Schedule, digest: str, sources: Sequence[str]) -> None:
        self.schedule = schedule
        self._order, self._digest, self._sources = order, digest, tuple(sources)
        self._progress = EpochProgress()
        self._saved_batch: int | None = None  # of a loaded state of other steps, until Lightning counts ours

    @property
    def place(self) -> EpochPlace:
        """The place up to which batches have been delivered."""
        return self._progress.place

    @property
    def steps_left(self) -> int:
        """The number of steps that are left of the current epoch, the same on every rank."""
        return len(replace(self.schedule, start=self.place.position))

    def begin(self) -> tuple[Order, Schedule, EpochProgress]:
        """Return the order and the steps of a loop that begins now, and the progress that it moves.

        The progress is its own, so that an older loop, still in `next` on another thread, moves nothing.
        """
        place = self.place.begin()
        schedule = replace(self.schedule, start=place.position)
        if len(schedule) == 0:  # resumed at a position after which less than a global batch is left
            place = replace(place, epoch=place.epoch + 1, position=0)
            schedule = self.schedule
        self._progress = EpochProgress(place)
        return self._order.at_epoch(place.epoch), schedule, self._progress

    def checked_epoch(self, epoch: int) -> int:
        """Return the number of an epoch; ConfigError unless the order has that epoch."""
        return self._order.at_epoch(whole_number(epoch, "epoch")).epoch

    def set_epoch(self, epoch: int) -> None:
        """Stand at the beginning of an epoch, or stay in its midst if a state of it was just loaded."""
        self._progress = EpochProgress(self.place.rest_of(epoch) or EpochPlace(epoch))

    def warn_of_peeks(self) -> None:
        """Warn if the last loops were all left after one batch."""
        if self.place.peeks == MOST_PEEKS:
            warnings.warn(
                f"{MOST_PEEKS} loops in a row were left after one batch, so each delivered the same batch of epoch "
                f"{self.place.begin().epoch}: keep one iterator, batches = iter(loader), and call next(batches); or "
                "call set_epoch(n) for another epoch",
                StateWarning,
                stacklevel=3,
            )

    @property
    def other_steps(self) -> int | None:
        """The global batch of the loader that saved the state loaded last, in the middle of an epoch, if not ours."""
        return self._saved_batch if self.place.resumed and self.place.position else None

    def count_own_steps(self) -> None:
        """Take the steps of the rest of a resumed epoch as ours, whatever loader saved its state."""
        self._saved_batch = None

    def save(self) -> dict[str, Any]:
        """Return the state; see `Loader.state_dict`."""
        place, own_batch = self.place, self.schedule.global_batch
        drawn = self._drawn(place.epoch, place.position)
        return {
            "version": VERSION,
            "digest": self._digest,
            "samples": self._order.n,
            "seed": self._order.seed,
            "order": self._order.order,
            "epoch": place.epoch,
            "position": place.position,
            "global_batch": (self._saved_batch if place.resumed else None) or own_batch,
            **({"drawn": drawn} if drawn else {}),
        }

    def load(self, state: Mapping[str, Any], *, strict: bool) -> None:
        """Stand where a saved state stands; see `Loader.load_state_dict`."""
        self._progress = EpochProgress(self._checked(state, strict))
        saved = state.get("global_batch", self.schedule.global_batch)
        self._saved_batch = saved if saved != self.schedule.global_batch else None

    def _drawn(self, epoch: int, position: int) -> dict[str, int]:
        """Return how many samples of each source of a weighted mixture come before a place; {} for other orders."""
        return dict(zip(self._sources, self._order.drawn(epoch * self._order.n + position), strict=False))

    def _checked(self, state: Mapping[str, Any], strict: bool) -> EpochPlace:
        """Check a state and return the place to resume from.

        Raises StateMismatch for what is no state, for one of another version, and for values that are no position. So
        does the state of another dataset, seed or order, unless `strict` is False, which warns instead.
        """
        current, order = self.save(), self._order
        _check_form(state, current)
        epoch, position = state["epoch"], state["position"]
        if not all(0 <= number < _LIMIT for number in (epoch, position)):
            raise StateMismatch(f"not a position in an epoch: epoch {shown(epoch)}, position {shown(position)}")
        try:
            order.at_epoch(epoch)
        except ConfigError as error:
            raise StateMismatch(f"not a state of this loader: {error}") from error
        differing = [name for name in ("digest", "samples", "seed", "order") if state[name] != current[name]]
        message = "; ".join(
            f"the state's {name} is {shown(state[name])}, this loader's is {shown(current[name])}" for name in differing
        )
        restarts = "samples" in differing
        loss = f"epoch {shown(epoch)} {'starts over' if restarts else 'may deliver samples twice or not at all'}"
        if differing and strict:
            raise StateMismatch(
                f"{message}. loader.load_state_dict(state, strict=False) resumes all the same, but then {loss}; "
                "docs/resuming.md tells more, also of Lightning's checkpoints"
            )
        if position > order.n and not restarts:
            raise StateMismatch(f"not a position in an epoch of {order.n}: epoch {epoch}, position {position}")
        position = 0 if restarts else position
        if differing:
            if not {"seed", "order"} & {*differing}:
                loss += self._again(state.get("drawn", {}), epoch, position)
            warnings.warn(f"{message}: {loss}", StateWarning, stacklevel=4)
        return EpochPlace(epoch, position, resumed=True)

    def _again(self, before: Mapping[str, int], epoch: int, position: int) -> str:
        """Say which sources of a mixture with other weights repeat samples, and which leave some out.

        Each source goes through an order of its own, which its turns count through: a source that has had more turns
        (`before`) than the new weights give it before the same position repeats the last of them.
        """
        now = self._drawn(epoch, position)
        if list(before) != list(now):
            return ""
        differences = {name: before[name] - now[name] for name in now}
        parts = [
            f"{name!r} {'repeats' if more > 0 else 'leaves out'} {counted(abs(more), 'sample', ',')}"
            for name, more in differences.items()
            if more
        ]
        return f"; if only the weights have changed, {', '.join(parts) or 'no source repeats a sample'}"


def _check_form(state: Any, current: Mapping[str, Any]) -> None:
    """Raise StateMismatch unless `state` has the version, the names and the types of `current`."""
    if not isinstance(state, Mapping):
        raise StateMismatch(f"a loader's state must be a mapping with {', '.join(current)}, got {shown(state)}")
    if "version" in state and (type(state["version"]) is not int or state["version"] != current["version"]):
        raise StateMismatch(f"the state's version is {shown(state['version'])}, this loader's is {current['version']}")
    for name in current:
        if name not in state and name not in _OPTIONAL:
            raise StateMismatch(f"not a loader's state: it has no {name!r}")
    for name, value in state.items():
        if name == "drawn":
            counts = value.values() if isinstance(value, Mapping) else [None]
            if not all(type(count) is int and 0 <= count < _LIMIT for count in counts):
                raise StateMismatch(f"the state's drawn must be whole numbers by source, got {shown(value)}")
            continue
        if name not in current:
            raise StateMismatch(f"not a loader's state: it has {shown(name)}")
        if type(value) is not type(current[name]):
            kind = "text" if isinstance(current[name], str) else "a whole number (int)"
            raise StateMismatch(f"the state's {name} must be {kind}, got {shown(value)} ({type(value).__name__})")
