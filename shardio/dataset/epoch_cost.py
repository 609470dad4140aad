"""The cost of an epoch of a dataset in a store: requests and bytes, estimated from the manifest alone.

All samples count with the mean size. A node reads each sample with probability 1 / nodes, at a random time of the
epoch with global shuffle, and together with the others of its block with block shuffle. It fetches whole pieces: those
that hold a sample that it reads, once if the cache keeps them until the last reader, else again and again. An LMDB
is fetched whole.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, final

from .. import containers
from ..cache.pace import LONGEST_RUN
from ..containers import side_index
from ..errors import ConfigError, Option
from ..format.fields import with_hidden
from ..format.manifest import Manifest
from ..format.pieces import PIECE


@final
@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests to a store, and the bytes that come back."""

    requests: int
    bytes: int

    def __mul__(self, count: int) -> "Traffic":
        return Traffic(self.requests * count, self.bytes * count)


@final
@dataclass(frozen=True, slots=True)
class EpochCost:
    """The estimated cost of an epoch in one order of samples.

    Attributes:
        shuffle: the order.
        first: the traffic of one node in the first epoch, with an empty cache; opening the dataset is part of it.
        later: the traffic of one node in an epoch after many, when its cache is full or holds all.
        nodes: the number of nodes.
    """

    shuffle: Literal["global", "block"]
    first: Traffic
    later: Traffic
    nodes: int

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values, those of all nodes as well."""
        first, later = asdict(self.first * self.nodes), asdict(self.later * self.nodes)
        return {**asdict(self), "first_of_all_nodes": first, "later_of_all_nodes": later}


def epoch_cost(
    described: Manifest, *, nodes: int = 1, cache_bytes: int | None = None, block: int = 64
) -> tuple[EpochCost, EpochCost]:
    """Estimate the cost of an epoch with global and with block shuffle.

    Args:
        described: the dataset.
        nodes: the number of nodes among which the samples are divided.
        cache_bytes: the bytes that the cache of each node holds; None for all that it reads.
        block: the samples that stay together with block shuffle.

    Raises ConfigError for a value that breaks a rule.
    """
    for name, value in (("nodes", nodes), ("block", block)):
        if value < 1:
            raise ConfigError("{} must be at least 1, got {}", Option(name), value)
    if containers.get(described.container).read_where_it_lies:
        raise ConfigError(
            "the manifest of files read where they lie knows no sizes of their chunks: no cost is estimated"
        )
    shards, samples = described.shards, described.samples
    total, indexes, files = int(shards.bytes.sum()), 0, max(1, len(shards))
    if described.container in side_index.CONTAINERS:  # whose indexes are objects of their own, read whole
        indexes = min(total, samples * side_index.dtype_of(with_hidden(described.fields)).itemsize)
    data = total - indexes
    pieces = data // PIECE + files if data else 0
    piece_bytes, sample_bytes = data / max(1, pieces), data / max(1, samples)  # means: a shard's last piece is shorter
    opening = Traffic(1 + len(shards), len(described.to_json()) + indexes)
    whole_shard = pieces / files if described.container == "lmdb" else 0.0
    # The pieces that reading a sample needs, wherever it begins.
    of_sample = whole_shard or (max(0.0, sample_bytes - 1) / PIECE + 1 if sample_bytes else 0.0)
    touched = pieces * _share(samples * of_sample / max(1, pieces), nodes)  # by this node at all

    def cost(shuffle: Literal["global", "block"], touches: float, per_request: float) -> EpochCost:
        """Return the cost where pieces are read `touches` times, and a request brings so many adjacent ones."""
        touches, most = max(touched, touches), math.inf if cache_bytes is None else cache_bytes
        holds, kept = (min(1.0, most / max(1.0, some * PIECE)) for some in (touched, pieces))
        fetched = touched + (touches - touched) * (1 - holds)
        again, size = fetched * (1 - kept), min(round(fetched * piece_bytes), round(touches * PIECE))
        first = Traffic(round(fetched / per_request) + opening.requests, size + opening.bytes)
        return EpochCost(shuffle, first, Traffic(round(again / per_request), round(again * piece_bytes)), nodes)

    # The samples of a block are read together. On one node whole blocks are fetched; else what its ranks read.
    of_block = max(1.0, whole_shard or (block * sample_bytes - 1) / PIECE + 1)
    share = _share(min(block * of_sample / of_block, float(block)), nodes)
    runs = share + of_block * share * (1 - share) if nodes > 1 else 1.0
    runs = max(runs, of_block * share / LONGEST_RUN, 1e-9)  # not 0, where nothing is read
    return (
        cost("global", samples / nodes * of_sample, min(LONGEST_RUN, max(1.0, of_sample))),
        cost("block", math.ceil(samples / block) * of_block * share, max(1.0, of_block * share / runs)),
    )


def _share(readers: float, nodes: int) -> float:
    """Return the probability that a node reads any of some samples."""
    return 1 - (1 - 1 / nodes) ** readers if nodes > 1 else 1.0
