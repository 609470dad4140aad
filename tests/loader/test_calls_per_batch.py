"""The interpreter's work per batch: calls of functions in Python and of compiled code, counted alike on any machine.

All threads of a rank share the interpreter's lock, so these calls bound its rate, however many threads it has. Counted
are those of an epoch less those of a shorter one: the first and last batches of both are made in small tasks.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest
from _builders import jpeg as seeded_jpeg
from _datasets import packed

import shardio
from benchmarks import _compiled
from benchmarks.many_cores import Work, dropping_engines
from shardio import native
from shardio.system import background
from shardio.views.view import BaseDataset

pytestmark = [
    pytest.mark.skipif(native.library() is None, reason="not compiled here"),
    pytest.mark.slow,
    pytest.mark.usefixtures("nothing_ahead"),
]
THREADS = (1, 16, 64)
SHORT = 32  # batches of the shorter epoch, beside those that are made in small tasks
BATCHES = 128  # by which the longer epoch is longer
LARGER = 4  # times as many samples per batch
NOISE = 1.1  # a few calls depend on which thread was first


class Calls(NamedTuple):
    """The calls that a batch adds: of functions in Python or in C by the interpreter, and of compiled code."""

    interpreter: float
    compiled: float


class Floor(NamedTuple):
    """The limits of a batch.

    Attributes:
        work: what is loaded.
        value: makes the value of a sample.
        field: its field.
        calls: of a batch with one thread.
        per_sample: calls of the interpreter that a further sample of the batch adds.
    """

    work: Work
    value: Callable[[int], Any]
    field: Any
    calls: Calls
    per_sample: float


def jpeg(number: int) -> bytes:
    return seeded_jpeg(24, 32, seed=number)


CROP: Any = (shardio.RandomResizedCrop(16), shardio.RandomHorizontalFlip())
FLOORS = {
    "photos": Floor(Work(16, CROP), jpeg, "image", Calls(370, 1.4), 14.0),
    "encoded": Floor(Work(16, CROP, "dali"), jpeg, "image", Calls(1000, 5.5), 1.1),
    "patches": Floor(
        Work(64, {"x": [shardio.RandomSpatialCrop((8, 8))]}), partial(np.full, (64, 64)), ("float32", (64, 64)),
        Calls(200, 0.25), 1.2,
    ),
    "tokens": Floor(
        Work(16, {"x": [shardio.ToInt64()]}), partial(np.full, 64), ("uint16", (64,)), Calls(180, 0.15), 0.1
    ),
    "records": Floor(Work(64), partial(np.full, 64), ("uint8", (64,)), Calls(175, 0.15), 0.1),
}  # fmt: skip


@contextmanager
def profiled(count: Counter[int]) -> Iterator[None]:
    """Count the calls of this thread's interpreter, without those of the counting itself."""

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename not in (_compiled.__file__, __file__):
            count[get_ident()] += 1

    sys.setprofile(on_event)
    try:
        yield
    finally:
        sys.setprofile(None)


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """The calls of the interpreter by thread, of all threads that begin from now on."""
    counts: Counter[int] = Counter()
    start = background.start

    def work(function: Callable[[], None]) -> None:
        with profiled(counts):
            function()

    monkeypatch.setattr(background, "start", lambda function, *name: start(partial(work, function), *name))
    return counts


def calls_of(floor: Floor, data: BaseDataset, threads: int, batch_size: int, count: Counter[int]) -> Calls:
    """The calls that a batch adds to an epoch. The first epoch of a Loader takes new memory, and does not count."""
    library, found = native.library(), []
    assert library is not None
    counted = _compiled.CountedLibrary(library)
    with _compiled.in_place(counted), dropping_engines():
        size = floor.work.loader(data, threads, 1, batch_size)._workers._size
        short = SHORT + size.first_steps + size.last_steps
        for batches in (short, short + BATCHES):
            loader = floor.work.loader(data, threads, batches, batch_size)
            assert sum(1 for _ in loader) == batches
            before = count.total(), counted.calls
            with profiled(count):
                assert sum(1 for _ in loader) == batches
            found.append((count.total() - before[0], counted.calls - before[1]))
    return Calls(*((longer - shorter) / BATCHES for shorter, longer in zip(*found, strict=True)))


@pytest.mark.alone  # counts depend on when threads wake, which other processes decide on a busy machine
@pytest.mark.parametrize("name", FLOORS)
def test_calls_per_batch(name: str, count: Counter[int], tmp_path: Path) -> None:
    """They grow neither with threads nor, where no value needs Python of its own, with the samples of a batch."""
    floor = FLOORS[name]
    size, container = floor.work.batch_size, "tar" if floor.field == "image" else "hdf5"
    values = ({"x": floor.value(n)} for n in range(256))
    data = packed(tmp_path / "d", values, {"x": floor.field}, container=container, shard_size="1MB", shard_samples=64)
    one = calls_of(floor, data, 1, size, count)
    assert one.interpreter <= floor.calls.interpreter
    assert one.compiled <= floor.calls.compiled
    for threads in THREADS:
        many = one if threads == 1 else calls_of(floor, data, threads, size, count)
        assert many.interpreter <= NOISE * one.interpreter, threads
        assert many.compiled <= NOISE * one.compiled, threads
        larger = calls_of(floor, data, threads, LARGER * size, count)
        added = (larger.interpreter - many.interpreter) / ((LARGER - 1) * size)
        assert added <= floor.per_sample, threads
