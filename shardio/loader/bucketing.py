"""The order that a loader cuts into batches: one of samples, or of buckets (batches of similar lengths)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..engines.jpeg_headers import orientations_of
from ..engines.orientation import upright_sizes
from ..errors import ConfigError, Option
from ..format.fields import describe, shape_column
from ..order.buckets import MOST, BucketRule, Buckets
from ..order.plan import Assign, Order, Schedule, Tail
from ..order.world import World
from ..system.rules import at_least_one
from ..system.types import Indices
from ..transforms import ArrayRecipe, PadTo, RandomWindow
from ..views.columns import AT_ONCE, in_parts, lengths
from ..views.readable import ReadableDataset
from .batch.spec import BatchSpec

_ONE = 1 << 16  # the aspect ratio of a square
_FILES_AT_ONCE = 256


@final
@dataclass(frozen=True, slots=True)
class BatchingOptions:
    """The options that cut an order into batches; `shardio.Loader` explains each.

    Raises ConfigError for options that exclude each other, and sizes below 1.
    """

    batch_size: int | None
    bucket_by: str | None
    max_tokens: int | None
    tail: Tail
    assign: Assign

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.bucket_by is None:
            raise ConfigError("max_tokens needs bucket_by, the field of the samples' lengths, got {!r}", self.bucket_by)
        if (self.batch_size is None) == (self.max_tokens is None):
            raise ConfigError(
                "give {batch_size}, the samples per rank and step, or max_tokens (with bucket_by), the most tokens of "
                "a batch with its padding; got {}",
                "neither" if self.batch_size is None else "both",
            )
        for name in ("batch_size", "max_tokens"):
            if (value := getattr(self, name)) is not None:
                if (number := at_least_one(value, name)) >= 1 << 62:
                    raise ConfigError("{} must be below 2^62, got {}", Option(name), number)
                object.__setattr__(self, name, number)
        if self.bucket_by is None:
            return
        if not isinstance(self.bucket_by, str):
            raise ConfigError("bucket_by must be the name of a field, got {!r}", self.bucket_by)
        if self.assign != "rank":
            raise ConfigError("{assign} must be 'rank' with bucket_by: ranks take whole batches, got {!r}", self.assign)

    def batches(
        self, order: Order, spec: BatchSpec, world: World, window: int | None
    ) -> tuple[Order, Schedule, int, int]:
        """Cut an order into batches.

        Args:
            order: the order of the samples.
            spec: what the batches hold.
            world: the place of this rank, and the number of ranks.
            window: the positions that block shuffle keeps together; None for other orders.

        Returns:
            The order of epoch 0, its steps, the samples per batch (of buckets of tokens the mean of epoch 0, rounded),
            and the most samples of a batch.

        Raises ConfigError for a field of no lengths, and a sample longer than `max_tokens`.
        """
        size, by, tokens = self.batch_size or 1, self.bucket_by, self.max_tokens
        if by is None:
            return order, Schedule(order.n, world, size, self.tail, assign=self.assign), size, size
        name, _, ratio = by.rpartition(":")
        if ratio == "aspect" and by not in spec.dataset.fields:
            if tokens is not None:
                raise ConfigError("max_tokens counts lengths, and {!r} are none: give {batch_size} instead", by)
            found, changes = _aspects(spec, name), "upright" * spec.options.orient
        else:
            found, changes = _delivered(lengths(spec.dataset, by), by, spec)
        rule = BucketRule(by, self.batch_size, tokens, window, changes)
        if tokens is not None and int(found.max()) > tokens:
            raise _longer(found, rule, tokens, spec.dataset)
        buckets = Buckets(order, found, rule)
        mean = size if tokens is None else max(1, round(order.n / buckets.n))
        return buckets, Schedule(buckets.n, world, 1, self.tail, unit="batch"), mean, buckets.largest


def _aspects(spec: BatchSpec, name: str) -> NDArray[np.uint32]:
    """Return the ratio of width to height of images by their numbers, in 65,536ths; 0 where there is none.

    If a Loader turns images upright, these are the ratios of upright images, for which all files are read.
    """
    dataset, field = spec.dataset, spec.dataset.field(name)
    if not field.is_image:
        raise ConfigError("bucket_by='NAME:aspect' takes images; {!r} is {}", name, describe(field))
    turned = spec.options.orient and field.kind == "image"

    def read(numbers: Indices) -> NDArray[np.uint32]:
        if field.fixed:
            sizes = np.full((len(numbers), 2), field.shape, np.int32)
        else:
            sizes = dataset.selection(numbers).column(shape_column(name))
        if turned and len(there := np.flatnonzero(sizes.all(axis=1))):
            files = dataset.selection(numbers[there]).values(name)
            sizes[there] = upright_sizes(sizes[there], orientations_of(files))
        ratios = sizes[:, 1].astype(np.int64) * _ONE // np.maximum(1, sizes[:, 0])
        return ratios.clip(0, MOST).astype(np.uint32)

    return np.concatenate([*in_parts(read, dataset.numbers, _FILES_AT_ONCE if turned else AT_ONCE)])


def _delivered(stored: NDArray[Any], by: str, spec: BatchSpec) -> tuple[NDArray[Any], str]:
    """Return the lengths that samples take in a batch, padding included, and what made them, as in `Bucketing`.

    If several names deliver a ragged field, the longest counts.
    """
    names = [name for name in spec.names.delivered.get(by, ()) if spec.fields[name].ragged]
    ways = dict.fromkeys(_changes(spec.arrays[name].recipe) for name in names)
    if not any(ways):
        return stored, ""
    longest = np.maximum.reduce([_changed(stored.astype(np.int64), changes) for changes in ways])
    made = "|".join(",".join(f"{what}={number}" for what, number in changes) for changes in ways)
    return longest.astype(np.min_scalar_type(int(longest.max()))), made


def _changes(recipe: ArrayRecipe) -> tuple[tuple[str, int], ...]:
    """Return what the transforms of a ragged field make of lengths, in turn."""
    if recipe.out_size:
        return ("max", recipe.out_size[0]), ("min", recipe.out_size[0])
    changes = [("max", each.entries) for each in recipe.transforms if isinstance(each, RandomWindow)]
    if isinstance(rule := recipe.collation, PadTo):
        if rule.length is not None:
            changes += [("max", rule.length)] * (rule.cut is not None) + [("min", rule.length)]
        changes += [("multiple", rule.multiple_of)] * (rule.multiple_of > 1)
    return tuple(changes)


def _changed(lengths: NDArray[np.int64], changes: Sequence[tuple[str, int]]) -> NDArray[np.int64]:
    for what, number in changes:
        if what == "multiple":
            lengths = -(-lengths // number) * number
        else:
            lengths = (np.minimum if what == "max" else np.maximum)(lengths, number)
    return lengths


def _longer(found: NDArray[Any], rule: BucketRule, tokens: int, dataset: ReadableDataset) -> ConfigError:
    """Return the error that names the first sample which is longer than a batch may be."""
    number = int(np.argmax(found > tokens))
    advice = (
        "deliver parts with RandomWindow(n) or PadTo(n, cut='end'), or make rows with cut() or packed() of the dataset"
        if dataset.fields[rule.by].ragged
        else f'leave it out with where("{rule.by} <= {tokens}") of the dataset'
    )
    return ConfigError(
        "{} has {} tokens by {}, and a batch holds at most {}: allow more, or {}",
        dataset.path / f"{dataset.locate(number)}",
        found[number],
        rule.bucketing.by,
        Option("max_tokens", tokens),
        advice,
    )
