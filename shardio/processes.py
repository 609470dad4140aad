"""Helper processes that never outlive the one that started them."""

import ctypes
import multiprocessing
import os
import signal
import sys

CONTEXT = multiprocessing.get_context("spawn")
"""How shardio starts processes: afresh, since a fork of a process with threads may hold locks for ever."""

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Called in a child: asks the kernel to end it when its parent ends, however that happens (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before the kernel had been asked
        os._exit(1)
