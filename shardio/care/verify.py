"""Verification: is a dataset on disk still what its manifest says?"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..dataset.store_access import StoreAccess
from ..engines import whole_images
from ..errors import BadSample, ConfigError, DatasetError
from ..foreign import video
from ..format import checksums
from ..format.fields import (
    CHECKSUM,
    CHECKSUM_BYTES,
    Field,
    content_columns,
    facts_column,
    packets_column,
    present_column,
    shape_column,
)
from ..format.packets import VideoFacts
from ..system.threads import in_order
from ..system.types import Buffer, Indices
from ..views.readable import Location
from ..views.view import BaseDataset
from .examine import blocks, concerns_data, decode, read_blocks, reason, threads


@dataclass(frozen=True, slots=True)
class Problem:
    """One difference between a dataset and its manifest, or a bad sample.

    Attributes:
        shard: the shard's name; None for the dataset as a whole.
        reason: what is wrong.
        location: the place of the bad sample; None if the problem concerns no single sample.
        count: the number of problems that this one summarizes.
    """

    shard: str | None
    reason: str
    location: Location | None = None
    count: int = 1

    def __str__(self) -> str:
        if self.location is not None:
            return f"{self.location}: {self.reason}"
        stem = (self.shard or "").partition(".")[0]
        names_file = self.shard is None or self.reason.startswith((f"{stem}.", f"{self.shard} "))
        return self.reason if names_file else f"{self.shard}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Return the problem for JSON: shard, row, sample and key (None where there is none), reason and count."""
        row, sample, key = (None,) * 3 if (at := self.location) is None else (at.row, at.index, at.key)
        return {
            "shard": self.shard, "row": row, "sample": sample, "key": key, "reason": self.reason, "count": self.count
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `shardio.verify`.

    Attributes:
        shards: the number of shards that were checked.
        samples: the number of samples that were read, and whose own checksum was computed; 0 unless `deep`.
        found: the problems, in the order of the shards; empty for an intact dataset.
        unchecked: whether samples have no checksums, so that changed values can't be noticed.
    """

    shards: int
    samples: int
    found: tuple[Problem, ...]
    unchecked: bool = False

    @property
    def problems(self) -> tuple[str, ...]:
        """One line per problem, naming shard, sample, value and rule."""
        return tuple(map(str, self.found))

    @property
    def count(self) -> int:
        """The number of problems, including those that are not listed."""
        return sum(problem.count for problem in self.found)

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        problems = [problem.to_dict() for problem in self.found]
        return {"shards": self.shards, "samples": self.samples, "count": self.count, "problems": problems}


def verify(
    dataset: str | os.PathLike[str] | Dataset,
    *,
    deep: bool = False,
    progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
    most: int = 20,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    store_options: Mapping[str, str] | None = None,
) -> Verification:
    """Compare the files of every shard with the manifest, and the checksums of the samples with its digest.

    Args:
        dataset: a path or URL, or a Dataset.
        deep: also read every sample through the container, compare its own checksum, decode its images, videos, texts,
            JSON and arrays, and compare the sizes of its images and the tables of its videos with the stored ones.
        progress: called with the number of shards done and the total.
        workers: the number of threads; None for one per core. It does not change the result.
        most: the number of bad samples to list per shard; further ones are counted.
        cache, cache_size, store_options: for a `dataset` given as a path or URL, see `shardio.open`. Files are compared
            as they are there; samples are read through the cache.

    Raises ConfigError for a wrong argument, and for a path whatever `shardio.open` raises. The result contains the
    problems of the shards.
    """
    if most < 0:
        raise ConfigError("{most} must be at least 0, got {}", most)
    access = StoreAccess.of(dataset, cache=cache, cache_size=cache_size, store_options=store_options)
    if isinstance(dataset, BaseDataset) and not isinstance(dataset, Dataset):
        raise ConfigError(f"the files of a stored dataset are verified, got {dataset!r}: give the dataset it is of")
    with nullcontext(dataset) if isinstance(dataset, Dataset) else closing(open_dataset(dataset, access)) as source:
        shards = source.manifest.shards
        digest = checksums.Digest(source.fields)
        found: list[Problem] = []
        samples = 0
        results = in_order(partial(_run_check, source, most), _checks(source, deep), threads(workers))
        for shard, group in groupby(results, lambda findings: findings.shard):
            examined = list(group)
            for findings in examined:
                digest.update(findings.checksums)
                samples += findings.samples
            if source.manifest.unchecked:
                digest.update_unchecked(shards.checksums[shard])
            found += _problems(shards.names[shard], examined, most)
            if progress is not None:
                progress(shard + 1, len(shards))
        if not found and digest.text() != source.digest:
            difference = f"the digest of the samples' checksums is {digest.text()}, the manifest says {source.digest}"
            found.append(Problem(None, difference))
        return Verification(len(shards), samples, tuple(found), source.manifest.unchecked)


Check: TypeAlias = tuple[int, Indices | None]
"""A shard by its number, and samples of it to read; None to compare its files and checksums with the manifest."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of one check.

    Attributes:
        shard: the number of the shard.
        problems: those of the shard as a whole, and bad samples, as many as may be listed.
        unlisted: the number of further bad samples.
        samples: the number of samples that were read.
        checksums: the stored checksums of all samples of the shard, uint64, from the check of its files.
    """

    shard: int
    problems: Sequence[Problem] = ()
    unlisted: int = 0
    samples: int = 0
    checksums: NDArray[np.uint64] = dataclasses.field(default_factory=lambda: np.empty(0, np.uint64))


def _checks(dataset: Dataset, deep: bool) -> Iterator[Check]:
    for shard, (start, stop) in enumerate(pairwise(dataset.manifest.shards.starts.tolist())):
        yield shard, None
        if deep and (size := dataset.shards.size(shard)) is not None:
            # A file that is too short for all samples cannot be opened, and one check says so.
            whole = dataset.manifest.unchecked or size >= CHECKSUM_BYTES * (stop - start)
            count = stop - start if whole else 1
            for indices in blocks(dataset, np.arange(start, start + count)):
                yield shard, indices


def _problems(name: str, results: Sequence[Findings], most: int) -> list[Problem]:
    """Return the problems of one shard from the results of its checks, at most `most` bad samples among them."""
    found = [problem for findings in results for problem in findings.problems]
    bad = [problem for problem in found if problem.location is not None]
    unlisted = sum(findings.unlisted for findings in results) + len(bad[most:])
    rest = [Problem(name, f"and {unlisted} more bad samples", count=unlisted)] if unlisted else []
    return [*dict.fromkeys(one for one in found if one.location is None), *bad[:most], *rest]  # blocks may repeat some


def _run_check(dataset: Dataset, most: int, check: Check) -> Findings:
    (shard, indices), name = check, dataset.manifest.shards.names[check[0]]
    try:
        if indices is None:
            dataset.shards.check_files(shard)
            if dataset.manifest.unchecked:
                return Findings(shard)
            start, stop = dataset.manifest.shards.starts[shard : shard + 2]
            return Findings(shard, checksums=dataset.selection(np.arange(start, stop)).column(CHECKSUM))
        dataset.shards[shard]  # opens it
    except (DatasetError, OSError) as error:
        if not concerns_data(error):
            raise
        return Findings(shard, [Problem(name, reason(error, dataset, name))])
    sizes = [shape_column(n) for n, field in dataset.fields.items() if field.kind == "image"]
    sums = [] if dataset.manifest.unchecked else [CHECKSUM]
    videos = [name for name, field in dataset.fields.items() if field.kind == "video"]
    tables = [column(name) for name in videos for column in (facts_column, packets_column)]
    read = dict.fromkeys([*dataset.fields, *sizes, *tables, *content_columns(dataset.fields), *sums])
    samples = 0
    faults: dict[int, list[str]] = {}
    for block, columns in read_blocks(dataset, indices, list(read)):
        if isinstance(columns, Exception):
            faults[int(block[0])] = [reason(columns, dataset, name)]
            continue
        samples += len(block)
        for row, fault in _faults(dataset.fields, columns):
            faults.setdefault(int(block[row]), []).append(fault)
    bad = [Problem(name, "; ".join(faults[index]), dataset.locate(index)) for index in sorted(faults)[:most]]
    return Findings(shard, bad, len(faults) - len(bad), samples)


def _faults(fields: Mapping[str, Field], columns: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield the row and the reason of each fault in samples that can be read."""
    names = content_columns(fields)
    actual = checksums.of_samples({n: columns[n] for n in names}, names)
    expected = columns.get(CHECKSUM, actual)
    for row in np.flatnonzero(actual != expected).tolist():
        yield row, f"checksum {int(actual[row]):016x} is not {int(expected[row]):016x}"
    for row in np.flatnonzero(~checksums.whole_videos(columns, fields, len(actual))).tolist():
        yield row, "the bytes of a video have another checksum than the stored one"
    for name, field in fields.items():
        if field.fixed or field.ragged or field.kind == "bytes":  # any bytes of the right size are a value
            continue
        sizes = columns[shape_column(name)].tolist() if field.kind == "image" else [None] * len(actual)
        present = columns[present_column(name)] if field.optional else np.ones(len(actual), np.bool_)
        for row, (stored, size) in enumerate(zip(columns[name], sizes, strict=True)):
            if not present[row]:
                continue
            if field.kind == "video":
                fault = _video_fault(stored, columns[facts_column(name)][row], columns[packets_column(name)][row])
            else:
                fault = _fault(field, bytes(stored), size)
            if fault:
                yield row, f"field {name!r}: {fault}"


def _video_fault(stored: Buffer, facts: NDArray[np.int64], table: Buffer) -> str | None:
    """Return what is wrong with a video or with its table of packets, if anything."""
    try:
        if video.described(stored, whole=True) == (VideoFacts(*facts.tolist()), table):
            return None
        return "its table of packets is another than that of its bytes"
    except BadSample as error:
        return f"{error}"


def _fault(field: Field, stored: bytes, size: Sequence[int] | None) -> str | None:
    """Return what is wrong with a stored value, if anything; an image must have the height and width of `size`."""
    try:
        if size is None:
            decode(field, stored)
        else:
            whole_images.check(stored, field.channels or 3, (size[0], size[1]), mask=field.role == "mask")
    except BadSample as error:
        return f"{error}"
    if size is not None and field.shape not in (None, tuple(size)):
        return f"the image is {tuple(size)} (height, width), the manifest says {field.shape}"
    return None
