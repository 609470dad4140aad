"""How many threads work and how many batches are made ahead: decided from what was measured, one step at a time.

A consumer that hardly waits is left in peace. One that waits while workers wait for room gets more batches ahead. One
that waits for busy workers gets another number of threads tried, between two windows of the present one, and if it was
faster than both it stays: more threads are not always faster where they take turns holding the interpreter's lock.
"""

from dataclasses import dataclass, replace
from typing import final

ENOUGH_SECONDS = 0.4
ENOUGH_BATCHES = 8
PATIENCE = 0.02  # share of time that a consumer may wait without being starved
IDLE = 0.1  # share of the workers' time: above it they wait for room
BETTER = 1.04  # a rate that is this much higher is no noise
REST = 50  # decisions without a trial after one that brought nothing


@dataclass(frozen=True, slots=True)
class Setting:
    """Workers that may be busy at once, and batches that are made ahead of the consumer."""

    threads: int
    prefetch: int


@dataclass(frozen=True, slots=True)
class Window:
    """What was measured since the last decision.

    Attributes:
        seconds: wall time.
        batches: delivered.
        waited: seconds that the consumer waited for them.
        idle: seconds that the active workers waited for room, added up.
    """

    seconds: float = 0.0
    batches: int = 0
    waited: float = 0.0
    idle: float = 0.0

    def plus(self, other: "Window") -> "Window":
        """Both together."""
        return Window(
            self.seconds + other.seconds,
            self.batches + other.batches,
            self.waited + other.waited,
            self.idle + other.idle,
        )

    @property
    def enough(self) -> bool:
        """Whether a decision can rest on it."""
        return self.seconds >= ENOUGH_SECONDS and self.batches >= ENOUGH_BATCHES


@final
class Tuner:
    """Settles on a setting, and looks again now and then for as long as the consumer is starved.

    Args:
        start: to begin with; its threads are also the most.
        most_prefetch: batches ahead that memory allows.
        threads, prefetch: which of the two it may change.
    """

    def __init__(self, start: Setting, *, most_prefetch: int, threads: bool, prefetch: bool) -> None:
        self.setting = start
        self._most = start.threads if threads else 0
        self._most_prefetch = most_prefetch if prefetch else start.prefetch
        self._window = Window()
        self._before: tuple[float, Setting] | None = None  # while another number of threads is tried
        self._tried: tuple[float, Setting] | None = None  # while what was before is measured again
        self._next = start.threads // 2
        self._rest = 0

    def note(self, window: Window) -> Setting:
        """Takes in a measurement, and says what to do from here on."""
        self._window = self._window.plus(window)
        if self._window.enough:
            whole, self._window = self._window, Window()
            self.setting = self._decide(whole)
        return self.setting

    def _decide(self, window: Window) -> Setting:
        rate = window.batches / window.seconds
        if self._before is not None:
            (before, kept), self._before = self._before, None
            if rate < BETTER * before:
                self._next, self._rest = 0, REST
            else:  # was it the setting, or the moment? The first seconds are slow, whatever the threads
                self._tried = (rate, self.setting)
            return kept
        if self._tried is not None:
            (better, tried), self._tried = self._tried, None
            if better < BETTER * rate:
                self._next, self._rest = 0, REST
                return self.setting
            self._next = tried.threads * 2 if tried.threads > self.setting.threads else tried.threads // 2
            return tried
        if window.waited <= PATIENCE * window.seconds:
            return self.setting
        if window.idle > IDLE * window.seconds * self.setting.threads and self.setting.prefetch < self._most_prefetch:
            return replace(self.setting, prefetch=min(self._most_prefetch, 2 * self.setting.prefetch))
        if self._rest:
            self._rest -= 1
            if not self._rest:
                more = 2 * self.setting.threads
                self._next = more if more <= self._most else self.setting.threads // 2
            return self.setting
        if not 1 <= self._next <= self._most:
            self._rest = REST
            return self.setting
        self._before = (rate, self.setting)
        return replace(self.setting, threads=self._next)
