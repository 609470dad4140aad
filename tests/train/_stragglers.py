"""Ranks of which number 1 computes slowly in the first half of the run; then number 0 gets its input slowly."""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardio.loader.loader import Loader
from shardio.train import TrainConfig, run

SECONDS = 0.02
model: "Slow"


class Slow(nn.Module):
    """A linear model that takes its time on rank 1, for the first 60 steps."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
        self.steps = 0

    def forward(self, images: Tensor) -> Tensor:
        """Map images to scores."""
        self.steps += self.training
        if dist.get_rank() == 1 and self.steps <= 60:
            time.sleep(SECONDS)
        scores: Tensor = self.layers(images)
        return scores


def slow(num_classes: int, channels: int) -> nn.Module:
    """The model."""
    global model
    model = Slow(num_classes)
    return model


def main() -> None:
    """Train."""
    sys.modules["_stragglers"] = sys.modules["__main__"]
    waiting = Loader.stats

    def stats(self: Loader) -> Any:
        found = waiting(self)
        late = max(0, model.steps - 60) * SECONDS if torch.distributed.get_rank() == 0 else 0.0
        return type(found)(samples=found.samples, seconds=found.seconds, wait_seconds=found.wait_seconds + late)

    iterate = Loader.__iter__

    def batches(self: Loader) -> Iterator[Any]:
        for batch in iterate(self):
            if dist.get_rank() == 0 and model.steps >= 60:
                time.sleep(SECONDS)
            yield batch

    Loader.stats = stats  # type: ignore[method-assign]  # a slow disk, as the trainer sees it
    Loader.__iter__ = batches  # type: ignore[method-assign,assignment]  # as above
    run(TrainConfig(**json.loads(sys.argv[1]) | {"model": "_stragglers:slow"}))


if __name__ == "__main__":
    main()
