"""Input throughput per rank: real processes, each with a loader of its own, that do nothing but take batches."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Barrier
from statistics import median
from typing import Any, Literal

import torch

from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..engines.choice import Engine
from ..errors import ConfigError, PipelineStalled, ShardioError
from ..loader.batch.bad_samples import OnBadSample
from ..loader.batch.host_batch import Batch
from ..loader.loader import Loader
from ..loader.stats import LoaderStats
from ..order.world import World
from ..system import processes
from ..transforms import RandomHorizontalFlip, RandomResizedCrop, ToFloat, Transform
from .machine import describe

START_LIMIT = 300.0  # seconds that ranks wait for one another


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """What to measure.

    Attributes:
        dataset: path.
        batch_size: per rank.
        epochs: at least 1; the figure is their median.
        ranks: processes.
        image_size: images are randomly cropped to this many pixels square and flipped; None leaves them whole.
        floats: deliver float32 NCHW instead of uint8 NHWC.
        threads: per rank; `"auto"` shares the processors.
        step_time: seconds that each rank computes per step (a wait until a deadline), 0 for none.
        seed: of the order and the crops.
        engine: what makes images.
        device: where batches are to be; each step then waits until they are there.
        hw_decoder_load: share of the images for a GPU's JPEG decoder; None is the engine's own choice.
        on_bad_sample: what is done with bad samples, any number of them: see Loader.
    """

    dataset: str
    batch_size: int = 256
    epochs: int = 3
    ranks: int = 1
    image_size: int | None = None
    floats: bool = False
    threads: int | Literal["auto"] = "auto"
    step_time: float = 0.0
    seed: int = 0
    engine: Engine = "auto"
    device: str | None = None
    hw_decoder_load: float | None = None
    on_bad_sample: OnBadSample = "raise"

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "ranks"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.step_time < 0:
            raise ConfigError(f"step_time must be 0 or more seconds, got {self.step_time}")


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What was measured.

    Attributes:
        samples_per_second: per rank, the median over epochs of the slowest rank, as allreduce would wait for it.
        bytes_per_second: stored bytes read per rank, likewise.
        starved: share of wall time waited for input, mean over ranks and epochs.
        threads: workers of a rank that were at work at the epochs' ends; `"auto"` may take fewer than there are cores.
        busy: share of their time spent in stages; near 1 the workers are the limit.
        bad: bad samples met.
        stages: share of the stages' time by stage.
        limit: the verdict in words.
        epochs: per epoch and rank, what the loader's stats said.
    """

    config: BenchConfig
    samples_per_second: float
    bytes_per_second: float
    starved: float
    threads: int
    busy: float
    bad: int
    stages: dict[str, float]
    limit: str
    epochs: list[list[LoaderStats]]
    machine: dict[str, Any] = field(default_factory=describe)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def transforms_for(dataset: Dataset, config: BenchConfig) -> list[Transform] | None:
    """The transforms that a bench of this dataset applies: none without exactly one image field."""
    shapes = [f.shape for f in dataset.fields.values() if f.kind == "image"]
    if len(shapes) != 1:
        if config.image_size is not None or config.floats:
            raise ConfigError(f"{config.dataset}: image_size and floats need one image field, there are {len(shapes)}")
        return None
    crop: list[Transform] = (
        [] if config.image_size is None else [RandomResizedCrop(config.image_size), RandomHorizontalFlip()]
    )
    return [*crop, *([ToFloat()] if config.floats else [])]


def measure(config: BenchConfig, progress: Callable[[int, int], None] | None = None) -> BenchResult:
    """Runs `config.ranks` processes for `config.epochs` epochs each.

    Args:
        config: what to measure.
        progress: called with steps done and steps in all, of rank 0.

    Raises what a rank raised; ShardioError if one died.
    """
    # Whatever is wrong with the arguments shows here, before any process is started.
    loader = _loader(config, World(0, config.ranks, 0, config.ranks))
    total = len(loader) * config.epochs
    barrier = processes.CONTEXT.Barrier(config.ranks)
    pipes = [processes.CONTEXT.Pipe(duplex=False) for _ in range(config.ranks)]
    ranks = [
        processes.CONTEXT.Process(target=_rank, args=(config, rank, barrier, pipe[1]), name=f"bench rank {rank}")
        for rank, pipe in enumerate(pipes)
    ]
    for process, (_, sender) in zip(ranks, pipes, strict=True):
        with processes.children_ignore_interrupts():
            process.start()
        sender.close()
    try:
        results = _receive([pipe[0] for pipe in pipes], total, progress)
    except BaseException:
        for process in ranks:
            process.terminate()
        raise
    finally:
        for process in ranks:
            process.join(START_LIMIT)
    return _summary(config, results)


def _loader(config: BenchConfig, world: World) -> Loader:
    dataset = open_dataset(config.dataset)
    return Loader(
        dataset,
        config.batch_size,
        transforms=transforms_for(dataset, config),
        seed=config.seed,
        world=world,
        threads=config.threads,
        engine=config.engine,
        device=config.device,
        engine_options={} if config.hw_decoder_load is None else {"hw_decoder_load": config.hw_decoder_load},
        on_bad_sample=config.on_bad_sample,
        max_bad=len(dataset),
    )


@dataclass(frozen=True, slots=True)
class _Epoch:
    """What a rank has measured in an epoch; threads at work in its end, and the bad samples met until then."""

    stats: LoaderStats
    threads: int
    bad: frozenset[int]


def _there(batch: Batch) -> float:
    """Waits until a batch is on its GPU, as a model's kernels would; the seconds that it took."""
    begun = time.monotonic()
    if batch["index"].is_cuda:
        torch.cuda.current_stream(batch["index"].device).synchronize()
    return time.monotonic() - begun


def _rank(config: BenchConfig, rank: int, barrier: Barrier, sender: "Connection[Any, Any]") -> None:
    """In a process of its own: the epochs of one rank. Sends steps done, then the epochs' stats, or an error."""
    processes.die_with_parent()
    try:
        loader = _loader(config, World(rank, config.ranks, rank, config.ranks))
        epochs: list[_Epoch] = []
        done = 0
        for _ in range(config.epochs):
            barrier.wait(START_LIMIT)
            late = 0.0
            for batch in loader:
                late += _there(batch)
                if config.step_time:
                    time.sleep(config.step_time)
                done += 1
                if rank == 0:
                    sender.send(done)
            stats = loader.stats()
            waited, device = stats.wait_seconds + late, stats.device_seconds + late
            stats = replace(stats, wait_seconds=waited, device_seconds=device)
            bad = frozenset(one.location.index for one in loader.quarantine())
            epochs.append(_Epoch(stats, loader.setting.threads, bad))
        sender.send(epochs)
    except BaseException as error:
        sender.send(error)  # the parent ends the other ranks, which may wait at the barrier
        raise SystemExit(1) from error


def _receive(
    receivers: "list[Connection[Any, Any]]", total: int, progress: Callable[[int, int], None] | None
) -> list[list[_Epoch]]:
    """Each rank's epochs, in rank order; raises the first error that any rank sends."""
    results: dict[int, list[_Epoch]] = {}
    while len(results) < len(receivers):
        open_ranks = {receivers[rank]: rank for rank in range(len(receivers)) if rank not in results}
        ready = wait(list(open_ranks), START_LIMIT)
        if not ready:
            raise PipelineStalled(f"bench: ranks {list(open_ranks.values())} sent nothing for {START_LIMIT:.0f} s")
        for receiver in ready:
            rank = open_ranks[receiver]  # type: ignore[index]  # wait gives back what it was given
            try:
                message = receivers[rank].recv()
            except EOFError as error:
                raise ShardioError(f"bench: rank {rank} died") from error
            if isinstance(message, BaseException):
                raise message
            if isinstance(message, list):
                results[rank] = message
            elif progress is not None:
                progress(message, total)
    return [results[rank] for rank in range(len(receivers))]


def _summary(config: BenchConfig, ranks: list[list[_Epoch]]) -> BenchResult:
    epochs = [[one.stats for one in epoch] for epoch in zip(*ranks, strict=True)]
    # Of all epochs: the last moment may be one in which other settings are tried.
    threads = round(median(epoch.threads for rank in ranks for epoch in rank))
    flat = [stats for epoch in epochs for stats in epoch]
    stage_seconds: dict[str, float] = {}
    for stats in flat:
        for name, seconds in stats.stage_seconds.items():
            stage_seconds[name] = stage_seconds.get(name, 0.0) + seconds
    spent = sum(stage_seconds.values())
    shares = {name: seconds / spent for name, seconds in sorted(stage_seconds.items(), key=lambda item: -item[1])}
    # The first epoch may have had more of them.
    busy = min(1.0, spent / (threads * sum(stats.seconds for stats in flat)))
    starved = sum(stats.starved for stats in flat) / len(flat)
    device = sum(stats.device_seconds for stats in flat) / max(sum(stats.wait_seconds for stats in flat), 1e-9)
    return BenchResult(
        config=config,
        samples_per_second=median(min(stats.samples_per_second for stats in epoch) for epoch in epochs),
        bytes_per_second=median(min(stats.bytes / stats.seconds for stats in epoch) for epoch in epochs),
        starved=starved,
        threads=threads,
        busy=busy,
        bad=len(frozenset().union(*(rank[-1].bad for rank in ranks))),
        stages=shares,
        limit=_verdict(shares, busy, starved, device, _on_device(config)),
        epochs=epochs,
    )


def _on_device(config: BenchConfig) -> str:
    """What batches wait for behind the workers."""
    named = "engine" if config.engine == "auto" else f"engine {config.engine}"
    if config.device in (None, "cpu"):
        return named
    return "copies" if config.engine == "cpu" else f"{named} and copies"


def _verdict(stages: dict[str, float], busy: float, starved: float, device: float, what: str) -> str:
    if starved < 0.05:
        return "the consumer: input keeps up with it"
    if device > 0.5:
        return f"{what}: {device:.0%} of the time waited is for that, the workers are {busy:.0%} busy"
    stage, share = next(iter(stages.items()))
    if busy > 0.8:
        return f"{stage}: {share:.0%} of the workers' time, and the workers are {busy:.0%} busy"
    return f"start and hand-over: the workers are {busy:.0%} busy, most of it with {stage}"
