"""One rank of a measurement, in its own process: takes batches, stands in for an accelerator, times each step."""

import math
import os
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from ..dataset.opening import as_dataset
from ..errors import ConfigError
from ..loader.batch.host_batch import Batch
from ..loader.loader import Loader
from ..loader.stats import LoaderStats
from ..order.world import World
from ..system.named import load_named
from ..transforms import (
    CenterClip,
    CenterCrop,
    Ragged,
    RandomClip,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomResizedCrop,
    Resize,
    SanitizeBoundingBoxes,
    ToFloat,
    Transform,
)
from ..views.view import BaseDataset
from . import usage
from .config import DEFAULT_SIZE, BenchConfig
from .rank_processes import NEVER, START_LIMIT, Meeting

TOLD_EVERY = 0.2  # seconds between two messages about progress
CEILING_SECONDS = 1.0
WARMUP_STEPS = 30  # where epochs are measured
_MOST_SIZES = 1 << 20  # samples whose shards are looked up


STEP = np.dtype(
    [(name, np.float64) for name in ("begun", "wait", "device", "compute", "barrier")]
    + [("epoch", np.int64), ("samples", np.int64)]
)
"""A step of a rank: when it began, by `time.monotonic`; the seconds that it waited for its batch, then until the batch
was on its device, computed (or slept instead), and waited for the other ranks: these add up to its whole time; its
epoch, counted from the first one of the measurement; its samples."""


@dataclass(frozen=True, slots=True)
class RankRecord:
    """The times and sums that one rank measured.

    Attributes:
        steps: all steps, those of the warm-up included, STEP [steps].
        counted_from: the first step that counts.
        stats: those of the Loader while steps counted.
        settings: each change's number of working threads and batches made ahead, with its time, float64 [changes, 3].
        cpu_seconds: seconds that the rank's processes spent on a processor while steps counted.
        ceiling: seconds per step with one batch that is delivered again and again; None if the steps do nothing.
        bad: the indices of bad samples.
    """

    steps: NDArray[np.void]
    counted_from: int
    stats: LoaderStats
    settings: NDArray[np.float64]
    cpu_seconds: float
    ceiling: float | None
    bad: frozenset[int]

    @property
    def counted(self) -> NDArray[np.void]:
        """The steps that count."""
        return self.steps[self.counted_from :]

    @property
    def waits(self) -> NDArray[np.float64]:
        """The wait of each step that counts until its batch was on its device, in seconds."""
        waits: NDArray[np.float64] = self.counted["wait"] + self.counted["device"]
        return waits


def ended(steps: NDArray[np.void]) -> NDArray[np.float64]:
    """Return when each step ended."""
    moments: NDArray[np.float64] = sum(
        (steps[name] for name in ("wait", "device", "compute", "barrier")), steps["begun"]
    )
    return moments


def suited_to_dataset(config: BenchConfig) -> BenchConfig:
    """Return it with what the dataset decides, if `config` doesn't: transforms of a detector, a batch size.

    Boxes are loaded for an emulated RetinaNet. The dataset fills batches that have no accelerator's size.
    """
    dataset = as_dataset(config.dataset, config.access)
    if config.emulate is not None:
        has_boxes = any(field.role == "boxes" for field in dataset.fields.values())
        detects = has_boxes and config.emulate.startswith("retinanet") and config.transforms is None
        return replace(config, transforms="detect") if detects else config
    if config.batch_size is not None:
        return config
    most = len(dataset) // config.ranks
    return replace(config, batch_size=min(config.samples_per_step, max(1, most)))


def build_loader(config: BenchConfig, world: World) -> Loader:
    """Return the loader that is measured; raise what `shardio.Loader` raises."""
    dataset, transforms = open_with_transforms(config)
    return Loader(
        dataset,
        config.samples_per_step,
        transforms=transforms,
        shuffle=config.shuffle,
        seed=config.seed,
        world=world,
        threads=config.threads,
        prefetch=config.prefetch,
        decode=config.decode,
        engine=config.engine,
        device=config.device,
        engine_options={} if config.hw_decoder_load is None else {"hw_decoder_load": config.hw_decoder_load},
        map=None if config.map is None else load_named(config.map, "map"),
        map_by=config.map_by,
        isolate=config.isolate,
        on_bad_sample=config.on_bad_sample,
        max_bad=len(dataset),
    )


def open_with_transforms(config: BenchConfig) -> tuple[BaseDataset, Any]:
    """Return the dataset or the view, and the transforms for it; raise what `shardio.open` raises."""
    dataset, config = as_dataset(config.dataset, config.access), config.resolved()
    preset, size = str(config.transforms), config.image_size or DEFAULT_SIZE
    if ":" in preset:
        found = load_named(preset, "transforms")
        return dataset, found() if callable(found) else found
    images = [name for name, kind in dataset.fields.items() if kind.is_image or kind.kind == "video"]
    presets: dict[str, list[Transform]] = {
        "none": [],
        "train": [RandomResizedCrop(size), RandomHorizontalFlip()],
        "evaluate": [Resize(round(size * 256 / 224)), CenterCrop(size)],
        "detect": [RandomIoUCrop(), SanitizeBoundingBoxes(), RandomHorizontalFlip(), Resize((size, size))],
    }
    if preset not in presets:
        raise ConfigError("{transforms} must be one of {} or 'module:name', got {!r}", ", ".join(presets), preset)
    if len(images) != 1:
        if preset != "none" or config.floats:
            raise ConfigError(
                f"{config.dataset}: transforms for images need one field of images or videos, there are {len(images)}; "
                "give a list of your own as 'module:name'"
            )
        return dataset, None
    clip = [CenterClip(16, stride=4) if preset == "evaluate" else RandomClip(16, stride=4)]
    shown = dataset.fields[images[0]]
    first = clip if shown.kind == "video" and not shown.window else []  # a view that makes clips has chosen frames
    transforms = {images[0]: [*first, *presets[preset], *([ToFloat()] if config.floats else [])]}
    if preset == "detect":
        transforms |= {name: [Ragged()] for name, kind in dataset.fields.items() if kind.role == "boxes"}
    return dataset, transforms


def mean_sample_bytes(config: BenchConfig) -> float:
    """Return the mean stored size of the samples of epoch 0, in bytes, each with the mean of its shard.

    Of more than a million, those at evenly spaced positions stand for all.
    """
    dataset = as_dataset(config.dataset, config.access)
    positions = np.unique(np.linspace(0, len(dataset) - 1, _MOST_SIZES).astype(np.int64))
    numbers = dataset.plan(config.seed, None, 1, 1).lookup(positions)[0]
    return float(dataset.shard_means[dataset.shard_numbers(numbers)].mean())


def await_arrival(batch: Batch) -> None:
    """Wait until a batch is on its device."""
    if batch["index"].is_cuda:
        torch.cuda.current_stream(batch["index"].device).synchronize()


def compute_until(moment: float) -> None:
    """Stand in for an accelerator: sleep until a moment of `time.monotonic`."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)


def measure_rank(config: BenchConfig, rank: int, meeting: Meeting, pipe: "Connection[Any, Any]") -> None:
    """Measure one rank, in its own process. Rank 0 reports its progress; each rank sends a `RankRecord`."""
    pipe.send(_Rank(config, rank, meeting, pipe).run())


@final
class _Rank:
    """The loop of one rank; see `measure_rank`."""

    def __init__(self, config: BenchConfig, rank: int, meeting: Meeting, pipe: "Connection[Any, Any]") -> None:
        self._config, self._rank, self._meeting, self._pipe = config, rank, meeting, pipe
        self._together = config.barrier and config.ranks > 1
        # When steps begin to count and end: ranks that wait for each other share the steps, any other has its own.
        self._turns = meeting if self._together else Meeting.of(1)
        self._loader = build_loader(config, World(rank, config.ranks, rank, config.ranks))
        self._step_seconds = 0.0 if config.accelerator is None else config.accelerator.step_seconds
        self._steps: list[tuple[float, ...]] = []
        self._settings: list[tuple[float, int, int]] = []
        self._before = LoaderStats()
        self._counted_from = NEVER
        self._told = self._cpu_begun = 0.0
        self._warmup_epochs = warmup_epochs(len(self._loader)) if config.warmup > 0 else 0

    def run(self) -> RankRecord:
        """Run the measurement."""
        config = self._config
        self._meeting.barrier.wait(self._rank, START_LIMIT)
        now = self._start = self._count_begun = time.monotonic()
        warmup = self._warmup_epochs
        epochs = config.epochs + warmup if config.seconds is None else NEVER
        epoch, batch, last = 0, None, False
        if not warmup:
            self._count_from(0)
        while epoch < epochs and not last:
            if config.seconds is None and epoch == warmup and warmup:
                self._count_from(len(self._steps))
            for batch in self._loader:
                now = self._step(batch, epoch, now)
                last = self._is_last(now)
                if last:
                    break
            epoch += 1
        cpu_seconds = _cpu_seconds() - self._cpu_begun
        return RankRecord(
            steps=np.array(self._steps, STEP),
            counted_from=min(self._counted_from, len(self._steps)),
            stats=self._loader.stats(all_epochs=True) - self._before,
            settings=np.array(self._settings, np.float64).reshape(-1, 3),
            cpu_seconds=cpu_seconds,
            ceiling=None if batch is None else self._ceiling(batch),
            bad=frozenset(record.location.index for record in self._loader.quarantine()),
        )

    def _step(self, batch: Batch, epoch: int, begun: float) -> float:
        """Take a batch as a training step would; return when the step ended."""
        received = time.monotonic()
        await_arrival(batch)
        arrived = time.monotonic()
        compute_until(arrived + self._step_seconds)
        computed = time.monotonic()
        self._decide(computed)
        if self._together:
            self._meeting.barrier.wait(self._rank, START_LIMIT)
        now = time.monotonic()
        samples = int(batch["valid"].sum()) if "valid" in batch else len(batch["index"])
        times = (begun, received - begun, arrived - received, computed - arrived, now - computed)
        self._steps.append((*times, epoch, samples))
        setting = self._loader.setting
        if not self._settings or self._settings[-1][1:] != (setting.threads, setting.prefetch):
            self._settings.append((now, setting.threads, setting.prefetch))
        return now

    def _decide(self, now: float) -> None:
        """Begin to count, or stop, after this step, once the time for it has come; rank 0 decides for all."""
        config, step = self._config, len(self._steps)
        if config.seconds is None or (self._together and self._rank):
            return
        # A rank reads these after the barrier of this step, or of the next one: what they say holds for both.
        if self._turns.counted_from.value == NEVER and now - self._start >= config.warmup:
            self._turns.counted_from.value = step + 1
            self._count_begun = now
        if self._turns.counted_from.value <= step and now - self._count_begun >= config.seconds:
            self._turns.stop_after.value = step

    def _is_last(self, now: float) -> bool:
        """Begin to count if it is time to, and report progress; return whether this step was the last."""
        steps = len(self._steps)
        if self._turns.counted_from.value == steps and self._counted_from == NEVER:
            self._count_from(steps)
        if now - self._told >= TOLD_EVERY:
            self._told = now
            config = self._config
            if config.seconds is None:
                done = steps / (len(self._loader) * (self._warmup_epochs + config.epochs))
            else:
                done = min(1.0, (now - self._start) / (config.warmup + config.seconds))
            self._pipe.send(done)
        return steps > self._turns.stop_after.value

    def _count_from(self, step: int) -> None:
        """Begin to count with this step: what the loader has measured until now belongs to the warm-up."""
        self._counted_from, self._cpu_begun = step, _cpu_seconds()
        self._before = self._loader.stats(all_epochs=True)

    def _ceiling(self, batch: Batch) -> float | None:
        """Repeat the step with one batch, and return the seconds that it takes; None if it does nothing."""
        if not self._step_seconds and not batch["index"].is_cuda:
            return None
        begun = time.monotonic()
        steps = max(2, round(CEILING_SECONDS / max(self._step_seconds, 1e-3)))
        for _ in range(steps):
            await_arrival(batch)
            compute_until(time.monotonic() + self._step_seconds)
            if self._together:
                self._meeting.barrier.wait(self._rank, START_LIMIT)
        return (time.monotonic() - begun) / steps


def warmup_epochs(steps: int) -> int:
    """Return how many epochs of so many steps warm up: one, or two or three where they are short.

    In its first steps a Loader finds its settings and takes the memory of its batches, whose first use costs more than
    the copy into it. Where epochs are short, that still happens in the second one.
    """
    return max(1, min(3, math.ceil(WARMUP_STEPS / max(1, steps))))


def _cpu_seconds() -> float:
    """Return the seconds that this process and its worker processes have spent on a processor."""
    children = usage.children(os.getpid())
    return time.process_time() + sum(sum(usage.process_usage(child).cpu.values()) for child in children)
