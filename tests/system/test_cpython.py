"""Details of CPython that `shardio.system.background` lists: each test fails where its detail doesn't hold."""

import gc
import random
import signal
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pytest
from _cli import python

from shardio.system.background import Departures

SECONDS = 0.3
"""How long each test looks for a counterexample."""


class Thing:
    """An object that can be watched, and can refer to itself."""

    itself: "Thing"


class Interrupt(Exception):
    """An exception that a signal handler raises."""


def interrupted(work: Callable[[], object]) -> int:
    """Call `work` again and again while interrupts strike it; return how many of them did."""

    def interrupt(number: int, frame: object) -> None:
        if striking:  # CPython complains of a signal that comes while its handler is exchanged for SIG_IGN
            raise Interrupt

    def work_on() -> None:  # a function: 3.13 has a loop's condition outside of the `try` that is around the loop
        nonlocal striking
        striking = True
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(20e-6, 60e-6))  # once
        while time.monotonic() < end:
            work()
        striking = False

    before = signal.signal(signal.SIGALRM, interrupt)
    struck, striking, end, draw = 0, False, time.monotonic() + SECONDS, random.Random(0)
    gc.disable()  # finalizers of others, in Python, would swallow an interrupt
    try:
        while time.monotonic() < end:
            try:
                work_on()
            except Interrupt:
                struck += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    return struck


@contextmanager
def many_switches() -> Iterator[None]:
    """Have threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def at_once(*functions: Callable[[], None]) -> None:
    """Call functions on threads of their own at once; raise the first error."""
    errors: list[BaseException] = []

    def run(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001  # raised below
            errors.append(error)

    with many_switches():
        threads = [threading.Thread(target=run, args=(function,)) for function in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def test_an_interrupt_leaves_no_lock_taken() -> None:
    """1: an interrupt strikes before a `with` block has the lock, in its body, or after it has let go."""
    lock = threading.Lock()

    def work() -> None:
        with lock:
            pass

    assert interrupted(work)
    assert lock.acquire(blocking=False)


def test_an_interrupt_loses_no_item_of_a_queue() -> None:
    """1: an interrupt strikes before an item is in a queue or after, and the queue works on."""
    queue: SimpleQueue[int] = SimpleQueue()
    assert interrupted(lambda: queue.put(1))
    items = queue.qsize()
    assert [queue.get_nowait() for _ in range(items)] == [1] * items
    queue.put(2)
    assert queue.get(timeout=1) == 2
    assert queue.empty()


def test_an_interrupt_strikes_no_callback_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """1: a C function as a weak reference's callback is called for every object, and swallows no interrupt."""
    swallowed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", swallowed.append)
    departures: Departures[int] = Departures()

    def work() -> None:
        thing = Thing()
        departures.watch(thing, 3)

    assert interrupted(work)
    assert set(departures.collect()) == {3}
    assert not departures.forget()
    assert not departures._watches
    assert not swallowed


@pytest.mark.parametrize("inside", ["put", "get"])
def test_a_queue_is_reentrant(inside: str) -> None:
    """2: a signal handler and a finalizer put into the queue that their thread uses, and wait for nothing."""
    script = f"""
import queue, signal, time
items = queue.SimpleQueue()
signal.signal(signal.SIGALRM, lambda number, frame: items.put("signal"))

class Putting:
    def __del__(self):
        items.put("finalizer")

signal.setitimer(signal.ITIMER_REAL, 20e-6, 20e-6)
end = time.monotonic() + {SECONDS}
while time.monotonic() < end:
    if {inside == "put"}:
        items.put(Putting())
    items.get()
signal.setitimer(signal.ITIMER_REAL, 0)
print("went on")
"""
    assert python("-c", script, timeout=60).stdout == "went on\n"


@pytest.mark.usefixtures("no_collector")
def test_an_object_goes_with_its_last_reference() -> None:
    """3: the thread that drops the last reference runs what follows, at once, without the garbage collector."""
    gone: list[int] = []
    thing = Thing()
    reference = weakref.ref(thing, lambda _: gone.append(threading.get_ident()))
    holder = {"thing": [thing]}
    del thing
    assert reference() is not None
    holder.clear()
    assert reference() is None
    assert gone == [threading.get_ident()]
    of_token = weakref.ref(Thing(), lambda _: gone.append(0))  # gone as soon as the call returns
    assert gone[1:] == [0]
    assert of_token() is None


def test_what_a_function_deletes_is_not_kept() -> None:
    """3: the frame of a function that waits keeps nothing that it has deleted, nor what its loop had before."""
    queue: SimpleQueue[Thing | None] = SimpleQueue()

    def serve() -> None:
        while (thing := queue.get()) is not None:
            del thing

    thread = threading.Thread(target=serve)
    thread.start()
    departed: SimpleQueue[Any] = SimpleQueue()
    thing = Thing()
    watch = weakref.ref(thing, departed.put)
    queue.put(thing)
    del thing
    assert departed.get(timeout=10) is watch
    queue.put(None)
    thread.join()


def test_the_weak_reference_of_a_cycle_calls_back() -> None:
    """3: the collector calls the callback of a weak reference that is no part of the cycle itself."""
    gone: SimpleQueue[Any] = SimpleQueue()
    thing = Thing()
    thing.itself = thing
    reference = weakref.ref(thing, gone.put)
    del thing
    gc.collect()
    assert gone.get(timeout=1) is reference


@pytest.mark.parametrize("kind", ["list", "dict", "deque"])
def test_threads_take_each_item_once(kind: str) -> None:
    """4: threads that take items from one list, dict or deque get each once, and an error where there is none."""
    count = 50_000
    taken: list[list[int]] = [[] for _ in range(4)]
    if kind == "dict":
        by_key = dict.fromkeys(range(count))

        def take(mine: list[int]) -> None:
            for key in range(count):
                if by_key.pop(key, 0) is None:
                    mine.append(key)
    else:
        items = list(range(count)) if kind == "list" else deque(range(count))

        def take(mine: list[int]) -> None:
            while True:
                try:
                    mine.append(items.pop())
                except IndexError:
                    return

    at_once(*(lambda mine=mine: take(mine) for mine in taken))  # type: ignore[misc]  # a default binds the list
    assert sorted(item for mine in taken for item in mine) == list(range(count))


def test_a_dict_is_copied_while_others_change_it() -> None:
    """4: `list` of a dict's items never meets a dict that changes its size, and `setdefault` returns one value."""
    shared: dict[Any, object] = {}
    end = time.monotonic() + SECONDS
    found: set[int] = set()

    def change() -> None:
        mine = threading.get_ident()
        while time.monotonic() < end:
            for key in range(20):
                shared[mine, key] = key
            found.add(id(shared.setdefault("one", object())))
            for key in range(20):
                del shared[mine, key]

    def copy() -> None:
        while time.monotonic() < end:
            assert all(key == "one" or key[1] == value for key, value in list(shared.items()))
            assert len(list(shared.values())) <= 61

    at_once(change, change, change, copy)
    assert list(shared) == ["one"]
    assert found == {id(shared["one"])}


class Flags:
    """Signals between two threads: one by an item of a list, the other by an attribute."""

    def __init__(self) -> None:
        self.item, self.attribute = [0], 0


def test_one_of_two_threads_sees_the_other() -> None:
    """5: of two threads that each set their own flag and then read the other's, at least one sees it set."""
    flags, rounds = Flags(), 3000
    begin, seen = threading.Barrier(2), ([0] * rounds, [0] * rounds)

    def by_item() -> None:
        for number in range(rounds):
            begin.wait(60)
            flags.item[0] = number
            seen[0][number] = flags.attribute

    def by_attribute() -> None:
        for number in range(rounds):
            begin.wait(60)
            flags.attribute = number
            seen[1][number] = flags.item[0]

    at_once(by_item, by_attribute)
    assert all(number in pair for number, pair in enumerate(zip(*seen, strict=True)))


def test_exit_functions_run_before_threads_are_struck() -> None:
    """6: while a function of `atexit` waits, daemon threads go on, also those that come back from C."""
    script = """
import atexit, threading, time
done = []

def work():
    for number in range(5):
        time.sleep(0.02)
        done.append(number)

def wait():
    while len(done) < 5:
        time.sleep(0.001)
    print("waited")

atexit.register(wait)
threading.Thread(target=work, daemon=True).start()
"""
    ended = python("-c", script, timeout=60)
    assert (ended.stdout, ended.stderr) == ("waited\n", "")
