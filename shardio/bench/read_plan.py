"""Computes the samples, bytes and shards that each rank of a job would read, from order and manifests alone."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dataset.dataset import Dataset
from ..dataset.opening import Place, as_dataset
from ..dataset.store_access import DEFAULTS, StoreAccess, load_manifest
from ..errors import ConfigError
from ..order.plan import Assign, Schedule, Shuffle, Tail
from ..order.world import World
from ..stores.url import as_url
from ..views.view import BaseDataset

EXACT = 1 << 24  # positions that are looked up at most; of more, evenly spread ranks are looked at
_AT_ONCE = 1 << 22  # positions


@dataclass(frozen=True, slots=True)
class Extent:
    """A figure of several ranks: the smallest, their mean, and the largest."""

    smallest: float
    mean: float
    largest: float

    @classmethod
    def of(cls, values: NDArray[Any]) -> Extent:
        """Return the extent of one or more values."""
        return cls(float(values.min()), float(values.mean()), float(values.max()))

    @property
    def balance(self) -> float:
        """The mean divided by the largest: 1 where all ranks have the same, less where they wait for one."""
        return self.mean / self.largest if self.largest else 1.0


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The reads of an epoch, by rank.

    Attributes:
        samples: the samples of an epoch.
        shards: the shards of the dataset; of a view, those of the datasets that it is of.
        world: the number of ranks.
        batch_size: samples per rank and step.
        global_batch: samples of all ranks per step.
        steps: steps of the epoch, the same on every rank.
        dropped: samples that the tail leaves out.
        repeated: samples that the tail delivers again, marked as not valid.
        looked_at: the number of ranks whose samples were looked up; `per_rank_*` are theirs.
        per_rank_samples: samples per rank, repeated ones included.
        per_rank_bytes: stored bytes per rank. A sample counts with the mean of its shard.
        per_rank_shards: the shards that a rank reads from.
        per_step_shards: the shards that a rank reads from in one step.
    """

    samples: int
    shards: int
    world: int
    batch_size: int
    global_batch: int
    steps: int
    dropped: int
    repeated: int
    looked_at: int
    per_rank_samples: int
    per_rank_bytes: Extent
    per_rank_shards: Extent
    per_step_shards: Extent

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        balance = {"balance": self.per_rank_bytes.balance}
        return {"schema": "shardio-plan/1", **asdict(self), **balance}


def read_plan(
    dataset: Place,
    *,
    world: int,
    batch_size: int = 256,
    shuffle: Shuffle = "global",
    block: int = 64,
    window: int = 16,
    tail: Tail = "drop",
    assign: Assign = "rank",
    seed: int = 0,
    epoch: int = 0,
    access: StoreAccess = DEFAULTS,
) -> ReadPlan:
    """Return what each rank would read in an epoch. With more than 17 million samples, some ranks stand for all.

    Args:
        dataset: a dataset or a view, or its path or URL. It reads only the manifest of a dataset, and what
            the condition or split of a view needs.
        world: number of ranks.
        batch_size: samples per rank and step.
        shuffle: order of the samples.
        block: with `"block"`: samples that stay together.
        window: with `"block"`: blocks that are mixed.
        tail: what to do with the last samples if they fill no global batch.
        assign: how ranks share out a global batch: by position, or as neighbours in storage.
        seed: seed of the order.
        epoch: number of the epoch, from 0.
        access: how a dataset at a URL is reached.

    Raises ConfigError for an argument that breaks a rule, and what `shardio.open` raises.
    """
    read = _described(dataset, access)
    samples, means = len(read), read.shard_means
    plan = read.plan(seed, shuffle, block, window).at_epoch(epoch)
    if world < 1:
        raise ConfigError(f"world must be at least 1, got {world}")
    first = Schedule(samples, World(0, world, 0, 1), batch_size, tail, assign=assign)
    steps = len(first)
    first.check_steps()
    looked_up = batch_size if assign == "rank" else first.global_batch  # samples per step, to know those of one rank
    count = max(1, min(world, EXACT // max(1, steps * looked_up)))
    ranks = np.unique(np.linspace(0, world - 1, count).astype(np.int64)).tolist()
    sizes, touched, per_step = [], [], []
    for rank in ranks:
        seen = np.zeros(len(means), np.bool_)
        size, by_step = 0.0, []
        schedule = Schedule(samples, World(rank, world, 0, 1), batch_size, tail, assign=assign)
        at_once = max(1, _AT_ONCE // looked_up)  # steps
        for step in range(0, steps, at_once):
            where = read.shard_numbers(schedule.part(plan, step, min(at_once, steps - step)).indices)
            size += float(means[where].sum())
            seen[where] = True
            ordered = np.sort(where.reshape(-1, batch_size), axis=1)
            by_step.append((np.diff(ordered, axis=1) != 0).sum(axis=1) + 1)
        sizes.append(size)
        touched.append(int(seen.sum()))
        per_step.append(np.concatenate(by_step))
    rest = samples - steps * first.global_batch
    return ReadPlan(
        samples=samples,
        shards=len(means),
        world=world,
        batch_size=batch_size,
        global_batch=first.global_batch,
        steps=steps,
        dropped=max(0, rest),
        repeated=max(0, -rest),
        looked_at=len(ranks),
        per_rank_samples=steps * batch_size,
        per_rank_bytes=Extent.of(np.array(sizes)),
        per_rank_shards=Extent.of(np.array(touched)),
        per_step_shards=Extent.of(np.concatenate(per_step)),
    )


def _described(place: Place, access: StoreAccess) -> BaseDataset:
    """Return a dataset or a view, without the shards of a dataset in a store: they are not read."""
    if isinstance(place, BaseDataset) or as_url(place) is None:
        return as_dataset(place, access)
    return Dataset(load_manifest(place, access), Path(os.fspath(place)))
