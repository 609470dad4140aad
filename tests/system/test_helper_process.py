"""Calls in a helper process: what they return, how they are cut off, and that the helper ends with its process."""

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from _leftovers import running
from _time_limit import wait_until

from shardio.errors import ShardCorrupt
from shardio.system import helper_process
from shardio.system.helper_process import CallTimeout, HelperDied

LONG = 60.0


def call(function: str, limit: float = LONG, **arguments: Any) -> list[bytes]:
    return list(map(bytes, helper_process.call(f"_helper_calls:{function}", arguments, limit)))


def test_values_and_errors_cross() -> None:
    """Values come in order from one process; errors come as they are, or as RuntimeError; output does no harm."""
    assert call("count", upto=3) == [b"0", b"1", b"2"]
    assert call("count", upto=0) == []
    (before,) = call("pid")
    assert int(before) != os.getpid()
    for kind, error, message in [
        ("own", ShardCorrupt, "x.h5: damaged"),
        ("system", OSError, "full"),
        ("other", RuntimeError, "KeyError: 'x'"),
    ]:
        with pytest.raises(error, match=message):
            call("fail", kind=kind)
    assert call("chat") == [b"answer"]
    assert call("pid") == [before]


def test_an_error_is_freed_with_all_that_it_holds() -> None:
    """Once an error is handled, the caller's objects are freed at once: an HDF5 file among them must not stay open."""
    held: list[weakref.ref[Any]] = []

    def work() -> None:
        mine = threading.Event()
        held.append(weakref.ref(mine))
        call("fail", kind="own")

    gc.disable()
    try:
        with contextlib.suppress(ShardCorrupt):
            work()
        assert held[0]() is None
    finally:
        gc.enable()


def test_a_call_that_takes_too_long() -> None:
    """The limit is for each value. The helper is killed, says how far it came, and the next call has a new one."""
    assert call("sleep", 1.0, seconds=0.3, upto=4) == [b"slept"] * 4
    (before,) = call("pid")
    begun = time.monotonic()
    with pytest.raises(CallTimeout, match=r"no answer within 0\.5 s") as caught:
        call("hold", 0.5)
    assert caught.value.yielded == 1
    assert time.monotonic() - begun < 5.0
    wait_until(lambda: not running(int(before)), seconds=20)
    assert call("pid") != [before]


def test_a_crash() -> None:
    """A helper that crashes is replaced."""
    with pytest.raises(HelperDied, match="exit code -11") as caught:
        call("crash")
    assert caught.value.yielded == 1
    assert call("count", upto=1) == [b"0"]


def test_threads_take_turns() -> None:
    """The wait for another thread's call does not count: only the slow call is cut off."""
    call("count", upto=1)
    results: list[Any] = []

    def run(function: str, **arguments: Any) -> None:
        try:
            results.append(call(function, 0.7, **arguments))
        except CallTimeout:
            results.append("timed out")

    slow = threading.Thread(target=run, args=("hold",))
    slow.start()
    time.sleep(0.1)
    others = [threading.Thread(target=run, args=("count",), kwargs={"upto": 1}) for _ in range(3)]
    for thread in others:
        thread.start()
    for thread in (slow, *others):
        thread.join(LONG)
    assert results == ["timed out", [b"0"], [b"0"], [b"0"]]


def test_an_interrupt() -> None:
    """An interrupt ends a call at once, and what was under way answers no other call."""
    call("count", upto=1)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        call("sleep", seconds=30)
    assert time.monotonic() - begun < 10
    assert call("count", upto=2) == [b"0", b"1"]


def send_pid(pipe: Any) -> None:
    pipe.send(call("pid")[0])


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_each_process_has_its_own(method: str) -> None:
    """Forked and daemonic processes have helpers of their own, which end with them."""
    (ours,) = call("pid")
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=send_pid, args=(sender,), daemon=True)
    child.start()
    assert receiver.poll(LONG)
    theirs = receiver.recv()
    assert theirs != ours
    child.join(LONG)
    assert child.exitcode == 0
    wait_until(lambda: not running(int(theirs)), seconds=20)
    assert call("pid") == [ours]


SCRIPT = """
import contextlib, os, sys, threading, time
from shardio.system import helper_process

def tell():
    print(bytes(helper_process.call("_helper_calls:pid", {}, 60.0)[0]).decode())

def hold():
    with contextlib.suppress(Exception):  # Python aborts if a daemon thread prints a traceback while it ends
        helper_process.call("_helper_calls:hold", {}, 600.0)

def main(how):
    for _ in range(2):  # started by a thread that ends
        thread = threading.Thread(target=tell)
        thread.start()
        thread.join()
    threading.Thread(target=hold, daemon=True).start()
    time.sleep(0.3)
    print("held", flush=True)
    while how != "exit":
        time.sleep(0.1)  # and not for long: a signal just before the call is seen after it

main(sys.argv[1])
"""


@pytest.mark.parametrize("how", ["exit", "SIGINT", "SIGKILL"])
def test_it_ends_with_its_process(tmp_path: Path, how: str) -> None:
    """However a process ends, its helper does too, in the middle of a call, and the process does not wait for it."""
    (tmp_path / "main.py").write_text(SCRIPT)
    job = subprocess.Popen(
        [sys.executable, tmp_path / "main.py", how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])},
        start_new_session=True,
    )
    first, second = (int(job.stdout.readline()) for _ in range(2))
    assert first == second, "it ended with the thread that started it"
    assert job.stdout.readline() == "held\n"
    if how.startswith("SIG"):
        (os.killpg if how == "SIGINT" else os.kill)(job.pid, getattr(signal, how))
    begun = time.monotonic()
    _, told = job.communicate(timeout=LONG)
    assert time.monotonic() - begun < 5.0, told  # the promised two seconds, and what a loaded machine adds
    assert job.returncode == {"exit": 0, "SIGINT": -2, "SIGKILL": -9}[how], told
    wait_until(lambda: not running(first), seconds=5)
