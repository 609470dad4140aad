"""Tiny, deterministic datasets and models for training tests."""

import itertools
import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _builders import encode
from _datasets import packed
from torch import nn

import shardio
from shardio.train import TrainConfig, checkpoint, run
from shardio.train.learner import Learner

CLASSES = 3


def dataset(path: Path, samples: int = 48, *, side: int = 8, classes: int = CLASSES, seed: int = 0) -> str:
    """A dataset at `path` of grey images whose label is their brightness."""
    random = np.random.default_rng(seed)
    made = []
    for number in range(samples):
        label = number % classes
        image = random.integers(0, 60, (side, side)) + label * (190 // (classes - 1))
        made.append({"image": encode("png", image.astype(np.uint8)), "label": label})
    fields = {"image": shardio.Field("image", channels=1), "label": "int64"}
    packed(path, made, fields, container="hdf5", shard_size="64MB")
    return str(path)


def config(root: Path, **overrides: Any) -> TrainConfig:
    """Two epochs of four steps on `root/data/train`, which is created if missing, with the `flat` model."""
    values: dict[str, Any] = {
        "train": root / "data" / "train",
        "output": root / "out",
        "epochs": 2,
        "batch_size": 12,
        "model": "_tiny:flat",
        "threads": 1,
        "device": "cpu",
    }
    values |= overrides
    if not Path(values["train"]).exists():
        dataset(Path(values["train"]))
    return TrainConfig(**values)


def flat(num_classes: int, channels: int) -> nn.Module:
    """A linear model of 8 x 8 images without normalisation, so that splitting a batch over ranks changes nothing."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, num_classes))


def normalised(num_classes: int, channels: int) -> nn.Module:
    """A small model with batch normalisation, whose buffers are separate on each rank."""
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, num_classes)
    )


def wide(num_classes: int, channels: int) -> nn.Module:
    """A linear model with a megabyte of weights, most of which do nothing."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 4096), nn.Linear(4096, num_classes))


def dropping(num_classes: int, channels: int) -> nn.Module:
    """A model with dropout, which takes random numbers at every step."""
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * channels, num_classes))


def broken(num_classes: int, channels: int) -> nn.Module:
    model = flat(num_classes, channels)
    with torch.no_grad():
        model[1].weight.fill_(float("nan"))
    return model


def no_model(num_classes: int, channels: int) -> str:
    return "model"


def fails_on_rank_1(num_classes: int, channels: int) -> nn.Module:
    """A model that fails in the third step."""
    steps = itertools.count()

    def fail(*_: Any) -> None:
        if next(steps) == 2 and torch.distributed.get_rank() == 1:
            raise RuntimeError("rank 1 has had enough")

    model = flat(num_classes, channels)
    model.register_forward_pre_hook(fail)
    return model


def weights(made: TrainConfig, part: str = "model") -> dict[str, torch.Tensor]:
    return dict(getattr(checkpoint.load(Path(made.output) / "last.pt"), part))


def assert_same_weights(one: TrainConfig, other: TrainConfig, part: str = "model") -> None:
    expected, found = weights(one, part), weights(other, part)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), (part, name)


def records(made: TrainConfig, name: str = "log.jsonl") -> list[dict[str, Any]]:
    """The lines of a run's log, or of its metrics."""
    path = Path(made.output) / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


class Stopped(Exception):
    """Simulate whatever ends a process in the middle of an epoch."""


def run_until(made: TrainConfig, number: int) -> None:
    """Train until before step `number`, counted from 0, as if something had ended the process there."""
    steps, step = iter(range(1000)), Learner.step

    def until(self: Learner, batch: Any, **options: Any) -> torch.Tensor:
        if next(steps) == number:
            raise Stopped
        return step(self, batch, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Learner, "step", until)
        with pytest.raises(Stopped):
            run(made)
