"""The learning rate schedule, as a table."""

import pytest

from shardio.train.schedule import learning_rate, scaled_rate


@pytest.mark.parametrize(
    ("step", "warmup", "total", "expected"),
    [
        (0, 10, 110, 0.0),  # warm-up begins at nothing
        (5, 10, 110, 1.0),  # half way up
        (10, 10, 110, 2.0),  # the peak
        (60, 10, 110, 1.0),  # half of the cosine
        (35, 10, 110, 2.0 * 0.8535533905932737),  # a quarter of it: (1 + cos(45 degrees)) / 2
        (110, 10, 110, 0.0),  # the end
        (999, 10, 110, 0.0),  # past it: still nothing
        (0, 0, 100, 2.0),  # without warm-up the peak comes first
        (2.5, 10, 110, 0.5),  # fractions of a step
        (9, 10, 10, 1.8),  # nothing but warm-up
        (10, 10, 10, 0.0),  # and its end
    ],
)
def test_rate_rises_in_a_line_and_falls_as_a_cosine(step: float, warmup: float, total: float, expected: float) -> None:
    """Points of the curve with a peak of 2."""
    assert learning_rate(step, peak=2.0, warmup_steps=warmup, total_steps=total) == pytest.approx(expected)


def test_peak_is_linear_in_the_global_batch() -> None:
    """Four times the batch takes four times the rate."""
    assert scaled_rate(0.1, global_batch=1024, reference_batch=256) == pytest.approx(0.4)
