"""Files that a test leaves in /dev/shm."""

import os
import time

FOLDER = "/dev/shm"


def names() -> set[str]:
    """The names in /dev/shm."""
    return set(os.listdir(FOLDER))


def left_behind(before: set[str], seconds: float = 60.0) -> set[str]:
    """The names that are not in `before` and stay; those of tests that run in parallel disappear after a while."""
    left, deadline = names() - before, time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left &= names()
    return left
