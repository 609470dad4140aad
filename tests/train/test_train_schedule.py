"""The learning rate schedule at known points."""

import pytest

from shardio.train.schedule import learning_rate, scaled_rate


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
    assert learning_rate(step, peak=2.0, warmup_steps=warmup, total_steps=total) == pytest.approx(expected)


def test_peak_is_linear_in_the_global_batch() -> None:
    """Four times the batch gives four times the peak rate."""
    assert scaled_rate(0.1, global_batch=1024, reference_batch=256) == pytest.approx(0.4)
