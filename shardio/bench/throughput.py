"""Input throughput per rank, measured in real processes that each take batches from their own loader."""

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
from ..engines.factory import EngineName
from ..errors import ConfigError, PipelineStalled, ShardioError
from ..loader.batch.bad_samples import OnBadSample
from ..loader.batch.types import Batch
from ..loader.loader import Loader
from ..loader.stats import LoaderStats
from ..order.world import World
from ..system import processes
from ..transforms import RandomHorizontalFlip, RandomResizedCrop, ToFloat, Transform
from .machine import describe

START_LIMIT = 300.0  # seconds that ranks wait for each other


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """The configuration of a measurement.

    Attributes:
        dataset: the path of the dataset.
        batch_size: samples per rank and step.
        epochs: the number of epochs, at least 1; figures are their median.
        ranks: the number of processes.
        image_size: the side in pixels of the square that images are randomly cropped to, and then flipped at random;
            None leaves images uncropped.
        floats: whether to deliver float32 NCHW instead of uint8 NHWC.
        threads: worker threads per rank; `"auto"` divides the cores among the ranks.
        step_time: seconds that each rank sleeps per step, in place of computation; 0 for none.
        seed: the seed of the order and the crops.
        engine: the image engine, as for the Loader.
        device: the device to deliver batches on; each step then waits until its batch has arrived.
        hw_decoder_load: the share of the images that a GPU's JPEG decoder gets; None leaves it to the engine.
        on_bad_sample: how bad samples are handled, as for the Loader; any number of them is accepted.
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
    engine: EngineName = "auto"
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
    """The result of a measurement.

    Attributes:
        config: what was measured.
        samples_per_second: per rank: the median over epochs of the slowest rank, for which an allreduce would wait.
        bytes_per_second: stored bytes read per rank, taken in the same way.
        starved: the share of wall time spent waiting for input, mean over ranks and epochs.
        threads: active workers per rank at the end of an epoch, the median; `"auto"` may use fewer than all cores.
        busy: the share of the workers' time spent in stages; near 1, the workers are the limit.
        bad: the number of bad samples.
        stages: each stage's share of the time spent in stages.
        limit: what limits the throughput, in words.
        epochs: the statistics of the loader, by epoch and rank.
        machine: processor, cores and package versions.
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
        """Return the result as plain values."""
        return asdict(self)


def transforms_for(dataset: Dataset, config: BenchConfig) -> list[Transform] | None:
    """Return the transforms that a bench of this dataset applies: None unless it has exactly one image field."""
    shapes = [f.shape for f in dataset.fields.values() if f.is_image]
    if len(shapes) != 1:
        if config.image_size is not None or config.floats:
            raise ConfigError(f"{config.dataset}: image_size and floats need one image field, there are {len(shapes)}")
        return None
    crop: list[Transform] = (
        [] if config.image_size is None else [RandomResizedCrop(config.image_size), RandomHorizontalFlip()]
    )
    return [*crop, *([ToFloat()] if config.floats else [])]


def measure(config: BenchConfig, progress: Callable[[int, int], None] | None = None) -> BenchResult:
    """Run `config.ranks` processes for `config.epochs` epochs each, and summarize what they measured.

    Args:
        config: the configuration of the measurement.
        progress: called with the number of steps that rank 0 has done and the total.

    Raises the error that a rank raised; ShardioError if a rank died.
    """
    # A loader in this process finds wrong arguments before any process is started.
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
class _EpochMeasurement:
    """One rank's statistics of an epoch, the active threads at its end, and the indices of bad samples until then."""

    stats: LoaderStats
    threads: int
    bad: frozenset[int]


def _wait_for_device(batch: Batch) -> float:
    """Wait until a batch is on its GPU, as a model's kernels would; return the seconds that it took."""
    start = time.monotonic()
    if batch["index"].is_cuda:
        torch.cuda.current_stream(batch["index"].device).synchronize()
    return time.monotonic() - start


def _rank(config: BenchConfig, rank: int, barrier: Barrier, sender: "Connection[Any, Any]") -> None:
    """Run the epochs of one rank in its own process; send the steps done, then all measurements, or else an error."""
    processes.die_with_parent()
    try:
        loader = _loader(config, World(rank, config.ranks, rank, config.ranks))
        epochs: list[_EpochMeasurement] = []
        done = 0
        for _ in range(config.epochs):
            barrier.wait(START_LIMIT)
            device_wait = 0.0
            for batch in loader:
                device_wait += _wait_for_device(batch)
                if config.step_time:
                    time.sleep(config.step_time)
                done += 1
                if rank == 0:
                    sender.send(done)
            stats = loader.stats()
            stats = replace(
                stats,
                wait_seconds=stats.wait_seconds + device_wait,
                device_seconds=stats.device_seconds + device_wait,
            )
            bad = frozenset(record.location.index for record in loader.quarantine())
            epochs.append(_EpochMeasurement(stats, loader.setting.threads, bad))
        sender.send(epochs)
    except BaseException as error:
        sender.send(error)  # the parent ends the other ranks, which may wait at the barrier
        raise SystemExit(1) from error


def _receive(
    receivers: "list[Connection[Any, Any]]", total: int, progress: Callable[[int, int], None] | None
) -> list[list[_EpochMeasurement]]:
    """Return the measurements of each rank, in rank order; raise the first error that a rank sends."""
    results: dict[int, list[_EpochMeasurement]] = {}
    while len(results) < len(receivers):
        open_ranks = {receivers[rank]: rank for rank in range(len(receivers)) if rank not in results}
        ready = wait(list(open_ranks), START_LIMIT)
        if not ready:
            raise PipelineStalled(f"bench: ranks {list(open_ranks.values())} sent nothing for {START_LIMIT:.0f} s")
        for receiver in ready:
            rank = open_ranks[receiver]  # type: ignore[index]  # wait returns the objects that it was given
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


def _summary(config: BenchConfig, ranks: list[list[_EpochMeasurement]]) -> BenchResult:
    epochs = [[measurement.stats for measurement in epoch] for epoch in zip(*ranks, strict=True)]
    # The median over epochs, because an epoch may end while the loader tries other settings.
    threads = round(median(epoch.threads for rank in ranks for epoch in rank))
    flat = [stats for epoch in epochs for stats in epoch]
    stage_seconds: dict[str, float] = {}
    for stats in flat:
        for name, seconds in stats.stage_seconds.items():
            stage_seconds[name] = stage_seconds.get(name, 0.0) + seconds
    spent = sum(stage_seconds.values())
    shares = {name: seconds / spent for name, seconds in sorted(stage_seconds.items(), key=lambda item: -item[1])}
    # At most 1: the first epoch may have had more threads than the median.
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
        limit=_limit(shares, busy, starved, device, _device_work(config)),
        epochs=epochs,
    )


def _device_work(config: BenchConfig) -> str:
    """Name the work that batches wait for after the workers are done."""
    engine = "engine" if config.engine == "auto" else f"engine {config.engine}"
    if config.device in (None, "cpu"):
        return engine
    return "copies" if config.engine == "cpu" else f"{engine} and copies"


def _limit(stages: dict[str, float], busy: float, starved: float, device: float, device_work: str) -> str:
    if starved < 0.05:
        return "the consumer: input keeps up with it"
    if device > 0.5:
        return f"{device_work}: {device:.0%} of the wait is for this, the workers are {busy:.0%} busy"
    stage, share = next(iter(stages.items()))
    if busy > 0.8:
        return f"{stage}: {share:.0%} of the workers' time, and the workers are {busy:.0%} busy"
    return f"start and hand-over: the workers are {busy:.0%} busy, most of it with {stage}"
