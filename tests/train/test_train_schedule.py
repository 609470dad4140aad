"""The learning rate schedule at known points."""

import pytest

from shardio.train.schedule import Decay, Scaling, learning_rate, scaled_rate


@pytest.mark.parametrize(
    ("step", "warmup", "total", "expected"),
    [
        (0, 10, 110, 0.0),  # warm-up begins at 0
        (5, 10, 110, 1.0),  # half way up
        (10, 10, 110, 2.0),  # the peak
        (60, 10, 110, 1.0),  # half of the cosine
        (35, 10, 110, 2.0 * 0.8535533905932737),  # a quarter of it: (1 + cos(45 degrees)) / 2
        (110, 10, 110, 0.0),  # the end
        (999, 10, 110, 0.0),  # after the end: still 0
        (0, 0, 100, 2.0),  # without warm-up it begins at the peak
        (2.5, 10, 110, 0.5),  # fractions of a step
        (9, 10, 10, 1.8),  # warm-up only
        (10, 10, 10, 0.0),  # and its end
    ],
)
def test_rate_rises_in_a_line_and_falls_as_a_cosine(step: float, warmup: float, total: float, expected: float) -> None:
    """The rate rises linearly to a peak of 2 and falls as a cosine."""
    rate = learning_rate(step, peak=2.0, warmup_steps=warmup, total_steps=total, decay=Decay())
    assert rate == pytest.approx(expected)


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        (Decay(curve="polynomial", power=2), [2.0, 2 * 0.75**2, 0.5, 0.0]),
        (Decay(curve="step", every=30, factor=0.1), [2.0, 0.2, 0.02, 0.002]),  # after 30, 60 and 90 of all
        (Decay(curve="exponential", every=50, factor=0.25), [2.0, 1.0, 0.5, 0.125]),
        (Decay(curve="inverse-time", every=50, factor=0.5), [2.0, 2 / 1.5, 1.0, 2 / 3]),
        (Decay(curve="constant"), [2.0, 2.0, 2.0, 2.0]),
    ],
    ids=lambda value: value.curve if isinstance(value, Decay) else "",
)
def test_other_curves(decay: Decay, expected: list[float]) -> None:
    """Each curve begins at the peak after the warm-up, and is known a quarter, a half and all of the way down."""
    steps = (10, 35, 60, 110)
    rates = [learning_rate(step, peak=2.0, warmup_steps=10, total_steps=110, decay=decay) for step in steps]
    assert rates == pytest.approx(expected)
    assert learning_rate(5, peak=2.0, warmup_steps=10, total_steps=110, decay=decay) == pytest.approx(1.0)


@pytest.mark.parametrize(("scaling", "expected"), [("linear", 0.4), ("sqrt", 0.2), ("none", 0.1)])
def test_peak_grows_with_the_global_batch(scaling: Scaling, expected: float) -> None:
    """Four times the batch gives four times the peak rate, twice the rate, or the same."""
    assert scaled_rate(0.1, global_batch=1024, reference_batch=256, scaling=scaling) == pytest.approx(expected)
