"""Work that an interrupt must not strike, done on other threads.

Python runs signal handlers in the main thread, between any two instructions. Where such a handler raises, as Ctrl-C
does, three things go wrong: a finalizer swallows the exception; a Condition, and with it an Event, may stay locked for
ever; and `Thread.start` and `Thread.join` wait for those. So what a training loop calls uses only C's own locks and
`queue.SimpleQueue`, which a signal leaves intact, and has everything else done here. The finalizers of what a loop
drops run here as well; a file, which a dataset closes when it is dropped, needs no such care.

This and the other modules with threads rely on details of CPython that the language doesn't promise. Each has a test in
`tests/system/test_cpython.py`, which fails where the detail doesn't hold:

1. A signal handler runs between two bytecodes, never inside a C function, and not between a C lock's `__enter__` and
   the body of its `with`. So `with Lock()`, a queue's `put` and a C function as the callback of a weak reference run
   to their end: here, `Departures`, `at_exit._open`, and the locks of `Pipeline` and `NodeCache`.
2. `SimpleQueue.put` is reentrant: a signal handler or a finalizer may call it on the queue that its thread uses.
3. An object goes with its last reference, at once and on the thread that drops it; the objects of a reference cycle
   go when the garbage collector finds them, and their weak references still call back. So files close, the memory of
   batches returns to its pool (`loader/batch/memory.py`), and `_Token` begins a call.
4. One operation on a list, dict or deque is atomic. So threads share `_idle`, `_busy`, `at_exit.awaited_calls`, the
   turns that workers leave behind (`loader/workers/pipeline.py`) and idle decoders (`engines/fused_images.py`) without
   a lock, copy a dict by `list` while others change it, and make one helper per process by `setdefault`.
5. Threads see what other threads assign in the order in which it was assigned: if one thread sets A and then reads B,
   and another sets B and then reads A, at least one sees what the other set: `Pipeline.rest` and the workers.
6. Functions of `atexit` run before the interpreter strikes daemon threads, so `at_exit` waits for these there. Threads
   that are left after that are unwound when they come back from C up to Python 3.13, and hang from 3.14 on.
"""

import _thread
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar, final

T = TypeVar("T")

_NAME = "shardio background"
_IDLE_SECONDS = 5.0


@final
class _Watch(weakref.ref[Any]):
    """A weak reference with a value of its own."""

    __slots__ = ("value",)
    value: Any


@final
class Departures(Generic[T]):
    """Collects a value for each watched object that is gone. The object's last user runs no Python code for that."""

    def __init__(self) -> None:
        self._gone: SimpleQueue[_Watch] = SimpleQueue()
        self._watches: dict[int, _Watch] = {}  # a weak reference that is dropped doesn't call back

    def watch(self, thing: object, value: T) -> None:
        """Have `value` collected when `thing` is gone."""
        watch = _Watch(thing, self._gone.put)  # a C function: it runs to its end whatever signal comes
        watch.value = value
        self._watches[id(watch)] = watch

    def collect(self) -> Iterator[T]:
        """Yield the values of the objects that are gone, each once."""
        while not self._gone.empty():
            try:
                watch = self._gone.get_nowait()
            except Empty:  # another thread has taken it
                return
            if self._watches.pop(id(watch), None) is not None:
                yield watch.value

    def wait(self) -> T:
        """Wait for an object to go, and return its value."""
        watch = self._gone.get()
        del self._watches[id(watch)]
        value: T = watch.value
        return value

    def forget(self, but: int = 0) -> list[tuple[Any, T]]:
        """Watch no object any more but the last ones, and return those that are still there with their values."""
        watches = list(self._watches.values())
        watches = watches[: max(0, len(watches) - but)]
        for watch in watches:
            self._watches.pop(id(watch), None)
        return [(thing, watch.value) for watch in watches if (thing := watch()) is not None]


@final
class Call:
    """A function that another thread calls with `run`; `wait` returns its value."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._outcome: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def run(self) -> None:
        try:
            self._outcome.put((self._function(), None))
        except BaseException as error:  # noqa: BLE001  # raised in the thread that waits
            self._outcome.put((None, error))

    def wait(self) -> Any:
        """Wait for the function to end; return its value or raise its error."""
        value, error = self._outcome.get()
        if error is not None:
            raise error
        return value


_Inbox: TypeAlias = SimpleQueue[tuple[Callable[[], None], str]]


def start(function: Callable[[], None], name: str = _NAME) -> None:
    """Call a function on another thread, under that name meanwhile; the function handles its own errors.

    Threads are used again: a new one takes the system some milliseconds to place on a processor of its own.
    """
    _starting.put(None)
    inbox = _idle_inbox()
    if inbox is None:
        inbox = SimpleQueue()
        _thread.start_new_thread(_start, (inbox,))
    inbox.put((function, name))


_idle: list[tuple[int, _Inbox]] = []
"""The inboxes of threads that wait for a function, each with the process that it belongs to: a fork copies the list."""


def _idle_inbox() -> _Inbox | None:
    while _idle:
        try:
            process, inbox = _idle.pop()
        except IndexError:  # another thread has taken the last one
            return None
        if process == os.getpid():
            return inbox
    return None


def _start(inbox: _Inbox) -> None:
    """Start a Thread, with a name that debuggers show, from a thread that ends at once."""
    if not _exiting:
        try:
            threading.Thread(target=_serve, args=(inbox,), daemon=True).start()
            return
        except RuntimeError:  # the system allows no more threads: this one serves
            pass
    _run_next(inbox, None)  # somebody may wait for it


def _serve(inbox: _Inbox) -> None:
    """Call the functions that come, until none has come for some time."""
    _run_next(inbox, None)
    this = os.getpid(), inbox
    while not _exiting:
        threading.current_thread().name = "shardio idle"
        _idle.append(this)
        try:
            _run_next(inbox, _IDLE_SECONDS)
        except Empty:
            try:
                _idle.remove(this)
            except ValueError:  # a function is on its way
                _run_next(inbox, None)
            else:
                return


def _run_next(inbox: _Inbox, timeout: float | None) -> None:
    function, name = inbox.get(timeout=timeout)
    thread = _thread.get_ident()
    threading.current_thread().name = name
    _busy[thread] = None
    _starting.get()
    try:
        function()
    finally:
        _busy.pop(thread, None)


def call(function: Callable[[], T]) -> T:
    """Call a function on a thread of its own, wait for it, and return its value or raise its error.

    An interrupt ends the wait, and the function goes on.
    """
    if _exiting:
        return function()
    pending = Call(function)
    start(pending.run)
    value: T = pending.wait()
    return value


def begin_exit() -> None:
    """Have `call` use its caller's thread from now on: the interpreter is about to end, and starts no thread."""
    global _exiting
    _exiting = True


def exiting() -> bool:
    """Return whether the interpreter is about to end: it waits for all threads at once, so nobody waits for one."""
    return _exiting


def end_keeper() -> None:
    """Have the thread that lasts as long as the process end after what it has been given until now."""
    if _keeper is not None and _keeper.usable:
        _keeper.end()


def busy() -> bool:
    """Return whether a function still runs here, on any thread."""
    return bool(_busy) or not _starting.empty()


_exiting = False
_starting: SimpleQueue[None] = SimpleQueue()
"""Has an item for each function that no thread has begun yet."""
_busy: dict[int, None] = {}
"""The threads that run a function."""


def _forget_threads() -> None:
    global _starting
    _starting = SimpleQueue()
    _busy.clear()


os.register_at_fork(after_in_child=_forget_threads)


_Finalizer: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]


@final
class _Keeper:
    """A thread that lasts as long as the process. It runs finalizers and the calls that need such a thread."""

    def __init__(self, departures: "Departures[_Finalizer] | None" = None) -> None:
        self._pid = os.getpid()
        self.departures: Departures[_Finalizer] = departures or Departures()
        self._ident = 0
        start(self._run, "shardio keeper")

    @property
    def usable(self) -> bool:
        """Whether it is of this process; a forked child inherits no thread."""
        return self._pid == os.getpid()

    def end(self) -> None:
        """End the thread after what it has been given until now."""
        self.departures.watch(_Token(), (sys.exit, ()))

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the thread, wait for it, and return its value or raise its error."""
        if _thread.get_ident() == self._ident:
            return function()
        pending = Call(function)
        self.departures.watch(_Token(), (pending.run, ()))  # gone at once
        value: T = pending.wait()
        return value

    def _run(self) -> None:
        self._ident = _thread.get_ident()
        while True:
            function, arguments = self.departures.wait()
            try:
                function(*arguments)
            except SystemExit:
                return
            except BaseException as error:  # noqa: BLE001  # nobody waits for a finalizer
                sys.excepthook(type(error), error, error.__traceback__)
            del function, arguments  # while the thread waits, it must keep nothing alive


class _Token:
    """An object that nobody keeps."""


_keeper: _Keeper | None = None


def _usable_keeper() -> _Keeper:
    global _keeper
    keeper = _keeper
    if keeper is None or not keeper.usable:
        # Without a lock, which a fork could copy while it is taken: two threads may start a keeper each, and both work.
        keeper = _keeper = _Keeper(None if keeper is None else keeper.departures)
    return keeper


def call_on_lasting_thread(function: Callable[[], T]) -> T:
    """Call a function on a thread that lasts as long as the process, wait for it, and return its value."""
    return _usable_keeper().call(function)


def call_when_gone(thing: object, function: Callable[..., Any], *arguments: Any) -> None:
    """Have `function(*arguments)` called on another thread soon after `thing` is gone, if the process still runs then.

    The arguments must not refer to `thing`. A forked child calls it for its own copy of `thing`.
    """
    _usable_keeper().departures.watch(thing, (function, arguments))
