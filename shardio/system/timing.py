"""A clock that measures the time of named stages, shared by threads."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import final


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
        self._lock = threading.Lock()

    def stage(self, name: str) -> "_Stage":
        """Return a `with` block whose time, and the part of it on a processor, count towards stage `name`."""
        return _Stage(self, name)

    def begin(self, name: str, thread: int) -> None:
        """Note that a thread begins a stage."""
        self.doing[thread] = name
        if self._on_stage is not None:
            self._on_stage(name)

    def end(self, name: str, thread: int, seconds: float, cpu_seconds: float) -> None:
        """Note that a thread ends a stage, and add its times."""
        self.doing.pop(thread, None)
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
            self._cpu_seconds[name] = self._cpu_seconds.get(name, 0.0) + cpu_seconds

    def add(self, seconds: Mapping[str, float], cpu_seconds: Mapping[str, float]) -> None:
        """Add the seconds, and those on a processor, by stage, that another clock has measured."""
        with self._lock:
            for sums, addends in ((self._seconds, seconds), (self._cpu_seconds, cpu_seconds)):
                for name, spent in addends.items():
                    sums[name] = sums.get(name, 0.0) + spent

    def seconds(self) -> dict[str, float]:
        """Return the seconds by stage, summed over all threads."""
        with self._lock:
            return dict(self._seconds)

    def cpu_seconds(self) -> dict[str, float]:
        """Return the seconds on a processor by stage, summed over all threads."""
        with self._lock:
            return dict(self._cpu_seconds)


@final
class _Stage:
    """One stage of one thread. A class, because a generator's `with` block takes as long again as the clocks."""

    __slots__ = ("_begun", "_clock", "_name", "_on_cpu", "_thread")

    def __init__(self, clock: StageClock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self._clock.begin(self._name, self._thread)
        self._on_cpu, self._begun = time.thread_time(), time.perf_counter()

    def __exit__(self, *_: object) -> None:
        seconds, cpu_seconds = time.perf_counter() - self._begun, time.thread_time() - self._on_cpu
        self._clock.end(self._name, self._thread, seconds, cpu_seconds)
