"""The tuner: it chooses the number of working threads and prefetched batches from measurements, one change at a time.

If the consumer hardly waits, nothing changes. If it waits while workers wait for room, more batches are prefetched. If
it waits for busy workers, the tuner tries another setting between two windows of the current one, and keeps it if it
was faster than both. More threads are not always faster, as they may take turns holding the GIL; nor are more
prefetched batches, as fewer stay in the processor's cache.
"""

from dataclasses import dataclass, replace
from operator import add
from typing import NamedTuple, final

ENOUGH_SECONDS = 0.4  # of a window that a decision is based on, with at least ENOUGH_BATCHES batches
ENOUGH_BATCHES = 8
PATIENCE = 0.02  # share of time that a consumer may wait without being starved
IDLE = 0.1  # share of the workers' time above which they are waiting for room
BETTER = 1.04  # a rate that is higher by this factor is not noise
REST = 50  # windows without a trial after a round of trials; doubled after each round that brought nothing
MOST_REST = 1600


@dataclass(frozen=True, slots=True)
class Setting:
    """The number of workers that may work at once, and the number of batches made ahead of the consumer."""

    threads: int
    prefetch: int


class Window(NamedTuple):
    """The measurements since the last decision.

    Attributes:
        seconds: wall time.
        batches: batches delivered.
        waited: seconds that the consumer waited for them.
        idle: seconds that the active workers waited for room, summed over them.
    """

    seconds: float = 0.0
    batches: int = 0
    waited: float = 0.0
    idle: float = 0.0

    @property
    def enough(self) -> bool:
        """Whether the window is long enough for a decision."""
        return self.seconds >= ENOUGH_SECONDS and self.batches >= ENOUGH_BATCHES


_ADJUSTMENTS = ((2.0, 1.0), (0.5, 1.0), (1.0, 0.5))
"""The factor by which trials change the number of threads, and the number of batches ahead."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """A setting on trial, between two measurements of the previous one.

    Attributes:
        setting: the setting on trial.
        before: the setting to fall back on.
        rate: batches per second of `before`; of `setting` once `measured`.
        measured: whether the rate of `setting` is known.
    """

    setting: Setting
    before: Setting
    rate: float
    measured: bool = False


@final
class Tuner:
    """Finds a fast setting, and tries others from time to time for as long as the consumer is starved.

    Args:
        start: the first setting; its number of threads is also the limit.
        most_prefetch: the largest number of prefetched batches that memory allows.
        threads, prefetch: whether the number of threads and of prefetched batches may change.
    """

    def __init__(self, start: Setting, *, most_prefetch: int, threads: bool, prefetch: bool) -> None:
        self.setting = start
        self._most_threads = start.threads
        self._most_prefetch = most_prefetch if prefetch else start.prefetch
        self._ceiling = self._most_prefetch  # lower for a while where fewer batches ahead were faster
        self._adjustments = [factors for factors in _ADJUSTMENTS if (prefetch if factors[0] == 1 else threads)]
        self._round = self._adjustments
        self._window = Window()
        self._trial: _Trial | None = None
        self._rest = 0
        self._next_rest = REST

    def record(self, window: Window) -> Setting:
        """Record a measurement, and return the setting to use from now on."""
        self._window = Window(*map(add, self._window, window))
        if self._window.enough:
            window, self._window = self._window, Window()
            self.setting = self._decide(window)
        return self.setting

    def _decide(self, window: Window) -> Setting:
        rate = window.batches / window.seconds
        if self._trial is not None:
            return self._judge(self._trial, rate)
        if window.waited <= PATIENCE * window.seconds:
            return self.setting
        if window.idle > IDLE * window.seconds * self.setting.threads and self.setting.prefetch < self._ceiling:
            return replace(self.setting, prefetch=min(self._ceiling, 2 * self.setting.prefetch))
        if self._rest:
            self._rest -= 1
            if not self._rest:
                self._round, self._ceiling = self._adjustments, self._most_prefetch
            return self.setting
        return self._try(rate)

    def _try(self, rate: float) -> Setting:
        """Put the next adjustment of this round on trial."""
        while self._round:
            threads, prefetch = self._round[0]
            most = min(self._most_threads, int(threads * self.setting.threads))
            setting = Setting(most, int(prefetch * self.setting.prefetch))
            if setting != self.setting and setting.threads >= 1 and setting.prefetch >= 1:
                self._trial = _Trial(setting, self.setting, rate)
                return setting
            self._round = self._round[1:]
        self._rest, self._next_rest = self._next_rest, min(MOST_REST, 2 * self._next_rest)
        return self.setting

    def _judge(self, trial: _Trial, rate: float) -> Setting:
        """Keep a setting that was faster than the old one both before and after: the first seconds are slow anyway."""
        self._trial = None
        slower, faster = (rate, trial.rate) if trial.measured else (trial.rate, rate)
        if faster < BETTER * slower:
            self._round = self._round[1:]
        elif not trial.measured:
            self._trial = replace(trial, rate=rate, measured=True)
        else:
            self._next_rest = REST
            if trial.setting.prefetch < trial.before.prefetch:
                self._ceiling = trial.setting.prefetch
            return trial.setting
        return trial.before
