"""Checkpoints: what is in one, and how it is written whole or not at all."""

import os
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from ..errors import ConfigError, StateMismatch
from ..system import durable

VERSION = 1
LAST = "last.pt"
BEST = "best.pt"


@dataclass(frozen=True, slots=True)
class TrainingPosition:
    """How far training has come. Positions are global, so they mean the same on any number of ranks.

    Attributes:
        epoch: the epoch under way, or about to begin.
        samples: samples of that epoch that all ranks together have trained on.
        step: optimiser steps since the beginning of training.
        best_accuracy: of the best epoch so far; None before the first validation.
    """

    epoch: int = 0
    samples: int = 0
    step: int = 0
    best_accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that training needs to go on.

    Attributes:
        place: how far training has come.
        model: the model's state.
        optimizer: the optimiser's state.
        loader: the training loader's state.
        shape: what the model was made from; it must be the same to go on.
        config: the run's configuration, for people to look at.
    """

    place: TrainingPosition
    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    loader: Mapping[str, Any]
    shape: Mapping[str, Any]
    config: Mapping[str, Any]

    def check_shape(self, shape: Mapping[str, Any], path: Path) -> None:
        """StateMismatch, with both values, if the checkpoint is of another model than `shape` describes."""
        for name, mine in shape.items():
            if self.shape.get(name) != mine:
                raise StateMismatch(f"{path}: {name} is {self.shape.get(name)!r} there, {mine!r} here")


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Replaces `path` at once: written beside it, fsynced, renamed. A reader sees the old checkpoint or the new one."""
    content = {f.name: getattr(checkpoint, f.name) for f in fields(checkpoint) if f.name != "place"}
    place = {f.name: getattr(checkpoint.place, f.name) for f in fields(TrainingPosition)}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        torch.save({"version": VERSION, "place": place, **content}, temporary)
        durable.sync_file(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    durable.sync_directory(path.parent)


def load(path: Path, device: torch.device) -> Checkpoint:
    """The checkpoint at `path`, its tensors on `device`; nothing in the file is run.

    Raises ConfigError if there is no such file, StateMismatch if it is no checkpoint of this version.
    """
    if not path.is_file():
        raise ConfigError(f"resume must be 'auto' or the path of a checkpoint; there is no file {path}")
    if not zipfile.is_zipfile(path):  # torch would read anything else by an older format's rules
        raise StateMismatch(f"{path}: not a checkpoint: it is cut short, or was never written by torch.save")
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise StateMismatch(f"{path}: not a checkpoint that torch.load(weights_only=True) reads") from error
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise StateMismatch(f"{path}: a checkpoint's version must be {VERSION}, got {version!r}")
    names = {f.name for f in fields(Checkpoint)}
    if missing := names - content.keys():
        raise StateMismatch(f"{path}: a checkpoint needs {', '.join(sorted(missing))}")
    parts = {name: content[name] for name in names - {"place"}}
    return Checkpoint(place=TrainingPosition(**content["place"]), **parts)
