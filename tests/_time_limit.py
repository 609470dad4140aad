"""Limits to the time that a part of a test may take."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the `with` block takes longer."""

    def fail(*_: object) -> None:
        raise AssertionError(f"it took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def wait_until(condition: Callable[[], object], complaint: str = "", seconds: float = 120) -> None:
    """Wait until something is so; fail if it takes longer."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, complaint or f"it took longer than {seconds} s"
        time.sleep(0.002)
