"""Statistics of a dataset: sizes, labels and image sizes of all samples, pixels and values of some.

The shards' indexes are counted for every sample, block by block and in bounded memory. Images, texts and arrays are
read and decoded of a random sample only. `figures` holds the results, `counting` computes them, `report` shows them
as text. These are `DatasetStats`; the statistics of a running loader are `shardio.LoaderStats`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np

from ...dataset.dataset import Dataset
from ...dataset.opening import as_dataset
from ...dataset.store_access import StoreAccess
from ...errors import BadSample, ConfigError
from ...format.fields import present_column
from ...order.permutation import Permutation, derive
from ...system.threads import in_order
from ...system.types import Indices
from ...views.view import BaseDataset
from ..examine import blocks, read_blocks, reason, threads
from .counting import FieldCounter, SourceCounter, holds_integers
from .field_view import Axes, FillValues, views
from .figures import BadValue
from .figures import DatasetStats as DatasetStats
from .figures import FieldStats as FieldStats

Progress = Callable[[str, int, int], None]
"""Called with the name of the pass, the number of samples done and the total."""

_COUNTED_SAMPLES = 1 << 16  # at a time: a few columns of numbers of each
_DECODED_SAMPLES = 32  # at a time: enough to read them together, few enough for every thread to have some
_SAMPLE_KEY = 0x636F6E74656E7473  # keeps the sample apart from the first batch of a loader with the same seed


def stats(
    dataset: str | os.PathLike[str] | BaseDataset,
    *,
    sample: int | Literal["all"] = 1000,
    seed: int = 0,
    fill_values: Mapping[str, FillValues] | None = None,
    channel_axis: Mapping[str, Axes] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    store_options: Mapping[str, str] | None = None,
) -> DatasetStats:
    """Return figures of the content of a dataset.

    Args:
        dataset: a dataset or view, or what `shardio.open` takes. A view that draws samples anew is counted in epoch 0
            of `seed`.
        sample: the number of random samples to read and decode images, texts, JSON and arrays of; 0 for none, `"all"`
            for all. Means of fewer come with their standard error.
        seed: seed of the choice of samples.
        fill_values: by field, the number or numbers that mean "no value": they are counted and left out, like NaN. By
            default, those that the field's attributes `_FillValue` and `missing_value` state.
        channel_axis: by field, the axis of arrays whose indices have figures of their own, or several, such as (0, 1)
            for each level of each variable, or None for none. By default, the first axis if its length is at most 64,
            as `Normalize` takes it.
        workers: the number of threads; None for one per core. It does not change the result.
        progress: called with `counting` or `decoding`, the number of samples done and the total.
        cache, cache_size, store_options: for a `dataset` given as a path or URL, see `shardio.open`.

    Returns:
        All figures; `bad` names the chosen samples that cannot be read or decoded.

    Raises ConfigError for a wrong argument, ShardCorrupt if the index of a shard cannot be read, and for a path
    whatever `shardio.open` raises.
    """
    if sample != "all" and (isinstance(sample, bool) or not isinstance(sample, int) or sample < 0):
        raise ConfigError("{sample} must be an integer of at least 0, or 'all', got {!r}", sample)
    thread_count, report_progress = threads(workers), progress or (lambda *_: None)
    access = StoreAccess.of(dataset, cache=cache, cache_size=cache_size, store_options=store_options)
    source = as_dataset(dataset, access)
    seen = views(source.fields, fill_values or {}, channel_axis or {})
    counters = {name: FieldCounter(name, field, len(source), seen[name]) for name, field in source.fields.items()}
    labels = counters.get("label")
    labels = labels if labels is not None and holds_integers(labels.field) else None
    sources = {name: SourceCounter(names, labels) for name, names in source.id_columns.items() if names}
    for first in range(0, len(source), _COUNTED_SAMPLES):
        last = min(first + _COUNTED_SAMPLES, len(source))
        numbers = _numbers(source, seed, np.arange(first, last))
        selection = source.selection(numbers)
        for counter in counters.values():
            counter.count(selection)
        for name, of_source in sources.items():
            of_source.count(source.sample_ids(numbers)[name], selection)
        report_progress("counting", last, len(source))
    most = len(source) if sample == "all" else min(sample, len(source))
    chosen = np.arange(len(source))
    if most < len(source):
        chosen = np.sort(Permutation(len(source), derive(seed, _SAMPLE_KEY))(np.arange(most)))
    chosen = np.sort(_numbers(source, seed, chosen))
    decoded = {name: c for name, c in counters.items() if c.field.kind not in ("scalar", "bytes")}
    sampled, bad = 0, list[BadValue]()
    work = partial(_inspect_block, source, decoded)
    parts = blocks(source, chosen, _DECODED_SAMPLES) if decoded else ()
    for size, inspected, found in in_order(work, parts, thread_count):
        for name, values in inspected.items():
            counters[name].add(values)
        bad += found
        sampled += size
        report_progress("decoding", sampled, len(chosen))
    fields = {
        name: counter.stats(source.metadata, source.fields, len(source) if most < len(source) else 0)
        for name, counter in counters.items()
    }
    shards = source.manifest.shards if isinstance(source, Dataset) else None
    return DatasetStats(
        path=str(source.path),
        view=None if isinstance(source, Dataset) else repr(source).removeprefix("<").removesuffix(">"),
        digest=source.digest,
        container=source.manifest.container if isinstance(source, Dataset) else None,
        samples=len(source),
        shards=None if shards is None else len(shards),
        bytes=None if shards is None else int(shards.bytes.sum()),
        sampled=sampled,
        seed=seed,
        bad=tuple(bad),
        fields=fields,
        joined={name: f"{place}" for name in fields if (place := source.joined_from(name)) is not None},
        sources={
            name: counter.sources(fields["label"].classes if labels else None) for name, counter in sources.items()
        },
    )


def _numbers(dataset: BaseDataset, seed: int, positions: Indices) -> Indices:
    """Return the numbers of the samples that are at some positions in epoch 0, in stored order."""
    return dataset.plan(seed, None, 1, 1).lookup(positions)[0] if dataset.orders_itself else positions


def _inspect_block(
    dataset: BaseDataset, counters: Mapping[str, FieldCounter], indices: Indices
) -> tuple[int, dict[str, list[Any]], list[BadValue]]:
    """Read and decode fields of samples of one shard; return how many samples, what to count by field, bad values."""
    inspected: dict[str, list[Any]] = {name: [] for name in counters}
    bad: list[BadValue] = []
    present = {name: present_column(name) for name, counter in counters.items() if counter.field.optional}
    read = [*(name for counter in counters.values() for name in counter.inspected), *present.values()]
    for part, columns in read_blocks(dataset, indices, read):
        if isinstance(columns, Exception):
            location = dataset.locate(int(part[0]))
            bad.append(BadValue(location, None, reason(columns, dataset, location.shard)))
            continue
        for name, counter in counters.items():
            there = columns[present[name]] if name in present else np.ones(len(part), np.bool_)
            if counter.field.fixed:
                if there.any():
                    inspected[name].append(counter.inspect(columns[name][there]))
                continue
            values = zip(*(columns[each] for each in counter.inspected), strict=True)
            for index, stored, has in zip(part.tolist(), values, there.tolist(), strict=True):
                if not has:
                    continue
                try:
                    inspected[name].append(counter.inspect(*stored))
                except BadSample as error:
                    bad.append(BadValue(dataset.locate(index), name, f"{error}"))
    return len(indices), inspected, sorted(bad, key=lambda value: value.location.index)
