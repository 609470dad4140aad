"""The records of a run: logs by epoch and by step, its result, scalars for TensorBoard, a trace; and its progress."""

import json
import math
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import profiler

from ..errors import ConfigError, StateMismatch
from ..system.directory import Directory
from ..system.optional import load
from ..system.os_errors import naming
from ..system.regular_files import open_regular

LOG = "log.jsonl"
METRICS = "metrics.jsonl"
RESULT = "result.json"
TENSORBOARD = "tensorboard"

BAR_SECONDS = 0.5  # not at every step, because reading the loss waits for the device

_SCORES = ("loss", "accuracy", "explained")
_SPEEDS = ("samples_per_second", "samples_per_second_per_rank", "starved", "communication")
_STEP_TAGS = {name: f"train/{name}" for name in (*_SCORES, "lr", "gradient_norm")}
_STEP_TAGS |= {name: f"speed/{name}" for name in _SPEEDS}
_EPOCH_TAGS = {f"val_{name}": f"val/{name}" for name in _SCORES}
_EPOCH_TAGS |= {f"train_{name}": f"epoch/train_{name}" for name in _SCORES} | {"noise_scale": "train/noise_scale"}


@final
class Records:
    """The records of a run; one process writes them into its folder.

    The run has so many epochs and steps behind it; later lines, by a run that was killed, are removed.

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

    def close(self) -> None:
        """Write what TensorBoard is still to get."""
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


def refuse_links(output: Path) -> None:
    """Raise ConfigError for a link of another user's in the folder of a run, through which the run would write."""
    for path in output.iterdir() if output.is_dir() else ():
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, os.geteuid()):
            raise ConfigError("{}: a link that user {} made: give {output} another folder", path, status.st_uid)


@contextmanager
def profiling(path: Path | None) -> Iterator[Callable[[], None]]:
    """Yield what is to be called after each step, so that a trace of ten of them is written to `path`.

    The trace is a JSON file for Perfetto and chrome://tracing. Without a path nothing is traced.
    """
    if path is None:
        yield lambda: None
        return
    schedule = profiler.schedule(wait=10, warmup=2, active=10, repeat=1)
    with profiler.profile(schedule=schedule, on_trace_ready=lambda done: done.export_chrome_trace(str(path))) as trace:
        yield trace.step


@final
class Display:
    """Shows the progress of training on rank 0: a bar for each epoch on a terminal, a line each `log_every` seconds
    elsewhere. Other ranks show nothing, but are due as often.
    """

    def __init__(self, leads: bool, log_every: float, console: Console | None = None) -> None:
        self._leads, self._console = leads, console or Console()
        self._bars: Progress | None = None
        self._epoch, self._task = "", TaskID(0)
        if leads and self._console.is_terminal:
            told = TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn()
            self._bars = Progress(
                *told, TimeRemainingColumn(), TextColumn("{task.fields[figures]}"), console=self._console
            )
            self._bars.start()
        self._seconds, self._last = (log_every, time.monotonic()) if self._bars is None else (BAR_SECONDS, 0.0)

    def close(self) -> None:
        """Leave the last bar as it is."""
        if self._bars is not None:
            self._bars.stop()

    def due(self) -> bool:
        """Return whether it is time to show the epoch again."""
        return time.monotonic() - self._last >= self._seconds

    def show(self, epoch: str, step: int, steps: int, figures: str) -> None:
        """Show an epoch, of whose steps so many are done."""
        self._last = time.monotonic()
        if self._bars is None:
            self.line(f"{epoch}  step {step}/{steps}  {figures}")
            return
        if epoch != self._epoch:
            self._epoch, self._task = epoch, self._bars.add_task(epoch, total=steps, figures="")
        self._bars.update(self._task, completed=step, figures=figures, refresh=True)

    def line(self, text: str) -> None:
        """Print a permanent line."""
        if self._bars is not None:
            for task in self._bars.task_ids:  # the line repeats what the bar of an epoch showed
                self._bars.update(task, visible=False, refresh=True)
            self._bars.console.print(text, highlight=False, markup=False)
        elif self._leads:
            print(text, file=self._console.file, flush=True)
