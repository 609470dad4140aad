"""Ranges of an epoch, read by one rank: the same samples and draws as in the epoch, and no change of the state."""

import torch
from _datasets import load, photos, tensors

import shardio


def test_ranges_are_parts_of_the_epoch() -> None:
    """A range delivers the samples, and the random crops, that the epoch has at these positions."""
    loader = load(photos(24), 4, transforms=[shardio.RandomResizedCrop(8)], seed=5)
    loader.set_epoch(3)
    whole = list(loader)
    loader.set_epoch(3)
    before = loader.state_dict()
    batches = list(loader.ranges([range(8, 14), range(20, 24), range(2, 4)]))
    assert [len(batch["index"]) for batch in batches] == [4, 2, 4, 2]
    for name in ("index", "image"):
        values = torch.cat([batch[name] for batch in whole])
        expected = torch.cat([values[8:14], values[20:24], values[2:4]])
        assert torch.equal(torch.cat([batch[name] for batch in batches]), expected)
    assert loader.state_dict() == before
    assert torch.equal(next(iter(loader))["image"], whole[0]["image"])


def test_ranges_are_of_one_rank() -> None:
    """Whatever its place in the job, a Loader delivers all samples of a range; a range may come again."""
    loader = load(tensors(20), 4, world=shardio.World(1, 2), shuffle=None)
    batches = list(loader.ranges([range(10), range(10)]))
    assert [batch["index"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2
