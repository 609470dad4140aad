"""The checkpoints of a run: their content, and which of them a run resumes from."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, final

import torch

from ..errors import ConfigError, StateMismatch
from ..system import replacement
from . import torch_archive

VERSION = 3
LAST = "last.pt"
PREVIOUS = "previous.pt"
BEST = "best.pt"


@dataclass(frozen=True, slots=True)
class TrainingPosition:
    """The progress of training. It is global, so it means the same on any number of ranks.

    Attributes:
        epoch: the current epoch, from 0.
        samples: number of samples of that epoch that all ranks together have trained on.
        step: number of optimizer steps since the beginning of training.
        loss: sum of the losses of these samples.
        best_accuracy: accuracy of the best epoch so far; None before the first validation.
    """

    epoch: int = 0
    samples: int = 0
    step: int = 0
    loss: float = 0.0
    best_accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state that training resumes from.

    Attributes:
        place: the progress of training.
        model: state of the model.
        optimizer: state of the optimizer.
        scaler: state of the loss scaling of fp16, empty without it.
        average: the moving average of the weights, empty without one.
        loader: state of the training loader.
        shape: the arguments that the model was created from; they must be the same on resuming.
        config: the configuration of the run, for information only.
    """

    place: TrainingPosition
    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    scaler: Mapping[str, Any]
    average: Mapping[str, Any]
    loader: Mapping[str, Any]
    shape: Mapping[str, Any]
    config: Mapping[str, Any]

    def check_shape(self, shape: Mapping[str, Any], path: Path) -> None:
        """Raise StateMismatch, with both values, if the checkpoint is of another model than `shape` describes."""
        for name, value in shape.items():
            if self.shape.get(name) != value:
                raise StateMismatch(f"{path}: {name} is {self.shape.get(name)!r} there, {value!r} here")

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` takes: plain values and tensors, which torch.load(weights_only=True) restores."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"version": VERSION, **parts, "place": asdict(self.place)}

    @classmethod
    def from_dict(cls, content: Any, path: Path) -> "Checkpoint":
        """Check what was read from `path`, and return it; StateMismatch if it is no checkpoint of this version."""
        version = content.get("version") if isinstance(content, dict) else None
        if version != VERSION:
            raise StateMismatch(f"{path}: a checkpoint's version must be {VERSION}, got {version!r}")
        names = [f.name for f in fields(cls)]
        if wrong := [name for name in names if not isinstance(content.get(name), dict)]:
            raise StateMismatch(f"{path}: a checkpoint needs {', '.join(wrong)}")
        parts = {name: content[name] for name in names}
        return cls(**parts | {"place": _position(parts["place"], path)})


def _position(values: Mapping[Any, Any], path: Path) -> TrainingPosition:
    names = [f.name for f in fields(TrainingPosition)]
    counts = [values.get(name) for name in ("epoch", "samples", "step")]
    best, loss = values.get("best_accuracy"), values.get("loss")
    if (
        set(values) != set(names)
        or not all(type(count) is int and count >= 0 for count in counts)
        or not (type(loss) is float and math.isfinite(loss))
        or not (best is None or (type(best) is float and 0 <= best <= 1))
    ):
        raise StateMismatch(f"{path}: not the progress of a training: {dict(values)!r}")
    return TrainingPosition(**values)


def load(path: Path, device: torch.device) -> Checkpoint:
    """Read the checkpoint at `path` with its tensors on `device`; no code in the file is run.

    Raises ConfigError if there is no such file, StateMismatch if it is damaged or no checkpoint of this version.
    """
    return Checkpoint.from_dict(torch_archive.load(path, device), path)


@final
class CheckpointFolder:
    """The checkpoints in the output of a run: the last one, the one before it, and the best one.

    One process writes them. Whatever interrupts it, and if one file is damaged later, a whole checkpoint is left.

    Args:
        folder: the output of the run.

    Raises ConfigError if there is a directory where a checkpoint is to be written.
    """

    def __init__(self, folder: Path) -> None:
        for path in (folder / name for name in (LAST, PREVIOUS, BEST)):
            if path.is_dir():
                raise ConfigError(f"{path} is a directory, where a checkpoint is to be written")
        self.candidates = (folder / LAST, folder / PREVIOUS)
        self._folder = folder
        self._wrote_last = False

    def choose(self) -> tuple[Path, tuple[str, ...]]:
        """Return the newest checkpoint that is whole, and a line for each newer one that is passed over.

        Raises StateMismatch if none is whole. This reads the files.
        """
        reasons: list[str] = []
        for path in self.candidates:
            if path.is_file():
                if (reason := torch_archive.damage(path)) is None:
                    return path, tuple(reasons)
                reasons.append(f"{path}: {reason}")
        raise StateMismatch(f"{self._folder}: no checkpoint to resume from is whole: {'; '.join(reasons)}")

    def save_last(self, checkpoint: Checkpoint) -> None:
        """Write `last.pt`; the old one becomes `previous.pt`, unless it is damaged."""
        last, previous = self.candidates
        whole = last.is_file() and (self._wrote_last or torch_archive.damage(last) is None)
        self.clean()
        torch_archive.save(last, checkpoint.to_dict(), previous=previous if whole else None)
        self._wrote_last = True

    def save_best(self, checkpoint: Checkpoint) -> None:
        """Write `best.pt`."""
        torch_archive.save(self._folder / BEST, checkpoint.to_dict())

    def clean(self) -> None:
        """Remove the unfinished files that killed processes have left."""
        replacement.remove_abandoned(self._folder, (LAST, BEST))
