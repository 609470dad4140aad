"""What a loader's batches are cut from: an order of samples, or buckets, an order of batches of like lengths."""

from typing import NamedTuple

import numpy as np

from ..errors import ConfigError, Option
from ..order.buckets import BucketRule, Buckets
from ..order.plan import Assign, Order, Schedule, Tail
from ..order.world import World
from ..system.rules import whole_number
from ..views.columns import lengths
from .batch.spec import BatchSpec


class Batching(NamedTuple):
    """The batches of a loader.

    Attributes:
        order: the order of epoch 0.
        schedule: its steps.
        batch_size: samples per batch; of buckets of tokens the mean of epoch 0, rounded.
        largest: the most samples of a batch.
    """

    order: Order
    schedule: Schedule
    batch_size: int
    largest: int


def batching(
    order: Order,
    spec: BatchSpec,
    world: World,
    *,
    batch_size: int | None,
    bucket_by: str | None,
    max_tokens: int | None,
    tail: Tail,
    assign: Assign,
    window: int | None,
) -> Batching:
    """Return the batches that a loader's arguments ask for, see `Loader`.

    Args:
        order: the order of the samples.
        spec: what the batches hold.
        window: the positions that block shuffle keeps together; None for other orders.

    Raises ConfigError for arguments that exclude each other, a field of no lengths, and a sample longer than
    `max_tokens`.
    """
    if max_tokens is not None and bucket_by is None:
        raise ConfigError("{max_tokens} needs {bucket_by}, the field of the samples' lengths, got {!r}", bucket_by)
    if (batch_size is None) == (max_tokens is None):
        raise ConfigError(
            "give {batch_size}, the samples per rank and step, or with {bucket_by} {max_tokens}, the most tokens of a "
            "batch with its padding; got {}",
            "neither" if batch_size is None else "both",
        )
    size = 1 if batch_size is None else _positive(batch_size, "batch_size")
    if bucket_by is None:
        return Batching(order, Schedule(order.n, world, size, tail, assign=assign), size, size)
    if not isinstance(bucket_by, str):
        raise ConfigError("{bucket_by} must be the name of a field, got {!r}", bucket_by)
    if assign != "rank":
        raise ConfigError("{assign} must be 'rank' with {bucket_by}: ranks take whole batches, got {!r}", assign)
    tokens = None if max_tokens is None else _positive(max_tokens, "max_tokens")
    dataset = spec.dataset
    found = lengths(dataset, bucket_by)
    if tokens is not None and int(found.max()) > tokens:
        longer = int(np.argmax(found > tokens))
        place = dataset.path / f"{dataset.locate(longer)}"
        raise ConfigError("{} has length {}, more than {}", place, found[longer], Option("max_tokens", tokens))
    rule = BucketRule(bucket_by, size if tokens is None else None, tokens, window)
    buckets = Buckets(order, found, rule)
    mean = size if tokens is None else max(1, round(order.n / buckets.n))
    return Batching(buckets, Schedule(buckets.n, world, 1, tail, unit="batch"), mean, buckets.largest)


def _positive(value: int, name: str) -> int:
    number = whole_number(value, name)
    if number < 1:
        raise ConfigError("{} must be at least 1, got {}", Option(name), number)
    return number
