"""The result of a measurement: figures per rank and for the whole job, as frozen values and as JSON."""

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from ..cache.fetcher import FetchCounts
from ..dataset.store_access import without_secrets
from .accelerators import utilisation
from .config import BenchConfig
from .machine import describe
from .rank import RankRecord, ended
from .usage import RankUsage
from .verdict import Verdict

SCHEMA = "shardio-bench/1"
"""The version of the JSON that `shardio bench --json` writes; docs/bench.md describes it."""

PARTS = 5  # of a measurement by seconds, to see how much the rate varies
ENOUGH_STEPS = 5  # of equal length, in each of these parts
MOST_STEPS = 2000  # per rank in the JSON; of more, every second, third, ... is kept
STALL = 0.5  # a step stalls if it waits this share of the median step


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure that was measured several times in one run: its median, smallest and largest value."""

    median: float
    smallest: float
    largest: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        """Return the spread of one or more values."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class RankResult:
    """The figures of one rank, without the warm-up.

    Attributes:
        rank: its number.
        samples: the number of samples.
        seconds: the time for them.
        samples_per_second: the rate, over the parts of the measurement.
        bytes_per_second: stored bytes of these samples per second.
        first_batch_seconds: from the start of the first loop until its first batch; files may have been cold.
        wait_median: seconds that a step waited for its batch, until it was on its device: the median.
        wait_p99: the 99th percentile of that.
        wait_max: the longest.
        stalled_steps: the number of steps that waited more than half of the median step.
        starved: the share of the time that the rank waited for input, 0 to 1.
        at_barrier: the share of the time that it waited for other ranks.
        utilisation: the share of the time in which its accelerator computed, without the first step of each
            epoch; None if it stands in for none, or no epoch has two steps.
        threads: working threads, the median over the steps.
        cpu_seconds_per_1000: processor seconds of its processes for 1,000 samples.
        delay_seconds: seconds that its threads were ready to run and waited for a processor.
        disk_bytes: bytes that came from storage.
        cached_bytes: stored bytes that came from the page cache.
        fetched: bytes fetched from stores, with the requests and retries that took, and the seconds of threads' waits.
        peak_memory: the most memory of its processes at once, in bytes (PSS).
    """

    rank: int
    samples: int
    seconds: float
    samples_per_second: Spread
    bytes_per_second: float
    first_batch_seconds: float
    wait_median: float
    wait_p99: float
    wait_max: float
    stalled_steps: int
    starved: float
    at_barrier: float
    utilisation: float | None
    threads: int
    cpu_seconds_per_1000: float
    delay_seconds: float
    disk_bytes: int
    cached_bytes: int
    fetched: FetchCounts
    peak_memory: int


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The time of all ranks' workers by stage, in seconds, summed over threads and processes.

    Attributes:
        seconds: by stage, while steps counted.
        cpu_seconds: the part on a processor.
        idle: the time that workers had nothing to do, or no room for more batches.
    """

    seconds: dict[str, float]
    cpu_seconds: dict[str, float]
    idle: float


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The result of a measurement.

    Attributes:
        config: what was measured.
        sample_bytes: the mean stored size of the dataset's samples.
        samples_per_second: per rank, of the slowest rank: an allreduce waits for it.
        samples_per_second_in_all: of all ranks together.
        rates: that of the slowest rank in each part of the measurement in turn: an epoch, or a fifth of the seconds.
        starved: the share of the time that ranks waited for input, their mean.
        utilisation: the accelerators' utilisation: mean over ranks; None without `emulate` or `step_time`.
        utilisation_of_slowest: the smallest of a rank.
        slowest_rank: the rank that the others waited for most.
        ceiling: samples per second and rank with one batch that is delivered again and again; None if steps do nothing.
        ranks: the figures of each rank.
        stages: what the workers did.
        decoded_frames: the frames of videos that were decoded for each one that clips show; None without videos.
        machine_busy: the share of the usable processors' time that was used, by anybody.
        others_busy: the share that processes other than this measurement's used.
        bad: the number of bad samples.
        verdict: what limits the rate, and what to change.
        timelines: for pictures: the times of the steps of each rank.
        machine: processor, cores and package versions.
    """

    config: BenchConfig
    sample_bytes: float
    samples_per_second: Spread
    samples_per_second_in_all: Spread
    rates: list[float]
    starved: float
    utilisation: float | None
    utilisation_of_slowest: float | None
    slowest_rank: int
    ceiling: float | None
    ranks: list[RankResult]
    stages: StageTimes
    decoded_frames: float | None
    machine_busy: float
    others_busy: float
    bad: int
    verdict: Verdict
    timelines: list["Timeline"]
    machine: dict[str, Any] = field(default_factory=describe)

    @property
    def is_workload(self) -> bool:
        """Whether the samples are about as large as those of the workload that is emulated, if one is."""
        accelerator = self.config.accelerator
        return accelerator is None or accelerator.takes(self.sample_bytes)

    @property
    def passed(self) -> bool | None:
        """Whether the slowest accelerator reached its pass mark; None without one, and for another workload."""
        accelerator = self.config.accelerator
        if accelerator is None or self.utilisation_of_slowest is None or not self.is_workload:
            return None
        return self.utilisation_of_slowest >= accelerator.pass_mark

    @property
    def enough_steps(self) -> bool:
        """Whether the parts hold enough steps to show how the rate varies; fewer show where bursts of batches fell."""
        return self.config.seconds is None or all(line.equal_steps >= PARTS * ENOUGH_STEPS for line in self.timelines)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values; see docs/bench.md."""
        derived = {"follows": self.config.follows, "is_workload": self.is_workload, "passed": self.passed}
        return without_secrets({"schema": SCHEMA, **asdict(self), **derived})


@dataclass(frozen=True, slots=True)
class Timeline:
    """The steps of a rank, warm-up included, in milliseconds from the start of the first rank.

    Attributes:
        begun: when each step began.
        wait, compute, barrier: how long it waited for its batch, computed, and waited for other ranks.
        counted_from: the first step that counts, in this list.
        stride: 1 if these are all steps, 2 if they are every second one, ...
        threads: pairs of a time and the number of working threads from then on.
    """

    begun: list[float]
    wait: list[float]
    compute: list[float]
    barrier: list[float]
    counted_from: int
    stride: int
    threads: list[tuple[float, int]]

    @property
    def equal_steps(self) -> float:
        """How many steps of equal length vary as much as those that count: bursts of short steps count as one."""
        lengths = sum(np.array(times[self.counted_from :]) for times in (self.wait, self.compute, self.barrier))
        return self.stride * float(np.sum(lengths)) ** 2 / max(float(np.sum(np.square(lengths))), 1e-9)

    @classmethod
    def of(cls, record: RankRecord, start: float) -> "Timeline":
        """Return the timeline of a rank."""
        stride = -(-len(record.steps) // MOST_STEPS)
        steps = record.steps[::stride]
        columns = (steps["begun"] - start, steps["wait"] + steps["device"], steps["compute"], steps["barrier"])
        begun, wait, compute, barrier = (np.round(1000 * values, 3).tolist() for values in columns)
        return cls(
            begun,
            wait,
            compute,
            barrier,
            counted_from=-(-record.counted_from // stride),
            stride=stride,
            threads=[(round(1000 * (when - start), 3), int(count)) for when, count, _ in record.settings.tolist()],
        )


def rank_result(config: BenchConfig, rank: int, record: RankRecord, usage: RankUsage) -> RankResult:
    """Return the figures of one rank."""
    steps, wait, accelerator = record.counted, record.waits, config.accelerator
    moments = ended(steps)
    total, seconds = int(steps["samples"].sum()), float(moments[-1] - steps["begun"][0])
    threads = record.settings[np.searchsorted(record.settings[:, 0], moments, side="right") - 1, 1]
    return RankResult(
        rank=rank,
        samples=total,
        seconds=seconds,
        samples_per_second=Spread.of(rates(config, record)),
        bytes_per_second=record.stats.bytes / seconds,
        first_batch_seconds=float(record.steps["wait"][0]),
        wait_median=float(np.median(wait)),
        wait_p99=float(np.percentile(wait, 99)),
        wait_max=float(wait.max()),
        stalled_steps=int((wait > STALL * np.median(moments - steps["begun"])).sum()),
        starved=float(wait.sum() / seconds),
        at_barrier=float(steps["barrier"].sum() / seconds),
        utilisation=None if accelerator is None else utilisation(moments, steps["epoch"], accelerator.step_seconds),
        threads=int(np.median(threads)),
        cpu_seconds_per_1000=1000 * record.cpu_seconds / max(total, 1),
        delay_seconds=usage.delay_seconds,
        disk_bytes=usage.disk_bytes,
        cached_bytes=max(0, record.stats.bytes - usage.disk_bytes),
        fetched=record.stats.fetched,
        peak_memory=usage.peak_memory,
    )


def rates(config: BenchConfig, record: RankRecord) -> list[float]:
    """Return a rank's samples per second in each part of the measurement: an epoch, or a fifth of the seconds."""
    steps, moments = record.counted, ended(record.counted)
    if config.seconds is None:
        inner = np.flatnonzero(np.diff(steps["epoch"])) + 1
    else:
        total = moments[-1] - steps["begun"][0]
        inner = np.searchsorted(moments - steps["begun"][0], total * np.arange(1, PARTS) / PARTS)
    return [
        float(steps["samples"][first:last].sum() / (moments[last - 1] - steps["begun"][first]))
        for first, last in pairwise([0, *inner.tolist(), len(steps)])
        if last > first
    ]
