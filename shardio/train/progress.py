"""The display of training progress: bars on a terminal, plain lines elsewhere, on rank 0 only."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

BAR_SECONDS = 0.5  # not at every step, because reading the loss waits for the device


@dataclass(frozen=True, slots=True)
class Status:
    """The state of an epoch.

    Attributes:
        epoch: number of the epoch, 1 to `epochs`.
        epochs: number of epochs of the run.
        step: number of steps of this epoch that are done.
        steps: number of steps of a whole epoch.
        loss: mean loss over the epoch so far, on this rank.
        metric: what the score is.
        score: mean score over the epoch so far, on this rank.
        gradient_norm: norm of the gradients of a recent step; None before the first one that measured it.
        lr: learning rate of the last step.
        samples_per_second: throughput of all ranks together.
        ranks: the number of ranks.
        starved: share of the epoch's time that this rank spent waiting for input.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    metric: str
    score: float
    gradient_norm: float | None
    lr: float
    samples_per_second: float
    ranks: int
    starved: float

    def __str__(self) -> str:
        return f"epoch {self.epoch}/{self.epochs}  step {self.step}/{self.steps}  {self.figures}"

    @property
    def figures(self) -> str:
        """Loss, score, gradients, learning rate, throughput and starvation as text."""
        norm = "" if self.gradient_norm is None else f"  |g| {self.gradient_norm:.2g}"
        each = f" ({self.samples_per_second / self.ranks:.0f} per rank)" if self.ranks > 1 else ""
        rate = f"{self.samples_per_second:.0f} samples/s{each}"
        learned = f"loss {self.loss:.3f}  {self.metric} {self.score:.3f}{norm}  lr {self.lr:.3g}"
        return f"{learned}  {rate}  starved {100 * self.starved:.0f} %"


class Display(Protocol):
    """Shows the progress of training."""

    def due(self) -> bool:
        """Return whether it is time to show another status."""

    def show(self, status: Status) -> None:
        """Show the state of the epoch."""

    def line(self, text: str) -> None:
        """Print a permanent line."""


@final
class _Lines:
    """At most one line every `seconds`. Without a console it prints nothing, but is due as often, as on other ranks."""

    def __init__(self, seconds: float, console: Console | None) -> None:
        self._seconds = seconds
        self._console = console
        self._last = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self._last >= self._seconds

    def show(self, status: Status) -> None:
        self._last = time.monotonic()
        self.line(str(status))

    def line(self, text: str) -> None:
        if self._console is not None:
            print(text, file=self._console.file, flush=True)


@final
class _Bars:
    """One bar per epoch."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[int, TaskID] = {}
        self._last = 0.0

    def due(self) -> bool:
        return time.monotonic() - self._last >= BAR_SECONDS

    def show(self, status: Status) -> None:
        self._last = time.monotonic()
        if status.epoch not in self._tasks:
            self._tasks[status.epoch] = self._bars.add_task(
                f"epoch {status.epoch}/{status.epochs}", total=status.steps, figures=""
            )
        self._bars.update(self._tasks[status.epoch], completed=status.step, figures=status.figures, refresh=True)

    def line(self, text: str) -> None:
        for task in self._tasks.values():  # the line repeats what the bar of an epoch showed
            self._bars.update(task, visible=False, refresh=True)
        self._bars.console.print(text, highlight=False, markup=False)


@contextmanager
def display(leads: bool, log_every: float, console: Console | None = None) -> Iterator[Display]:
    """Yield the display of this rank.

    Args:
        leads: whether this is rank 0; other ranks show nothing.
        log_every: seconds between lines if `console` is not a terminal.
        console: the console to write to; None for standard output.
    """
    console = Console() if console is None else console
    if not leads:
        yield _Lines(log_every, None)
    elif not console.is_terminal:
        yield _Lines(log_every, console)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
        )
        with Progress(*columns, console=console) as bars:
            yield _Bars(bars)
