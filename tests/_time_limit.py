"""A limit to the time that a part of a test may take."""

import contextlib
import signal
from collections.abc import Iterator


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
