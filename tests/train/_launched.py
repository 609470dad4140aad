"""Run the command line on tiny data for tests of launchers: models that wait or end their process, images that wait."""

import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence

from _builders import png
from _ranks import environment
from _tiny import flat, records
from torch import nn

from shardio.train import TrainConfig

VARIABLES = {name: environment()[name] for name in ("OMP_NUM_THREADS", "PYTHONPATH")}
"""Variables for processes that import shardio and the modules of these tests."""


def environ() -> dict[str, str]:
    """The variables of a launcher: this process's, without those of a launcher that started it."""
    launchers = ("SLURM", "OMPI", "PMIX", "MASTER_", "TORCHELASTIC")
    return {name: value for name, value in os.environ.items() if not name.startswith(launchers)} | VARIABLES


def arguments(config: TrainConfig) -> list[str]:
    """The arguments of `shardio train` for those values of `_tiny.config` that these tests change."""
    options = {
        "--output": config.output,
        "--model": config.model,
        "--epochs": config.epochs,
        "--batch-size": config.batch_size,
        "--threads": 1,
        "--timeout": 60,
        "--device": "cpu",
    }
    return [config.train, *(str(word) for pair in options.items() for word in pair)]


def command(config: TrainConfig) -> list[str]:
    return [sys.executable, "-m", "shardio", "train", *arguments(config), "--resume", "auto"]


def epochs(config: TrainConfig) -> list[tuple[int, int, int]]:
    """The epochs in a run's log: number, last step, and number of ranks."""
    return [(line["epoch"], line["step"], line["world_size"]) for line in records(config)]


def slow_at_first(num_classes: int, channels: int) -> nn.Module:
    """A linear model that takes its time until the job has been queued again twice."""
    seconds = 0.1 if int(os.environ.get("SLURM_RESTART_COUNT", "0")) < 2 else 0.0
    model = flat(num_classes, channels)
    model.register_forward_pre_hook(lambda *_: time.sleep(seconds))
    return model


def kills_rank_1_once(num_classes: int, channels: int) -> nn.Module:
    """A linear model that kills rank 1 in its second epoch of four steps, unless torchrun has started it again."""
    batches = itertools.count(1)
    mortal = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1"
    model = flat(num_classes, channels)
    model.register_forward_pre_hook(lambda *_: os.abort() if next(batches) == 6 and mortal else None)
    return model


class Images(Sequence[tuple[bytes, int]]):
    """PNG images and their numbers, of which workers cannot read the last ones before Slurm has queued a job again."""

    COUNT, THERE = 60, 40

    def __len__(self) -> int:
        return self.COUNT

    def __getitem__(self, number: int) -> tuple[bytes, int]:  # type: ignore[override]  # no slices
        # Only in workers: the first process of a conversion reads some samples to know the source again.
        in_worker = multiprocessing.parent_process() is not None
        while in_worker and number >= self.THERE and "SLURM_RESTART_COUNT" not in os.environ:
            time.sleep(0.05)
        return png(seed=number), number
