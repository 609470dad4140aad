"""Conversion: a source's samples packed into shards by many processes, the same bytes whatever their number.

Shards are cut by the source's own sizes before any is written, so each is a task of its own, and which process writes
it changes nothing. Every shard that stands has a record in the output's journal, so a conversion that was cut off goes
on where it stopped.
"""

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..dataset.shard_writer import ShardWriter
from ..dataset.writer import DEFAULT_SHARD_SIZE, on_disk
from ..errors import ConfigError, SourceError
from ..format import checksums, manifest
from ..order.world import World
from ..system.units import parse_size
from .choice import cut as cut
from .journal import Skipped as Skipped
from .pack import Conversion as Conversion
from .pack import OnError, PackOptions, Progress, pack, silent, standing
from .runners import told
from .source import Source
from .work import Samples, Settings, fingerprint, tasks


def convert(
    source: Source,
    out: str | Path,
    *,
    container: str = "tar",
    shard_size: int | str = DEFAULT_SHARD_SIZE,
    numbers: NDArray[np.int64] | None = None,
    workers: int = 1,
    dask: str | None = None,
    world: World | None = None,
    on_error: OnError = "raise",
    max_bad: float = 0.01,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Conversion:
    """Packs samples of `source` into a dataset at `out`.

    Args:
        source: from a converter.
        out: the dataset's directory; empty or not there yet.
        container: `"tar"`, `"hdf5"` or `"lmdb"`.
        shard_size: a shard ends once its samples take about this much.
        numbers: which samples, int64 [n], in this order (see `choice`); all without it.
        workers: processes; 1 works in this one.
        dask: a Dask scheduler's address, whose workers do the work instead, or `"local"` for one on this machine.
        world: this process among those that all call this function, and each write their part; one without it.
        on_error: `"raise"` ends at the first bad sample; `"skip"` leaves such samples out.
        max_bad: with `"skip"`, how many samples may be bad: a count, or below 1 a share.
        resume: go on with what is left of this conversion at `out`, if it was cut off; shards that stand are checked
            and kept. A dataset that this conversion has made already is left as it is.
        overwrite: replace the dataset at `out`, which stays until the new one is whole.
        progress: see `Progress`.
        options: the container's own.

    Returns:
        The manifest, on each rank, and what was left out, on the first one.

    Raises SourceError for a source without samples, BadSample, TooManyBad, ConfigError (also if another conversion is
    at work at `out`), OSError. Nothing that was cut off passes for a dataset: without a `shardio.json` it is none.
    """
    size = parse_size(shard_size, "shard_size")
    how = PackOptions(workers, dask, world or World(), on_error, max_bad, resume, overwrite, progress or silent)
    on_disk(container)
    manifest.check_metadata(source.metadata)
    settings = Settings(source, Path(out).absolute(), container, options, on_error == "skip")
    _check_options(settings)
    todo, plan = _planned(settings, numbers, size)
    made = standing(settings, plan, how)
    return pack(settings, todo, plan, how) if made is None else Conversion(made, ())


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a conversion would come to, by estimates.

    Attributes:
        samples: that it would have, bad ones included.
        shards: files.
        bytes: of the samples, as the source tells them, without what a container adds to each.
    """

    samples: int
    shards: int
    bytes: int


def estimate(
    source: Source,
    *,
    container: str = "tar",
    shard_size: int | str = DEFAULT_SHARD_SIZE,
    numbers: NDArray[np.int64] | None = None,
    **options: Any,
) -> Estimate:
    """What `convert` would make of the same arguments. Nothing is written, and few samples are read, if any.

    Raises ConfigError for options that do not fit, SourceError for a source without samples. Where it would be written
    is not looked at.
    """
    on_disk(container)
    _check_options(Settings(source, Path(), container, options))
    sizes = _sizes(source, numbers)
    return Estimate(len(sizes), len(cut(sizes, parse_size(shard_size, "shard_size"))), int(sizes.sum()))


def _check_options(settings: Settings) -> None:
    """ConfigError for what no shard can be written with, before anything is there."""
    with tempfile.TemporaryDirectory() as folder:
        ShardWriter(Path(folder), settings.container, settings.source.fields, 0, 0, settings.options).discard()


def _planned(
    settings: Settings, numbers: NDArray[np.int64] | None, shard_size: int
) -> tuple[list[Samples], dict[str, Any]]:
    """The shards to be written, and what tells this conversion from another."""
    sizes = _sizes(settings.source, numbers)
    chosen = range(len(sizes)) if numbers is None else numbers
    todo = tasks(chosen, cut(sizes, shard_size))
    content = xxhash.xxh3_128(np.ascontiguousarray(sizes).data)
    content.update(b"" if numbers is None else np.ascontiguousarray(numbers).data)
    plan = {
        "container": settings.container,
        "options": {name: str(value) for name, value in settings.options.items()},
        "fields": checksums.Digest(settings.source.fields).text(),
        "metadata": xxhash.xxh3_128_hexdigest(repr(sorted(settings.source.metadata.items())).encode()),
        "samples": len(sizes),
        "shard_size": shard_size,
        "shards": len(todo),
        "sizes and order": content.hexdigest(),
        "some samples": told(partial(fingerprint, settings.source, chosen)),
        **getattr(settings.source, "changes", {}),  # of a Reworked source: named, should the samples above not differ
    }
    return todo, plan


def _sizes(source: Source, numbers: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """About how many bytes each sample takes that is converted; ConfigError or SourceError for wrong ones, or none."""
    sizes = source.sizes()
    if numbers is not None:
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(sizes)):
            raise ConfigError(f"numbers must be in [0, {len(sizes)}), they are {numbers.min()} to {numbers.max()}")
        sizes = sizes[numbers]
    if not len(sizes):
        raise SourceError("the source holds no samples" if numbers is None else "no samples are chosen")
    return sizes
