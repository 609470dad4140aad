"""Run the command line on tiny data for tests of launchers, with models that wait or end their process."""

import os
import sys
import time

import torch
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
    """The whole command."""
    return [sys.executable, "-m", "shardio", "train", *arguments(config), "--resume", "auto"]


def epochs(config: TrainConfig) -> list[tuple[int, int, int]]:
    """The epochs in a run's log: number, last step, and number of ranks."""
    return [(line["epoch"], line["step"], line["world_size"]) for line in records(config)]


class _Slow(nn.Module):
    """A linear model that takes its time until the job has been queued again twice."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.seconds = 0.1 if int(os.environ.get("SLURM_RESTART_COUNT", "0")) < 2 else 0.0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        scores: torch.Tensor = self.model(images)
        return scores


def slow_at_first(num_classes: int, channels: int) -> nn.Module:
    """A linear model that takes its time until the job has been queued again twice."""
    return _Slow(flat(num_classes, channels))


class _Mortal(nn.Module):
    """A linear model that kills rank 1 at its sixth batch, unless torchrun has started the ranks again."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.left = 6 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1" else -1

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            os.abort()
        scores: torch.Tensor = self.model(images)
        return scores


def kills_rank_1_once(num_classes: int, channels: int) -> nn.Module:
    """A linear model that kills rank 1 in its second epoch of four steps, unless torchrun has started it again."""
    return _Mortal(flat(num_classes, channels))
