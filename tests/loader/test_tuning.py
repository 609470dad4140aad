"""Autotuning finds the fastest setting, leaves a consumer that does not wait alone, and respects limits."""

from collections.abc import Callable, Mapping
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardio.loader.workers.tuning import BETTER, REST, Setting, Tuner, Window

ROUND = 40  # windows in which a round of trials ends


def settle(
    rate: Callable[[Setting], float],
    *,
    threads: int = 8,
    consumer: float = 1e9,
    idle: Callable[[Setting], float] = lambda setting: 0.0,
    noise: float = 0.0,
    windows: int = 60,
    may: tuple[bool, bool] = (True, True),
    most: int | None = None,
) -> list[Setting]:
    """The settings over time of a pipeline of `rate(setting)` batches per second, for a consumer of `consumer`."""
    tuner = Tuner(Setting(threads, 2), most_threads=most or threads, most_prefetch=16, threads=may[0], prefetch=may[1])
    chance = np.random.default_rng(0)
    settings = []
    for _ in range(windows):
        made = rate(tuner.setting) * (1 + noise * chance.standard_normal())
        delivered = min(made, consumer)
        waited = max(0.0, 1 - made / consumer) if consumer < 1e9 else 1.0
        idle_now = idle(tuner.setting) * tuner.setting.threads
        settings.append(tuner.record(Window(1.0, max(8, round(delivered)), waited, idle_now)))
    return settings


def between(rates: Mapping[int, float], threads: int) -> float:
    """The rate of a number of threads, on straight lines between those of the table."""
    counts = sorted(rates)
    return float(np.interp(threads, counts, [rates[count] for count in counts]))


def test_few_readers_become_more_where_storage_is_slow() -> None:
    """From a quarter of the threads the tuner goes up to all, if reads wait for storage, and not beyond."""
    assert settle(lambda setting: 10 * setting.threads, threads=4, most=16)[-1].threads == 16
    assert settle(lambda setting: 100, threads=4, most=16)[-1].threads == 4


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({1: 150, 2: 300, 4: 600, 8: 1000}, 8),  # compiled work uses all processors
        ({1: 900, 2: 600, 4: 400, 8: 300}, 1),  # threads compete for one lock
        ({1: 400, 2: 700, 4: 900, 8: 500}, 4),  # the best is in the middle
        ({1: 500, 2: 505, 4: 510, 8: 500}, 8),  # no significant difference
        ({1: 300, 2: 600, 3: 900, 4: 750}, 3),  # neither a half nor a double of any other
        ({1: 200, 6: 1200, 8: 1000, 16: 800}, 6),
        ({1: 200, 12: 2400, 16: 2000}, 12),
        ({1: 1000, 2: 940, 4: 935, 16: 925, 64: 920}, 1),  # halves and quarters of all threads are as fast
        ({1: 700, 2: 1000, 4: 940, 8: 930, 16: 920}, 2),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_the_fastest_number_of_threads_is_found(rates: dict[int, int], best: int, noise: float) -> None:
    """From all threads the tuner goes to the fastest number of them, and stays where no other is faster."""
    settings = settle(lambda setting: between(rates, setting.threads), threads=max(rates), noise=noise)
    assert {setting.threads for setting in settings[ROUND : ROUND + 10]} == {best}


@given(
    most=st.integers(1, 64),
    peak=st.floats(0, 1),
    growth=st.floats(0.2, 1.0),
    loss=st.floats(0.0, 0.5),
    noise=st.sampled_from([0.0, 0.01, 0.02]),
)
def test_no_round_ends_far_from_the_best(most: int, peak: float, growth: float, loss: float, noise: float) -> None:
    """Wherever the fastest number of threads is, a round of trials comes near its rate, and never below the first."""
    fastest = 1 + peak * (most - 1)

    def rate(setting: Setting) -> float:
        ratio = setting.threads / fastest
        return float(1000 * min(ratio**growth, ratio**-loss))

    settings = settle(rate, threads=most, noise=noise, windows=ROUND + 1)
    end, best = rate(settings[-1]), max(rate(Setting(threads, 2)) for threads in range(1, most + 1))
    assert end >= (0.83 if noise else 0.87) * best
    assert end * BETTER >= rate(settings[0]) * (1 - 2 * noise)


def test_a_fed_consumer_is_left_alone() -> None:
    """If the consumer does not wait, the tuner tries nothing."""
    assert set(settle(lambda setting: 1000, consumer=500)) == {Setting(8, 2)}


def test_workers_that_wait_for_room_get_more() -> None:
    """If both workers and consumer wait, the tuner prefetches more, up to the limit."""
    settings = settle(lambda setting: 100.0 * setting.prefetch, idle=lambda setting: 0.5)
    assert settings[-1].prefetch == 16
    assert max(setting.prefetch for setting in settings) <= 16


def test_fewer_ahead_where_that_is_faster() -> None:
    """If one batch ahead is faster than two, as with cached batches, the tuner stays there."""
    settings = settle(lambda setting: 2000.0 / setting.prefetch, idle=lambda s: 0.5 if s.prefetch == 1 else 0.0)
    assert [setting.prefetch for setting in settings].count(1) > 40


def test_threads_that_are_no_power_of_two_come_back() -> None:
    """The tuner returns to six threads after fewer were faster for a while."""
    calls = count(1)

    def changing(setting: Setting) -> float:
        return 1000.0 / setting.threads if next(calls) < 20 else 100.0 * setting.threads

    settings = settle(changing, threads=6, windows=60 + 2 * REST)
    assert settings[18].threads == 1
    assert settings[-1].threads == 6


def test_what_was_given_by_hand_stays() -> None:
    """The tuner does not change numbers that the user set."""
    fights = {8: 1, 4: 2, 2: 3, 1: 4}
    settings = settle(lambda s: 100.0 * fights[s.threads], idle=lambda s: 0.5, may=(False, False))
    assert set(settings) == {Setting(8, 2)}


def test_it_looks_again() -> None:
    """The tuner retries other numbers of threads later, so that one slow moment does not decide forever."""
    calls = count(1)

    def changing(setting: Setting) -> float:
        return between({8: 100, 4: 200, 1: 50}, setting.threads) if next(calls) < 10 else 100.0 * setting.threads

    settings = settle(changing, windows=30 + REST)
    assert settings[8].threads == 4
    assert settings[-1].threads == 8


def test_a_settled_tuner_tries_less_and_less() -> None:
    """Trials without gain become rare, because each costs a starved job some throughput."""
    settings = settle(lambda setting: 100.0 * setting.threads, windows=2000)
    tried = [place for place, setting in enumerate(settings) if setting != Setting(8, 2)]
    assert len(tried) < 0.01 * len(settings)
    assert tried[-1] > 1000


def test_a_slow_start_is_no_reason_to_change() -> None:
    """A slow first window is measured again before it is compared."""
    calls = count(1)

    def warming(setting: Setting) -> float:
        return (1.0 if next(calls) == 1 else 2.0) * between({8: 100, 4: 90, 1: 20}, setting.threads)

    settings = [setting.threads for setting in settle(warming, windows=30)]
    assert settings[2] == 8
    assert settings[10:] == [8] * 20


def test_a_short_window_decides_nothing() -> None:
    """A window of few batches is no measurement."""
    tuner = Tuner(Setting(8, 2), most_threads=8, most_prefetch=16, threads=True, prefetch=True)
    assert {tuner.record(Window(0.01, 1, 0.01, 0.0)) for _ in range(20)} == {Setting(8, 2)}
    assert len({tuner.record(Window(0.1, 1, 0.1, 0.0)) for _ in range(20)}) > 1
