"""Where the workers' time goes: a clock of named stages that many threads add to."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


class StageClock:
    """Adds up the time that threads spend in each stage, and knows which stage each of them is in.

    Args:
        tell: called with a stage's name when it begins.
    """

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self.doing: dict[int, str] = {}
        """The stage that each thread is in, by its identifier."""
        self._tell = tell
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times the `with` block for stage `name`."""
        thread, begun = threading.get_ident(), time.perf_counter()
        self.doing[thread] = name
        if self._tell is not None:
            self._tell(name)
        try:
            yield
        finally:
            self.doing.pop(thread, None)
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
