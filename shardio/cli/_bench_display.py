"""What `shardio bench` shows: a live table of the ranks on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ._progress import LINE_SECONDS

if TYPE_CHECKING:
    from ..bench import Progress
    from ..bench.significance import Comparison


@contextmanager
def live(ranks: int) -> Iterator[Callable[["Progress"], None]]:
    """Yield a function that shows on stderr how far the ranks are."""
    console = Console(stderr=True)
    if not console.is_terminal:
        said = time.monotonic()

        def say(news: "Progress") -> None:
            nonlocal said
            if news.rank == 0 and time.monotonic() - said >= LINE_SECONDS:
                said = time.monotonic()
                phase = "measuring" if news.counting else "warming up"
                print(f"{phase} {news.done:.0%}, {_rate(news):,.0f} samples/s", file=sys.stderr, flush=True)

        yield say
        return
    latest: dict[int, Progress] = {}
    with Live(console=console, refresh_per_second=5, transient=True) as screen:

        def show(news: "Progress") -> None:
            latest[news.rank] = news
            table = Table(title=f"{'measuring' if news.counting else 'warming up'}, {news.done:.0%}")
            for heading in ("rank", "samples/s", "starved", "samples"):
                table.add_column(heading, justify="right")
            for rank in sorted(latest):
                row = latest[rank]
                table.add_row(
                    str(rank),
                    f"{_rate(row):,.0f}",
                    f"{row.waited / max(row.seconds, 1e-9):.0%}",
                    f"{row.samples:,}",
                )
            screen.update(table)

        yield show


def comparison_text(comparison: "Comparison") -> str:
    """Return a comparison in words: `1.31 times as fast (1.27 to 1.36; p = 0.0001, 20 rounds)`."""
    spread = f"{comparison.low:.3g} to {comparison.high:.3g}"
    basis = "different times" if comparison.p is None else f"p = {comparison.p:.2g}, {comparison.rounds} rounds"
    if comparison.finding == "same":
        return f"the same as far as this can tell: {comparison.ratio:.3g} times as fast ({spread}; {basis})"
    return f"{comparison.finding}: {comparison.ratio:.3g} times as fast ({spread}; {basis})"


def _rate(news: "Progress") -> float:
    return news.samples / max(news.seconds, 1e-9)
