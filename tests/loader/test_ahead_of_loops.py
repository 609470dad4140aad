"""Workers make what the next epoch needs first ahead of its loop, and nobody can tell but by the time that it takes."""

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from _cli import python
from _datasets import load, photos
from _time_limit import wait_until
from hypothesis import given, settings
from hypothesis import strategies as st

import shardio
from shardio import World
from shardio.errors import BadSample
from shardio.loader.batch import job
from shardio.loader.workers.pipeline import Pipeline

Epoch = list[tuple[list[int], list[Any]]]


def ragged(count: int = 40) -> shardio.Dataset:
    lengths = np.random.default_rng(1).integers(1, 9, count)
    fields = {"x": shardio.Field("array", "int64", (None,))}
    return shardio.from_samples([{"x": np.arange(n)} for n in lengths], fields)


def make(kind: str) -> shardio.Loader:
    data: Any = ragged()
    options: dict[str, Any] = {"seed": 5, "threads": 2, "tail": "pad", "world": World(1, 2), "fields": ["x"]}
    if kind == "buckets":
        return load(data, None, bucket_by="x", max_tokens=20, transforms={"x": [shardio.PadTo()]}, **options)
    if kind == "mixture":
        data = shardio.mix({"a": data, "b": data}, weights=[(0, {"a": 3, "b": 1}), (60, {"a": 1, "b": 3})])
    return load(data, 4, shuffle="block" if kind == "block" else "global", block=4, window=2, **options)


def seen(batches: Any) -> Epoch:
    """Return the indices and the values of some batches."""
    return [(batch["index"].tolist(), [np.asarray(each).tolist() for each in batch["x"]]) for batch in batches]


def no_thread_works() -> bool:
    return not [thread for thread in threading.enumerate() if thread.name.startswith("shardio rank")]


KINDS = ["plain", "block", "mixture", "buckets"]
ACTIONS = st.one_of(
    st.tuples(st.just("loop")),
    st.tuples(st.just("leave"), st.integers(1, 4)),
    st.tuples(st.just("set_epoch"), st.integers(0, 4)),
    st.tuples(st.just("again"), st.integers(0, 2)),
    st.tuples(st.just("resume"), st.integers(0, 5)),
    st.tuples(st.just("wait")),
)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:3 loops in a row:shardio.StateWarning")
@pytest.mark.parametrize("kind", KINDS)
@given(actions=st.lists(ACTIONS, min_size=2, max_size=8))
@settings(max_examples=25, deadline=None)
def test_loops_deliver_what_their_epochs_hold(kind: str, actions: list[tuple[Any, ...]]) -> None:
    """Whatever comes between loops, each delivers what a new Loader that stands there delivers."""
    loader = make(kind)
    saved = [loader.state_dict()]
    for name, *number in [*actions, ("loop",)]:
        match name:
            case "set_epoch":
                loader.set_epoch(*number)
            case "again":
                loader.set_epoch(max(0, loader.epoch - number[0]))
            case "resume":
                loader.load_state_dict(saved[number[0] % len(saved)])
            case "wait":
                wait_until(no_thread_works, seconds=5)
            case _:
                (fresh := make(kind)).load_state_dict(loader.state_dict())
                if loader._state.place.midway:  # the loop that was left: the next one is of the next epoch
                    fresh.set_epoch(loader.epoch + 1)
                steps = number[0] if number else None
                batches = seen(batch for _, batch in zip(range(steps or 10**9), loader, strict=False))
                if steps is None or len(batches) > 1:
                    saved.append(loader.state_dict())
                assert batches == seen(fresh)[:steps]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that has the number of rows of each call that makes some."""
    made: list[int] = []
    real = job.fill

    def fill(rows: Any, part: slice) -> None:
        made.append(part.stop - part.start)
        real(rows, part)

    monkeypatch.setattr(job, "fill", fill)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_made_ahead_is_delivered(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is made twice: the next loop takes what is ahead."""
    made, loader, taken = counted(monkeypatch), make(kind), 0
    for epoch in range(5):
        loop = iter(loader)
        taken += sum(len(next(loop)["index"]) for _ in range(len(loader)))
        wait_until(lambda taken=taken: sum(made) > taken)  # type: ignore[misc]
        assert list(loop) == []
        wait_until(no_thread_works, seconds=5)
        ahead = sum(made) - taken
        assert 0 < ahead <= 40
        assert loader.epoch == epoch + 1
    loader.set_epoch(99)
    taken = sum(made)  # what is ahead is of no use
    assert sum(len(batch["index"]) for batch in loader) <= sum(made) - taken


def test_a_map_never_runs_ahead() -> None:
    """A function of the user's is called for the samples of epochs whose loops have begun."""
    for by in ("sample", "batch"):
        calls: list[Any] = []
        loader = load(ragged(), 4, map=lambda batch, calls=calls: calls.append(1) or batch, map_by=by, threads=2)
        for epochs in range(1, 4):
            list(loader)
            time.sleep(0.02)
            assert len(calls) == epochs * (40 if by == "sample" else 10)


def test_errors_and_counts_wait_for_their_loop() -> None:
    """An error of the next epoch is raised in its loop, and a replaced sample counts there: workers met both before."""
    options: dict[str, Any] = {"transforms": [shardio.CenterCrop(8)], "threads": 2}
    bad = int(shardio.Plan(24, 0, 1).indices(0, 1)[0])
    with_bad_file = photos(24, bad={bad})
    replacing = load(with_bad_file, 4, on_bad_sample="replace", max_bad=9, **options)
    for epoch in range(3):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            list(replacing)
            wait_until(no_thread_works, seconds=5)
        assert [record.epoch for record in replacing.quarantine()] == [*range(epoch + 1)]
        assert not told
    raising = load(with_bad_file, 4, **options)
    place = shardio.Plan(24, 0, 0).indices(0, 24).tolist().index(bad)
    raising.load_state_dict(raising.state_dict() | {"position": place // 4 * 4 + 4})
    assert list(raising)
    wait_until(no_thread_works, seconds=5)
    with pytest.raises(BadSample):
        next(iter(raising))


def test_epochs_count_what_they_use() -> None:
    """Samples, bytes and stages count in the epoch whose loop takes the batches, not in the one that ran meanwhile."""
    loader = load(ragged(), 4, threads=2)
    for _ in range(4):
        list(loader)
        wait_until(no_thread_works, seconds=5)
        stats = loader.stats()
        assert (stats.samples, stats.bytes) == (40, sum(8 * len(row["x"]) for row in ragged()))
        assert stats.stage_seconds["read"] > 0
        assert stats.wait_seconds <= stats.seconds
    assert loader.stats(all_epochs=True).samples == 160


def test_memory_goes_round() -> None:
    """Batches ahead of a loop lie in the buffers that the Loader keeps: epochs make no new ones."""
    data = shardio.from_samples(
        [{"x": np.zeros(1000)} for _ in range(64)], {"x": shardio.Field("array", "float64", (1000,))}
    )
    loader = load(data, 4, threads=2)
    pool = loader._workers._memory._pools["x"]
    for _ in range(25):
        for _ in loader:
            pass
    assert pool.made <= pool.kept


def test_a_forked_child_and_its_parent_deliver_the_same() -> None:
    """A fork between loops takes nothing away: both deliver the next epoch, and the child starts threads of its own."""
    loader, other = make("plain"), make("plain")
    list(loader)
    other.set_epoch(1)
    expected = seen(other)
    reading, writing = os.pipe()
    if not (child := os.fork()):
        code = 1
        try:
            code = 0 if seen(loader) == expected and len(seen(loader)) == len(expected) else 2
        finally:
            os.write(writing, bytes([code]))
            os._exit(code)
    os.close(writing)
    assert seen(loader) == expected
    assert os.read(reading, 1) == b"\0"
    os.close(reading)
    assert os.waitpid(child, 0)[1] == 0


SCRIPT = """
import numpy as np, shardio
data = shardio.from_samples([{"x": np.zeros(9)} for _ in range(64)], {"x": shardio.Field("array", "float64", (9,))})
loader = shardio.Loader(data, 4, threads=3, world=shardio.World())
for _ in range(3):
    for batch in loader:
        pass
"""


@pytest.mark.parametrize("end", ["", "del loader", "raise SystemExit(0)", "import gc; del loader; gc.collect()"])
def test_a_script_ends_after_its_last_epoch(end: str) -> None:
    """An epoch that no loop takes keeps no process."""
    assert python("-c", f"{SCRIPT}\n{end}").stderr == ""


def test_loaders_take_turns() -> None:
    """A validation Loader between the epochs of another one: each goes on where it stood."""
    first, second = make("plain"), make("mixture")
    epochs = [(seen(first), seen(second)) for _ in range(3)]
    for epoch, both in enumerate(epochs):
        for kind, batches in zip(("plain", "mixture"), both, strict=True):
            (fresh := make(kind)).set_epoch(epoch)
            assert batches == seen(fresh)


class Sleeping:
    """A job of one task that sleeps."""

    def __init__(self, seconds: float, done: list[float]) -> None:
        self.seconds, self.done = seconds, done

    @property
    def tasks(self) -> list[Callable[[], None]]:
        return [self.sleep]

    def sleep(self) -> None:
        time.sleep(self.seconds)
        self.done.append(self.seconds)

    def result(self) -> float:
        return self.seconds


def sleeping(seconds: list[float | None], done: list[float]) -> Iterator[Sleeping | None]:
    for each in seconds:
        yield None if each is None else Sleeping(each, done)


def test_a_pipeline_that_rests_has_no_threads_and_goes_on() -> None:
    """Tasks end, none begins, and later the rest comes in order."""
    done: list[float] = []
    pipeline = Pipeline(sleeping([0.01 + 0.0001 * n for n in range(20)], done), threads=3, depth=6, name="rests")
    first = [next(pipeline) for _ in range(4)]
    pipeline.rest()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("rests")], seconds=2)
    count = len(done)
    assert count < 12
    time.sleep(0.05)
    assert len(done) == count
    assert pipeline.go_on()
    assert first + list(pipeline) == [0.01 + 0.0001 * n for n in range(20)]


def test_a_pipeline_closes_if_a_task_is_late() -> None:
    """The pipeline drops what is not finished soon after a loop."""
    pipeline = Pipeline(sleeping([0.01, 0.6, 0.01], done := []), threads=1, depth=2, name="late")
    next(pipeline)
    time.sleep(0.05)
    pipeline.rest()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("late")], seconds=5)
    assert not pipeline.go_on()
    assert done == [0.01, 0.6]


def test_a_pipeline_asks_for_jobs_again_once_it_goes_on() -> None:
    """None in place of a job ends nothing: jobs come when the pipeline goes on."""
    loops = [True, False]

    def jobs() -> Iterator[Sleeping | None]:
        for number in range(4):
            while len(loops) <= number:
                yield None
            yield Sleeping(0.001 * number, [])

    pipeline = Pipeline(jobs(), threads=2, depth=3, timeout=20, name="asks")
    for number in range(4):
        assert next(pipeline) == 0.001 * number
        time.sleep(0.01)
        pipeline.rest()
        loops.append(True)
        assert pipeline.go_on()
    pipeline.close()
