"""The cost of an epoch of a dataset in a store: requests, bytes and money, estimated from the manifest alone.

All samples count with the mean size. A node reads each sample with probability 1 / nodes, at a random time of the
epoch with global shuffle, and together with the others of its block with block shuffle. It fetches whole pieces: those
that hold a sample that it reads, once if the cache keeps them until the last reader, else again and again. An LMDB
is fetched whole.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, final

from ..cache.pace import LONGEST_RUN
from ..containers import side_index
from ..errors import ConfigError, Option
from ..format.fields import with_hidden
from ..format.manifest import Manifest
from ..format.pieces import PIECE

OrderName = Literal["global", "block"]


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
        first_price, later_price: the money for all nodes; None without prices.
    """

    shuffle: OrderName
    first: Traffic
    later: Traffic
    nodes: int
    first_price: float | None
    later_price: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values, those of all nodes as well."""
        first, later = asdict(self.first * self.nodes), asdict(self.later * self.nodes)
        return {**asdict(self), "first_of_all_nodes": first, "later_of_all_nodes": later}


@final
@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in any currency; a price that is None does not count.

    Attributes:
        per_1000_requests: for reading, per 1,000 requests.
        per_gb: for 10^9 bytes that leave the store.
    """

    per_1000_requests: float | None = None
    per_gb: float | None = None

    def __post_init__(self) -> None:
        for name in ("per_1000_requests", "per_gb"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError("{} must be 0 or more, got {}", Option(f"price_{name}"), value)

    def of(self, traffic: Traffic) -> float | None:
        """Return the money for some traffic; None if there is no price."""
        if self.per_1000_requests is None and self.per_gb is None:
            return None
        return traffic.requests / 1000 * (self.per_1000_requests or 0) + traffic.bytes / 1e9 * (self.per_gb or 0)


def epoch_cost(
    described: Manifest,
    *,
    nodes: int = 1,
    cache_bytes: int | None = None,
    block: int = 64,
    prices: Prices | None = None,
) -> tuple[EpochCost, ...]:
    """Estimate the cost of an epoch with global and with block shuffle.

    Args:
        described: the dataset.
        nodes: the number of nodes among which the samples are divided.
        cache_bytes: the bytes that the cache of each node holds; None for all that it reads.
        block: the samples that stay together with block shuffle.
        prices: what the store takes.

    Raises ConfigError for a value that breaks a rule.
    """
    for name, value in (("nodes", nodes), ("block", block)):
        if value < 1:
            raise ConfigError("{} must be at least 1, got {}", Option(name), value)
    shape = _Shape.of(described, nodes)
    kept = 1.0 if cache_bytes is None else min(1.0, cache_bytes / max(1, shape.pieces * PIECE))
    found = []
    orders: tuple[tuple[OrderName, _Reads], ...] = (("global", shape.at_random()), ("block", shape.in_blocks(block)))
    for shuffle, reads in orders:
        once = shape.touched  # by this node at all
        holds = 1.0 if cache_bytes is None else min(1.0, cache_bytes / max(1.0, once * PIECE))
        fetched = min(reads.touches, max(once, once + (reads.touches - once) * (1 - holds)))
        first = Traffic(
            round(fetched / reads.per_request) + shape.opening.requests,
            min(round(fetched * shape.piece_bytes), round(reads.touches * PIECE)) + shape.opening.bytes,
        )
        again = fetched * (1 - kept)
        later = Traffic(round(again / reads.per_request), round(again * shape.piece_bytes))
        price_of = (prices or Prices()).of
        found.append(EpochCost(shuffle, first, later, nodes, price_of(first * nodes), price_of(later * nodes)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Reads:
    """How a node reads pieces.

    Attributes:
        touches: pieces that are read, counted again for each sample or block that needs them.
        per_request: adjacent pieces that one request brings.
    """

    touches: float
    per_request: float


@dataclass(frozen=True, slots=True)
class _Shape:
    """A dataset in pieces.

    Attributes:
        samples: samples of the dataset.
        nodes: the nodes that read it.
        sample_bytes: mean bytes of a sample.
        pieces: pieces of all shards, without indexes.
        piece_bytes: mean bytes of a piece: the last one of a shard is shorter.
        opening: what opening the dataset and all shards takes.
        whole_shards: the mean pieces of a shard, if shards are fetched whole; else None.
    """

    samples: int
    nodes: int
    sample_bytes: float
    pieces: int
    piece_bytes: float
    opening: Traffic
    whole_shards: float | None

    @classmethod
    def of(cls, described: Manifest, nodes: int) -> "_Shape":
        shards, samples = described.shards, described.samples
        total, indexes = int(shards.bytes.sum()), 0
        if described.container in ("tar", "indexed"):  # whose indexes are objects of their own, read whole
            indexes = min(total, samples * side_index.dtype_of(with_hidden(described.fields)).itemsize)
        files = max(1, len(shards))
        data = max(0, total - indexes)
        pieces = max(1, data // PIECE + files) if data else 0
        opening = Traffic(1 + len(shards), len(described.to_json()) + indexes)
        whole = pieces / files if described.container == "lmdb" else None
        return cls(samples, nodes, data / max(1, samples), pieces, data / max(1, pieces), opening, whole)

    @property
    def pieces_of_sample(self) -> float:
        """Mean number of pieces that reading a sample needs; it begins anywhere."""
        if self.whole_shards is not None:
            return self.whole_shards
        return max(0.0, self.sample_bytes - 1) / PIECE + 1 if self.sample_bytes else 0.0

    @property
    def touched(self) -> float:
        """The pieces that hold any sample of a node."""
        return self.pieces * self._share(self.samples * self.pieces_of_sample / max(1, self.pieces))

    def at_random(self) -> _Reads:
        """Every sample is read on its own."""
        return _Reads(
            max(self.touched, self.samples / self.nodes * self.pieces_of_sample),
            min(LONGEST_RUN, max(1.0, self.pieces_of_sample)),
        )

    def in_blocks(self, block: int) -> _Reads:
        """The samples of a block are read together. On one node whole blocks are fetched; else what its ranks read."""
        blocks = math.ceil(self.samples / block)
        pieces = max(1.0, self.whole_shards or (block * self.sample_bytes - 1) / PIECE + 1)
        share = self._share(min(block * self.pieces_of_sample / pieces, float(block)))
        runs = share + pieces * share * (1 - share) if self.nodes > 1 else 1.0
        runs = max(runs, pieces * share / LONGEST_RUN)
        touches = blocks * pieces * share
        return _Reads(max(self.touched, touches), max(1.0, pieces * share / runs))

    def _share(self, readers: float) -> float:
        """The probability that a node reads any of some samples."""
        return 1 - (1 - 1 / self.nodes) ** readers if self.nodes > 1 else 1.0
