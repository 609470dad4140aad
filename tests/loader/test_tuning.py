"""Autotuning finds the fastest setting, leaves a consumer that does not wait alone, and respects limits."""

from collections.abc import Callable

import numpy as np
import pytest

from shardio.loader.workers.tuning import REST, Setting, Tuner, Window


def settle(
    rate: Callable[[Setting], float],
    *,
    threads: int = 8,
    consumer: float = 1e9,
    idle: Callable[[Setting], float] = lambda setting: 0.0,
    noise: float = 0.0,
    windows: int = 60,
    may: tuple[bool, bool] = (True, True),
) -> list[Setting]:
    """The settings over time of a pipeline of `rate(setting)` batches per second, for a consumer of `consumer`."""
    tuner = Tuner(Setting(threads, 2), most_prefetch=16, threads=may[0], prefetch=may[1])
    chance = np.random.default_rng(0)
    settings = []
    for _ in range(windows):
        made = rate(tuner.setting) * (1 + noise * chance.standard_normal())
        delivered = min(made, consumer)
        waited = max(0.0, 1 - made / consumer) if consumer < 1e9 else 1.0
        idle_now = idle(tuner.setting) * tuner.setting.threads
        settings.append(tuner.record(Window(1.0, max(8, round(delivered)), waited, idle_now)))
    return settings


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({8: 1000, 4: 600, 2: 300, 1: 150}, 8),  # compiled work uses all processors
        ({8: 300, 4: 400, 2: 600, 1: 900}, 1),  # threads compete for one lock
        ({8: 500, 4: 900, 2: 700, 1: 400}, 4),  # the best is in the middle
        ({8: 500, 4: 510, 2: 505, 1: 500}, 8),  # no significant difference
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_the_fastest_number_of_threads_is_found(rates: dict[int, int], best: int, noise: float) -> None:
    """From all threads the tuner goes down while that is faster, and back when it is not."""
    settings = settle(lambda setting: rates[setting.threads], noise=noise)
    assert settings[-1].threads == best
    assert [setting.threads for setting in settings].count(best) > 40


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
    calls = 0

    def changing(setting: Setting) -> float:
        nonlocal calls
        calls += 1
        return 1000.0 / setting.threads if calls < 20 else 100.0 * setting.threads

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
    calls = 0

    def changing(setting: Setting) -> float:
        nonlocal calls
        calls += 1
        return {8: 100.0, 4: 200.0, 2: 100.0, 1: 50.0}[setting.threads] if calls < 10 else 100.0 * setting.threads

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
    calls = 0

    def warming(setting: Setting) -> float:
        nonlocal calls
        calls += 1
        return (100.0 if calls == 1 else 200.0) * {8: 1.0, 4: 0.9, 2: 0.5, 1: 0.2}[setting.threads]

    assert [setting.threads for setting in settle(warming, windows=10)][-8:] == [8] * 8


def test_a_short_window_decides_nothing() -> None:
    """A window of few batches is no measurement."""
    tuner = Tuner(Setting(8, 2), most_prefetch=16, threads=True, prefetch=True)
    assert {tuner.record(Window(0.01, 1, 0.01, 0.0)) for _ in range(20)} == {Setting(8, 2)}
    assert len({tuner.record(Window(0.1, 1, 0.1, 0.0)) for _ in range(20)}) > 1
