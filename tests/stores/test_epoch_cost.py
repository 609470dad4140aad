"""The estimated cost of an epoch."""

import numpy as np
import pytest

import shardio
from shardio.dataset.epoch_cost import epoch_cost
from shardio.format.manifest import Manifest
from shardio.format.pieces import PIECE
from shardio.format.shard_table import ShardTable, TextColumn

SAMPLES, SHARDS = 200_000, 200


def described(sample_bytes: int, container: str = "hdf5") -> Manifest:
    """The manifest of shards of 1,000 samples."""
    shards = ShardTable(
        names=TextColumn([f"shard-{number:06d}.h5" for number in range(SHARDS)]),
        samples=np.full(SHARDS, SAMPLES // SHARDS),
        bytes=np.full(SHARDS, sample_bytes * SAMPLES // SHARDS),
        checksums=TextColumn(["0" * 32] * SHARDS),
    )
    return Manifest(
        container=container, fields={"x": shardio.Field("bytes")}, shards=shards, digest=f"xxh3:{'0' * 32}", metadata={}
    )


def simulated(sample_bytes: int, nodes: int) -> int:
    """The bytes of the pieces that hold a sample of one node, for samples end to end that are dealt at random."""
    mine = np.flatnonzero(np.random.default_rng(0).random(SAMPLES) < 1 / nodes)
    first, last = mine * sample_bytes // PIECE, (mine * sample_bytes + sample_bytes - 1) // PIECE
    touched = np.zeros(SAMPLES * sample_bytes // PIECE + 2, np.int64)
    np.add.at(touched, first, 1)
    np.add.at(touched, last + 1, -1)
    return int((np.cumsum(touched) > 0).sum()) * PIECE


@pytest.mark.parametrize("nodes", [1, 8, 64])
@pytest.mark.parametrize("sample_bytes", [3_000, 110_000, 1_000_000])
def test_bytes_of_the_first_epoch(sample_bytes: int, nodes: int) -> None:
    """With a cache that holds all, both orders fetch what a simulation fetches, within 3 %."""
    for cost in epoch_cost(described(sample_bytes), nodes=nodes):
        assert cost.first.bytes == pytest.approx(simulated(sample_bytes, nodes), rel=0.03), cost
        assert cost.later.requests == cost.later.bytes == 0


def test_block_shuffle_needs_fewer_requests_and_a_smaller_cache() -> None:
    """On one node, runs of blocks take fewer requests, and with a tenth in the cache block shuffle fetches less."""
    for sample_bytes in (3_000, 110_000):
        alone, blocks = epoch_cost(described(sample_bytes), cache_bytes=sample_bytes * SAMPLES // 10)
        assert blocks.first.requests < alone.first.requests / 2
        assert blocks.first.bytes <= 1.4 * sample_bytes * SAMPLES
        assert blocks.first.bytes < alone.first.bytes
        assert blocks.later.bytes == pytest.approx(0.9 * blocks.first.bytes, rel=0.01)


def test_what_is_counted_is_at_least_one() -> None:
    """Counts below 1 are refused by name; a tar that is smaller than its index costs something all the same."""
    with pytest.raises(shardio.ConfigError, match="nodes must be at least 1, got 0"):
        epoch_cost(described(3_000), nodes=0)
    assert epoch_cost(described(1, "tar"), nodes=2)[1].first.requests == SHARDS + 1
