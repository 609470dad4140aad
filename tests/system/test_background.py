"""Work in the background is done once, wherever it is asked for, and its errors come back."""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from _cli import python
from _time_limit import wait_until

from shardio.system import background
from shardio.system.background import call, call_on_lasting_thread, call_when_gone


class Thing:
    """An object that can be watched, and can refer to itself."""

    itself: "Thing"


@pytest.mark.parametrize("way", [call, call_on_lasting_thread])
def test_a_call_returns_or_raises(way: Callable[[Callable[[], Any]], Any]) -> None:
    """A call runs on another thread, and returns its value or raises its error."""
    assert way(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        way(lambda: 1 // 0)
    assert way(lambda: way(lambda: 7)) == 7  # even from within
    assert call_on_lasting_thread(threading.get_ident) == call_on_lasting_thread(threading.get_ident)


def test_an_interrupt_ends_a_wait() -> None:
    """A signal handler that raises ends the wait for a call, which itself goes on to its end."""
    ended: list[bool] = []

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            call(lambda: (time.sleep(0.3), ended.append(True)))
        assert not ended
    finally:
        signal.signal(signal.SIGALRM, before)
    wait_until(lambda: bool(ended))


@pytest.mark.parametrize("cyclic", [False, True])
def test_called_when_gone(cyclic: bool) -> None:
    """A function is called once its object is gone, be it the garbage collector that finds it."""
    calls: list[int] = []
    thing = Thing()
    call_when_gone(thing, calls.append, 3)
    time.sleep(0.02)
    assert not calls
    if cyclic:
        thing.itself = thing
    del thing
    gc.collect()
    wait_until(lambda: calls == [3])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_called_in_a_forked_child() -> None:
    """A child calls the function for its own copy of the object, and the parent for the original."""
    thing = Thing()
    reader, writer = os.pipe()
    call_when_gone(thing, os.write, writer, b"gone")
    child = os.fork()
    if not child:
        del thing
        call_on_lasting_thread(lambda: None)
        os._exit(0)
    assert os.read(reader, 10) == b"gone"
    os.waitpid(child, 0)
    del thing
    assert os.read(reader, 10) == b"gone"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("way", ["when gone", "on its own", "with a call of its own"])
def test_the_interpreter_waits_for_what_runs(way: str) -> None:
    """The interpreter's end does not strike a thread of the background, which may be about to free a tensor."""
    code = """
import sys, time
from shardio.system import at_exit, background

class Thing:
    def at_exit(self):
        pass

def work():
    time.sleep(0.3)
    if "call" in sys.argv[1]:
        background.call(lambda: time.sleep(0.1))
    print("ended", flush=True)

resource, thing = Thing(), Thing()
at_exit.close_at_exit(resource)
if sys.argv[1] == "on its own":
    background.start(work)
    time.sleep(0.1)
else:
    background.call_when_gone(thing, work)
    del thing
"""
    done = python("-c", code, way)
    assert (done.stdout, done.stderr) == ("ended\n", "")


def test_threads_are_used_again_and_end_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions one after the other share a thread, those at once do not, and a thread without work ends."""
    monkeypatch.setattr(background, "_IDLE_SECONDS", 0.05)
    threads = set()
    for _ in range(20):
        threads.add(call(threading.get_ident))
        time.sleep(0.002)
    assert len(threads) < 10
    meeting = threading.Barrier(5)

    def meet() -> None:
        meeting.wait(2)

    for _ in range(4):
        background.start(meet)
    meeting.wait(2)
    names = ("shardio idle", "shardio background")
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name in names])
    assert call(lambda: 7) == 7


def test_functions_that_come_while_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is about to end, because it had no work for some time, calls what comes at that moment."""
    monkeypatch.setattr(background, "_IDLE_SECONDS", 0.0005)
    for number in range(400):
        assert call(partial(int, number)) == number
        time.sleep(0.0001 * (number % 11))
