"""Files in /dev/shm and processes that a test has left behind."""

import os
import time
from pathlib import Path

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


def running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
