"""Two configurations measured in turns within one run, so that what disturbs the machine disturbs both alike.

Each side has its own rank processes: one side takes batches for a part of a second while the other one's ranks wait.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ..errors import ConfigError
from .config import BenchConfig
from .significance import Comparison, compare_pairs
from .standing_ranks import StandingRanks

TURN_SECONDS = 0.5
ROUNDS = 40


@dataclass(frozen=True, slots=True)
class Versus:
    """The result of a comparison in turns.

    Attributes:
        a, b: the configurations.
        a_rates, b_rates: samples per second of all ranks, by round.
        comparison: how B compares to A.
    """

    a: BenchConfig
    b: BenchConfig
    a_rates: list[float]
    b_rates: list[float]
    comparison: Comparison

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return {"schema": "shardio-bench-versus/1", **asdict(self)}


def versus(
    a: BenchConfig,
    b: BenchConfig,
    *,
    rounds: int = ROUNDS,
    turn_seconds: float = TURN_SECONDS,
    progress: Callable[[int, int], None] | None = None,
) -> Versus:
    """Measure two configurations in turns, and compare their rates.

    Args:
        a, b: what to measure; `epochs`, `seconds` and `warmup` do not apply.
        rounds: how often each of them has its turn; who begins alternates.
        turn_seconds: the time that is measured per turn.
        progress: called with the number of rounds that are done, and their number.

    Raises ConfigError for too few rounds, and what the ranks raise.
    """
    compare_pairs([1.0] * rounds, [1.0] * rounds)  # refuses too few rounds before anything is measured
    a_rates: list[float] = []
    b_rates: list[float] = []
    with StandingRanks(a) as first, StandingRanks(b) as second:
        for side in (first, second):
            side.turn(turn_seconds)  # warms up
        for number in range(rounds):
            turns = ((first, a_rates), (second, b_rates))
            for side, rates in turns if number % 2 == 0 else turns[::-1]:
                rates.append(sum(turn.samples_per_second for turn in side.turn(turn_seconds)))
            if progress is not None:
                progress(number + 1, rounds)
    return Versus(a, b, a_rates, b_rates, compare_pairs(a_rates, b_rates))


def other_side(config: BenchConfig, other: str) -> BenchConfig:
    """Return the configuration that `other` names: another dataset, or settings such as `threads=4,decode=fast`.

    Raises ConfigError for a setting that there is not.
    """
    if "=" not in other:
        return replace(config, dataset=other)
    kinds = {item.name: item for item in fields(config)}
    changes: dict[str, Any] = {}
    for part in other.split(","):
        name, _, text = part.partition("=")
        if name not in kinds:
            raise ConfigError(f"versus: there is no setting {name!r}; there are {', '.join(kinds)}")
        changes[name] = _value(text)
    return replace(config, **changes)


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
