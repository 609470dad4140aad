"""Helper processes that never outlive the one that started them."""

import ctypes
import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess

CONTEXT = multiprocessing.get_context("spawn")
"""How shardio starts processes: afresh, since a fork of a process with threads may hold locks for ever."""

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Called in a child: asks the kernel to end it when its parent ends, however that happens (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it was gone before the kernel had been asked
        os._exit(1)


@contextmanager
def children_ignore_interrupts() -> Iterator[None]:
    """Processes started in the `with` block ignore Ctrl-C, which a terminal sends to all: their parent ends them."""
    # A new process inherits what its creator's thread blocks. Here the signal is only put off, not lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(process: SpawnProcess) -> None:
    """Starts a process that asks the kernel to end it with its parent, and that ignores Ctrl-C.

    To the kernel the parent is the thread that starts it. So where that is not the main thread, which stays to the end,
    another one starts it that does.
    """
    if threading.current_thread() is threading.main_thread():
        _start_deaf(process)
        return
    global _starter
    if _starter is None or _starter[0] != os.getpid():  # forked: the thread is the parent's
        _starter = os.getpid(), ThreadPoolExecutor(1, "shardio starter")
    _starter[1].submit(_start_deaf, process).result()


def _start_deaf(process: SpawnProcess) -> None:
    with children_ignore_interrupts():
        process.start()


_starter: tuple[int, ThreadPoolExecutor] | None = None


def allow_open_files(wanted: int) -> int:
    """Raises this process's soft limit of open files towards `wanted`, as far as the hard limit allows.

    Returns the limit that now holds. A dataset may have thousands of shards, and opening one anew for each read of a
    shuffled epoch would cost more than the read.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if target > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return max(soft, target)
