"""The loader: plan, dataset, pipeline and engine put together, and the state that makes an epoch resumable."""

import operator
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, final

import torch

from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..dataset.mixture import Mixture, Readable
from ..engines.factory import EngineName, make_engine
from ..errors import ConfigError
from ..order.plan import Schedule, Shuffle, Tail
from ..order.world import World
from ..system import cpus
from ..transforms import Mixer, Transform
from .arguments import count_of, device_of, seconds_of, whole_of
from .batch.bad_samples import BadSampleRecord, OnBadSample
from .batch.batches import Collator, Target
from .batch.map_function import By, Function, MapFunction
from .device.copier import copier_to
from .device.gpu_direct import GpuDirect
from .device.gpu_direct import check as check_direct
from .device.prefetcher import MOST_HELD, DevicePrefetcher
from .epoch import EpochIterator
from .quarantine import Quarantine, report_path
from .state import VERSION, checked_state
from .stats import LoaderStats, Meter
from .workers.tuning import Setting
from .workers.workers import Workers


@final
class Loader:
    """Batches of a dataset for one rank of a data-parallel job.

    One `for` loop is one epoch; the next loop is the next epoch, in another order. All ranks take the same number of
    steps, and together they deliver every sample once (less the tail that `tail="drop"` leaves out).

    A batch is a dict: by field a tensor `[B, ...]` for scalars, arrays of one shape and images of one size, else a list
    of B values; `index`, int64 [B], the samples' numbers; with `tail="pad"` also `valid`, bool [B]; of a mixture also
    `source`, int64 [B], the number of each sample's source. Images are uint8 `[B, H, W, C]`, or float32 `[B, C, H, W]`
    after ToFloat or Normalize. A batch is yours to keep, without a copy: its memory is used again only when nothing
    refers to it, or to a tensor or view made of it, any more.

    Args:
        dataset: a path, a Dataset or a Mixture (see `shardio.mix`).
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
            wait for room while the consumer waits for them, up to 1 GiB, or fewer where that is faster. Neither
            changes samples or their order.
        device: where batches are to be, as torch names it; None leaves them in host memory.
        engine: what decodes and transforms images: `"cpu"`; `"dali"` or `"nvimgcodec"`, which make whole batches, on
            the GPU that `device` names or else on the CPU; `"auto"` takes DALI for a GPU, or nvImageCodec where that
            alone is installed. All choose the same crops and colours. See docs/engines.md.
        engine_options: of the engine: `hw_decoder_load`, the share of images for a GPU's JPEG decoder, 0 to 1.
        channels_last: images that are floats stand in memory by pixel (`torch.channels_last`), not by channel.
        mixing: `MixUp`, `CutMix`, or several of which each batch gets one: images are mixed with one another, and the
            field `label` becomes float32 [B, num_classes].
        gpu_direct: read large arrays of one shape from their files straight to the GPU (GPUDirect Storage), by kvikio.
            What cannot be read that way is read by the host, unless `on_bad_sample` is `"raise"`.
        fields: the fields to deliver; None is all.
        map: a function of your own that workers apply last, to each batch (a dict, as above) or, with
            `map_by="sample"`, to each sample (a dict of its values); it returns such a dict. `index` and `valid` stay.
            Draw random numbers from a generator seeded with `index`, and no worker changes them.
        on_bad_sample: what becomes of a sample that can't be read or decoded, or on which a `map` for samples fails.
            `"raise"` ends the loop with its error; `"replace"` delivers another sample, chosen by the seed, under its
            own `index`; `"mask"` delivers zeros, marked False in `valid`, which every batch then has. The number of
            steps stays.
        max_bad: bad samples that this rank passes over in an epoch before it raises TooManyBad: a count, or below 1 a
            share of its samples.
        quarantine_file: adds a line of JSON for each bad sample; in a job of several ranks to a file for each, such as
            `bad-00003.jsonl` for `bad.jsonl`. See also `quarantine`.
        verify: compare each sample's checksum with the one it was stored with. All its fields are read for that.
        isolate: work in `threads` processes instead of threads, for a `map` that holds the GIL. What they work with is
            pickled, and a script needs its `if __name__ == "__main__":`.
        timeout: seconds to wait for a batch before PipelineStalled.

    Raises ConfigError for an argument that breaks a rule, and what `shardio.open` raises.
    """

    def __init__(
        self,
        dataset: Readable | str | os.PathLike[str],
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
        engine: EngineName = "auto",
        engine_options: Mapping[str, Any] | None = None,
        channels_last: bool = False,
        mixing: Mixer | Sequence[Mixer] | None = None,
        gpu_direct: bool = False,
        fields: Sequence[str] | None = None,
        map: Function | None = None,
        map_by: By = "batch",
        on_bad_sample: OnBadSample = "raise",
        max_bad: float = 0.01,
        quarantine_file: str | os.PathLike[str] | None = None,
        verify: bool = False,
        isolate: bool = False,
        timeout: float = 300.0,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        self.dataset = dataset if isinstance(dataset, Dataset | Mixture) else open_dataset(dataset)
        self.world = World.detect() if world is None else world
        batch_size, seed = whole_of(batch_size, "batch_size"), whole_of(seed, "seed")
        self._plan = self.dataset.plan(seed, shuffle, block, window)
        self._schedule = Schedule(self._plan.n, self.world, batch_size, tail)
        self._device = device_of(device)
        if gpu_direct:
            mixed = isinstance(self.dataset, Mixture)
            on_host = {"map": map is not None, "isolate": isolate, "verify": verify, "a mixture": mixed}
            check_direct(self._device, others=[name for name, given in on_host.items() if given])
        if engine_options and engine == "cpu":
            raise ConfigError(f"the engine 'cpu' has no engine_options, got {dict(engine_options)}")
        self._quarantine = Quarantine(
            on_bad_sample, max_bad, report_path(quarantine_file, self.world.rank, self.world.size), self.world.rank
        )
        self._workers = Workers(
            partial(
                Collator,
                self.dataset,
                transforms,
                batch_size,
                fields=fields,
                mixing=mixing,
                mapping=None if map is None else MapFunction(map, map_by),
                on_bad=on_bad_sample,
                verify=verify,
                target=Target(self._device, engine, channels_last, leaves=isolate, straight=gpu_direct),
            ),
            batch_size,
            threads=count_of(threads, "threads") or cpus.share(self.world.local_size),
            prefetch=count_of(prefetch, "prefetch"),
            settle=threads == "auto",
            isolate=isolate,
            pin=self._device.type == "cuda",
            held=0 if self._device.type == "cpu" else MOST_HELD + 1,
            timeout=seconds_of(timeout, "timeout"),
            name=f"shardio rank {self.world.rank}",
        )
        # Not the epoch's: copies of its last batches may be under way when it has ended.
        engines = {
            name: make_engine(
                how.whole,
                how.recipe,
                channels=how.engine.output_format.channels,
                batch_size=batch_size,
                device=self._device,
                threads=self._workers.threads,
                channels_last=channels_last,
                options=engine_options or {},
            )
            for name, how in self._workers.making.images.items()
            if how.whole is not None
        }
        direct = GpuDirect(self._device) if gpu_direct else None
        self._transfer = DevicePrefetcher(
            copier_to(self._device), engines, direct, channels_last=channels_last, threads=self._workers.threads
        )
        self._position = 0
        self._midway = False
        self._running: weakref.ref[EpochIterator] | None = None
        self._counting: weakref.ref[EpochIterator] | None = None  # the running one, while the state follows it
        self._meter: Meter | None = None
        if len(self._schedule) == 0:
            raise ConfigError(
                f"{self._plan.n} samples fill no global batch of {self._schedule.global_batch} "
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
        return self._workers.threads

    @property
    def setting(self) -> Setting:
        """How many threads work and how many batches are made ahead at present."""
        return self._workers.setting

    @property
    def epoch(self) -> int:
        """The epoch that the state stands in."""
        return self._plan.epoch

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on every rank."""
        return len(self._schedule)

    def __iter__(self) -> EpochIterator:
        running = None if self._running is None else self._running()
        if running is not None:
            running.close()
        if self._midway:  # the last loop was left early: this is the next epoch
            self._begin(self._plan.epoch + 1)
        schedule = replace(self._schedule, start=self._position)
        if len(schedule) == 0:  # resumed where a smaller tail is left than one global batch
            self._begin(self._plan.epoch + 1)
            schedule = self._schedule
        self._quarantine.begin(len(schedule) * self.batch_size)
        parts = (self._workers, self._transfer, self._quarantine, self.dataset)
        epoch = EpochIterator(self._plan, schedule, *parts, delivered=self._delivered)
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
            "version": VERSION,
            "digest": self.dataset.digest,
            "samples": self._plan.n,
            "seed": self._plan.seed,
            "order": self._plan.order,
            "epoch": self._plan.epoch,
            "position": self._position,
        }

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Goes on where `state` stands, with whatever world size and batch size this loader has.

        The next loop delivers what is left of that epoch. Raises StateMismatch, with both values, if the state belongs
        to another dataset, seed, order or version. `strict=False` warns (StateWarning) of all but another version, and
        gives up what the warning says: in the epoch that is resumed samples may come twice or not at all; it begins
        anew if the number of samples is another. Later epochs are whole.
        """
        epoch, position = checked_state(state, self.state_dict(), self._plan.n, strict)
        self.set_epoch(epoch)
        self._position = position

    def __reduce__(self) -> tuple[Any, ...]:
        # By its arguments and its state: threads, processes and memory are made anew where it is unpickled.
        return _again, (self._arguments | {"dataset": self.dataset, "world": self.world}, self.state_dict())

    def quarantine(self) -> list[BadSampleRecord]:
        """The bad samples among all that this loader has delivered, in order; see `on_bad_sample`."""
        return list(self._quarantine.all)

    def stats(self) -> LoaderStats:
        """What the current epoch, or the last one, has cost this rank so far."""
        return self._meter.read() if self._meter is not None else LoaderStats()

    def _delivered(self, epoch: EpochIterator, schedule: Schedule, step: int) -> None:
        """Moves the state past a step that the consumer now has, if `epoch` is the one that the state speaks of."""
        if self._counting is None or self._counting() is not epoch:
            return
        if step + 1 == len(schedule):
            self._begin(self._plan.epoch + 1)
        else:
            self._position = schedule.position_after(step)
            self._midway = True


def _again(arguments: dict[str, Any], state: Mapping[str, Any]) -> Loader:
    loader = Loader(**arguments)
    loader.load_state_dict(state)
    return loader
