"""Checkpoints: their content, and how they are written atomically and read safely."""

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
    """The progress of training. It is global, so it means the same on any number of ranks.

    Attributes:
        epoch: the current epoch, from 0.
        samples: number of samples of that epoch that all ranks together have trained on.
        step: number of optimizer steps since the beginning of training.
        best_accuracy: accuracy of the best epoch so far; None before the first validation.
    """

    epoch: int = 0
    samples: int = 0
    step: int = 0
    best_accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state that training resumes from.

    Attributes:
        place: the progress of training.
        model: state of the model.
        optimizer: state of the optimizer.
        loader: state of the training loader.
        shape: the arguments that the model was created from; they must be the same on resuming.
        config: the configuration of the run, for information only.
    """

    place: TrainingPosition
    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    loader: Mapping[str, Any]
    shape: Mapping[str, Any]
    config: Mapping[str, Any]

    def check_shape(self, shape: Mapping[str, Any], path: Path) -> None:
        """Raise StateMismatch, with both values, if the checkpoint is of another model than `shape` describes."""
        for name, value in shape.items():
            if self.shape.get(name) != value:
                raise StateMismatch(f"{path}: {name} is {self.shape.get(name)!r} there, {value!r} here")


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Replace `path` atomically by a file that is written beside it, fsynced and renamed."""
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
    """Read the checkpoint at `path` with its tensors on `device`; no code in the file is run.

    Raises ConfigError if there is no such file, StateMismatch if it is not a checkpoint of this version.
    """
    if not path.is_file():
        raise ConfigError(f"resume must be 'auto' or the path of a checkpoint; there is no file {path}")
    if not zipfile.is_zipfile(path):  # torch would read any other file in a legacy format
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
