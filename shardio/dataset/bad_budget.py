"""The budget of bad samples of a job: the option `max_bad`, of loaders and of conversions."""

import math

from ..errors import ConfigError


def check_max_bad(max_bad: float) -> None:
    """Raise ConfigError unless `max_bad` is a count, or a share below 1."""
    if isinstance(max_bad, bool) or not isinstance(max_bad, (int, float)) or not 0 <= max_bad < math.inf:
        raise ConfigError("{max_bad} must be a count, or a share of at least 0 and below 1, got {!r}", max_bad)
    if max_bad >= 1 and max_bad != int(max_bad):
        raise ConfigError("{max_bad} must be an integer, or below 1 for a share, got {!r}", max_bad)


def allowance(max_bad: float, samples: int) -> int:
    """Return how many of `samples` may be bad: `max_bad` is a count, or below 1 a share, rounded up."""
    return int(max_bad) if max_bad >= 1 else math.ceil(max_bad * samples)
