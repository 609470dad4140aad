"""What is left in /dev/shm."""

import os
import time

FOLDER = "/dev/shm"


def names() -> set[str]:
    """What is there."""
    return set(os.listdir(FOLDER))


def left_behind(before: set[str], seconds: float = 60.0) -> set[str]:
    """What was not there `before`, and stays: others, such as tests beside this one, have theirs for a while."""
    left, deadline = names() - before, time.monotonic() + seconds
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left &= names()
    return left
