"""Summarise the results of all rounds into one row per peer: medians, and medians of ratios within each round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks._limits import LIMIT
from benchmarks._rounds import Outcome


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one peer; None without a successful round.

    Attributes:
        name: name of the peer.
        label: what was run.
        samples_per_s: median of the rounds.
        cpu_s_per_1000: processor seconds per 1,000 samples, user and system, all processes of the peer; median.
        of_limit: median of the rounds' ratios to the limit measured in the same round.
        of_reference: the same to shardio's main variant.
        rates: samples per second of every round.
        cpus: processor seconds per 1,000 samples of every round.
        delivered: samples, shape and dtype of the checked epoch.
        versions: versions of the relevant distributions.
        failure: why the peer ended early, or "".
    """

    name: str
    label: str
    samples_per_s: float | None
    cpu_s_per_1000: float | None
    of_limit: float | None
    of_reference: float | None
    rates: tuple[float | None, ...] = ()
    cpus: tuple[float | None, ...] = ()
    delivered: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""


def summarise(outcomes: Mapping[str, Outcome], reference: str) -> list[Row]:
    """All rows, the fastest first, failed ones last."""
    rates = {name: tuple(_column(outcome, "samples_per_s")) for name, outcome in outcomes.items()}
    rows = []
    for name, outcome in outcomes.items():
        cpus = tuple(_column(outcome, "cpu_s_per_1000"))
        last: dict[str, Any] = next((result for result in reversed(outcome.rounds) if result is not None), {})
        rows.append(
            Row(
                name,
                outcome.label,
                _median(rates[name]),
                _median(cpus),
                median_ratio(rates[name], rates.get(LIMIT, ())),
                median_ratio(rates[name], rates.get(reference, ())),
                rates[name],
                cpus,
                last.get("delivered", {}),
                last.get("versions", {}),
                outcome.failure,
            )
        )
    return sorted(rows, key=lambda row: -(row.samples_per_s or 0.0))


def median_ratio(values: Sequence[float | None], bases: Sequence[float | None]) -> float | None:
    """The median of value / base over the rounds that have both; None if there is none.

    Not the ratio of the medians: a round in which the machine was slow for everyone would count twice there.
    """
    return _median([v / b for v, b in zip(values, bases, strict=False) if v is not None and b])


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _column(outcome: Outcome, name: str) -> list[float | None]:
    return [None if result is None else float(result[name]) for result in outcome.rounds]
