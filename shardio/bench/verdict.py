"""The verdict: what limits a loader's rate, from the time that ranks and workers spend, and the setting to change.

`diagnose` is a pure function of a few figures. Where workers are the limit, it ranks the causes by how much faster the
workers would be without them. docs/bench.md explains its rules, and docs/benchmarks.md shows
how often they are right.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from ..loader.workers.workers import THREADS_PER_READER

Bottleneck: TypeAlias = Literal[
    "consumer", "storage", "decode", "map", "GIL", "read", "decompress", "copy", "engine", "threads", "other processes",
    "slow rank", "start of epochs", "hand-over", "network",
]  # fmt: skip

ENOUGH = 0.05  # starved less than this, input keeps up
SLOW_RANK = 0.25  # excess of a rank's own time over the others' median
BUSY = 0.75  # of their time; from here on the workers are the limit
DELAYED = 0.2  # of the workers' busy time; from here on waiting for a processor matters
OTHERS = 0.15  # of the processors' time; from here on other processes matter
ON_CPU = 0.6  # of a stage's time; from here on it computes rather than waits
ENOUGH_AHEAD = 8  # batches; more of them hide no hand-over
MORE_THREADS = 4  # times as many, where workers wait
FREE = 0.25  # of the processors' time; from here on processors have nothing to do
ONE_PROCESSOR = (0.8, 1.3)  # used by a rank whose threads take turns holding the lock; compiled code adds to 1
LOCKED = 0.25  # of the time of stages that read nothing; from here on their waits for the lock matter
WAITING_STAGES = ("read", "verify", "fetch", "decompress", "map")  # they also wait for other things than the lock
NOTABLE = 1.25  # times the rate; from here on a cause is worth naming before the work itself
OWN = 1.5  # times the rate; from here on one's own cause is named before other processes, whatever they take
WORTH_FAST = 1.1  # times the rate; from here on decode="fast" is worth its difference
WHOLE_CHUNKS = 2.0  # bytes decompressed for a byte of the samples; from here on chunks hold other samples' rows

LESS_LOCKED = "a larger batch_size, fewer threads, or more ranks per node, which have a lock each"


@dataclass(frozen=True, slots=True)
class Figures:
    """The time spent, by cause, while steps counted.

    Attributes:
        starved: the share of the time that ranks waited for input, mean over ranks.
        on_device: the part of that wait, 0 to 1, which was for copies and engines for whole batches.
        own: for each rank, the seconds per step that it did not wait for others at the barrier.
        waits: for each rank, the seconds per step that it waited for input.
        workers: threads, or worker processes, of all ranks.
        most_workers: those that their Loaders began with, before the tuner found that fewer are as fast.
        cores: the processors that they may use.
        seconds: the time that was measured.
        stages: the workers' seconds by stage.
        cpu: the part of them on a processor, by stage.
        used: the processor seconds of all threads of all ranks, including the training loops.
        delay: seconds that threads were ready to run and waited for a processor, all ranks together.
        others_busy: the share of the processors' time that other processes used.
        disk_share: the share of the stored bytes that came from storage rather than the page cache.
        at_epoch_start: the fraction of the wait, 0 to 1, that ranks waited for the first batch of an epoch.
        prefetch: the batches made ahead.
        isolate: whether workers are processes.
        engine: the engine's name.
        fast_decode: how many times as fast `decode="fast"` makes these images; None if that is no choice, or not
            measured.
        unpacked: the bytes that were decompressed for each byte of the samples.
        decoded_frames: the frames of videos that were decoded for each one that clips show; 0 without videos.
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
    most_workers: int = 0
    used: float = 0.0
    delay: float = 0.0
    others_busy: float = 0.0
    disk_share: float = 0.0
    at_epoch_start: float = 0.0
    prefetch: int = 2
    isolate: bool = False
    engine: str = "cpu"
    fast_decode: float | None = None
    unpacked: float = 0.0
    decoded_frames: float = 0.0

    @property
    def free(self) -> float:
        """The processor seconds that nobody used."""
        return self.cores * self.seconds * (1 - self.others_busy) - max(self.used, sum(self.cpu.values()))

    @property
    def has_free_processors(self) -> bool:
        return self.free > FREE * self.cores * self.seconds

    @property
    def may_wait_for_lock(self) -> bool:
        """Whether threads share an interpreter's lock while processors are idle."""
        most = max(self.workers, self.most_workers)
        return not self.isolate and most > len(self.own) and self.has_free_processors

    @property
    def takes_turns(self) -> bool:
        """Whether the threads of a rank use about one processor, as those do that wait for one lock."""
        least, most = ONE_PROCESSOR
        return self.may_wait_for_lock and least <= self.used / len(self.own) / self.seconds <= most


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
        return text if self.expected is None else f"{text} (up to {self.expected:.3g} times the rate)"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A limit of the rate, or one that might be.

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

    @property
    def gain(self) -> float:
        """The rate to expect of the change, as a multiple; 1 where nothing can be said."""
        return (self.change and self.change.expected) or 1.0


def diagnose(figures: Figures) -> Verdict:
    """Name what limits the rate."""
    verdict = _diagnose(figures)
    sentence = verdict.sentence
    if verdict.bottleneck not in ("consumer", "other processes") and _neighbours(figures) is not None:
        sentence += (
            f"; beside that, other processes use {figures.others_busy:.0%} of the processors, and the waits for them "
            "are left out here"
        )
    capacity = max(figures.workers * figures.seconds, sum(figures.stages.values()), 1e-9)
    shares = {name: spent / capacity for name, spent in sorted(figures.stages.items(), key=lambda item: -item[1])}
    return replace(verdict, sentence=sentence, shares={**shares, "idle": max(0.0, 1 - sum(shares.values()))})


def _diagnose(f: Figures) -> Verdict:
    if len(f.own) > 1:
        slowest = max(range(len(f.own)), key=lambda rank: f.own[rank])
        others = sorted(own for rank, own in enumerate(f.own) if rank != slowest)
        own, middle = f.own[slowest], others[len(others) // 2]
        if own > (1 + SLOW_RANK) * middle:
            cause = "waiting for its input" if f.waits[slowest] > 0.5 * own else "computing"
            return Verdict(
                "slow rank",
                f"rank {slowest} is slow: a step takes it {1000 * own:.3g} ms, mostly {cause}, and the others "
                f"{1000 * middle:.3g} ms; they wait for it",
                Change(f"look at the processors and the storage of rank {slowest}", expected=own / max(middle, 1e-6)),
            )
    if f.starved < ENOUGH:
        return Verdict("consumer", f"not input-bound: steps wait {f.starved:.1%} of the time for their batches")
    found = _device(f) if f.on_device > 0.5 else _workers(f)
    if found.change is None or found.change.expected is None:
        return found
    most = 1 / max(1 - f.starved, 0.02)  # if no step waited any more
    return replace(found, change=replace(found.change, expected=min(most, found.change.expected)))


def _workers(f: Figures) -> Verdict:
    """Name what holds the workers back; what it expects is how many times as fast they would be without it, at best."""
    spent = sum(f.stages.values())
    busy = spent / max(f.workers * f.seconds, spent, 1e-9)
    neighbours = _neighbours(f)
    if busy < BUSY:
        # Workers may be idle because a neighbour keeps the rank itself from a processor.
        mostly_delayed = 2 * f.delay > spent - sum(f.cpu.values())
        return neighbours if neighbours and mostly_delayed else _idle_workers(f, busy)
    own = _busy_workers(_without_neighbours(f) if neighbours else f)
    return neighbours if neighbours and own.gain < min(neighbours.gain, OWN) else own


def _neighbours(f: Figures) -> Verdict | None:
    """Other processes, if workers wait for the processors that they use."""
    busy = sum(f.stages.values())
    if f.delay <= DELAYED * busy or f.others_busy <= OTHERS:
        return None
    speedup = min(1 / max(1 - f.others_busy, 0.1), busy / max(busy - f.delay, 0.1 * busy, 1e-9))
    return Verdict(
        "other processes",
        f"other processes use {f.others_busy:.0%} of the processors: ready threads waited {f.delay:.1f} s for one, "
        f"and worked {sum(f.cpu.values()):.1f} s",
        Change("end the other processes, or bind the ranks to processors of their own", expected=speedup),
    )


def _without_neighbours(f: Figures) -> Figures:
    """Return the time of the workers' stages without their waits for processors that other processes use.

    While a thread waits for one and holds the interpreter's lock, the other threads of its rank also wait.
    """
    off_cpu = {stage: spent - f.cpu.get(stage, 0.0) for stage, spent in f.stages.items()}
    together = 1 if f.isolate else max(1, f.workers // len(f.own))
    left = max(0.0, 1 - f.delay * together / max(sum(off_cpu.values()), 1e-9))
    stages = {stage: spent - (1 - left) * off_cpu[stage] for stage, spent in f.stages.items()}
    return replace(f, stages=stages, delay=0.0)


def _busy_workers(f: Figures) -> Verdict:
    """Return the cause without which busy workers would be fastest; the work itself if that is not much faster."""
    busy = max(sum(f.stages.values()), 1e-9)
    share = {stage: spent / busy for stage, spent in f.stages.items()}
    causes = (
        *(_map(f, share), _fetch(share), _decompress(f, share), _storage(f, busy)),
        *(_lock(f, busy), _threads(f, share, busy)),
    )
    largest = max((cause for cause in causes if cause is not None), key=lambda cause: cause.gain, default=None)
    return largest if largest is not None and largest.gain >= NOTABLE else _work(f, share)


def _speedup(share: float, left: float = 0.0) -> float:
    """Return how many times as fast workers are if `left` is left of what takes this share of their time."""
    return 1 / max(1 - share * (1 - left), 0.02)


def _fetch(share: Mapping[str, float]) -> Verdict | None:
    if "fetch" not in share:
        return None
    change = "give a cache_size that holds all, and shuffle='block', whose requests are longer"
    return Verdict(
        "network",
        f"network: workers spend {share['fetch']:.0%} of their time waiting for the store",
        Change(change, expected=_speedup(share["fetch"])),
    )


def _decompress(f: Figures, share: Mapping[str, float]) -> Verdict | None:
    """Distinguish chunks that are decompressed for a few of their rows from those that are decompressed for all."""
    if "decompress" not in share:
        return None
    sentence = f"decompress: workers spend {share['decompress']:.0%} of their time decompressing chunks"
    change = "store the arrays without compression (shardio convert)"
    if f.unpacked >= WHOLE_CHUNKS:
        sentence += f", {f.unpacked:.3g} bytes for each byte of the samples: a chunk holds rows of other samples"
        change = "store each sample by itself (shardio convert), or read the rows of a chunk together (shuffle='block')"
    return Verdict("decompress", sentence, Change(change, expected=_speedup(share["decompress"])))


def _storage(f: Figures, busy: float) -> Verdict | None:
    """Reads that wait, and for more than a processor."""
    spent = sum(f.stages.get(stage, 0.0) for stage in ("read", "verify"))
    off_cpu = spent - sum(f.cpu.get(stage, 0.0) for stage in ("read", "verify"))
    waiting = off_cpu - f.delay  # at least: some of the delay was in other stages
    if off_cpu <= (1 - ON_CPU) * spent or waiting <= 0.5 * off_cpu:
        return None
    threads = MORE_THREADS * max(1, f.workers // len(f.own)) * (1 if f.engine == "cpu" else THREADS_PER_READER)
    return Verdict(
        "storage",
        f"storage: workers spend {spent / busy:.0%} of their time in `read`, {off_cpu / spent:.0%} of it waiting; "
        f"{f.disk_share:.0%} of the bytes came from storage",
        Change("threads", threads, _speedup(off_cpu / busy, 1 / MORE_THREADS)),
    )


def _threads(f: Figures, share: Mapping[str, float], busy: float) -> Verdict | None:
    """Too few workers that compute, while processors are idle."""
    on_cpu = sum(f.cpu.values())
    if f.workers >= f.cores or not f.has_free_processors or on_cpu + f.delay < ON_CPU * busy:
        return None
    stage = max(share, key=lambda name: share[name])
    speedup = _speedup(1 - share.get("map", 0.0), f.workers / f.cores)  # a `map` may hold the interpreter's lock
    return Verdict(
        "threads",
        f"too few threads: all {f.workers} are busy, {share[stage]:.0%} with `{stage}`, and "
        f"{f.free / f.seconds:.1f} of {f.cores} processors have nothing to do",
        Change("threads", -(-f.cores // len(f.own)), speedup),  # rounded up, so that it is more than there are
    )


def _lock(f: Figures, busy: float) -> Verdict | None:
    """Workers that wait in stages that neither read nor sleep, while processors are idle."""
    spent = sum(seconds for stage, seconds in f.stages.items() if stage not in WAITING_STAGES)
    on_cpu = sum(seconds for stage, seconds in f.cpu.items() if stage not in WAITING_STAGES)
    waits = spent - on_cpu - f.delay  # at least: some of the delay was in other stages
    if not f.may_wait_for_lock or waits <= LOCKED * spent:
        return None
    if f.takes_turns:  # so what `read` waits for is the lock, too
        waits += f.stages.get("read", 0.0) - f.cpu.get("read", 0.0)
    speedup = _speedup(waits / busy)
    return Verdict(
        "GIL",
        f"the interpreter's lock (GIL): workers wait for it for {waits / busy:.0%} of their time, while "
        f"{f.free / f.seconds:.1f} of {f.cores} processors have nothing to do",
        Change("isolate", True, speedup) if f.stages.get("map") else Change(LESS_LOCKED, expected=speedup),
    )


def _work(f: Figures, share: Mapping[str, float]) -> Verdict:
    """Name what takes most of the workers' time, where nothing is in its way."""
    stage = max(share, key=lambda name: share[name], default="read")
    if f.decoded_frames and stage in ("decode", "libavcodec"):
        return Verdict(
            "decode",
            f"decode: workers spend {share.get('libavcodec', 0.0):.0%} of their time in libavcodec, which decodes "
            f"{f.decoded_frames:.3g} frames for each one of a clip, and {share.get('decode', 0.0):.0%} making images "
            f"of these; all {f.cores} processors are used",
            Change("store smaller videos, with a key frame every 12 frames (shardio convert --resize-shorter 256)"),
        )
    if stage != "decode":
        on_cpu = f.cpu.get(stage, 0.0) / max(f.stages.get(stage, 0.0), 1e-9)
        return Verdict(
            "read",
            f"`{stage}` on the processor: {share.get(stage, 0.0):.0%} of the workers' time, {on_cpu:.0%} of it "
            "computing",
            Change("use more processors, or samples that are stored raw"),
        )
    sentence = (
        f"decode: workers spend {share[stage]:.0%} of their time decoding and transforming, and all "
        f"{f.cores} processors are used"
    )
    smaller = (
        "store smaller images (shardio reshard --resize-shorter), or JPEGs of which crops are decoded alone "
        "(--jpeg-restarts), or use more processors"
    )
    if f.fast_decode is not None:
        speedup = _speedup(share[stage], 1 / f.fast_decode)
        if speedup >= WORTH_FAST:
            return Verdict("decode", sentence, Change("decode", "fast", speedup))
        smaller += f"; on these images decode='fast' gains little ({max(1.0, speedup):.3g} times the rate)"
    return Verdict("decode", sentence, Change(smaller))


def _device(f: Figures) -> Verdict:
    """Distinguish copies to the device from an engine for whole batches."""
    if f.engine == "cpu":
        return Verdict(
            "copy",
            f"copies to the device: {f.on_device:.0%} of the wait is for them",
            Change("deliver uint8 and convert on the device (ToFloat with device=)", expected=4.0),
        )
    other = "cpu" if f.has_free_processors else "dali"
    return Verdict(
        "engine",
        f"engine {f.engine}: {f.on_device:.0%} of the wait is for it",
        Change("engine", other) if other != f.engine else Change("store smaller images, or use a faster GPU"),
    )


def _idle_workers(f: Figures, busy: float) -> Verdict:
    """Distinguish epochs that begin too often from batches that Python makes or hands over too slowly."""
    if f.at_epoch_start > 0.5:
        speedup = 1 / max(1 - f.starved * f.at_epoch_start, 0.02)
        return Verdict(
            "start of epochs",
            f"start of epochs: {f.at_epoch_start:.0%} of the wait is for the first batch of each epoch, and the "
            f"workers are busy only {busy:.0%} of the time",
            Change("more samples per epoch; with a map, nothing is made ahead", expected=speedup),
        )
    if f.takes_turns:
        used = f.used / len(f.own) / f.seconds
        return Verdict(
            "GIL",
            f"the interpreter's lock (GIL): the threads of a rank and its loop use "
            f"{used:.2f} processors, and {f.free / f.seconds:.1f} of {f.cores} have nothing to do",
            Change(LESS_LOCKED, expected=f.cores / len(f.own) / used),
        )
    speedup = 1 / max(busy, 0.02)  # if all workers were busy
    ahead = f.prefetch < ENOUGH_AHEAD and not f.isolate
    return Verdict(
        "hand-over",
        f"start and hand-over: the workers are busy only {busy:.0%} of the time, yet steps wait {f.starved:.0%}",
        Change("prefetch", ENOUGH_AHEAD, speedup) if ahead else Change("a larger batch_size", expected=speedup),
    )


def _map(f: Figures, share: Mapping[str, float]) -> Verdict | None:
    """Distinguish a `map` that computes from one that waits, or whose calls wait for the interpreter's lock."""
    if not f.stages.get("map"):
        return None
    in_map, spent = f.cpu.get("map", 0.0), f.stages["map"]
    on_cpu = in_map / spent
    ranks = len(f.own)
    per_rank = f.workers // ranks
    most = max(per_rank, f.most_workers // ranks)
    # One processor per rank, which its threads share, or the one thread that the tuner has left.
    takes_turns = on_cpu < 0.75 if per_rank > 1 else most > 1 and f.has_free_processors
    lock_bound = not f.isolate and takes_turns and in_map > 0.7 * ranks * f.seconds
    processes = min(most, f.cores / ranks)  # that could compute at once
    if lock_bound and processes >= NOTABLE:
        return Verdict(
            "GIL",
            f"`map` holds the interpreter's lock (GIL): {most} threads of a rank compute "
            f"{in_map / ranks / f.seconds:.2f} s of it per second in all"
            + (f", and {per_rank} of them is as fast" if per_rank < most else ""),
            Change("isolate", True, _speedup(share["map"], 1 / processes)),
        )
    if not lock_bound and on_cpu < 0.3 and f.delay < 0.5 * spent:
        return Verdict(
            "map",
            f"`map` waits: {share['map']:.0%} of the workers' time is in it, and {1 - on_cpu:.0%} of that is no "
            "computing",
            Change("threads", MORE_THREADS * max(1, per_rank), _speedup(share["map"], 1 / MORE_THREADS)),
        )
    return Verdict(
        "map",
        f"`map` computes: {share['map']:.0%} of the workers' time is in it",
        Change(
            "do the work of `map` once in `shardio convert`, or with shardio's transforms",
            expected=_speedup(share["map"]),
        ),
    )
