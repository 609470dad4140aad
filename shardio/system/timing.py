"""A clock that measures the time of named stages, shared by threads."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


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

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of the `with` block, and the part of it on a processor, towards stage `name`."""
        thread, begun, on_cpu = threading.get_ident(), time.perf_counter(), time.thread_time()
        self.doing[thread] = name
        if self._on_stage is not None:
            self._on_stage(name)
        try:
            yield
        finally:
            self.doing.pop(thread, None)
            self.add({name: time.perf_counter() - begun}, {name: time.thread_time() - on_cpu})

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
