"""The feed of an engine for whole batches: a thread feeds it ahead of the consumer, whatever ends the loop."""

import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from _builders import encode, spoiled
from _time_limit import wait_until

import shardio
from shardio.engines.dali import DaliEngine
from shardio.errors import BadSample, PipelineClosed
from shardio.loader import epoch
from shardio.loader.device import feed, prefetcher
from shardio.loader.workers.pipeline import Pipeline
from shardio.system import background

WHOLE = ["dali", "nvimgcodec"]
SAMPLES, BATCH = 24, 4


def grey(number: int) -> bytes:
    """A JPEG of one colour, by which a batch's images are known to be its own."""
    return encode("jpg", np.full((24, 32, 3), 10 * number, np.uint8), cv2.IMWRITE_JPEG_QUALITY, 95)


def load(engine: str = "dali", bad: int | None = None, **options: Any) -> shardio.Loader:
    rows = [{"image": spoiled(grey(n)) if n == bad else grey(n), "label": n} for n in range(SAMPLES)]
    given: dict[str, Any] = {"transforms": [shardio.RandomResizedCrop(8)], "world": shardio.World(), "threads": 2}
    return shardio.Loader(shardio.from_samples(rows), BATCH, engine=engine, **(given | options))


def labels(batches: Iterable[dict[str, Any]]) -> list[int]:
    """The labels of batches, each of which must have its own images."""
    seen: list[int] = []
    for batch in batches:
        values = batch["image"].double().mean(dim=(1, 2, 3))
        assert (values - 10 * batch["label"]).abs().max() < 3
        seen += batch["label"].tolist()
    return seen


class Slow:
    """An engine that makes grey images of the files' lengths, and can be held up."""

    ahead, reason = 2, ""
    pause = 0.0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.begun = self.ended = 0
        self.threads: set[int] = set()
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.made: list[weakref.ref[torch.Tensor]] = []

    def begin(self, encoded: Any, sizes: Any, steps: Any) -> None:
        self.threads.add(threading.get_ident())
        self.begun += 1
        self.goes_on.wait()

    def end(self) -> tuple[torch.Tensor, tuple[int, ...]]:
        self.threads.add(threading.get_ident())
        self.ended += 1
        time.sleep(self.pause)
        images = torch.zeros(BATCH, 8, 8, 3, dtype=torch.uint8)
        self.made.append(weakref.ref(images))
        return images, ()

    def check_process(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """The engine of the Loaders that a test makes."""
    engine = Slow()
    monkeypatch.setattr(prefetcher, "make_engine", lambda *_, **__: engine)
    return engine


def test_an_engine_is_fed_while_the_consumer_works(slow: Slow) -> None:
    """It is given the next batches without the consumer's `next`, up to one more than it works on at once."""
    batches = iter(load())
    for taken in range(1, 4):
        next(batches)
        most = taken + slow.ahead + 1
        wait_until(lambda most=most, taken=taken: slow.begun == most and slow.ended == taken + 1)
        time.sleep(0.02)
        assert slow.begun == most
    assert len(slow.threads) == 1
    assert threading.get_ident() not in slow.threads


def test_only_engines_have_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of the host, and copies, need no thread of the feed."""
    start, names = background.start, []
    monkeypatch.setattr(background, "start", lambda function, *name: names.append(name) or start(function, *name))
    assert len(list(load(engine="cpu"))) == len(list(load(engine="cpu", device="meta"))) == SAMPLES // BATCH
    assert ("shardio feed",) not in names
    assert len(list(load())) == SAMPLES // BATCH
    assert names.count(("shardio feed",)) == 1


def test_waits_are_told_apart(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """`device_seconds` is the part of the consumer's waits that an engine took, not that of slow workers."""
    slow.pause = 0.03
    loader = load()
    assert len(list(loader)) == SAMPLES // BATCH
    stats = loader.stats()
    assert 0.5 * stats.wait_seconds < stats.device_seconds <= stats.wait_seconds
    slow.pause, following = 0.0, Pipeline.__next__
    monkeypatch.setattr(Pipeline, "__next__", lambda self: time.sleep(0.03) or following(self))
    monkeypatch.setattr(Pipeline, "ready", False)
    assert len(list(loader)) == SAMPLES // BATCH
    assert loader.stats().device_seconds < 0.5 * loader.stats().wait_seconds


def test_a_loop_that_is_left_keeps_no_batch(slow: Slow) -> None:
    """Finished batches that nobody took are dropped with the loop, and the Loader keeps none."""
    loader = load()
    batches = iter(loader)
    next(batches)
    wait_until(lambda: len(slow.made) == 2 and slow.begun == 2 + slow.ahead)
    del batches
    wait_until(lambda: len(slow.made) == slow.begun and not any(made() is not None for made in slow.made))


def test_a_loop_begins_once_the_engine_is_free(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that begins while the engine is still being fed for another one waits, and gets its own batches."""
    monkeypatch.setattr(feed, "JOIN_LIMIT", 0.01)
    loader = load()
    older = iter(loader)
    next(older)
    wait_until(lambda: slow.begun == 4)
    slow.goes_on.clear()
    next(older)
    wait_until(lambda: slow.begun == 5)  # and the thread is inside `begin`
    newer = iter(loader)
    threading.Timer(0.1, slow.goes_on.set).start()
    found = [batch["label"].tolist() for batch in newer]
    wanted = load(engine="cpu")
    wanted.set_epoch(loader.epoch - 1)
    assert found == [batch["label"].tolist() for batch in wanted]
    assert slow.begun == slow.ended
    with pytest.raises(PipelineClosed, match="newer loop"):
        next(older)


def test_batches_that_are_ready_late_are_sent(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine begins on batches that the workers finish while the consumer has all that it may have."""
    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "ready", False)
        batches = iter(load())
        next(batches)
        wait_until(lambda: slow.ended == 2)
        assert slow.begun == 2
    wait_until(lambda: slow.begun == 2 + slow.ahead)
    assert len(list(batches)) == SAMPLES // BATCH - 1


@pytest.mark.parametrize("engine", WHOLE)
def test_a_loop_may_be_left_anywhere(engine: str) -> None:
    """After each number of batches the next epoch is whole, and has its own images."""
    loader = load(engine)
    for count in range(1, SAMPLES // BATCH + 1):
        loader.set_epoch(count)
        taken = [batch for batch, _ in zip(loader, range(count), strict=False)]
        loader.set_epoch(count)
        whole = labels(loader)
        assert labels(taken) == whole[: count * BATCH]
        assert sorted(whole) == list(range(SAMPLES))


@pytest.mark.parametrize("engine", WHOLE)
def test_an_error_comes_in_its_turn(engine: str) -> None:
    """Batches before a bad sample's are delivered, however far ahead the engine is, and the next loop is right."""
    loader = load(engine, bad=13, shuffle=None)
    for _ in range(2):
        loader.set_epoch(0)
        seen = []
        with pytest.raises(BadSample, match="sample 13"):
            seen.extend(loader)
        assert labels(seen) == list(range(12))
        assert loader.state_dict()["position"] == 12


def test_an_engine_that_raises_ends_the_loop_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer gets the error of the thread, and the next loop begins with a new pipeline of DALI."""
    begin = DaliEngine.begin
    calls = iter(range(100))

    def failing(self: DaliEngine, *batch: Any) -> None:
        begin(self, *batch)
        if next(calls) == 3:
            raise MemoryError("no more")

    monkeypatch.setattr(DaliEngine, "begin", failing)
    loader = load()
    with pytest.raises(MemoryError, match="no more"):
        list(loader)
    loader.set_epoch(0)
    assert sorted(labels(loader)) == list(range(SAMPLES))


@contextmanager
def interrupted_at(line: int) -> Iterator[Callable[[], int]]:
    """Raise KeyboardInterrupt at a line that this thread runs in the loop and its feed; yield a count of lines."""
    files = {str(Path(module.__file__ or "")) for module in (epoch, feed)}
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield lambda: line - left
    finally:
        sys.settrace(None)


@pytest.mark.long
@pytest.mark.parametrize("engine", WHOLE)
def test_an_interrupt_at_any_line(engine: str) -> None:
    """Wherever an interrupt strikes the consumer, it comes out of the loop, and the next one has its own batches."""
    loader, line, struck = load(engine), 0, True
    while struck:
        loader.set_epoch(line)
        seen = []
        with interrupted_at(line) as lines:
            try:
                for batch, _ in zip(loader, range(3), strict=False):
                    seen.append(batch)
            except KeyboardInterrupt:
                pass
        struck = lines() > line
        loader.set_epoch(line)
        whole = labels(loader)
        assert sorted(whole) == list(range(SAMPLES)), line
        assert labels(seen) == whole[: BATCH * len(seen)], line
        line += 1
    assert line > 50
