"""`load_state_dict` counts at once: in a loop that has delivered nothing, or some batches, and after a loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from _datasets import load
from _jobs import Around

import shardio
from shardio import World
from shardio.errors import PipelineClosed, StateMismatch

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it

KINDS = ["loader", "isolate", "mixture", "buckets", "stateful", "generator"]
Loop = Iterator[dict[str, Any]]


class Generated(Around):
    """A Loader whose batches come by way of a generator."""

    def __iter__(self) -> Loop:
        return (batch for batch in self.loader)


def make(kind: str, *, world: World | None = None, batch_size: int = 4) -> tuple[shardio.Loader, Callable[[], Loop]]:
    """Return a loader of 20 samples or more, and what begins a loop over it."""
    lengths = np.random.default_rng(0).integers(1, 9, 24)
    fields = {"x": shardio.Field("array", "int64", (None,))}
    data: Any = shardio.from_samples([{"x": np.arange(n)} for n in lengths], fields)
    options: dict[str, Any] = {"seed": 3, "tail": "pad", "threads": 1, "world": world or World(), "fields": ["x"]}
    if kind == "mixture":
        data = shardio.mix({"a": data, "b": data}, weights={"a": 3, "b": 1})
    if kind == "buckets":
        loader = load(data, None, bucket_by="x", max_tokens=20, transforms={"x": [shardio.PadTo()]}, **options)
    else:
        loader = load(data, batch_size, isolate=kind == "isolate", **options)
    if kind in ("stateful", "generator"):
        from torchdata.stateful_dataloader import StatefulDataLoader

        given = Generated(loader) if kind == "generator" else Around(loader)
        around = StatefulDataLoader(given, batch_size=None, num_workers=0)
        return loader, lambda: iter(around)
    return loader, lambda: iter(loader)


def indices(batches: Any) -> list[list[int]]:
    return [batch["index"].tolist() for batch in batches]


def state_after(kind: str, steps: int, **others: Any) -> dict[str, Any]:
    """Return the state of a loader like that, or of other steps, after some steps of epoch 0."""
    loop = iter(loader := make(kind, **others)[0])
    for _ in range(steps):
        next(loop)
    return loader.state_dict()


def rest_after(kind: str, state: dict[str, Any]) -> list[list[int]]:
    """Return what a new loader delivers from a state on."""
    loader, begin = make(kind)
    loader.load_state_dict(state)
    return indices(begin())


def the_state(which: str, kind: str, loader: shardio.Loader) -> dict[str, Any]:
    """Return a state to load where a loader stands after two steps, or after an epoch."""
    if which == "refused":
        return loader.state_dict() | {"seed": 4}
    if which == "equal":
        return loader.state_dict()
    if which == "other world":
        return state_after(kind, 1, world=World(1, 3), batch_size=2)
    return state_after(kind, {"earlier": 1, "later": 3}[which])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["refused", "equal", "earlier", "later", "other world"])
@pytest.mark.parametrize("delivered", ["nothing", "some", "all"])
def test_a_state_counts_at_once(kind: str, which: str, delivered: str) -> None:
    """A refused state and an equal one leave the loop alone; another one begins it there, or ends it by an error."""
    loader, begin = make(kind)
    if delivered == "nothing":
        loader.load_state_dict(state_after(kind, 2))
        loop, left = begin(), rest_after(kind, state_after(kind, 2))
    else:
        loop, left = begin(), rest_after(kind, state_after(kind, 2))
        taken = indices(next(loop) for _ in range(2)) if delivered == "some" else indices(loop)
        assert taken == rest_after(kind, state_after(kind, 0))[: len(taken)]
        left = left if delivered == "some" else []

    before, state = loader.state_dict(), the_state(which, kind, loader)
    if which == "refused":
        with pytest.raises(StateMismatch, match="the state's seed is 4, this loader's is 3"):
            loader.load_state_dict(state)
    else:
        loader.load_state_dict(state)
    assert loader.state_dict() == (before if which == "refused" else state)

    if which in ("refused", "equal") or delivered == "all":
        assert indices(loop) == left
    elif delivered == "nothing":
        assert indices(loop) == rest_after(kind, state)
    else:
        with pytest.raises(PipelineClosed, match=rf"load_state_dict moved .* position {state['position']}: leave"):
            next(loop)
    if delivered != "nothing" and which not in ("refused", "equal"):
        assert loader.state_dict() == state
        assert indices(begin()) == rest_after(kind, state)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_states_advance_after_a_rollback(kind: str) -> None:
    """A loop begun again at an earlier state delivers each batch from there on, and its states say where it is."""
    loader, begin = make(kind)
    states, taken = [], []
    for step, batch in enumerate(begin()):
        states.append(loader.state_dict())
        taken.append(batch["index"].tolist())
        if step == 3:
            loader.load_state_dict(states[1])
            break
    for batch in begin():
        states.append(loader.state_dict())
        taken.append(batch["index"].tolist())
    assert taken[4:] == rest_after(kind, states[1])
    assert taken[2:4] == taken[4:6]
    for state, following in zip(states[4:-1], range(5, len(taken)), strict=True):
        assert rest_after(kind, state) == taken[following:]


def test_an_equal_state_counts_where_its_loop_is_left() -> None:
    """A loop that loads its own state and is left there leaves the rest of its epoch to the next loop."""
    loader, begin = make("loader")
    for step, _ in enumerate(begin()):
        if step == 1:
            loader.load_state_dict(state := loader.state_dict())
            break
    assert indices(begin()) == rest_after("loader", state)


@pytest.mark.parametrize("by", ["load_state_dict", "a newer loop"])
def test_a_loop_that_waits_on_another_thread_is_ended(by: str) -> None:
    """A thread that is in `next` when a loop is ended gets PipelineClosed with the reason, and moves no state."""
    begun, go_on = threading.Event(), threading.Event()

    def waits(batch: dict[str, Any]) -> dict[str, Any]:
        if threading.current_thread().name.startswith("shardio") and not begun.is_set():
            begun.set()
            go_on.wait(10)
        return batch

    data = shardio.from_samples([{"x": n} for n in range(12)])
    loader = shardio.Loader(data, 4, shuffle=None, threads=1, prefetch=1, map=waits, world=World())
    found: list[Any] = []

    def fetch() -> None:
        try:
            found.extend(loader)
        except PipelineClosed as error:
            found.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    assert begun.wait(10)
    state, newer = loader.state_dict(), loader
    if by == "load_state_dict":
        state["position"] = 8
        loader.load_state_dict(state)
    else:
        newer = iter(loader)
    go_on.set()
    thread.join(10)
    reason = "load_state_dict moved the Loader to epoch 0, position 8" if newer is loader else by
    assert len(found) == 1
    assert reason in str(found[0])
    assert loader.state_dict() == state
    assert indices(newer) == [[n, n + 1, n + 2, n + 3] for n in range(state["position"], 12, 4)]


def test_torchdata_loads_into_a_living_iterator() -> None:
    """StatefulDataLoader's own load_state_dict, with an iterator alive, delivers the rest once a loop begins."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def stateful() -> Any:
        return StatefulDataLoader(Around(make("loader")[0]), batch_size=None, num_workers=0)

    saving = stateful()
    loop = iter(saving)
    next(loop), next(loop)
    state, rest = saving.state_dict(), indices(loop)
    for taken in (0, 1, 3):
        loading = stateful()
        alive = iter(loading)
        for _ in range(taken):
            next(alive)
        loading.load_state_dict(state)
        assert indices(loading) == rest
        with pytest.raises((PipelineClosed, StopIteration)):
            next(alive)
