"""Progress of long work: a bar with rate and time left on a terminal, plain lines elsewhere."""

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

LINE_SECONDS = 5.0

Report = Callable[[str, int, int], None]
"""What is being done, how much of it, of how much."""


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed or 0
        return Text(f"{speed:,.0f} {self._unit}/s")


@contextmanager
def progress(unit: str, *, quiet: bool = False) -> Iterator[Report]:
    """A function that shows how far each piece of work is, unless `quiet`; all output goes to stderr."""
    if quiet:
        yield lambda what, done, total: None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain(unit)
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

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report


def _plain(unit: str) -> Report:
    begun: dict[str, float] = {}
    shown: dict[str, float] = {}
    ended: set[str] = set()

    def report(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        start = begun.setdefault(what, now)
        if what in ended or (done < total and now - shown.setdefault(what, now) < LINE_SECONDS):
            return
        if done >= total:
            ended.add(what)
        shown[what] = now
        rate = done / (now - start) if now - start > 0.1 else 0
        left = f", {(total - done) / rate:.0f} s left" if rate and done < total else ""
        speed = f" ({rate:,.0f}/s{left})" if rate else ""  # of an instant there is no rate
        print(f"{what} {done}/{total} {unit}{speed}", file=sys.stderr, flush=True)

    return report
