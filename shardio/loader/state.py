"""The position of a loader in its epochs: it advances batch by batch, and a loaded state is checked."""

from __future__ import annotations

import json
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from ..errors import ConfigError, StateMismatch, StateWarning
from ..order.buckets import Bucketing, Buckets
from ..order.mixed_plan import MixedPlan
from ..order.plan import Order, Plan, Schedule, Shuffling
from ..system import strict_json
from ..system.rules import as_integer
from ..system.units import shown

VERSION = 3
"""The version of states. It also rises when orders or draws change, so that a state resumes its own epoch or none."""
_IDENTITY = ("digest", "samples", "seed", "order", "buckets")
_FORM: Mapping[str, type] = {
    "version": int, "digest": str, "samples": int, "seed": int, "shuffle": str, "block": int, "window": int,
    "bucket_by": str, "bucket_lengths": str, "bucket_size": int, "max_tokens": int,
    "epoch": int, "position": int, "global_batch": int, "sources": str, "turns": list, "since": int, "roles": str,
}  # fmt: skip
_KINDS = {int: "an integer (int)", str: "a string", list: "a list"}
MOST_PEEKS = 3
"""After so many loops in a row that are left after one batch, the loader warns that they deliver the same batch."""

_LIMIT = 1 << 63


@final
@dataclass(frozen=True, slots=True)
class EpochPlace:
    """The epoch of a loader, and how far it has been delivered.

    Attributes:
        epoch: the epoch, 0, 1, ...
        position: the first position that has not been delivered; with buckets, the first batch.
        midway: whether a loop has delivered some batches of the epoch, but not the last one.
        if_dropped: the place before the loop: the loader returns there if the loop is dropped here. None once the loop
            has delivered two batches, or the epoch's last one.
        peeks: how many loops in a row have been dropped after their first batch, and so delivered the same one.
        resumed: whether the place is a loaded state's, and no loop has moved it since.
    """

    epoch: int = 0
    position: int = 0
    midway: bool = False
    if_dropped: EpochPlace | None = None
    peeks: int = 0
    resumed: bool = False

    def __str__(self) -> str:
        return f"epoch {self.epoch}, position {self.position}"

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
        """The current place; once a loop is dropped or closed as a peek, that before the loop."""
        place = self.reached
        lives = not self.closed and self._loop is not None and self._loop() is not None
        return place if lives or place.if_dropped is None else place.if_dropped


@final
@dataclass(frozen=True, slots=True)
class UnfinishedEpoch:
    """An epoch that was begun on a smaller dataset, and ends with its samples on the larger one.

    Attributes:
        digest: the digest of the smaller dataset.
        order: the epoch's order.
    """

    digest: str
    order: Order


@final
@dataclass(frozen=True, slots=True)
class Resumption:
    """A loaded state, checked, as a loader takes it.

    Attributes:
        place: the place to resume from.
        order: the order from there on.
        unfinished: an epoch of a smaller dataset that goes on; None if there is none.
        saved_batch: the global batch of the loader that saved the state, if it is another one.
    """

    place: EpochPlace
    order: Order
    unfinished: UnfinishedEpoch | None
    saved_batch: int | None


@final
class LoaderState:
    """The place of a loader in its epochs: loops move it, and a saved state restores it.

    Args:
        order: the order of any epoch.
        schedule: the steps of a whole epoch.
        digest: the digest of the dataset.
        earlier: the digests of the datasets that this one grew from, with their numbers of samples.
        roles: the role of each delivered field; None is the default.
    """

    def __init__(
        self,
        order: Order,
        schedule: Schedule,
        digest: str,
        earlier: Mapping[str, int],
        roles: Mapping[str, str | None],
    ) -> None:
        self._roles = roles
        self._schedule, self._digest, self._earlier = schedule, digest, earlier
        self._own_order = self._order = order  # a mixture's may differ once a state of other weights is loaded
        self._unfinished: UnfinishedEpoch | None = None
        self._progress = EpochProgress()
        self._saved_batch: int | None = None  # of a loaded state of other steps, until Lightning counts ours

    @property
    def place(self) -> EpochPlace:
        """The place that delivered batches have reached."""
        return self._progress.place

    @property
    def order(self) -> Order:
        """The order of the current epoch."""
        return self._at(self.place.epoch)

    @property
    def schedule(self) -> Schedule:
        """The steps of the whole current epoch."""
        return self._steps(EpochPlace(self.place.epoch))

    @property
    def bucketing(self) -> Bucketing:
        """The batches of buckets; those of a loader without buckets have no field."""
        return self._order.rule.bucketing if isinstance(self._order, Buckets) else Bucketing()

    @property
    def steps_left(self) -> int:
        """The number of steps that are left of the current epoch, the same on every rank."""
        return len(self._steps(self.place))

    def begin(self) -> tuple[Order, Schedule, EpochProgress]:
        """Return the order and the steps of a loop that begins now, and the progress that it moves.

        The progress is its own, so that an older loop, still in `next` on another thread, moves nothing.
        """
        place = self.place.begin()
        if len(self._steps(place)) == 0:  # resumed at a position after which less than a global batch is left
            place = replace(place, epoch=place.epoch + 1, position=0)
        self._progress = EpochProgress(place)
        steps = self._steps(place)
        steps.check_steps()  # the epochs of buckets differ in their steps
        return self._at(place.epoch), steps, self._progress

    def _steps(self, place: EpochPlace) -> Schedule:
        """Return the steps from a place on to the end of its epoch."""
        return replace(self._schedule, n=self._at(place.epoch).n, start=place.position)

    def _at(self, epoch: int) -> Order:
        """Return the order of an epoch, which is kept until another one is asked for: its buckets take time to make."""
        if self._unfinished is not None and self._unfinished.order.epoch == epoch:
            return self._unfinished.order
        if self._order.epoch != epoch:
            is_own = self._order is self._own_order
            self._order = self._order.at_epoch(epoch)
            self._own_order = self._order if is_own else self._own_order
        return self._order

    def checked_epoch(self, epoch: int) -> int:
        """Return the number of an epoch; ConfigError unless the order has that epoch."""
        return self._order.at_epoch(as_integer(epoch, "epoch")).epoch

    def set_epoch(self, epoch: int) -> None:
        """Stand at the beginning of an epoch, or stay in its midst if a state of it was just loaded."""
        rest = self.place.rest_of(epoch)
        if rest is None:
            self._unfinished, samples = None, _samples(self._order)
            if isinstance(samples, MixedPlan) and epoch * samples.n < samples.since:
                self._order = self._own_order  # the weights had not changed then
        self._progress = EpochProgress(rest or EpochPlace(epoch))

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
        return self._describe(Resumption(self.place, self._order, self._unfinished, self._saved_batch))

    def _describe(self, at: Resumption) -> dict[str, Any]:
        """Return the state of a loader that stands there."""
        place, order, unfinished = at.place, _samples(at.order), at.unfinished
        if unfinished is not None and unfinished.order.epoch != place.epoch:
            unfinished = None
        mixed = order if isinstance(order, MixedPlan) else None
        return {
            "version": VERSION,
            "digest": self._digest if unfinished is None else unfinished.digest,
            "samples": order.n if unfinished is None else _samples(unfinished.order).n,
            "seed": order.seed,
            **order.shuffling._asdict(),
            **self.bucketing._asdict(),
            "epoch": place.epoch,
            "position": place.position,
            "global_batch": (at.saved_batch if place.resumed else None) or self._schedule.global_batch,
            "sources": mixed.sources_digest if mixed else "",
            "turns": [*mixed.turns(self._reached(place.epoch, place.position))] if mixed else [],
            "since": mixed.since if mixed else 0,
            "roles": json.dumps({name: role for name, role in self._roles.items() if role is not None}, sort_keys=True),
        }

    def is_at(self, resumption: Resumption) -> bool:
        """Return whether a checked state names this place, whatever the steps of the loader that saved it."""
        return self.save() | {"global_batch": 0} == self._describe(resumption) | {"global_batch": 0}

    def stay(self, resumption: Resumption) -> None:
        """Take the place, where this stands already, for a loaded state's, while a loop goes on from it."""
        self._progress.reached, self._saved_batch = resumption.place, resumption.saved_batch

    def resume(self, resumption: Resumption) -> None:
        """Stand where a checked state stands; loops that run move this no more."""
        self._order, self._unfinished = resumption.order, resumption.unfinished
        self._saved_batch = resumption.saved_batch
        self._progress = EpochProgress(resumption.place)

    def checked(self, state: Mapping[str, Any], *, strict: bool) -> Resumption:
        """Check a saved state, and return what it comes to here; nothing changes. See `Loader.load_state_dict`.

        Raises StateMismatch for values that are no position, and for the state of another dataset, seed or order,
        unless `strict` is False, which warns instead. Other weights of the same sources are no other dataset, nor is
        one that this one grew from.
        """
        state, unfinished = joined(_checked_form(state)), None
        epoch, position = state["epoch"], state["position"]
        if not all(0 <= number < _LIMIT for number in (epoch, position)):
            raise StateMismatch(f"not a position in an epoch: epoch {shown(epoch)}, position {shown(position)}")
        roles = _checked_roles(state["roles"])
        try:
            order = self._own_order.at_epoch(epoch)
        except ConfigError as error:
            raise StateMismatch(f"not a state of this loader: {error}") from error
        samples = _samples(order)
        identity = self._digest, samples.n, order.seed, order.shuffling, self.bucketing
        own = dict(zip(_IDENTITY, identity, strict=True))
        differing = [name for name in _IDENTITY if state[name] != own[name]]
        why = ""
        if isinstance(samples, Plan) and state["samples"] == self._earlier.get(state["digest"]):
            differing = [name for name in differing if name in ("seed", "order", "buckets")]
            if position:
                smaller = _ordering(order, replace(samples, n=state["samples"]))
                unfinished = UnfinishedEpoch(state["digest"], smaller)
        elif isinstance(samples, MixedPlan) and state["sources"] == samples.sources_digest:
            if position and "digest" in differing and isinstance(order, Buckets):
                why = ": other weights hold from the beginning of an epoch on, as buckets are made of a whole one"
            else:
                differing = [name for name in differing if name != "digest"]
        message = "; ".join(
            f"the state's {name} is {_in_words(state[name])}, this loader's is {_in_words(own[name])}"
            for name in differing
        )
        # With buckets a position counts batches, and other epochs have other buckets.
        restarts = bool({"samples", "buckets"} & {*differing}) or (bool(differing) and isinstance(order, Buckets))
        loss = f"epoch {shown(epoch)} {'starts over' if restarts else 'may deliver samples twice or not at all'}"
        if differing and strict:
            mismatch = StateMismatch(f"{message}{why}")
            mismatch.add_note(
                f"loader.load_state_dict(state, strict=False) resumes all the same, but then {loss}; "
                "docs/frameworks.md tells how within other libraries' checkpoints"
            )
            raise mismatch
        if restarts:
            position, unfinished = 0, None
        elif position > (n := (unfinished.order if unfinished else order).n):
            raise StateMismatch(f"not a position in an epoch of {n}: epoch {epoch}, position {position}")
        elif (goes_on := self._after_turns(state, same=not differing and state["digest"] == self._digest)) is not None:
            order = _ordering(order, goes_on)
            loss += "; each source goes on where it stood, so if only the weights have changed, none repeats a sample"
        if differing:
            warnings.warn(f"{message}: {loss}", StateWarning, stacklevel=3)
        for name, role in roles.items():
            if name in self._roles and role != self._roles[name]:
                warnings.warn(
                    f"the state's role of field {name!r} is {shown(role)}, this loader's is {self._roles[name]!r}, so "
                    "batches hold and transforms treat its values in another way than before",
                    StateWarning,
                    stacklevel=3,
                )
        saved, own_batch = state["global_batch"], self._schedule.global_batch
        return Resumption(
            EpochPlace(epoch, position, resumed=True), order, unfinished, saved if saved != own_batch else None
        )

    def _after_turns(self, state: Mapping[str, Any], *, same: bool) -> MixedPlan | None:
        """Return a mixture's order after the turns that a state names, None if it names none.

        `same`: whether the mixture is the one that was saved; otherwise its weights hold from the state's position on.
        """
        order, turns = _samples(self._own_order), state["turns"]
        if not isinstance(order, MixedPlan):
            return None
        if len(turns) != len(order.sources) and state["sources"] != order.sources_digest:
            return None  # those of other sources
        reached = self._reached(state["epoch"], state["position"])
        try:
            return order.resumed(state["since"] if same else reached, reached, turns)
        except ConfigError as error:
            raise StateMismatch(f"not a state of this loader: {error}") from error

    def _reached(self, epoch: int, position: int) -> int:
        """Return the position, from epoch 0 on, at which a state counts turns: with buckets the epoch's first."""
        samples = _samples(self._order)
        return epoch * samples.n + (0 if isinstance(self._order, Buckets) else position)


def _checked_roles(text: str) -> dict[str, Any]:
    """Return the roles that a state names, by delivered field; StateMismatch unless they are an object of JSON."""
    try:
        roles = strict_json.parse(text)
    except ValueError:
        roles = None
    if not isinstance(roles, dict):
        raise StateMismatch(f"the state's roles must be an object of JSON, got {shown(text)}")
    return roles


def _samples(order: Order) -> Order:
    """Return the order of single samples that an order is, or makes buckets of."""
    return order.samples if isinstance(order, Buckets) else order


def _ordering(order: Order, samples: Order) -> Order:
    """Return the same order of other samples."""
    return replace(order, samples=samples) if isinstance(order, Buckets) else samples


def joined(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with one value, `order` and `buckets`, instead of the several that it has for each."""
    found = dict(state)
    for name, kind in (("order", Shuffling), ("buckets", Bucketing)):
        found[name] = kind(**{part: found.pop(part) for part in kind._fields})
    return found


def _in_words(value: Any) -> str:
    return shown(str(value) if isinstance(value, tuple) else value)


def _checked_form(state: Any) -> Mapping[str, Any]:
    """Return a state; StateMismatch unless it has this version, and all of its names and types."""
    if not isinstance(state, Mapping):
        raise StateMismatch(f"a loader's state must be a mapping with {', '.join(_FORM)}, got {shown(state)}")
    version = state.get("version", VERSION)
    if type(version) is not int or version != VERSION:
        raise StateMismatch(f"the state's version is {shown(version)}, this loader's is {VERSION}")
    for name in _FORM:
        if name not in state:
            raise StateMismatch(f"not a loader's state: it has no {name!r}")
    for name, value in state.items():
        kind = _FORM.get(name)
        if kind is None:
            raise StateMismatch(f"not a loader's state: it has {shown(name)}")
        if type(value) is not kind:
            raise StateMismatch(
                f"the state's {name} must be {_KINDS[kind]}, got {shown(value)} ({type(value).__name__})"
            )
    if not all(type(turns) is int and 0 <= turns < _LIMIT for turns in state["turns"]):
        raise StateMismatch(f"the state's turns must be integers, got {shown(state['turns'])}")
    if not 0 <= state["since"] < _LIMIT:
        raise StateMismatch(f"the state's since must be a position, got {shown(state['since'])}")
    return state
