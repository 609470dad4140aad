"""Where the workers' time goes: a clock of named stages that many threads add to."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class StageClock:
    """Adds up the time that threads spend in each stage."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times the `with` block for stage `name`."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.add({name: time.perf_counter() - begun})

    def add(self, seconds: Mapping[str, float]) -> None:
        """Adds what another clock has measured."""
        with self._lock:
            for name, spent in seconds.items():
                self._seconds[name] = self._seconds.get(name, 0.0) + spent

    def seconds(self) -> dict[str, float]:
        """Seconds by stage, over all threads."""
        with self._lock:
            return dict(self._seconds)
