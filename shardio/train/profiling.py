"""Traces of training steps by torch's profiler."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import profiler

_SKIPPED, _WARM_UP, _TRACED = 10, 2, 10


@contextmanager
def profiling(path: Path | None) -> Iterator[Callable[[], None]]:
    """Yield what is to be called after each step, so that a trace of ten of them is written to `path`.

    The trace is a JSON file for Perfetto and chrome://tracing. Without a path nothing is traced.
    """
    if path is None:
        yield lambda: None
        return
    schedule = profiler.schedule(wait=_SKIPPED, warmup=_WARM_UP, active=_TRACED, repeat=1)
    with profiler.profile(schedule=schedule, on_trace_ready=lambda done: done.export_chrome_trace(str(path))) as trace:
        yield trace.step
