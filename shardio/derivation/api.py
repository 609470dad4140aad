"""`shardio.derive`: a function of every sample, computed once each on any number of ranks, becomes a dataset."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..conversion.api import announce
from ..conversion.pack import PackOptions, WrittenDataset, pack
from ..conversion.runners import Progress, silent
from ..conversion.shard_tasks import TaskContext, WriteTask, throughout
from ..conversion.source import Delegated
from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..dataset.opening import Place, as_dataset, at_bottom
from ..dataset.store_access import DEFAULTS, StoreAccess
from ..dataset.writer import DEFAULT_SHARD_SIZE, on_disk
from ..engines.fused_images import Decode, EngineName
from ..errors import ConfigError, NotADataset, Option
from ..format.fields import describe_fields
from ..loader.batch.field_names import Fields
from ..loader.batch.transforms_by_field import Transforms
from ..loader.stats import LoaderStats
from ..order.world import World
from ..output import open_output
from ..output.records import compare
from ..stores.url import as_url
from ..system import cpus
from ..system.rules import at_least_one
from ..system.units import counted, parse_size
from ..transforms import FIXED

if TYPE_CHECKING:
    from .outputs import Columns

_SHARDS = 64
"""A dataset has at least so many shards if batches allow, so that ranks share the work, and kills lose little."""


def derive(
    dataset: Place,
    function: Callable[[dict[str, Any]], Any],
    out: str | os.PathLike[str],
    *,
    version: str,
    batch_size: int,
    fields: Fields = None,
    transforms: Transforms = None,
    decode: Decode = "exact",
    engine: EngineName = "cpu",
    orient: bool = False,
    copies: int | None = None,
    seed: int = 0,
    device: str | None = None,
    threads: int | Literal["auto"] = "auto",
    container: str = "hdf5",
    shard_samples: int | None = None,
    nan: Literal["raise", "keep"] = "raise",
    check: int = 0,
    max_bad: float = 0,
    world: World | None = None,
    resume: bool = False,
    if_missing: bool = False,
    overwrite: bool = False,
    store_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
    report: Callable[[WrittenDataset, LoaderStats], None] | None = None,
) -> Dataset:
    """Run a function on every sample, exactly once, and write what it returns as a dataset at `out`.

    Sample i of the result is computed from sample i of `dataset`. The function gets batches in stored order, decoded,
    transformed and sent to the device as by a Loader. If it returns the same values for the same batch, the bytes are
    the same on any number of ranks, and after any kill.

    Examples:
        >>> import shardio
        >>> shardio.convert("photos", "data/photos", converter="imagefolder")
        <Conversion: 40 samples in 1 shard; fields image, label, key...>
        >>> def mean_color(batch):
        ...     return {"color": batch["image"].float().mean(dim=(1, 2))}
        >>> crop = [shardio.Resize(64), shardio.CenterCrop(64)]
        >>> shardio.derive("data/photos", mean_color, "data/colors", version="1", batch_size=16, transforms=crop)
        <Dataset ...data/colors: 40 samples in 3 hdf5 shards, fields color>

    Args:
        dataset: a dataset or a view, or its path or URL.
        function: gets a batch, a dict as a Loader delivers it, under `torch.inference_mode()`. It returns a dict, or
            one tensor, which becomes the field `output`: tensors or arrays `[B, ...]`, or lists of B arrays that differ
            in their first axis alone, strings, files of images, or JSON values. Every batch must have the fields,
            dtypes and shapes of the first.
        out: the directory of the new dataset, empty or nonexistent; or its URL.
        version: the version of the function, such as dino-s14-1. Change it whenever the function returns other values:
            neither its code nor its weights are compared.
        batch_size: samples per batch. Batches are cut from the beginning of each shard.
        fields: the fields that the function gets, such as image; by default all.
        transforms: as of a Loader. Random ones need `copies`.
        decode: how images are decoded: exact or fast, as of a Loader.
        engine: what decodes images: cpu, dali, nvimgcodec or auto, as of a Loader; cpu gives the same bytes anywhere.
        orient: rotate image files upright by their EXIF orientation.
        copies: how often to compute every sample, with the random draws of a Loader's epochs 0 to copies - 1. Values
            get an axis for the copies, before their own: [copies, ...].
        seed: the seed of random transforms.
        device: the device of batches: cpu; or cuda, of which each rank gets the GPU of its local rank.
        threads: the number of threads that decode, as of a Loader.
        container: the container of the shards: hdf5, tar or lmdb.
        shard_samples: samples per shard, rounded up to whole batches. A killed rank loses the shard that it computes
            and the one that it syncs. By default, about 64 MB, estimated from the first batch, but at most a 64th of
            all samples.
        nan: the treatment of NaN in a value. raise: stop, and name the sample. keep: store it.
        check: the number of batches, evenly spaced, to compute twice beforehand, and compare.
        max_bad: how many samples may be unreadable, a count, or below 1 a share of all. Their values are missing, and
            all fields are optional. By default, such a sample raises its error.
        world: this process's rank among those that share the work; by default that of `World.detect()`.
        resume: continue where the work was interrupted, on any number of ranks. A finished dataset stays.
        if_missing: as `resume`, and do not call the function at all if the dataset is finished.
        overwrite: replace the dataset at the output once the new one is complete.
        store_options: for datasets at URLs: options of their store, see `shardio.open`.
        progress: called from time to time with a word for the work, the number of samples done, and the total.
        tell: called with each note: of `check`, and of samples without values. By default these are warnings.
        report: called in the end with what was written, and the statistics of this rank's Loader.

    Returns:
        The dataset at `out`, opened. The manifest's `conversion["derived"]` names the digest of its input.

    Raises:
        ConfigError: an argument breaks a rule; `out` is what is derived from; or what is at `out` was derived from
            another input, or with another version or options, which are then named with both values.
        MapError: values that cannot be stored, NaN, or a batch that differs from the first; the samples are named.
        BadSample, ShardCorrupt: a sample is bad, with `max_bad=0`. TooManyBad: more samples are bad than that.
        OSError, StoreError: `out` cannot be written.
    """
    world = World.detect() if world is None else world
    access = StoreAccess.of(dataset, out, store_options=store_options)
    view, place = as_dataset(dataset, access), open_output(out, store_options, also_read=True)
    opened = partial(open_dataset, out, DEFAULTS if as_url(out) is None else access)
    on_disk(container)
    if os.path.realpath(f"{place.path}") in [os.path.realpath(f"{each.path}") for each in at_bottom(view)]:
        raise ConfigError("{out} must be another place than what is derived from, got {}", place.path)
    if not isinstance(version, str) or not version:
        raise ConfigError("{version} must be text, such as '1', got {!r}", version)
    if nan not in ("raise", "keep"):
        raise ConfigError("{nan} must be 'raise' or 'keep', got {!r}", nan)
    if check:
        at_least_one(check, "check")
    if view.orders_itself:
        raise ConfigError(f"{view!r} draws its samples anew in each epoch: derive from what it draws from")
    job = PackOptions(
        workers=2,
        threads=True,
        world=world,
        on_error="skip" if max_bad else "raise",
        max_bad=max_bad,
        resume=resume or if_missing,
        overwrite=overwrite,
        progress=progress or silent,
    )
    named = function if inspect.isroutine(function) else type(function)
    read: dict[str, Any] = {
        "fields": fields, "transforms": transforms, "decode": decode, "engine": engine, "orient": orient,
    }  # fmt: skip
    size, n = at_least_one(batch_size, "batch_size"), len(view)
    derived = {
        "digest": view.digest,
        "samples": n,
        "function": f"{named.__module__}:{named.__qualname__}",
        "version": version,
        "transforms": ", ".join(f"{name}={value!r}" for name, value in read.items() if value),
        "copies": "" if copies is None else f"{copies} of seed {seed}",
    }
    plan: dict[str, Any] = {"container": container, "batch_size": size, "derived": derived}
    if shard_samples is not None:
        plan["shard_samples"] = -(-at_least_one(shard_samples, "shard_samples") // size) * size
    if if_missing and not overwrite and (found := _finished(opened, plan)) is not None:
        if report is not None:
            report(WrittenDataset(place.path, found.manifest), LoaderStats())
        return found
    from .deriver import Deriver, loaders  # loads torch

    count = 1 if copies is None else at_least_one(copies, "copies")
    if copies is not None:
        threads = max(1, (cpus.share(world.local_size) if threads == "auto" else threads) // count)
    read |= {"seed": seed, "threads": threads, "on_bad_sample": "mask" if max_bad else "raise"}
    deriver = Deriver(
        loaders(view, world, count, device, size, **read),
        function,
        stacks=copies is not None,
        keeps_nan=nan == "keep",
        recorded=lambda: {shard for run in place.plans() for shard in place.run(run, container, beside=False).done()},
    )
    _check_draws(transforms, copies)
    if check and not world.rank:
        told = deriver.repeated([range(n)[at * size : (at + 1) * size] for at in throughout(-(-n // size), check)])
        announce(told, told, tell, world)
    deriver.first = next(deriver.computed([range(min(size, n))]))  # written before any other call of the function
    length = plan.setdefault("shard_samples", _shard_samples(deriver.first.columns, n, size))
    tasks = [WriteTask(number, at, range(n)[at : at + length]) for number, at in enumerate(range(0, n, length))]
    deriver.tasks = tasks[world.rank :: world.size]
    stored = {name: replace(field, optional=max_bad > 0) for name, field in deriver.fields.items()}
    source = Delegated(None, fields=stored, metadata={"source": "derive"})
    context = TaskContext(source, container, skip=max_bad > 0, make_shard=deriver.make_shard)
    written = pack(place, context, tasks, plan | {"fields": describe_fields(stored), "shards": len(tasks)}, job)
    if bad := written.skipped:
        lacking = f"{counted(len(bad), 'sample')} cannot be read and got no values; the first: {bad[0].reason}"
        announce([lacking], [lacking], tell, world)
    if report is not None:
        report(written, sum((loader.stats(all_epochs=True) for loader in deriver.loaders), LoaderStats()))
    return opened()


def _check_draws(transforms: Transforms, copies: int | None) -> None:
    """Raise ConfigError for random transforms without copies, and for copies without such."""
    lists = transforms.values() if isinstance(transforms, Mapping) else [transforms or ()]
    random = [each for listed in lists for each in listed if not isinstance(each, FIXED)]
    if random and copies is None:
        raise ConfigError("{!r} is random: copies=k computes k draws of each sample", random[0])
    if copies is not None and not random:
        raise ConfigError("{} needs a random transform, or all copies are equal", Option("copies", copies))


def _finished(opened: Callable[[], Dataset], plan: Mapping[str, Any]) -> Dataset | None:
    """Return the dataset that is there, None if there is none; ConfigError if it was derived in another way."""
    try:
        dataset = opened()
    except NotADataset:
        return None
    found = dataset.manifest.conversion
    compare(f"{dataset.path}: the existing dataset", found, {**found, **plan})
    return dataset


def _shard_samples(first: Columns, n: int, batch_size: int) -> int:
    """Return the samples of a shard, whole batches, by the size of the first batch's values."""
    values = [value for column in first.values() for value in column]
    size = sum(value.nbytes if isinstance(value, np.ndarray | np.generic) else len(f"{value}") for value in values)
    most = parse_size(DEFAULT_SHARD_SIZE, "shard_size") * min(batch_size, n) // max(1, size)
    return -(-min(max(1, most), -(-n // _SHARDS)) // batch_size) * batch_size
