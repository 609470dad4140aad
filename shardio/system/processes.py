"""Child processes that never outlive their parent, and this process's limit of open files."""

import ctypes
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from .. import native
from .background import call_on_lasting_thread

T = TypeVar("T")

CONTEXT = multiprocessing.get_context("spawn")
"""The context in which shardio starts processes: spawn, since a forked child may inherit locks that never open."""

_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_LOOK_SECONDS = 1.0


def script_advice() -> str:
    """Say what keeps a process of this context from its work: it imports the script that starts it."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is not None and not os.path.isfile(script):
        return f"each process imports the script, and {script} is no file: save the script as a file, and run that"
    return "a script needs `if __name__ == '__main__':` around what it runs, as each process imports it"


def is_of_a_session(thing: Any) -> bool:
    """Return whether `thing` uses code that only this process has: of a notebook's cells or an interactive session.

    A process of this context imports the script that starts it, and here there is none.
    """
    main = sys.modules["__main__"]
    has_script = getattr(main, "__file__", None) is not None or getattr(main, "__spec__", None) is not None
    return not has_script and b"__main__" in pickle.dumps(thing)


def die_with_parent() -> None:
    """Have this child process end when its parent does, however that happens."""
    parent = multiprocessing.parent_process()
    die_with(os.getppid() if parent is None or parent.pid is None else parent.pid)


def end_with_parent() -> None:
    """Leave it to the parent, as far as it lives, to end this process, which `start` has started.

    A SIGTERM often goes to all processes of a job, and the parent may still need this one for its last steps. So, with
    the compiled part, the first one changes nothing. A second one ends the process, and so does the parent's own:
    multiprocessing sends it to processes that a parent leaves.
    """
    die_with_parent()
    if (compiled := native.library()) is not None:
        compiled.shardio_pass_first_sigterm()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent, the process `parent`, ends; elsewhere look every second."""
    if not _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        threading.Thread(target=_outlive, args=(parent,), name="shardio-parent", daemon=True).start()
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def _outlive(parent: int) -> None:
    """End this process soon after its parent."""
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def wake_on_time() -> None:
    """Have sleeps of this thread end on time, where the system can do that, rather than together with others."""
    _prctl(_PR_SET_TIMERSLACK, 1)


def _prctl(option: int, value: int) -> bool:
    """Set an option of this process; return False on a system that has none."""
    try:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except AttributeError:  # not Linux
        return False
    return True


@contextmanager
def children_ignore_interrupts(*more: signal.Signals) -> Iterator[None]:
    """Make processes started in the `with` block ignore signals that are meant for the parent, which ends them.

    These are Ctrl-C, which a terminal sends to all processes, SIGUSR1, which Slurm sends to all of a job before its
    time is up, and `more`.
    """
    # A new process inherits the signal mask of the thread that creates it. In this process signals are only delayed.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGUSR1, *more})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(process: SpawnProcess) -> None:
    """Start a process that ignores Ctrl-C and SIGUSR1, and whose target calls `end_with_parent`."""
    _in_lasting_thread(process.start, signal.SIGTERM)


def start_program(arguments: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start a program that only SIGKILL ends and that calls `die_with`; `options` are those of `subprocess.Popen`."""
    # multiprocessing ends its processes by SIGTERM when the interpreter ends, so only programs may ignore that.
    return _in_lasting_thread(lambda: subprocess.Popen(arguments, **options), signal.SIGTERM)


def _in_lasting_thread(start: Callable[[], T], *ignored: signal.Signals) -> T:
    """Call `start`, which starts a child process, in a thread that lasts as long as this process.

    The kernel takes the thread that starts the process for its parent, so one that lasts as long as this process does.
    """

    def start_ignoring_interrupts() -> T:
        with children_ignore_interrupts(*ignored):
            return start()

    return call_on_lasting_thread(start_ignoring_interrupts)


def limit_memory(most: int) -> None:
    """Let this process allocate at most `most` bytes, where the system can limit that."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or most < hard:
        with suppress(OSError, ValueError):  # macOS
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def allow_open_files(wanted: int) -> int:
    """Raise this process's soft limit of open files to `wanted`, or as far as the hard limit allows.

    Returns the limit that now holds. A dataset may have thousands of shards, and to open one for each read of a
    shuffled epoch would cost more than the read.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if target > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (OSError, ValueError):  # macOS allows less than its hard limit says
            return soft
    return max(soft, target)
