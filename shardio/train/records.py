"""The records of a run: logs by epoch and by step, its result, and scalars for TensorBoard."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, final

from ..errors import StateMismatch
from ..system.directory import Directory
from ..system.optional import load
from ..system.os_errors import naming
from ..system.regular_files import open_regular

LOG = "log.jsonl"
METRICS = "metrics.jsonl"
RESULT = "result.json"
TENSORBOARD = "tensorboard"

_STEP_TAGS = {
    "loss": "train/loss",
    "accuracy": "train/accuracy",
    "explained": "train/explained",
    "lr": "train/lr",
    "gradient_norm": "train/gradient_norm",
    "samples_per_second": "speed/samples_per_second",
    "samples_per_second_per_rank": "speed/samples_per_second_per_rank",
    "starved": "speed/starved",
}
_EPOCH_TAGS = {
    "val_loss": "val/loss",
    "val_accuracy": "val/accuracy",
    "val_explained": "val/explained",
    "train_loss": "epoch/train_loss",
    "train_accuracy": "epoch/train_accuracy",
    "train_explained": "epoch/train_explained",
    "noise_scale": "train/noise_scale",
}


@final
class Records:
    """The records of a run, which one process writes.

    Args:
        output: the folder of the run.
        epochs: the number of epochs that the run has behind it; lines of later ones, of a run that was killed, go.
        step: the number of steps that it has behind it.
        tensorboard: whether to write for TensorBoard, too.

    Raises MissingDependency if tensorboard is not installed.
    """

    def __init__(self, output: Path, *, epochs: int, step: int, tensorboard: bool) -> None:
        self._output, self._board = output, None
        if tensorboard:
            load("tensorboard", purpose="tensorboard", extra="train")
            from torch.utils.tensorboard import SummaryWriter  # which imports it

            self._board = SummaryWriter(str(output / TENSORBOARD), purge_step=step + 1)
        _rewind(output / LOG, "epoch", epochs)
        _rewind(output / METRICS, "step", step)

    def __enter__(self) -> "Records":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._board is not None:
            self._board.close()

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Add an epoch to `log.jsonl`."""
        self._add(LOG, record, _EPOCH_TAGS)

    def step(self, record: Mapping[str, Any]) -> None:
        """Add a step to `metrics.jsonl`."""
        self._add(METRICS, record, _STEP_TAGS)

    def result(self, result: Mapping[str, Any]) -> None:
        """Write `result.json`."""
        Directory(self._output).write(RESULT, json.dumps(result, indent=1).encode() + b"\n")

    def _add(self, name: str, record: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        # JSON has no numbers for what overflows, as gradients of fp16 may.
        record = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        with naming(self._output / name), open(self._output / name, "a", opener=open_regular) as file:
            file.write(json.dumps(record) + "\n")
        if self._board is not None:
            for key, tag in tags.items():
                if record.get(key) is not None:
                    self._board.add_scalar(tag, record[key], record["step"])


def _rewind(path: Path, key: str, last: int) -> None:
    """Remove the lines of a file whose `key` is beyond `last`, and one that is cut short."""
    if not path.exists():
        return
    with naming(path), open(path, "rb", opener=open_regular) as file:
        lines = file.readlines()
    kept = []
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break
        try:
            if json.loads(line)[key] <= last:
                kept.append(line)
        except (ValueError, LookupError, TypeError) as error:
            raise StateMismatch(f"{path}, line {number}: every line must be JSON with {key!r}: {error!r}") from error
    if len(kept) < len(lines):
        Directory(path.parent).write(path.name, b"".join(kept))
