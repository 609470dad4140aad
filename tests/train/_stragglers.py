"""Ranks of which number 1 computes slowly in the first half of the run; then number 0 gets its input slowly."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from _tiny import flat
from torch import nn

from shardio import LoaderStats
from shardio.loader.loader import Loader
from shardio.train import TrainConfig, run

SECONDS = 0.02
steps = 0


def slow(num_classes: int, channels: int) -> nn.Module:
    """A linear model that takes its time on rank 1, for the first 60 steps."""

    def wait(*_: Any) -> None:
        global steps
        steps += 1
        if dist.get_rank() == 1 and steps <= 60:
            time.sleep(SECONDS)

    model = flat(num_classes, channels)
    model.register_forward_pre_hook(wait)
    return model


def main() -> None:
    sys.modules["_stragglers"] = sys.modules["__main__"]
    measured, iterate = Loader.stats, Loader.__iter__
    late = 0.0  # seconds of the epoch

    def stats(self: Loader, *, all_epochs: bool = False) -> LoaderStats:
        found = measured(self, all_epochs=all_epochs)
        return found if all_epochs else replace(found, wait_seconds=found.wait_seconds + late)

    def batches(self: Loader) -> Iterator[Any]:
        nonlocal late
        late = 0.0
        for batch in iterate(self):
            if dist.get_rank() == 0 and steps >= 60:
                time.sleep(SECONDS)
                late += SECONDS
            yield batch

    Loader.stats = stats  # type: ignore[method-assign]  # a slow disk, as the trainer sees it
    Loader.__iter__ = batches  # type: ignore[method-assign,assignment]  # as above
    run(TrainConfig(**json.loads(sys.argv[1]) | {"model": "_stragglers:slow"}))


if __name__ == "__main__":
    main()
