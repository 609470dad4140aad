"""The loader: it joins dataset, order, workers and device, handles bad samples, and keeps a resumable state."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NoReturn, final

import numpy as np
import torch.utils.data
from numpy.typing import NDArray

from .. import native
from ..dataset.store_access import KEYWORDS
from ..engines.fused_images import Decode, EngineName
from ..engines.video_frames import Matrix
from ..format.limits import MAX_IMAGE_PIXELS, MAX_VALUE_BYTES, Limits
from ..order.plan import Assign, Order, Schedule, Shuffle, Tail
from ..order.ranges import Ranges
from ..order.world import World
from ..system.rules import as_integer
from ..transforms import Mixer
from ..views.readable import ReadableDataset
from .agreement import Agreement
from .arguments import (
    check_not_in_a_dataloader,
    check_world_is_current,
    rank_and_size,
    readable,
    refuses_foreign_keywords,
    torch_device,
)
from .batch.as_numpy import To
from .batch.field_names import FieldNames, Fields
from .batch.first_batch import FirstBatch
from .batch.map_function import MapBy, UserFunction, map_function
from .batch.quarantine import BadSampleRecord, OnBadSample, Quarantine
from .batch.spec import BatchOptions, DeviceOptions, batch_spec
from .batch.transforms_by_field import Transforms
from .bucketing import BatchingOptions
from .device.prefetcher import MOST_HELD, DevicePrefetcher
from .epoch import EpochIterator, RunningEpoch
from .lightning_epochs import BatchSampler
from .state import EpochProgress, LoaderState
from .stats import LoaderStats, Meter
from .workers.tuning import Setting
from .workers.workers import WorkerOptions, Workers


@final
class Loader:
    """Batches of a dataset for one rank of a data-parallel job.

    Examples:
        >>> import shardio
        >>> shardio.convert("photos", "data/photos", converter="imagefolder")
        <Conversion: 40 samples in 1 shard; fields image, label, key...>
        >>> loader = shardio.Loader("data/photos", batch_size=32, transforms=[shardio.RandomResizedCrop(224)], seed=1)
        >>> for batch in loader:
        ...     print(batch["image"].shape, batch["label"].shape)
        torch.Size([32, 224, 224, 3]) torch.Size([32])

    Args:
        dataset: a Dataset or a view of one, or what `shardio.open` takes: a path, a URL, the file of a view.
        batch_size: samples per rank and step; None with `max_tokens`.
        transforms: a list for the one image field (if there is none, for the one field of arrays), or
            {field: list}; see the transforms in `shardio`.
        fields: the fields to deliver, a list; None delivers all. A dict {name: stored field} delivers them under other
            names, and one under several names with transforms of their own. The n-th name of any stored field takes the
            n-th set of random draws: with `{"a": "image", "a_mask": "mask", "b": "image", "b_mask": "mask"}` `a` and
            `a_mask` get the same crops, and `b` and `b_mask` others. See docs/loading.md.
        shuffle: `"global"`; `"block"`, which reads `block` neighbouring samples at a time, for disks and networks that
            favour long reads (see docs/order.md); or None for the stored order.
        seed: determines, with the epoch, the order and all random choices. It must be the same on all ranks.
        tail: the treatment of an epoch's last samples if they fill no global batch. `"drop"` leaves them out; `"pad"`
            repeats samples from the epoch's beginning, marked False in `valid`. With `bucket_by` it is about the last
            batches, if they are fewer than the ranks.
        world: this process's place in the job; None asks `World.detect()`, and a loop ends with an error if
            torch.distributed was initialised since, with another rank or size.
        threads: the number of workers. `"auto"` starts with this rank's share of the processors that its affinity and
            control group allow, and uses fewer if that is faster. `"dali"` and `"nvimgcodec"` decode with so many
            threads, and a quarter as many workers, two at least, read for them.
        device: the torch device, or its name, that batches go to; None leaves them in host memory.
        map: a function of your own that workers apply last, to each batch (a dict, see below) or, with
            `map_by="sample"`, to each sample (a dict of its values). It returns a dict of the same kind; a field that
            this lacks is not delivered. `index`, `source` and `valid` are then set to their original values.
            A function with parameters called `rng`, `seed`, `epoch` or `position`, without a default or with None, gets
            these by keyword; any other default stays. `rng` is a `numpy.random.Generator` that depends on seed, epoch
            and sample alone (on a batch's first sample), so what it draws is the same on any worker and after any
            resume. `position` is the position in the epoch at which the global batch begins, the same on all ranks: the
            number of samples that were delivered before it, or with `bucket_by` of batches. See docs/loading.md.
        on_bad_sample: the treatment of a sample that cannot be read or decoded, or on which a `map` for samples fails.
            `"raise"` ends the loop with its error; `"replace"` delivers another sample, chosen by the seed, under its
            own `index`; `"mask"` delivers zeros, marked False in `valid`. The number of steps stays the same.

    Args: Order and batches
        block, window: with `shuffle="block"`: how many samples stay together, and how many such blocks are mixed.
        assign: how the ranks share out the samples of a global batch; its samples are the same either way. `"rank"`: by
            position. `"node"`: each rank takes samples that are stored side by side, so that with `shuffle="block"`
            and data in a store, nodes fetch little that other nodes fetch. See docs/remote.md.
        bucket_by: a field of arrays whose first axis has any length, or of integers that are lengths: samples of
            like length make a batch, so that little is padded. Batches come in random order, and ranks take the same
            number of them. `"NAME:aspect"` goes by the ratio of width to height of an image. See docs/sequences.md.
        max_tokens: the most tokens of a batch with its padding, with `bucket_by` and instead of `batch_size`: a batch
            has as many samples as fit, each counted with the greatest length.

    Args: Images
        decode: how images are decoded. `"exact"` gives, on the CPU engine, the pixels that Pillow gives, and so those
            of torchvision's transforms of PIL images; other engines come near. `"fast"` repeats chroma samples, and
            has the CPU engine's decoder shrink a JPEG where its crop is at least twice as large as its target. See
            docs/engines.md.
        geometry: add `NAME_geometry` for each image, float64 [B, 3, 3], which maps (x, y, 1) of the stored image to the
            delivered one (edges are at integers), and `NAME_stored_size` and `NAME_delivered_size`, int32 [B, 2]. See
            docs/detection.md.
        orient: rotate image files upright by their EXIF orientation, as `PIL.ImageOps.exif_transpose` does. Crops are
            drawn for the upright image.
        untagged_matrix: the matrix by which frames of videos become RGB that name none: `"bt601"`, `"bt709"` or
            `"bt2020"`. Frames that name one are converted by it.
        engine: the software that decodes and transforms images: `"cpu"`; or `"dali"` or `"nvimgcodec"`, which process
            whole batches, on the GPU that `device` names or else on the CPU. For a GPU, `"auto"` takes DALI, or
            nvImageCodec if only that is installed, and warns that the pixels are not exact. All engines apply the
            same crops and colours. See docs/engines.md.
        engine_options: options of the engine: `hw_decoder_load`, the share of images for a GPU's JPEG decoder, 0 to 1.
        channels_last: store float images pixel by pixel (`torch.channels_last`) instead of channel by channel.
        mixing: `MixUp`, `CutMix`, or a list of them: each batch chooses one. It mixes the images of a batch with one
            another, and the field `label` becomes float32 [B, num_classes].

    Args: Delivery
        to: `"numpy"` delivers NumPy arrays instead of tensors, in the same memory, for JAX and whatever else takes
            arrays. `map` gets arrays as well. Batches then stay in host memory. Arrays of bfloat16 need ml_dtypes.
        map_by: what `map` takes at a time: `"batch"` or `"sample"`.

    Args: Workers
        prefetch: the number of batches made ahead of the consumer. `"auto"` starts with two. It makes more, up to 1
            GiB, if workers wait for room while the consumer waits for them, and fewer if that is faster. Threads make
            small batches several at a time, up to 32, so that more may be ahead than you asked for. Neither `threads`
            nor `prefetch` changes samples or their order.
        isolate: make batches in `threads` processes instead of threads, for a `map` that holds the GIL. The dataset,
            the transforms and `map` are pickled for them, and a script must guard its start with
            `if __name__ == "__main__":`.
        timeout: seconds to wait for a batch before PipelineStalled. A stored value that keeps libhdf5 for a quarter of
            it, or a JPEG whose decoding takes so much processor time, is a bad sample. When the script ends, it waits
            so long for a call of `map` that is in progress.

    Args: Bad samples
        max_bad: the number of bad samples that this rank tolerates in an epoch before it raises TooManyBad: a count, or
            below 1 a share of its samples.
        quarantine_file: the file to append a line of JSON to for each bad sample. If there are several ranks, each
            writes its own file, such as `bad-00003.jsonl` for `bad.jsonl`. See also `quarantine`.
        verify: compare each sample's checksum with the stored one. This reads all of the sample's fields.
        max_image_pixels: the most pixels that decoding one image may hold at once: those of its crop, if it is a JPEG
            of one scan with Huffman codes, else those of the whole image. An image whose header claims more is a bad
            sample.
        max_value_bytes: the most bytes of one stored value of variable size (an image file, a string, ...), and of the
            HDF5 chunk that is decompressed for a value. A value that claims more is a bad sample.

    Args: Datasets at URLs or on slow file systems
        cache, cache_size, store_options: for a `dataset` given as a path or URL, see `shardio.open`.

    One `for` loop is one epoch; the next loop is the next epoch, in another order. All ranks take the same number of
    steps, and together they deliver every sample once (except for the tail that `tail="drop"` leaves out). A loop that
    you leave early also ends its epoch, unless it has delivered no more than one batch: a peek such as
    `next(iter(loader))` leaves the epoch where it was (if that batch was not the epoch's last), so the next peek
    delivers the same batch. If you leave loops early, begin each with `loader.set_epoch(epoch)`.

    A batch is a dict. Each field is a tensor, or with `to="numpy"` an array, `[B, ...]` if it holds scalars, arrays of
    one shape or images of one size, and a list of B values otherwise, unless PadTo, Ragged or Tokenize says what to
    make of them. `index`, int64 [B], holds the samples' numbers. `valid`, bool [B], is False for repeated and masked
    samples; batches have it with `tail="pad"` or `on_bad_sample="mask"`. `source`, int64 [B], holds the number of each
    sample's source; batches of a mixture have it. Images are uint8 `[B, H, W, C]`, or float32
    `[B, C, H, W]` after ToFloat or Normalize, masks int64 `[B, H, W]`; arrays have the stored dtype, float32 after
    these, or int64 after ToInt64. You may keep a batch without copying it: its memory is reused only when nothing
    refers to the batch, or to a tensor or view of it, any more.

    Raises ConfigError for an argument that breaks a rule, and whatever `shardio.open` raises.
    """

    @refuses_foreign_keywords
    def __init__(
        self,
        dataset: ReadableDataset | str | os.PathLike[str],
        batch_size: int | None = None,
        *,
        bucket_by: str | None = None,
        max_tokens: int | None = None,
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
        to: To = "torch",
        decode: Decode = "exact",
        orient: bool = False,
        untagged_matrix: Matrix = "bt601",
        geometry: bool = False,
        engine: EngineName = "auto",
        engine_options: Mapping[str, Any] | None = None,
        channels_last: bool = False,
        mixing: Mixer | Sequence[Mixer] | None = None,
        fields: Fields = None,
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
        self.dataset = readable(dataset, cache=cache, cache_size=cache_size, store_options=store_options)
        self.world, self._world_detected = rank_and_size(world), world is None
        span = block * window if shuffle == "block" else None
        self._to: To = to

        # The options by group, each of which checks its own.
        target = DeviceOptions(torch_device(device, to), engine, dict(engine_options or {}), channels_last)
        working = WorkerOptions(threads, prefetch, isolate, timeout)
        content = BatchOptions(
            fields=fields,
            transforms=transforms,
            decode=decode,
            orient=orient,
            untagged_matrix=untagged_matrix,
            geometry=geometry,
            mixing=mixing,
            map_function=map_function(map, map_by, to, timeout, on_threads=not isolate),
            on_bad_sample=on_bad_sample,
            verify=verify,
            limits=Limits(max_image_pixels, max_value_bytes),
            # A value is read again alone, and its replacement after it: all of that within the time for a batch.
            read_limit=timeout / 4,
            to=to,
        )
        sizes = BatchingOptions(batch_size, bucket_by, max_tokens, tail, assign)
        self._quarantine = Quarantine(on_bad_sample, max_bad, quarantine_file, self.world)

        # What all batches have in common, and which samples each one has.
        build_spec = partial(batch_spec, self.dataset, content, target, isolate=isolate)
        spec = build_spec()
        order = spec.dataset.plan(as_integer(seed, "seed"), shuffle, block, window)
        self._too_short = 0 if spec.dataset is self.dataset else self.dataset.numbers - len(spec.dataset)
        order, schedule, self._batch_size, largest = sizes.batches(order, spec, self.world, span)
        self._sources = self.dataset.id_columns.get("source", ())
        roles = {name: field.role for name, field in spec.fields.items()}
        self._state = LoaderState(order, schedule, spec.dataset.digest, spec.dataset.earlier, roles)
        self._running: RunningEpoch | None = None
        self._loop: weakref.ref[EpochIterator] | None = None

        # Who makes them, and what brings them to the device.
        self._threads = working.count(self.world.local_size)
        self._workers = Workers(
            spec,
            build_spec,
            working,
            batch_size=self._batch_size,
            threads=self._threads,
            pin=target.device.type == "cuda",
            held=0 if target.device.type == "cpu" else MOST_HELD + 1,
            name=f"shardio rank {self.world.rank}",
        )
        # The prefetcher outlives an epoch: copies of the last batches may still be in progress when the epoch ends.
        self._prefetcher = DevicePrefetcher(spec, target, threads=self._threads, largest=largest)

        # What is measured, compared and warned of while batches are delivered.
        self._field_names = spec.names
        self._normalized = {
            name: image.recipe.normalization
            for name, image in {**spec.images, **spec.clips}.items()
            if image.recipe.normalization is not None
        }
        # One tuple, replaced as a whole, so that another thread reads no epoch twice and none not at all.
        self._measured: tuple[LoaderStats, Meter | None] = (LoaderStats(), None)  # of earlier epochs, and the last one
        first_of_node = self.world.local_rank == 0
        arrays = [name for name, kind in spec.fields.items() if kind.kind == "array" and to == "torch"]
        self._first_batch = FirstBatch(spec, arrays if first_of_node else ())
        self._agreement = Agreement(self.world, {"transforms": transforms, "mixing": mixing})
        if first_of_node:
            native.warn_if_missing()
            if span is not None:
                self.dataset.warn_of_small_cache(span)
        schedule.check_steps()

    def __repr__(self) -> str:
        world, schedule = f"rank {self.world.rank} of {self.world.size}", self._state.schedule
        how = "" if schedule.assign == "rank" else f", assign={schedule.assign!r}"
        how += f", {self._too_short} samples too short" if self._too_short else ""
        size = self._state.bucketing if self._state.bucketing.bucket_by else self.batch_size
        return f"<Loader of {self.dataset!r}: {len(schedule)} steps of {size} per epoch, {world}{how}>"

    @property
    def too_short(self) -> int:
        """The samples left out of every epoch: their videos are too short for a clip with `short="drop"`."""
        return self._too_short

    @property
    def batch_size(self) -> int:
        """Samples per rank and step; with `max_tokens` their mean in epoch 0, rounded."""
        return self._batch_size

    @property
    def threads(self) -> int:
        """The number of threads or processes that decode on this rank; with `"auto"` the most that may work at once."""
        return self._threads

    @property
    def setting(self) -> Setting:
        """The current numbers of working threads, which read for an engine, and of prefetched batches."""
        return self._workers.setting

    @property
    def normalized(self) -> Mapping[str, NDArray[np.float32]]:
        """By field of images or videos delivered as floats, mean and standard deviation per channel, float32 [C, 2].

        `value * deviation + mean` is the pixel on the scale of 0 to 1. They are 0 and 1 without a Normalize.
        """
        return self._normalized

    @property
    def field_names(self) -> FieldNames:
        """The stored field of each delivered name."""
        return self._field_names

    @property
    def epoch(self) -> int:
        """The current epoch: the one that `state_dict` returns.

        After a loop that you leave early it stays the epoch that you left, whose rest a saved state resumes, while the
        next loop is the next epoch. So count epochs yourself: `for epoch in range(n): loader.set_epoch(epoch)`.
        """
        return self._state.place.epoch

    def __len__(self) -> int:
        """Return the number of steps of a full epoch, the same on every rank; with `max_tokens`, of the current one."""
        return len(self._state.schedule)

    @property
    def steps_left(self) -> int:
        """The number of steps that are left of the current epoch, the same on every rank.

        This is `len(loader)` at an epoch's beginning, and 0 if a state was loaded after which less than a global batch
        is left: the next loop is then the next epoch.
        """
        return self._state.steps_left

    def __iter__(self) -> EpochIterator:
        check_not_in_a_dataloader()
        if self._world_detected:
            check_world_is_current(self.world)
        if self._running is not None:
            self._running.close()
        self._state.warn_of_peeks()
        return self._looped(*self._state.begin())

    def ranges(self, ranges: Sequence[range]) -> EpochIterator:
        """Deliver some ranges of the current epoch's positions, one after the other, to this rank alone.

        Each range is cut into batches from its first position on, the last of which may have fewer samples. Samples,
        random draws and batches are those of the epoch, whatever the ranks. The Loader's state stays where it is.

        Raises ConfigError for a Loader with `bucket_by`, whose positions are no samples.
        """
        if self._running is not None:
            self._running.close()
        order = Ranges(self._state.order, ranges, self._batch_size)
        return self._looped(order, Schedule(order.n, World(), 1, unit="batch"), EpochProgress())

    def _looped(self, order: Order, schedule: Schedule, progress: EpochProgress) -> EpochIterator:
        self._prefetcher.check_process()  # before any thread starts to work for it
        self._first_batch.compare_fields(order, schedule)
        loop = EpochIterator(
            workers=self._workers,
            prefetcher=self._prefetcher,
            quarantine=self._quarantine,
            first_batch=self._first_batch,
            agreement=self._agreement,
            source_names=self._sources,
            to=self._to,
        )
        self._begin(loop, order, schedule, progress)
        return loop

    def _begin(self, loop: EpochIterator, order: Order, schedule: Schedule, progress: EpochProgress) -> None:
        # The iterator itself is not kept: when a loop that is left early drops it, its threads end.
        self._running, self._loop = loop.begin(order, schedule, progress), weakref.ref(loop)
        self._measured = self.stats(all_epochs=True), self._running.meter
        self._agreement.begin(self._state, schedule)

    @property
    def batch_sampler(self) -> BatchSampler:
        """For Lightning, which names each of its epochs to it: the Loader then delivers the epoch of that number.

        A state that was just loaded stays, if it is of that epoch or of a later one.
        """
        return BatchSampler(self._state, self._batch_size, self.set_epoch)

    @property
    def sampler(self) -> NoReturn:
        """None: libraries look for one to skip batches with it."""
        raise AttributeError(
            "a Loader divides the samples among the ranks itself, and instead of skipping batches it resumes with "
            "load_state_dict(state). Give it to no DataLoader and no skip_first_batches; transformers' Trainer leaves "
            "resuming to the Loader with ignore_data_skip=True, see docs/frameworks.md"
        )

    def __getitem__(self, index: object) -> NoReturn:
        raise TypeError(
            "a Loader delivers batches in order, none by its number: loop over it. It needs no DataLoader around it; "
            "for a DataLoader of your own there is shardio.TorchDataset"
        )

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop deliver `epoch`, from its beginning, or its rest if a state of that epoch was just loaded.

        You need no `set_epoch` for another order in each epoch. A running loop continues unchanged, and no longer
        advances the state; one that has delivered nothing yet delivers `epoch` itself. Raises ConfigError unless
        `epoch` is an integer in [0, 2^63); all epochs of a weighted mixture have at most 2^62 samples together.
        """
        number, loop = self._state.checked_epoch(epoch), None if self._loop is None else self._loop()
        if loop is None or not loop.delivered_nothing:
            self._state.set_epoch(number)
        elif self.epoch != number:
            self._state.set_epoch(number)
            loop.close()
            self._begin(loop, *self._state.begin())

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch as a few numbers, the same on every rank. It counts delivered batches.

        `global_batch` is the number of samples per step of all ranks. With `bucket_by` it and `position` count
        batches, and `buckets`, otherwise "none", says in words what makes them. `roles` is a JSON object with the roles
        of delivered fields that have one, such as masks. The state of a weighted mixture also has `sources`, a digest
        of them; `turns`, the samples taken of each source since epoch 0, in the order of the sources; and `since`, the
        number of all samples before a resume last changed weights. All values are numbers, strings and lists of
        numbers, as checkpoints of any library keep them.

        After an epoch's last batch it is the beginning of the next epoch. The first batch of a loop counts while the
        iterator lives: save the state inside the loop, as a loop that is left after one batch counts as a peek.
        """
        return self._state.save()

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Resume from `state`, which may come from a loader with another world size or batch size.

        The next loop delivers the rest of the state's epoch, and `state_dict` returns the state at once. An iterator
        that has delivered nothing begins there itself. One that has delivered batches is closed: its next `next` raises
        PipelineClosed, so leave the loop and begin a new one. It goes on if the state is the one that `state_dict`
        returns.

        Raises StateMismatch, with both values, if the state belongs to another dataset, seed, order or version; nothing
        changes then, and a loop goes on. With `strict=False` another dataset, seed or order only warns (StateWarning):
        the resumed epoch may deliver samples twice or not at all, or starts over if the number of samples differs.
        Later epochs are complete. Another role of a delivered field, as a mask that has become an image, warns as well.

        A mixture of the same sources may resume with other weights: these apply from the resumed position on, and each
        source continues where it was. A dataset may have grown (`shardio append`) since the state was saved: the
        state's epoch ends with the samples that it began with, and the next epoch has all.
        """
        resumption, loop = self._state.checked(state, strict=strict), None if self._loop is None else self._loop()
        if loop is None or loop.is_over:
            self._state.resume(resumption)
        elif self._state.is_at(resumption):
            self._state.stay(resumption)
        else:
            has_delivered = not loop.delivered_nothing
            loop.close(f"load_state_dict moved the Loader to {resumption.place}: leave this loop and begin another one")
            self._state.resume(resumption)
            if not has_delivered:
                self._begin(loop, *self._state.begin())

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
        earlier, meter = self._measured
        last = LoaderStats() if meter is None else meter.read()
        return earlier + last if all_epochs else last


def _rebuild(arguments: dict[str, Any], state: Mapping[str, Any], world_detected: bool) -> Loader:
    loader = Loader(**arguments)
    loader._world_detected = world_detected
    loader.load_state_dict(state)
    return loader
