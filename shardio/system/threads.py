"""Work on threads, with results in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from . import background

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 2
"""The items per thread that are in progress, or finished and not yet taken."""


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int, ending: Callable[[], None] = lambda: None
) -> Iterator[Result]:
    """Yield `work(item)` for each item, in the order of the items, computed by `threads` threads.

    At most `AHEAD` items per thread are in progress or wait to be taken. An exception of `work` is raised at its item's
    turn. After that, or when the caller closes the iterator, no further item begins; `ending` is then called, before
    waiting for the threads, to cut short the items that they work on.
    """
    # Without an executor, whose Conditions an interrupt may leave locked, see `background`.
    calls: SimpleQueue[background.Call | None] = SimpleQueue()
    ended: SimpleQueue[None] = SimpleQueue()
    waiting: deque[background.Call] = deque()
    begun = 0
    try:
        for item in items:
            waiting.append(background.Call(partial(work, item)))
            calls.put(waiting[-1])
            if begun < threads:
                background.start(partial(_carry_out, calls, ended))
                begun += 1
            if len(waiting) >= AHEAD * threads:
                yield waiting.popleft().wait()
        while waiting:
            yield waiting.popleft().wait()
    finally:
        ending()
        with suppress(Empty):
            while True:
                calls.get_nowait()
        for _ in range(threads):
            calls.put(None)
        for _ in range(begun):
            ended.get()


def _carry_out(calls: "SimpleQueue[background.Call | None]", ended: SimpleQueue[None]) -> None:
    while (call := calls.get()) is not None:
        call.run()
    ended.put(None)
