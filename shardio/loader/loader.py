"""The loader: it joins dataset, order, workers and device, handles bad samples, and keeps a resumable state."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, final

import torch.utils.data

from .. import native
from ..dataset.methods_of_others import WEBDATASET, no_attribute
from ..dataset.readable import ReadableDataset
from ..dataset.store_access import KEYWORDS, StoreAccess
from ..engines.factory import EngineName
from ..engines.fused_images import Decode
from ..errors import ConfigError, StateWarning
from ..format.limits import MAX_IMAGE_PIXELS, MAX_VALUE_BYTES, Limits
from ..order.plan import Assign, Order, Schedule, Shuffle, Tail
from ..order.world import World, rank_in_torch_distributed
from ..system import cpus
from ..transforms import Mixer
from .arguments import check_switches, count_or_auto, rank_and_size, time_limit, torch_device, whole_number
from .batch.bad_samples import BadSampleRecord, OnBadSample
from .batch.map_function import MapBy, UserFunction, as_map_function
from .batch.paired_fields import warn_of_equal_views
from .batch.spec import BatchOptions, DeviceOptions, Transforms, batch_spec
from .batch.token_dtypes import TokenDtypes
from .batch_sampler import BatchSampler
from .dataset_argument import readable
from .device.gpu_direct import check_gpu_direct
from .device.prefetcher import MOST_HELD, prefetcher_for
from .epoch import EpochIterator, RunningEpoch
from .quarantine import Quarantine, report_path
from .state import MOST_PEEKS, VERSION, EpochPlace, EpochProgress, checked_state, drawn_by_source
from .stats import LoaderStats, Meters
from .words_of_others import refuses_words_of_others
from .workers.tuning import Setting
from .workers.workers import WorkerOptions, Workers

_INSTEAD = {
    **WEBDATASET,
    # Libraries look for a sampler to skip batches with it.
    "sampler": (
        "it divides the samples among the ranks itself, and instead of skipping batches it resumes with "
        "load_state_dict(state). Give it to no DataLoader and no skip_first_batches; transformers' Trainer leaves "
        "resuming to the Loader with ignore_data_skip=True, see docs/loading.md"
    ),
}
"""What to use instead of attributes that other libraries and their users look for."""


@final
class Loader:
    """Batches of a dataset for one rank of a data-parallel job.

    One `for` loop is one epoch; the next loop is the next epoch, in another order. All ranks take the same number of
    steps, and together they deliver every sample once (except for the tail that `tail="drop"` leaves out). A loop that
    you leave early ends its epoch, too, unless it has delivered no more than one batch: a peek such as
    `next(iter(loader))` leaves the epoch where it was (if that batch was not the epoch's last), so the next peek
    delivers the same batch. For loops that are left early, begin each with `loader.set_epoch(epoch)`.

    A batch is a dict. Each field is a tensor `[B, ...]` if it holds scalars, arrays of one shape or images of one size,
    and a list of B values otherwise. `index`, int64 [B], holds the samples' numbers. `valid`, bool [B], is False for
    repeated and masked samples; batches have it with `tail="pad"` or `on_bad_sample="mask"`. `source`, int64 [B], holds
    the number of each sample's source; batches of a mixture have it. Images are uint8 `[B, H, W, C]`, or float32
    `[B, C, H, W]` after ToFloat or Normalize, masks int64 `[B, H, W]`; arrays have the stored dtype, float32 after
    these, or int64 after ToInt64. You may keep a batch without copying it: its memory is reused only when nothing
    refers to the batch, or to a tensor or view of it, any more.

    Args:
        dataset: a path or URL, a Dataset or a Mixture (see `shardio.mix`).
        batch_size: samples per rank and step.
        transforms: a list for the one image field (if there is none, for the one field of arrays of one shape), or
            {field: list}; see the transforms in `shardio`.
        shuffle: `"global"`; `"block"`, which reads `block` neighbouring samples at a time, for disks and networks that
            favour long reads (see docs/order.md); or None for the stored order.
        block, window: for `"block"`: how many samples stay together, and how many such blocks are mixed.
        seed: determines, with the epoch, the order and all random choices. It must be the same on all ranks.
        world: this process's place in the job; None asks `World.detect()`, and a loop ends with an error if
            torch.distributed was initialised since, with another rank or size.
        tail: the treatment of an epoch's last samples if they fill no global batch. `"drop"` leaves them out; `"pad"`
            repeats samples from the epoch's beginning, marked False in `valid`.
        assign: how the ranks share out the samples of a global batch, which are the same either way. `"rank"`: by their
            positions. `"node"`: each rank takes samples that are stored side by side, so that with `shuffle="block"`
            and data in a store a node fetches little that other nodes fetch, too. See docs/remote.md.
        threads: the number of workers. `"auto"` starts with this rank's share of the processors that its affinity and
            control group allow, and uses fewer if that is faster.
        prefetch: the number of batches made ahead of the consumer. `"auto"` starts with two. It makes more, up to 1
            GiB, if workers wait for room while the consumer waits for them, and fewer if that is faster. Threads make
            small batches several at a time, up to 16, so that more may be ahead than you asked for. Neither `threads`
            nor `prefetch` changes samples or their order.
        device: the torch device, or its name, that batches go to; None leaves them in host memory.
        decode: how images are decoded. `"exact"` gives, on the CPU engine, the pixels that Pillow gives, and so those
            of torchvision's transforms of PIL images; other engines come near. `"fast"` repeats chroma samples, and
            has the CPU engine's decoder shrink a JPEG where its crop is at least twice as large as its target. See
            docs/engines.md.
        orient: turn image files upright by their EXIF orientation, as `PIL.ImageOps.exif_transpose` does. Crops are
            drawn for the upright image.
        engine: the software that decodes and transforms images: `"cpu"`; or `"dali"` or `"nvimgcodec"`, which process
            whole batches, on the GPU that `device` names or else on the CPU. For a GPU, `"auto"` takes DALI, or
            nvImageCodec if only that is installed, and warns that the pixels are not exact. All engines apply the
            same crops and colours. See docs/engines.md.
        engine_options: options of the engine: `hw_decoder_load`, the share of images for a GPU's JPEG decoder, 0 to 1.
        channels_last: store float images pixel by pixel (`torch.channels_last`) instead of channel by channel.
        mixing: `MixUp`, `CutMix`, or a list of them, one of which is chosen for each batch. It mixes the images of a
            batch with one another, and the field `label` becomes float32 [B, num_classes].
        gpu_direct: read large arrays of one shape from their files straight to the GPU (GPUDirect Storage, with
            kvikio). The host reads batches that cannot be read that way, unless `on_bad_sample` is `"raise"`.
        fields: the fields to deliver; None delivers all.
        map: a function of your own that workers apply last, to each batch (a dict, as above) or, with
            `map_by="sample"`, to each sample (a dict of its values). It returns a dict of the same kind; a field that
            this lacks is not delivered. `index`, `source` and `valid` are then set to their original values.
            A function with parameters called `rng`, `seed` or `epoch`, without a default or with None, gets these by
            keyword; any other default stays. `rng` is a `numpy.random.Generator` that depends on seed, epoch and sample
            alone (on a batch's first sample), so what it draws is the same on any worker and after any resume. See
            docs/loading.md.
        on_bad_sample: the treatment of a sample that cannot be read or decoded, or on which a `map` for samples fails.
            `"raise"` ends the loop with its error; `"replace"` delivers another sample, chosen by the seed, under its
            own `index`; `"mask"` delivers zeros, marked False in `valid`. The number of steps stays the same.
        max_bad: the number of bad samples that this rank tolerates in an epoch before it raises TooManyBad: a count, or
            below 1 a share of its samples.
        quarantine_file: a file to which each bad sample adds a line of JSON. In a job of several ranks each rank writes
            its own file, such as `bad-00003.jsonl` for `bad.jsonl`. See also `quarantine`.
        verify: compare each sample's checksum with the stored one. This reads all of the sample's fields.
        max_image_pixels: the most pixels that decoding one image may hold at once: those of its crop, if it is a JPEG
            of one scan with Huffman codes, else those of the whole image. An image whose header claims more is a bad
            sample.
        max_value_bytes: the most bytes of one stored value whose size is its own (an image file, a text, ...), and of
            the HDF5 chunk that is decompressed for a value. A value that claims more is a bad sample.
        isolate: make batches in `threads` processes instead of threads, for a `map` that holds the GIL. The dataset,
            the transforms and `map` are pickled for them, and a script must guard its start with
            `if __name__ == "__main__":`.
        timeout: seconds to wait for a batch before PipelineStalled. A stored value that keeps libhdf5 for a quarter of
            it is a bad sample.

        cache, cache_size, store_options: for a `dataset` given as a URL, see `shardio.open`.

    Raises ConfigError for an argument that breaks a rule, and whatever `shardio.open` raises.
    """

    @refuses_words_of_others
    def __init__(
        self,
        dataset: ReadableDataset | str | os.PathLike[str],
        batch_size: int,
        *,
        transforms: Transforms = None,
        shuffle: Shuffle = "global",
        block: int = 64,
        window: int = 16,
        seed: int = 0,
        world: World | None = None,
        tail: Tail = "drop",
        assign: Assign = "rank",
        threads: int | Literal["auto"] = "auto",
        prefetch: int | Literal["auto"] = "auto",
        device: torch.device | str | None = None,
        decode: Decode = "exact",
        orient: bool = False,
        engine: EngineName = "auto",
        engine_options: Mapping[str, Any] | None = None,
        channels_last: bool = False,
        mixing: Mixer | Sequence[Mixer] | None = None,
        gpu_direct: bool = False,
        fields: Sequence[str] | None = None,
        map: UserFunction | None = None,
        map_by: MapBy = "batch",
        on_bad_sample: OnBadSample = "raise",
        max_bad: float = 0.01,
        quarantine_file: str | os.PathLike[str] | None = None,
        verify: bool = False,
        max_image_pixels: int = MAX_IMAGE_PIXELS,
        max_value_bytes: int = MAX_VALUE_BYTES,
        isolate: bool = False,
        timeout: float = 300.0,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = None,
        store_options: Mapping[str, str] | None = None,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name != "self" and name not in KEYWORDS}
        check_switches(self._arguments, "orient", "channels_last", "gpu_direct", "verify", "isolate")
        self.dataset = readable(dataset, StoreAccess(cache, cache_size, store_options))
        self.world = rank_and_size(world)
        self._world_detected = world is None
        batch_size = whole_number(batch_size, "batch_size")
        self._plan = self.dataset.plan(whole_number(seed, "seed"), shuffle, block, window)
        self._schedule = Schedule(self._plan.n, self.world, batch_size, tail, assign=assign)
        target = DeviceOptions(
            device=torch_device(device),
            engine=engine,
            engine_options=dict(engine_options or {}),
            channels_last=channels_last,
            gpu_direct=gpu_direct,
        )
        if gpu_direct:
            self.dataset.check_local()
            needs_host = {"map": map is not None, "isolate": isolate, "verify": verify}
            check_gpu_direct(target.device, others=[name for name, given in needs_host.items() if given])
        if engine_options and engine == "cpu":
            raise ConfigError(f"the engine 'cpu' takes no engine_options, got {dict(engine_options)}")
        rank, size = self.world.rank, self.world.size
        report = None if quarantine_file is None else report_path(quarantine_file, "quarantine_file", rank, size)
        self._quarantine = Quarantine(on_bad_sample, max_bad, report, rank)
        build_spec = partial(
            batch_spec,
            self.dataset,
            BatchOptions(
                batch_size=batch_size,
                fields=fields,
                transforms=transforms,
                decode=decode,
                orient=orient,
                mixing=mixing,
                map_function=as_map_function(map, map_by),
                on_bad_sample=on_bad_sample,
                verify=verify,
                limits=Limits(max_image_pixels, max_value_bytes),
                # A value is read again alone, and its replacement after it: all of that within the time for a batch.
                read_limit=time_limit(timeout, "timeout") / 4,
            ),
            target,
            isolate=isolate,
        )
        spec = build_spec()
        self._workers = Workers(
            spec,
            build_spec,
            WorkerOptions(
                threads=count_or_auto(threads, "threads") or cpus.share(self.world.local_size),
                prefetch=count_or_auto(prefetch, "prefetch"),
                tune_threads=threads == "auto",
                isolate=isolate,
                pin=target.device.type == "cuda",
                held=0 if target.device.type == "cpu" else MOST_HELD + 1,
                timeout=time_limit(timeout, "timeout"),
                name=f"shardio rank {self.world.rank}",
            ),
        )
        # The prefetcher outlives an epoch: copies of the last batches may still be in progress when the epoch ends.
        self._prefetcher = prefetcher_for(spec, target, threads=self._workers.threads)
        self._progress = EpochProgress()
        self._resumed_batch: int | None = None  # of a state of other steps, until Lightning's callback counts ours
        self._running: RunningEpoch | None = None
        self._loop: weakref.ref[EpochIterator] | None = None
        self._meters = Meters()
        self._unseen_pairs, self._limits = spec.drawn_alike, spec.limits  # until the first batch tells them apart
        arrays = [name for name, kind in spec.fields.items() if kind.kind == "array"]
        self._dtypes = TokenDtypes(arrays if self.world.local_rank == 0 else ())
        if self.world.local_rank == 0:
            native.warn_if_missing()
            if shuffle == "block":
                self.dataset.warn_of_small_cache(block * window)
        self._schedule.check_steps()

    def __repr__(self) -> str:
        world = f"rank {self.world.rank} of {self.world.size}"
        how = "" if self._schedule.assign == "rank" else f", assign={self._schedule.assign!r}"
        return f"<Loader of {self.dataset!r}: {len(self)} steps of {self.batch_size} per epoch, {world}{how}>"

    @property
    def batch_size(self) -> int:
        """Samples per rank and step."""
        return self._schedule.batch_size

    @property
    def threads(self) -> int:
        """The number of workers of this rank; with `"auto"` the most that may work at once."""
        return self._workers.threads

    @property
    def setting(self) -> Setting:
        """The current numbers of working threads and of prefetched batches."""
        return self._workers.setting

    @property
    def epoch(self) -> int:
        """The current epoch: the one that `state_dict` returns.

        After a loop that you leave early it stays the epoch that you left, whose rest a saved state resumes, while the
        next loop is the next epoch. So count epochs yourself: `for epoch in range(n): loader.set_epoch(epoch)`.
        """
        return self._place.epoch

    @property
    def _sources(self) -> tuple[str, ...]:
        """The names of a mixture's sources; () for any other dataset."""
        return self.dataset.id_columns.get("source", ())

    @property
    def _place(self) -> EpochPlace:
        place, loop = self._progress.place, None if self._loop is None else self._loop()
        lives = loop is not None and not loop.running.closed
        return place if lives or place.if_dropped is None else place.if_dropped

    def __len__(self) -> int:
        """Return the number of steps of a full epoch, the same on every rank."""
        return len(self._schedule)

    @property
    def steps_left(self) -> int:
        """The number of steps that are left of the current epoch, the same on every rank.

        This is `len(loader)` at an epoch's beginning, and 0 if a state was loaded after which less than a global batch
        is left: the next loop is then the next epoch.
        """
        return len(replace(self._schedule, start=self._place.position))

    def __iter__(self) -> EpochIterator:
        _check_not_in_a_dataloader()
        if self._world_detected:
            self._check_world()
        if self._running is not None:
            self._running.close()
        self._prefetcher.check_process()  # before any thread starts to work for it
        self._warn_of_peeks()
        order, schedule = self._next_epoch()
        if self._unseen_pairs:
            pairs, self._unseen_pairs = self._unseen_pairs, ()
            warn_of_equal_views(self.dataset, pairs, schedule.part(order, 0).indices, self._limits, stacklevel=3)
        epoch = EpochIterator(
            order,
            schedule,
            workers=self._workers,
            prefetcher=self._prefetcher,
            quarantine=self._quarantine,
            dtypes=self._dtypes,
            progress=self._progress,
            source_names=self._sources,
        )
        # Not the iterator itself: when a loop that is left early drops it, its threads end.
        self._running, self._loop = epoch.running, weakref.ref(epoch)
        self._meters.begin(epoch.running.meter)
        return epoch

    def _warn_of_peeks(self) -> None:
        """Warn if the last loops were all left after one batch."""
        if self._place.peeks == MOST_PEEKS:
            warnings.warn(
                f"{MOST_PEEKS} loops in a row were left after one batch, so each delivered the same batch of epoch "
                f"{self._place.begin().epoch}: keep one iterator, batches = iter(loader), and call next(batches); or "
                "call set_epoch(n) for another epoch",
                StateWarning,
                stacklevel=3,
            )

    def _check_world(self) -> None:
        """Raise ConfigError if torch.distributed was initialised after the world was detected, and differs from it."""
        now = rank_in_torch_distributed()
        if now is not None and now != (self.world.rank, self.world.size):
            raise ConfigError(
                f"the Loader was made as rank {self.world.rank} of {self.world.size}, but torch.distributed now has "
                f"{now[1]} ranks, and this is rank {now[0]}: make the Loader after torch.distributed is initialised "
                "(for Lightning, inside train_dataloader), or give it world=shardio.World(rank, size)"
            )

    def _next_epoch(self) -> tuple[Order, Schedule]:
        """Return the order and the steps of a loop that begins now, and prepare its progress and its quarantine."""
        # A loop moves a progress of its own, so that an older one, still in `next` on another thread, moves nothing.
        place = self._place.begin()
        schedule = replace(self._schedule, start=place.position)
        if len(schedule) == 0:  # resumed at a position after which less than a global batch is left
            place = replace(place, epoch=place.epoch + 1, position=0)
            schedule = self._schedule
        self._progress = EpochProgress(place)
        self._quarantine.begin(len(schedule) * self.batch_size)
        return self._plan.at_epoch(place.epoch), schedule

    @property
    def batch_sampler(self) -> BatchSampler:
        """For Lightning, which names each of its epochs to it: the Loader then delivers the epoch of that number.

        A state that was just loaded stays, if it is of that epoch or of a later one.
        """
        return BatchSampler(self.batch_size, self._set_lightning_epoch, self._lightning_counts)

    def _lightning_counts(self) -> None:
        self._resumed_batch = None

    def _set_lightning_epoch(self, epoch: int) -> None:
        if self._resumed_batch is not None and self._place.resumed and self._place.position:
            warnings.warn(
                f"the checkpoint was saved in the middle of epoch {self._place.epoch}, with {self._resumed_batch} "
                f"samples per step of all ranks, and this loader has {self._schedule.global_batch}: Lightning counts "
                "the old steps, and so ends the epoch early or without its validation; give the Trainer the callback "
                "shardio.lightning.ResumeElastically()",
                StateWarning,
                stacklevel=2,
            )
            self._resumed_batch = None
        # The state is of a later epoch if the saved one was over, or if Lightning repeats the shorter of two loaders.
        if not self._place.resumed or self._place.epoch < epoch:
            self.set_epoch(epoch)

    if not TYPE_CHECKING:  # to a type checker, it would be any attribute

        def __getattr__(self, name: str) -> NoReturn:
            if hasattr(type(self), name):
                object.__getattribute__(self, name)  # a property, whose own AttributeError it raises
            raise no_attribute(self, name, _INSTEAD)

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(
            "a Loader delivers batches in order, none by its number: loop over it. It needs no DataLoader around it; "
            "for a DataLoader of your own there is shardio.TorchDataset"
        )

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop deliver `epoch`, from its beginning, or its rest if a state of that epoch was just loaded.

        You need no `set_epoch` for another order in each epoch. A running loop continues unchanged, and no longer
        advances the state; one that has delivered nothing yet delivers `epoch` itself. Raises ConfigError unless
        `epoch` is a whole number of at least 0 and below 2^63; of a weighted mixture, all epochs together have at most
        2^62 samples.
        """
        place = EpochPlace(self._plan.at_epoch(whole_number(epoch, "epoch")).epoch)
        loop = None if self._loop is None else self._loop()
        if loop is None or not loop.delivered_nothing:
            self._progress = EpochProgress(self._place.rest_of(place.epoch) or place)
        elif self._place.epoch != place.epoch:
            loop.close()
            self._progress = EpochProgress(place)
            loop.begin(*self._next_epoch(), self._progress)
            self._running = loop.running
            self._meters.begin(loop.running.meter)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch as a few numbers, the same on every rank. It counts delivered batches.

        `global_batch` is the number of samples per step of all ranks, and a weighted mixture has `drawn`, the samples
        taken of each source since epoch 0; nothing but a warning follows from either.

        After an epoch's last batch it is the beginning of the next epoch. The first batch of a loop counts while the
        iterator lives: save the state inside the loop, as a loop that is left after one batch counts as a peek.
        """
        place, own_batch = self._place, self._schedule.global_batch
        drawn = drawn_by_source(self._plan, self._sources, place.epoch, place.position)
        return {
            "version": VERSION,
            "digest": self.dataset.digest,
            "samples": self._plan.n,
            "seed": self._plan.seed,
            "order": self._plan.order,
            "epoch": place.epoch,
            "position": place.position,
            "global_batch": (self._resumed_batch if place.resumed else None) or own_batch,
            **({"drawn": drawn} if drawn else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Resume from `state`, which may come from a loader with another world size or batch size.

        The next loop delivers the rest of the state's epoch. Raises StateMismatch, with both values, if the state
        belongs to another dataset, seed, order or version. With `strict=False` another dataset, seed or order only
        warns (StateWarning): the resumed epoch may deliver samples twice or not at all, or starts over if the number of
        samples differs. Later epochs are complete. For a mixture with other weights the warning says which sources
        repeat samples, or leave some out, and how many.
        """
        self._progress = checked_state(state, self.state_dict(), self._plan, self._sources, strict)
        saved = state.get("global_batch", self._schedule.global_batch)
        self._resumed_batch = saved if saved != self._schedule.global_batch else None

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickles arguments and state only: unpickling starts new threads or processes, with new memory.
        # Without those that opened the dataset, which knows them itself.
        arguments = self._arguments | {"dataset": self.dataset, "world": self.world}
        return _rebuild, (arguments, self.state_dict(), self._world_detected)

    def quarantine(self) -> list[BadSampleRecord]:
        """Return the bad samples that this loader has met so far, in order; see `on_bad_sample`."""
        return list(self._quarantine.all)

    def stats(self, *, all_epochs: bool = False) -> LoaderStats:
        """Return the statistics of the current epoch on this rank so far, or those of the last epoch between loops.

        With `all_epochs=True` they are those of all loops over this Loader together.
        """
        return self._meters.read(all_epochs=all_epochs)


def _check_not_in_a_dataloader() -> None:
    """Raise ConfigError in a worker of torch's DataLoader, where every worker would deliver all samples."""
    if torch.utils.data.get_worker_info() is not None:
        raise ConfigError(
            "a Loader cannot run in a worker of torch's DataLoader: every worker would deliver all samples, in the "
            "same order in each epoch. Loop over the Loader itself, which has workers of its own (threads=), or give "
            "the DataLoader num_workers=0 and batch_size=None; a DataLoader with workers can read shardio.TorchDataset"
        )


def _rebuild(arguments: dict[str, Any], state: Mapping[str, Any], world_detected: bool) -> Loader:
    loader = Loader(**arguments)
    loader._world_detected = world_detected
    loader.load_state_dict(state)
    return loader
