"""A clock that measures the time of named stages, shared by threads; limits of waits that suspensions don't use up."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias, TypeVar, final


def slices(limit: float, longest: float = 1.0) -> Iterator[float]:
    """Yield the seconds to wait next, `limit` in all, in parts of at most `longest`.

    The clock goes on while a job is suspended (SIGSTOP, Slurm's gang scheduling), and what it waits for doesn't. So a
    wait counts the slices that it has waited in vain: however long a suspension is, it is in one of them.
    """
    longest, left = min(longest, limit / 8), limit
    while left > 0:
        yield min(left, longest)
        left -= longest


Number = TypeVar("Number", int, float)

Measured: TypeAlias = tuple[Mapping[str, float], Mapping[str, float], Mapping[str, int]]
"""Seconds by stage, those of them on a processor, and what was counted, by name."""


@final
class StageClock:
    """Sums the time that threads spend in each stage, and knows the current stage of each thread.

    Args:
        on_stage: called with the name of each stage as it begins.
    """

    def __init__(self, on_stage: Callable[[str], None] | None = None) -> None:
        self.doing: dict[int, str] = {}
        """The current stage of each thread, by the thread's identifier."""
        self._on_stage = on_stage
        self._seconds: dict[str, float] = {}
        self._cpu_seconds: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def stage(self, name: str) -> "_Stage":
        """Return a `with` block whose time, and the part of it on a processor, count towards stage `name`."""
        return _Stage(self, name)

    def count(self, **numbers: int) -> None:
        """Add to what is counted by these names."""
        with self._lock:
            _add(self._counts, numbers)

    def begin(self, name: str, thread: int) -> None:
        self.doing[thread] = name
        if self._on_stage is not None:
            self._on_stage(name)

    def end(self, name: str, thread: int, seconds: float, cpu_seconds: float) -> None:
        self.doing.pop(thread, None)
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
            self._cpu_seconds[name] = self._cpu_seconds.get(name, 0.0) + cpu_seconds

    def add(self, measured: Measured) -> None:
        """Add what another clock has measured."""
        with self._lock:
            _add(self._seconds, measured[0])
            _add(self._cpu_seconds, measured[1])
            _add(self._counts, measured[2])

    def measured(self) -> Measured:
        """Return what was measured until now, summed over all threads."""
        with self._lock:
            return dict(self._seconds), dict(self._cpu_seconds), dict(self._counts)


def _add(sums: dict[str, Number], addends: Mapping[str, Number]) -> None:
    for name, number in addends.items():
        sums[name] = sums.get(name, 0) + number


@final
class _Stage:
    """One stage of one thread. A class, because a generator's `with` block takes as long again as the clocks.

    The time of a stage within another one, of the same thread, does not count towards the outer one.
    """

    __slots__ = ("_begun", "_inner", "_inner_cpu", "_name", "_on_cpu", "_outer", "_thread", "clock")

    def __init__(self, clock: StageClock, name: str) -> None:
        self.clock, self._name = clock, name

    def __enter__(self) -> None:
        self._outer: _Stage | None = getattr(_current, "stage", None)
        _current.stage = self
        self._inner = self._inner_cpu = 0.0
        self._thread = threading.get_ident()
        self.clock.begin(self._name, self._thread)
        self._on_cpu, self._begun = time.thread_time(), time.perf_counter()

    def __exit__(self, *_: object) -> None:
        seconds, cpu_seconds = time.perf_counter() - self._begun, time.thread_time() - self._on_cpu
        self.clock.end(self._name, self._thread, seconds - self._inner, cpu_seconds - self._inner_cpu)
        _current.stage = outer = self._outer
        if outer is not None:
            outer._inner += seconds
            outer._inner_cpu += cpu_seconds
            outer.clock.begin(outer._name, outer._thread)


_current = threading.local()
"""`stage`: the innermost stage that a thread is in."""


def unpacking(size: int) -> AbstractContextManager[None]:
    """Return a `with` block that decompresses `size` bytes: a stage `decompress` of the clock whose stage this thread
    is in, if it is in one."""
    return stage_within("decompress", unpacked_bytes=size)


def stage_within(name: str, **numbers: int) -> AbstractContextManager[None]:
    """Return a `with` block that is a stage of the clock whose stage this thread is in, if it is in one.

    The clock also counts the `numbers`.
    """
    outer: _Stage | None = getattr(_current, "stage", None)
    if outer is None:
        return nullcontext()
    if numbers:
        outer.clock.count(**numbers)
    return _Stage(outer.clock, name)
