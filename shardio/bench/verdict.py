"""What limits the rate of a loader, from where its ranks and workers spend their time, and which setting to change.

`diagnose` is a pure function of a few figures. docs/bench.md explains its rules, and shows how often they are right.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Bottleneck: TypeAlias = Literal[
    "consumer", "storage", "decode", "map", "GIL", "read", "copy", "engine", "threads", "other processes", "slow rank",
    "start of epochs", "hand-over", "network",
]  # fmt: skip

ENOUGH = 0.05  # starved less than this, input keeps up
SLOW_RANK = 0.25  # excess of a rank's own time over the others' median
BUSY = 0.75  # of their time, from which on the workers are the limit
DELAYED = 0.2  # of the workers' busy time, from which on waiting for a processor matters
OTHERS = 0.15  # of the processors' time, from which on other processes matter
ON_CPU = 0.6  # of a stage's time, from which on it computes rather than waits
ENOUGH_AHEAD = 8  # batches; more of them hide no hand-over


@dataclass(frozen=True, slots=True)
class Figures:
    """Where the time went, while steps counted.

    Attributes:
        starved: the share of the time that ranks waited for input, mean over ranks.
        on_device: the part of that wait, 0 to 1, which was for copies and engines for whole batches.
        own: for each rank, the seconds per step in which it did not wait for others at the barrier.
        waits: for each rank, the seconds per step that it waited for input.
        workers: threads, or worker processes, of all ranks.
        cores: the processors that they may use.
        seconds: the time that was measured.
        stages: the workers' seconds by stage.
        cpu: the part of them on a processor, by stage.
        delay: seconds that threads were ready to run and waited for a processor, all ranks together.
        others_busy: the share of the processors' time that other processes used.
        disk_share: the share of the stored bytes that came from storage rather than the page cache.
        at_epoch_start: the part of the wait, 0 to 1, in which ranks waited for the first batch of an epoch.
        prefetch: the batches made ahead.
        isolate: whether workers are processes.
        decode: the Loader's argument.
        engine: the engine's name.
    """

    starved: float
    on_device: float
    own: tuple[float, ...]
    waits: tuple[float, ...]
    workers: int
    cores: int
    seconds: float
    stages: Mapping[str, float]
    cpu: Mapping[str, float]
    delay: float = 0.0
    others_busy: float = 0.0
    disk_share: float = 0.0
    at_epoch_start: float = 0.0
    prefetch: int = 2
    isolate: bool = False
    decode: str = "exact"
    engine: str = "cpu"


@dataclass(frozen=True, slots=True)
class Change:
    """A setting to change.

    Attributes:
        setting: its name, as an argument of the Loader, or words if it is none.
        value: what to set it to; None where the advice is in words alone.
        expected: the rate to expect, as a multiple of the measured one; None where nothing can be said.
    """

    setting: str
    value: str | int | bool | None = None
    expected: float | None = None

    def __str__(self) -> str:
        text = self.setting if self.value is None else f"{self.setting}={self.value!r}"
        return text if self.expected is None else f"{text} (up to {self.expected:.1f} times the rate)"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits the rate.

    Attributes:
        bottleneck: the limit, in a word.
        sentence: the limit with the figures that show it.
        change: the one setting to change; None if input is no limit.
        shares: the share of the workers' time that went to each stage, and to waiting (`idle`).
    """

    bottleneck: Bottleneck
    sentence: str
    change: Change | None = None
    shares: dict[str, float] = field(default_factory=dict)


def diagnose(figures: Figures) -> Verdict:
    """Name what limits the rate."""
    verdict = _diagnose(figures)
    return Verdict(verdict.bottleneck, verdict.sentence, verdict.change, _shares(figures))


def _shares(figures: Figures) -> dict[str, float]:
    capacity = max(figures.workers * figures.seconds, sum(figures.stages.values()), 1e-9)
    shares = {name: spent / capacity for name, spent in sorted(figures.stages.items(), key=lambda item: -item[1])}
    return {**shares, "idle": max(0.0, 1 - sum(shares.values()))}


def _diagnose(f: Figures) -> Verdict:
    gain = 1 / max(1 - f.starved, 0.02)  # if no step waited any more
    slow = _slow_rank(f)
    if slow is not None:
        rank, others = slow
        cause = "waiting for its input" if f.waits[rank] > 0.5 * f.own[rank] else "computing"
        return Verdict(
            "slow rank",
            f"rank {rank} is slow: a step takes it {1000 * f.own[rank]:.3g} ms, mostly {cause}, and the others "
            f"{1000 * others:.3g} ms; they wait for it",
            Change(f"look at the processors and the storage of rank {rank}", expected=f.own[rank] / max(others, 1e-6)),
        )
    if f.starved < ENOUGH:
        return Verdict("consumer", f"not input-bound: steps wait {f.starved:.1%} of the time for their batches")
    if f.on_device > 0.5:
        return _device(f, gain)
    busy = sum(f.stages.values())
    capacity = max(f.workers * f.seconds, busy, 1e-9)
    free = f.cores * f.seconds * (1 - f.others_busy) - sum(f.cpu.values())  # processor seconds that nobody used
    waiting = busy - sum(f.cpu.values()) - f.delay  # for storage, or inside a function of the user's
    if f.delay > max(DELAYED * busy, waiting) and f.others_busy > OTHERS:
        return Verdict(
            "other processes",
            f"other processes use {f.others_busy:.0%} of the processors: ready threads waited {f.delay:.1f} s for one, "
            f"and worked {sum(f.cpu.values()):.1f} s",
            Change("end the other processes, or bind the ranks to processors of their own", None,
                   min(gain, 1 / max(1 - f.others_busy, 0.1))),
        )  # fmt: skip
    if busy < BUSY * capacity:
        return _idle_workers(f, busy / capacity, gain)
    stage, spent = max(f.stages.items(), key=lambda item: item[1])
    share, on_cpu = spent / max(busy, 1e-9), f.cpu.get(stage, 0.0) / max(spent, 1e-9)
    if stage == "map":
        return _map(f, share, on_cpu, gain)
    if stage == "fetch":
        return Verdict(
            "network",
            f"network: workers spend {share:.0%} of their time waiting for the store",
            Change("give a cache_size that holds all, and shuffle='block', whose requests are longer", None, gain),
        )
    if stage in ("read", "verify") and on_cpu < ON_CPU and f.delay < 0.5 * (spent - f.cpu.get(stage, 0.0)):
        return Verdict(
            "storage",
            f"storage: workers spend {share:.0%} of their time in `{stage}`, {1 - on_cpu:.0%} of it waiting; "
            f"{f.disk_share:.0%} of the bytes came from storage",
            Change("threads", 4 * max(1, f.workers // len(f.own)), min(gain, 4.0)),
        )
    if f.workers < f.cores and free > 0.25 * f.cores * f.seconds:
        per_rank = -(-f.cores // len(f.own))  # rounded up, so that it is more than there are
        return Verdict(
            "threads",
            f"too few threads: all {f.workers} are busy, {share:.0%} with `{stage}`, and "
            f"{free / f.seconds:.1f} of {f.cores} processors have nothing to do",
            Change("threads", per_rank, min(gain, f.cores / f.workers)),
        )
    if stage == "decode":
        change = Change("decode", "fast", min(gain, 1.5)) if f.decode == "exact" and f.engine == "cpu" else None
        return Verdict(
            "decode",
            f"decode: workers spend {share:.0%} of their time decoding and transforming, and all "
            f"{f.cores} processors are used",
            change or Change("store smaller images (shardio convert --resize-shorter), or use more processors"),
        )
    return Verdict(
        "read",
        f"`{stage}` on the processor: {share:.0%} of the workers' time, {on_cpu:.0%} of it computing",
        Change("use more processors, or samples that are stored raw"),
    )


def _device(f: Figures, gain: float) -> Verdict:
    """Tell copies to the device from an engine for whole batches."""
    if f.engine == "cpu":
        return Verdict(
            "copy",
            f"copies to the device: {f.on_device:.0%} of the wait is for them",
            Change("deliver uint8 and convert on the device (ToFloat with device=)", expected=min(gain, 4.0)),
        )
    other = "cpu" if f.cores > f.workers else "dali"
    return Verdict(
        "engine",
        f"engine {f.engine}: {f.on_device:.0%} of the wait is for it",
        Change("engine", other) if other != f.engine else Change("store smaller images, or use a faster GPU"),
    )


def _idle_workers(f: Figures, busy: float, gain: float) -> Verdict:
    """Tell epochs that begin too often from batches that are handed over too slowly."""
    gain = min(gain, 1 / max(busy, 0.02))  # if all workers were busy
    if f.at_epoch_start > 0.5:
        return Verdict(
            "start of epochs",
            f"start of epochs: {f.at_epoch_start:.0%} of the wait is for the first batch of each epoch, and the "
            f"workers are busy only {busy:.0%} of the time",
            Change(
                "more samples per epoch: no setting helps", expected=1 / max(1 - f.starved * f.at_epoch_start, 0.02)
            ),
        )
    return Verdict(
        "hand-over",
        f"start and hand-over: the workers are busy only {busy:.0%} of the time, yet steps wait {f.starved:.0%}",
        Change("prefetch", ENOUGH_AHEAD, gain)
        if f.prefetch < ENOUGH_AHEAD and not f.isolate
        else Change("a larger batch_size", None, gain),
    )


def _map(f: Figures, share: float, on_cpu: float, gain: float) -> Verdict:
    """Tell a `map` that computes from one that waits, or whose calls wait for each other for the interpreter's lock."""
    in_map = f.cpu.get("map", 0.0)
    ranks = len(f.own)
    per_rank = f.workers // ranks
    lock_bound = in_map > 0.7 * ranks * f.seconds and on_cpu < 0.75  # one processor per rank, shared by its threads
    if not f.isolate and per_rank > 1 and lock_bound:
        return Verdict(
            "GIL",
            f"`map` holds the interpreter's lock (GIL): {per_rank} threads of a rank compute "
            f"{in_map / ranks / f.seconds:.2f} s of it per second in all",
            Change("isolate", True, min(gain, per_rank, f.cores / ranks)),
        )
    if on_cpu < 0.3 and f.delay < 0.5 * f.stages["map"]:
        return Verdict(
            "map",
            f"`map` waits: {share:.0%} of the workers' time is in it, and {1 - on_cpu:.0%} of that is no computing",
            Change("threads", 4 * max(1, per_rank), min(gain, 4.0)),
        )
    return Verdict(
        "map",
        f"`map` computes: {share:.0%} of the workers' time is in it",
        Change("do the work of `map` once in `shardio convert`, or with shardio's transforms"),
    )


def _slow_rank(f: Figures) -> tuple[int, float] | None:
    """The rank that the others wait for, and the seconds that a step takes them."""
    if len(f.own) < 2:
        return None
    slowest = max(range(len(f.own)), key=lambda rank: f.own[rank])
    others = sorted(own for rank, own in enumerate(f.own) if rank != slowest)
    middle = others[len(others) // 2]
    return (slowest, middle) if f.own[slowest] > (1 + SLOW_RANK) * middle else None
