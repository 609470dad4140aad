"""The tuner: it chooses the number of working threads and prefetched batches from measurements, one change at a time.

If the consumer hardly waits, nothing changes. If it waits while workers wait for room, more batches are prefetched. If
it waits for busy workers, the tuner tries another setting between two windows of the current one, and keeps it if it
was faster than both. More threads are not always faster, as they may take turns holding the GIL; nor are more
prefetched batches, as fewer stay in the processor's cache.

Trials of threads double and halve their number, and then narrow: of 16 threads 8, 4, 11, 6. If half of the threads are
as fast as all, the tuner also tries a quarter: where threads take turns, each step alone gains too little to measure.
No number of threads is tried twice before the next rest, so a round of trials ends: after 40 windows at most from 64
threads, if rates don't change meanwhile.
"""

from collections.abc import Iterator
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
STEPS = (2.0, 0.5)  # factors by which trials change the number of threads first
NARROW_STEPS = (4 / 3, 3 / 4)  # and those once these brought nothing


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
        start: the first setting.
        most_threads: the largest number of threads.
        most_prefetch: the largest number of prefetched batches that memory allows.
        threads, prefetch: whether the number of threads and of prefetched batches may change.
    """

    def __init__(self, start: Setting, *, most_threads: int, most_prefetch: int, threads: bool, prefetch: bool) -> None:
        self.setting = start
        self._most_threads = most_threads
        self._most_prefetch = most_prefetch if prefetch else start.prefetch
        self._ceiling = self._most_prefetch  # lower for a while where fewer batches ahead were faster
        self._tune_threads, self._tune_prefetch = threads, prefetch
        self._forget_trials()
        self._window = Window()
        self._trial: _Trial | None = None
        self._rest = 0
        self._next_rest = REST

    def record(self, window: Window) -> Setting:
        """Record a measurement, and return the setting to use from now on."""
        self._window = Window(*map(add, self._window, window))
        # Long tasks end together, and so what is ahead comes in bursts: a window has two of them at least.
        if self._window.enough and self._window.batches >= 2 * self.setting.prefetch:
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
                self._ceiling = self._most_prefetch
                self._forget_trials()
            return self.setting
        return self._try(rate)

    def _forget_trials(self) -> None:
        """Begin a round of trials: each number but the current one may be tried."""
        self._tried_threads, self._tried_prefetch = {self.setting.threads}, {self.setting.prefetch}
        self._as_fast: list[int] = []  # numbers of threads that were neither faster nor slower than the current one

    def _try(self, rate: float) -> Setting:
        """Put the next setting of this round on trial, or rest if there is none."""
        setting = next(self._candidates(), None)
        if setting is None:
            self._rest, self._next_rest = self._next_rest, min(MOST_REST, 2 * self._next_rest)
            return self.setting
        self._tried_threads.add(setting.threads)
        self._tried_prefetch.add(setting.prefetch)
        self._trial = _Trial(setting, self.setting, rate)
        return setting

    def _candidates(self) -> Iterator[Setting]:
        """Yield the settings that this round has not tried yet, the next one first."""
        now = self.setting
        if self._tune_threads:
            counts = [factor * count for count in (now.threads, *self._as_fast) for factor in STEPS]
            for count in (*counts, *(factor * now.threads for factor in NARROW_STEPS)):
                threads = min(self._most_threads, max(1, round(count)))
                if threads not in self._tried_threads:
                    yield replace(now, threads=threads)
        if self._tune_prefetch and now.prefetch // 2 not in (0, *self._tried_prefetch):
            yield replace(now, prefetch=now.prefetch // 2)

    def _judge(self, trial: _Trial, rate: float) -> Setting:
        """Keep a setting that was faster than the old one both before and after: the first seconds are slow anyway."""
        self._trial = None
        slower, faster = (rate, trial.rate) if trial.measured else (trial.rate, rate)
        if faster < BETTER * slower:
            if BETTER * faster > slower and trial.setting.threads != trial.before.threads:
                self._as_fast.append(trial.setting.threads)
            return trial.before
        if not trial.measured:
            self._trial = replace(trial, rate=rate, measured=True)
            return trial.before
        self._next_rest, self._as_fast = REST, []
        if trial.setting.prefetch < trial.before.prefetch:
            self._ceiling = trial.setting.prefetch
        return trial.setting
