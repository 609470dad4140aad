"""Two configurations measured in turns within one run: what disturbs one disturbs the other alike.

Each side has its own rank processes: one side takes batches for a part of a second while the other one's ranks wait.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args, get_type_hints

import msgspec

from ..dataset.store_access import without_secrets
from ..errors import ConfigError
from .config import BenchConfig
from .significance import Comparison, compare_pairs, least_rounds
from .standing_ranks import StandingRanks

TURN_SECONDS = 0.5
ROUNDS = 40
_NO_SETTING = ("store_options", "epochs", "seconds", "warmup")  # of one side


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
        return without_secrets({"schema": "shardio-bench-versus/1", **asdict(self)})


def versus(
    a: BenchConfig,
    b: BenchConfig,
    *,
    rounds: int = ROUNDS,
    turn_seconds: float = TURN_SECONDS,
    progress: Callable[[int, int], None] | None = None,
) -> Versus:
    """Measure two configurations in turns, and compare their rates.

    If `a.seconds` is given, the turns of each side take about so long in all, including their first steps: turns are
    shorter or longer than `turn_seconds`, and there may be fewer than `rounds`, but as many as a test needs.

    Args:
        a, b: what to measure; `epochs`, `warmup` and `b.seconds` do not apply.
        rounds: how often each of them has its turn, at most; who begins alternates.
        turn_seconds: the time measured per turn if `a.seconds` is None.
        progress: called with the number of rounds that are done, and their number as far as it is known.

    Raises ConfigError for too few rounds, and what the ranks raise.
    """
    compare_pairs([1.0] * rounds, [1.0] * rounds)  # refuses too few rounds before anything is measured
    budget = math.inf if a.seconds is None else 2 * a.seconds  # for both sides
    if a.seconds is not None:
        turn_seconds = max(a.seconds / rounds, min(turn_seconds, a.seconds / least_rounds()))
    a_rates: list[float] = []
    b_rates: list[float] = []
    with StandingRanks(a) as first, StandingRanks(b) as second:
        for side in (first, second):
            side.rate(turn_seconds)  # warms up
        begun, spent = time.monotonic(), 0.0
        for number in range(rounds):
            if number >= least_rounds() and spent * (number + 0.5) / number > budget:
                break  # another round would end later than it should by more than half of it
            turns = ((first, a_rates), (second, b_rates))
            for side, rates in turns if number % 2 == 0 else turns[::-1]:
                rates.append(side.rate(turn_seconds))
            spent = time.monotonic() - begun
            if progress is not None:
                expected = round(min(rounds, (number + 1) * budget / spent))
                progress(number + 1, max(number + 1, least_rounds(), expected))
    return Versus(a, b, a_rates, b_rates, compare_pairs(a_rates, b_rates))


def other_side(config: BenchConfig, other: str) -> BenchConfig:
    """Return the configuration that `other` names: another dataset, settings such as `threads=4,decode=fast`, or both.

    A setting is an attribute of BenchConfig, written like it or like the option: `batch_size`, `batch-size` or
    `--batch-size`.

    Raises ConfigError for a setting that there is not, or a value that it cannot have.
    """
    parts = other.split(",")
    first = next((number for number, part in enumerate(parts) if "=" in part), len(parts))
    dataset = ",".join(parts[:first])  # a path may have commas
    changes: dict[str, Any] = {"dataset": dataset} if dataset else {}
    hints = get_type_hints(BenchConfig) | {"dataset": str}
    kinds = {name: kind for name, kind in hints.items() if name not in _NO_SETTING}
    for part in parts[first:]:
        typed, equals, text = part.partition("=")
        name = typed.strip().removeprefix("--").replace("-", "_")
        if name not in kinds or not equals:
            settings = ", ".join(kind.replace("_", "-") for kind in kinds)
            raise ConfigError(
                "{versus}: there is no setting {!r}; give NAME=VALUE, where NAME is one of {}", typed, settings
            )
        changes[name] = _value(name, text, kinds[name])
    return replace(config, **changes)


def _value(name: str, text: str, kind: Any) -> Any:
    if text.lower() == "none" and name != "transforms" and type(None) in get_args(kind):  # a word among transforms
        return None
    try:
        return msgspec.convert(text.lower() if kind is bool else text, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError("{versus}: {}={!r}: {}", name.replace("_", "-"), text, str(error)) from None
