"""The loader: plan, dataset, pipeline and engine put together, and the state that makes an epoch resumable."""

import operator
import os
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

import torch

from . import cpus
from .augment import Transform
from .batches import Batch, BatchJob, Collator
from .dataset import Dataset
from .dataset import open as open_dataset
from .errors import ConfigError, StateMismatch
from .pipeline import Pipeline
from .plan import Plan, Schedule, Shuffle, Tail
from .timing import StageClock
from .transfer import Transfer
from .tuning import Setting, Tuner, Window
from .world import World

STATE_VERSION = 1
MOST_PREFETCH = 32  # batches
PREFETCH_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What one epoch of one rank has cost so far.

    Attributes:
        samples: samples delivered.
        bytes: stored bytes read for them.
        seconds: wall time since the epoch was begun.
        wait_seconds: of that, how long the consumer waited for batches.
        stage_seconds: time spent in each stage (`read`, `decode`, ...), added up over all threads.
    """

    samples: int = 0
    bytes: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def starved(self) -> float:
        """The share of wall time that the consumer waited for input, 0 to 1."""
        return self.wait_seconds / self.seconds if self.seconds else 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples delivered per second of wall time, on this rank."""
        return self.samples / self.seconds if self.seconds else 0.0


@final
class Loader:
    """Batches of a dataset for one rank of a data-parallel job.

    One `for` loop is one epoch; the next loop is the next epoch, in another order. All ranks take the same number of
    steps, and together they deliver every sample once (less the tail that `tail="drop"` leaves out).

    A batch is a dict: by field a tensor `[B, ...]` for scalars, arrays of one shape and images of one size, else a list
    of B values; `index`, int64 [B], the samples' numbers; with `tail="pad"` also `valid`, bool [B]. Images are uint8
    `[B, H, W, C]`, or float32 `[B, C, H, W]` after ToFloat or Normalize. A batch is yours to keep: its memory is used
    again only when nothing refers to it any more.

    Args:
        dataset: a path or a Dataset.
        batch_size: samples per rank and step.
        transforms: a list for the one image field, or {field: list}. See `shardio.augment`.
        shuffle: `"global"`; `"block"`, which reads `block` neighbouring samples at a time, for disks and networks that
            want long reads (see docs/order.md); or None for the stored order.
        block, window: for `"block"`: samples that stay together, and how many such blocks are mixed.
        seed: with the epoch it decides the order and all random choices. The same on all ranks.
        world: this process's place in the job; None asks `World.detect()`.
        tail: what becomes of an epoch's last samples that fill no global batch. `"drop"` leaves them out; `"pad"`
            repeats samples from the epoch's beginning, marked False in `valid`.
        threads: workers. `"auto"` begins with this rank's share of the processors that its affinity and control group
            allow, and lets fewer work where that is faster.
        prefetch: batches made ahead of the consumer. `"auto"` begins with two, and makes more where workers would
            wait for room while the consumer waits for them, up to 1 GiB. Neither changes samples or their order.
        device: where batches are to be, as torch names it; None leaves them in host memory.
        fields: the fields to deliver; None is all.
        timeout: seconds to wait for a batch before PipelineStalled.

    Raises ConfigError for an argument that breaks a rule, and what `shardio.open` raises.
    """

    def __init__(
        self,
        dataset: Dataset | str | os.PathLike[str],
        batch_size: int,
        *,
        transforms: Sequence[Transform] | Mapping[str, Sequence[Transform]] | None = None,
        shuffle: Shuffle = "global",
        block: int = 64,
        window: int = 16,
        seed: int = 0,
        world: World | None = None,
        tail: Tail = "drop",
        threads: int | Literal["auto"] = "auto",
        prefetch: int | Literal["auto"] = "auto",
        device: torch.device | str | None = None,
        fields: Sequence[str] | None = None,
        timeout: float = 300.0,
    ) -> None:
        self.dataset = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
        self.world = World.detect() if world is None else world
        batch_size, seed = _whole(batch_size, "batch_size"), _whole(seed, "seed")
        self._schedule = Schedule(len(self.dataset), self.world, batch_size, tail)
        self._plan = Plan(len(self.dataset), seed, 0, shuffle, block, window)
        self._threads = _count(threads, "threads") or cpus.share(self.world.local_size)
        ahead = _count(prefetch, "prefetch")
        self._device = _device(device)
        self._timeout = timeout
        self._collator = Collator(
            self.dataset,
            transforms,
            batch_size,
            fields=fields,
            threads=self._threads,
            pin=self._device.type == "cuda",
        )
        self._tuner = Tuner(
            Setting(self._threads, ahead or max(2, -(-self._threads * self._collator.task_samples // batch_size))),
            most_prefetch=max(2, min(MOST_PREFETCH, PREFETCH_BYTES // max(1, self._collator.batch_bytes))),
            threads=threads == "auto",
            prefetch=prefetch == "auto",
        )
        self._position = 0
        self._midway = False
        self._running: weakref.ref[_Epoch] | None = None
        self._counting: weakref.ref[_Epoch] | None = None  # the running one, while the state follows it
        self._meter: _Meter | None = None
        if len(self._schedule) == 0:
            raise ConfigError(
                f"{len(self.dataset)} samples fill no global batch of {self._schedule.global_batch} "
                f"({self.world.size} ranks x {batch_size}); take a smaller batch size, or pad the tail"
            )

    def __repr__(self) -> str:
        world = f"rank {self.world.rank} of {self.world.size}"
        return f"<Loader of {self.dataset!r}: {len(self)} steps of {self.batch_size} per epoch, {world}>"

    @property
    def batch_size(self) -> int:
        """Samples per rank and step."""
        return self._schedule.batch_size

    @property
    def threads(self) -> int:
        """Workers of this rank; with `"auto"` the most that may work at once."""
        return self._threads

    @property
    def setting(self) -> Setting:
        """How many threads work and how many batches are made ahead at present."""
        return self._tuner.setting

    @property
    def epoch(self) -> int:
        """The epoch that the state stands in."""
        return self._plan.epoch

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on every rank."""
        return len(self._schedule)

    def __iter__(self) -> "_Epoch":
        running = None if self._running is None else self._running()
        if running is not None:
            running.close()
        if self._midway:  # the last loop was left early: this is the next epoch
            self._begin(self._plan.epoch + 1)
        schedule = replace(self._schedule, start=self._position)
        if len(schedule) == 0:  # resumed where a smaller tail is left than one global batch
            self._begin(self._plan.epoch + 1)
            schedule = self._schedule
        epoch = _Epoch(self, self._plan, schedule)
        # Held weakly, so that a loop left early ends its threads by dropping its iterator.
        self._running = self._counting = weakref.ref(epoch)
        self._meter = epoch.meter
        return epoch

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the one that the next loop delivers, from its beginning. A loop that is under way goes on as it
        was, and no longer moves the state."""
        self._begin(operator.index(epoch))
        self._counting = None

    def _begin(self, epoch: int) -> None:
        self._plan = replace(self._plan, epoch=epoch)
        self._position = 0
        self._midway = False

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands: a few numbers, the same on every rank, counted in delivered batches.

        After an epoch's last batch it stands at the next epoch's beginning.
        """
        return {
            "version": STATE_VERSION,
            "digest": self.dataset.digest,
            "samples": len(self.dataset),
            "seed": self._plan.seed,
            "order": self._plan.order,
            "epoch": self._plan.epoch,
            "position": self._position,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` stands, with whatever world size and batch size this loader has.

        The next loop delivers what is left of that epoch. Raises StateMismatch, with both values, if the state belongs
        to another dataset, seed, order or version.
        """
        mine = self.state_dict()
        for name in ("version", "digest", "samples", "seed", "order"):
            if name not in state:
                raise StateMismatch(f"not a loader's state: it has no {name!r}")
            if state[name] != mine[name]:
                raise StateMismatch(f"the state's {name} is {state[name]!r}, this loader's is {mine[name]!r}")
        epoch, position = state.get("epoch"), state.get("position")
        if (
            not isinstance(epoch, int)
            or not isinstance(position, int)
            or epoch < 0
            or not 0 <= position <= len(self.dataset)
        ):
            raise StateMismatch(
                f"not a place in an epoch of {len(self.dataset)}: epoch {epoch!r}, position {position!r}"
            )
        self.set_epoch(epoch)
        self._position = position

    def stats(self) -> LoaderStats:
        """What the current epoch, or the last one, has cost this rank so far."""
        return self._meter.read() if self._meter is not None else LoaderStats()

    def _delivered(self, epoch: "_Epoch", schedule: Schedule, step: int) -> None:
        """Moves the state past a step that the consumer now has, if `epoch` is the one that the state speaks of."""
        if self._counting is None or self._counting() is not epoch:
            return
        if step + 1 == len(schedule):
            self._begin(self._plan.epoch + 1)
        else:
            self._position = schedule.position_after(step)
            self._midway = True


class _Meter:
    """What an epoch has cost so far. Outlives the epoch's threads and buffers."""

    def __init__(self) -> None:
        self.clock = StageClock()
        self.begun = time.monotonic()
        self.ended: float | None = None
        self.samples = self.bytes = 0
        self.waited = 0.0

    def read(self) -> LoaderStats:
        end = time.monotonic() if self.ended is None else self.ended
        return LoaderStats(self.samples, self.bytes, end - self.begun, self.waited, self.clock.seconds())


@final
class _Epoch(Iterator[Batch]):
    """What is left of one epoch. Closing it, or dropping it, ends its threads."""

    def __init__(self, loader: Loader, plan: Plan, schedule: Schedule) -> None:
        self.meter = _Meter()
        self._loader = loader
        self._schedule = schedule
        self._step = 0
        self._noted = (time.monotonic(), 0.0, 0.0)
        self._transfer = Transfer(loader._device)
        self._pipeline: Pipeline[tuple[Batch, int]] = Pipeline(
            _jobs(loader._collator, plan, schedule, self.meter.clock),
            threads=loader._threads,
            depth=1 + loader.setting.prefetch,
            timeout=loader._timeout,
            name=f"shardio rank {loader.world.rank}",
        )
        self._apply(loader.setting)

    def __next__(self) -> Batch:
        if self._step == len(self._schedule):
            self.close()
            raise StopIteration
        try:
            batch, size = next(self._pipeline)
        except BaseException:
            self.close()
            raise
        finally:
            self.meter.waited = self._pipeline.waited
        self.meter.samples += len(batch["index"])
        self.meter.bytes += size
        self._loader._delivered(self, self._schedule, self._step)
        self._step += 1
        self._tune()
        return self._transfer(batch)

    def _tune(self) -> None:
        """Tells the tuner what this step took, and does as it says. The first step is a start, and measures nothing."""
        now, tuner = (time.monotonic(), self._pipeline.waited, self._pipeline.idle), self._loader._tuner
        if self._step > 1:
            seconds, waited, idle = (new - old for new, old in zip(now, self._noted, strict=True))
            before = tuner.setting
            if tuner.note(Window(seconds, 1, waited, idle)) != before:
                self._apply(tuner.setting)
        self._noted = now

    def _apply(self, setting: Setting) -> None:
        self._loader._collator.keep(setting.prefetch + 3)
        self._pipeline.resize(setting.threads, 1 + setting.prefetch)

    def close(self) -> None:
        """Ends the epoch's threads; may be called twice."""
        if self.meter.ended is None:
            self.meter.ended = time.monotonic()
        self._pipeline.close()

    def __del__(self) -> None:
        if hasattr(self, "_pipeline"):  # not where __init__ failed
            self.close()


def _jobs(collator: Collator, plan: Plan, schedule: Schedule, clock: StageClock) -> Iterator[BatchJob]:
    """The work of each step. Knows nothing of the epoch's iterator, which must end when nobody else holds it."""
    asked = -1  # the last window that storage was asked for
    for step in range(len(schedule)):
        first, last = plan.windows(*schedule.positions(step))
        if last > asked:
            # One window more than is needed now, so that storage works on it in the meantime.
            for run in plan.runs(max(first, asked + 1), last + 2):
                collator.dataset.read_ahead(*run, collator.fields)
            asked = last + 1
        yield collator.job(plan, schedule.part(plan, step), schedule.tail == "pad", clock)


def _device(device: torch.device | str | None) -> torch.device:
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError as error:
        raise ConfigError(f"device: {str(error).splitlines()[0]}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device is {str(found)!r}, but this torch sees no GPU")
    return found


def _whole(value: int, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} must be a whole number, got {value!r}") from None


def _count(value: int | Literal["auto"], name: str) -> int:
    """0 for "auto", else a checked count."""
    if value == "auto":
        return 0
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be 'auto' or a whole number of at least 1, got {value!r}")
    return value
