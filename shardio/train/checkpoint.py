"""The checkpoints of a run: their content, how they are written, and which of them a run resumes from."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, final

import torch

from ..errors import ConfigError, StateMismatch
from ..system import replacement
from . import torch_archive

VERSION = 4
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
        bad: number of samples of that epoch that were replaced.
        score: sum of the scores of these samples: in classification, the number of correct ones.
        best_score: score of the best epoch so far; None before the first validation.
    """

    epoch: int = 0
    samples: int = 0
    step: int = 0
    loss: float = 0.0
    score: float = 0.0
    bad: int = 0
    best_score: float | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state that training resumes from.

    Attributes:
        place: the progress of training.
        model: state of the model.
        optimizer: state of the optimizer.
        scaler: state of the loss scaling of fp16, empty without it.
        average: the moving average of the weights, empty without one.
        hook: what each rank's communication hook remembers, empty if that is nothing.
        random: the state of each rank's random numbers.
        loader: state of the training loader.
        shape: the arguments that the model was created from; they must be the same on resuming.
        config: the configuration of the run, for information only.
    """

    place: TrainingPosition
    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    scaler: Mapping[str, Any]
    average: Mapping[str, Any]
    hook: Mapping[str, Any]
    random: Mapping[str, Any]
    loader: Mapping[str, Any]
    shape: Mapping[str, Any]
    config: Mapping[str, Any]

    def check_shape(self, shape: Mapping[str, Any], path: Path) -> None:
        """Raise StateMismatch, with both values, if the checkpoint is of another model than `shape` describes."""
        for name, value in shape.items():
            if not _same(self.shape.get(name), value):
                raise StateMismatch(f"{path}: {name} is {self.shape.get(name)!r} there, {value!r} here")

    def on_host(self) -> "Checkpoint":
        """Return a copy in host memory, which training no longer changes."""
        return Checkpoint(**{f.name: _copy(getattr(self, f.name)) for f in fields(self)})

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


def _same(one: Any, other: Any) -> bool:
    """Whether two parts of a shape are equal; numbers may differ by the rounding of sums over other ranks."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return type(one) is type(other) and bool(one == other)


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        copied = OrderedDict((key, _copy(item)) for key, item in value.items())
        if hasattr(value, "_metadata"):  # the versions of a model's modules
            copied._metadata = value._metadata  # type: ignore[attr-defined]  # torch sets it on state dicts
        return copied
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _position(values: Mapping[Any, Any], path: Path) -> TrainingPosition:
    names = [f.name for f in fields(TrainingPosition)]
    counts = [values.get(name) for name in ("epoch", "samples", "step", "bad")]
    best = values.get("best_score")
    if (
        set(values) != set(names)
        or not all(type(count) is int and count >= 0 for count in counts)
        or not all(type(values[name]) is float and math.isfinite(values[name]) for name in ("loss", "score"))
        or not (best is None or (type(best) is float and math.isfinite(best)))
    ):
        raise StateMismatch(f"{path}: not the progress of a training: {dict(values)!r}")
    return TrainingPosition(**values)


def load(path: Path) -> Checkpoint:
    """Read the checkpoint at `path` into host memory; no code in the file is run.

    Raises ConfigError if there is no such file, StateMismatch if it is damaged or no checkpoint of this version.
    """
    return Checkpoint.from_dict(torch_archive.load(path, torch.device("cpu")), path)


@final
class CheckpointFolder:
    """The checkpoints in the output of a run: the last ones and the best one.

    One process writes them. Whatever interrupts it, and if one file is damaged later, a whole checkpoint is left.

    Args:
        folder: the output of the run.
        keep: how many of the last checkpoints are kept: `last.pt`, `previous.pt`, `previous-2.pt` and so on.

    Attributes:
        candidates: their paths, the newest first; not all may exist.

    Raises ConfigError if there is a directory where a checkpoint is to be written.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        older = [PREVIOUS, *(f"previous-{number}.pt" for number in range(2, keep))][: keep - 1]
        self.candidates = tuple(folder / name for name in (LAST, *older))
        for path in (*self.candidates, folder / BEST):
            if path.is_dir():
                raise ConfigError(f"{path} is a directory, where a checkpoint is to be written")
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
        """Write `last.pt`; the old one becomes `previous.pt`, unless it is damaged, and so on."""
        last, *older = self.candidates
        whole = last.is_file() and (self._wrote_last or torch_archive.damage(last) is None)
        self.clean()
        if whole:
            for path, older_path in reversed(list(pairwise(older))):
                if path.is_file():
                    path.replace(older_path)
        torch_archive.save(last, checkpoint.to_dict(), previous=older[0] if older and whole else None)
        self._wrote_last = True

    def save_best(self, checkpoint: Checkpoint) -> None:
        """Write `best.pt`."""
        torch_archive.save(self._folder / BEST, checkpoint.to_dict())

    def clean(self) -> None:
        """Remove the unfinished files that killed processes have left."""
        replacement.remove_abandoned(self._folder, (LAST, BEST))


@final
class CheckpointWriter:
    """Writes checkpoints in a thread, from copies in host memory, while training goes on.

    In the `with` block one checkpoint is written at a time: the next one waits for it. The block ends when the last one
    is written.

    Args:
        folder: where they are written.
    """

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shardio checkpoint")
        self._writing: Future[None] | None = None

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True)
        if error is None:
            self.wait()

    def save(self, checkpoint: Checkpoint, *, best: bool = False) -> None:
        """Begin to write `last.pt`, and also `best.pt` if it is the best one.

        Raises OSError if the checkpoint before it could not be written.
        """
        self.wait()
        self._writing = self._thread.submit(self._write, checkpoint.on_host(), best)

    def wait(self) -> None:
        """Wait until all checkpoints are written; raise OSError if one could not be."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, checkpoint: Checkpoint, best: bool) -> None:
        self._folder.save_last(checkpoint)
        if best:
            self._folder.save_best(checkpoint)
