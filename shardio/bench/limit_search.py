"""Finds the shortest step that input keeps up with: how many accelerators of a kind this machine feeds."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..dataset.store_access import without_secrets
from ..errors import ConfigError, Message
from .accelerators import accelerator as known
from .config import BenchConfig
from .rank import mean_sample_bytes, suited_to_dataset
from .standing_ranks import StandingRanks

PRECISION = 0.02  # ratio of the shortest step that held the mark to the longest that did not, less 1
MOST_PROBES = 12
_SECONDS = 3.0  # of each probe, unless the configuration says otherwise
_LEAST_STEPS = 20


@dataclass(frozen=True, slots=True)
class Probe:
    """One measurement of the search: a step time, and the utilisation of the slowest accelerator with it."""

    step_seconds: float
    utilisation: float


@dataclass(frozen=True, slots=True)
class Limit:
    """The result of a search.

    Attributes:
        config: what was measured, with the shortest step that holds the mark.
        pass_mark: the utilisation that had to be reached.
        step_seconds: the shortest step that reaches it.
        samples_per_second: per rank, with such steps.
        accelerators: how many of the emulated accelerators need as many samples per second as steps of that length
            take on all ranks; None without `emulate`.
        probes: the measurements, in order.
        sample_bytes: the mean stored size of the dataset's samples.
    """

    config: BenchConfig
    pass_mark: float
    step_seconds: float
    samples_per_second: float
    accelerators: float | None
    probes: list[Probe]
    sample_bytes: float

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return without_secrets({"schema": "shardio-bench-limit/1", **asdict(self), "follows": self.config.follows})


def find_limit(config: BenchConfig, probed: Callable[[Probe], None] | None = None) -> Limit:
    """Search the shortest step at which the slowest rank's accelerator still reaches its pass mark.

    All steps count, the first of each epoch too: a machine that feeds so many accelerators has to feed those as well,
    and where epochs are short most of the reading happens while their first steps wait.

    Args:
        config: what to measure; `emulate` or `step_time` gives the pass mark, `ranks` the number of accelerators, and
            `seconds` the time of each measurement (3 s if None), which lasts for 20 steps at least.
        probed: called with each measurement.

    Raises ConfigError without an accelerator, and what the ranks raise.
    """
    accelerator = config.accelerator
    if accelerator is None:
        raise ConfigError(
            Message("{find_limit} needs an accelerator: give {emulate:retinanet-b200} or another one, or {step_time}")
        )
    config = suited_to_dataset(config)
    seconds = _SECONDS if config.seconds is None else config.seconds
    sample_bytes = mean_sample_bytes(config)
    probes: list[Probe] = []
    with StandingRanks(config) as ranks:

        def reaches(step_seconds: float) -> bool:
            turns = ranks.turn(max(seconds, _LEAST_STEPS * step_seconds), step_seconds)
            probes.append(Probe(step_seconds, min(turn.utilisation for turn in turns)))
            if probed is not None:
                probed(probes[-1])
            return probes[-1].utilisation >= accelerator.pass_mark

        ranks.turn(max(1.0, config.warmup), 0.0)
        free = ranks.turn(seconds, 0.0)  # as fast as input alone allows
        shortest = bisect(reaches, accelerator.pass_mark * max(turn.seconds_per_step for turn in free))
    rate = config.samples_per_step / shortest
    return Limit(
        config=replace(config, step_time=shortest),
        pass_mark=accelerator.pass_mark,
        step_seconds=shortest,
        samples_per_second=rate * next(probe.utilisation for probe in probes if probe.step_seconds == shortest),
        accelerators=None if config.emulate is None else config.ranks * rate / known(config.emulate).samples_per_second,
        probes=probes,
        sample_bytes=sample_bytes,
    )


def bisect(reaches: Callable[[float], bool], guess: float) -> float:
    """Return the smallest value that `reaches` accepts, to PRECISION, beginning at a guess; it accepts all above it."""
    low = high = None
    value, stride = guess, 1.1
    for _ in range(MOST_PROBES):
        if reaches(value):
            high = value
        else:
            low = value
        if high is not None and low is not None:
            if high / low - 1 <= PRECISION:
                break
            value = (high * low) ** 0.5
        else:
            value, stride = (value / stride if low is None else value * stride), stride * 1.1
    if high is None:
        raise ConfigError(f"no step of up to {value:.3f} s reaches the pass mark: input varies too much")
    return high
