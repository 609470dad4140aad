"""Progress of long work: a bar with rate and remaining time on a terminal, plain lines elsewhere."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

LINE_SECONDS = 5.0  # between two lines about the same work

ProgressFunction = Callable[[str, int, int], None]
"""Takes the name of the work, the amount done and the total."""


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed or 0
        return Text(f"{speed:,.0f} {self._unit}/s")


@contextmanager
def progress(unit: str, *, quiet: bool = False) -> Iterator[ProgressFunction]:
    """Yield a function that shows the progress of each piece of work on stderr, or does nothing if `quiet`."""
    if quiet:
        yield lambda name, done, total: None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line_reporter(unit)
        return
    columns = (
        TextColumn("{task.description:10}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console) as bars:

        def report(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield report


def _line_reporter(unit: str) -> ProgressFunction:
    started: dict[str, float] = {}
    silent_until: dict[str, float] = {}

    def report(name: str, done: int, total: int) -> None:
        now = time.monotonic()
        start, silent = started.setdefault(name, now), silent_until.setdefault(name, now + LINE_SECONDS)
        if silent == math.inf or (done < total and now < silent):
            return
        silent_until[name] = math.inf if done >= total else now + LINE_SECONDS
        rate = done / (now - start) if now - start > 0.1 else 0
        remaining = f", {(total - done) / rate:.0f} s left" if rate and done < total else ""
        speed = f" ({rate:,.0f}/s{remaining})" if rate else ""  # an instant has no rate
        print(f"{name} {done}/{total} {unit}{speed}", file=sys.stderr, flush=True)

    return report
