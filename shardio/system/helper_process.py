"""Calls carried out in a helper process, killed when one of them takes too long.

They are for libraries that parse what may be damaged, hold the GIL meanwhile, and may take minutes or crash. Each
process has one helper, which starts with the first call and ends with the process, however that ends. Both sides speak
in frames, and nothing is unpickled:

    request     uint64 size, then JSON: [name of a function "module:function", its keyword arguments]
    answer      uint8 kind, uint64 size, then the bytes: first ACCEPTED, then a VALUE for each that the function yields,
                then END, or an ERROR as JSON: [name of the exception, errno or null, message]
"""

import contextlib
import fcntl
import importlib
import json
import math
import os
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import IO, Any, BinaryIO, cast, final

from .. import errors
from . import processes
from .at_exit import close_at_exit
from .timing import slices

READ_SECONDS = 60.0
"""The limit where none is set."""

_ACCEPTED, _VALUE, _END, _ERROR = range(4)
_SIZE, _FRAME = struct.Struct("<Q"), struct.Struct("<BQ")
_START_SECONDS = 120.0  # to start an interpreter and import a module may take this long on a machine that is overloaded
_END_SECONDS = 2.0
_PIPE_BYTES = 1 << 20
_MOST_MEMORY = 16 << 30

_START = "import sys; sys.path[:] = sys.argv[2:]; from shardio.system.helper_process import serve; serve(sys.argv[1])"
"""Starts the helper with the paths of this process, before it imports anything from the current directory."""


class CallFailed(Exception):
    """A call did not come to its end.

    Attributes:
        yielded: the number of values that the function had yielded before.
    """

    def __init__(self, message: str, yielded: int) -> None:
        super().__init__(message)
        self.yielded = yielded


class CallTimeout(CallFailed):
    """A call exceeded its limit, and the helper was killed."""


class HelperDied(CallFailed):
    """The helper ended during a call: the library crashed, or someone killed it."""


_limit: ContextVar[float] = ContextVar("limit")


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Let calls of this thread, in the `with` block, take `seconds` for each value."""
    token = _limit.set(seconds)
    try:
        yield
    finally:
        _limit.reset(token)


def current_limit() -> float:
    """Return the seconds that a call of this thread may take for each value."""
    return _limit.get(READ_SECONDS)


def call(function: str, arguments: Mapping[str, Any], limit: float) -> list[bytearray]:
    """Call a function in the helper of this process; return the values that it yields.

    Threads take turns; the wait for a turn does not count towards the limit.

    Args:
        function: the function, as `module:function`. It returns an iterator of bytes.
        arguments: its keyword arguments, as JSON stores them.
        limit: seconds for each value, and for the end.

    Raises:
        CallTimeout: a value took longer.
        HelperDied: the helper ended during the call.
        WorkerDied: no helper can be started.
        ShardioError, OSError, RuntimeError: raised by the function; RuntimeError stands for all other exceptions.
    """
    return _HELPERS.setdefault(os.getpid(), _Helper()).call(function, arguments, limit)


@final
class _Helper:
    """The helper of one process, which threads call in turns."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._process: _Process | None = None
        self._ended = False

    def call(self, function: str, arguments: Mapping[str, Any], limit: float) -> list[bytearray]:
        with self._turn:
            process = self._running()
            try:
                values, error = process.call(function, arguments, limit)
            except BaseException:
                # An interrupt too: what the helper has yet to say about this call must not answer the next one.
                self._process = None
                process.end()
                raise
        if error is not None:
            try:
                raise error
            finally:
                del error  # with its traceback it is a cycle, which would keep all files open that callers hold
        return values

    def _running(self) -> "_Process":
        if self._ended:
            raise HelperDied("the interpreter is about to end", 0)
        if self._process is not None and self._process.code() is not None:
            self._process.end()
            self._process = None
        if self._process is None:
            self._process = _Process()
            close_at_exit(self)
        return self._process

    def at_exit(self) -> None:
        """Kill the helper without waiting for a turn: a thread that waits for an answer finds that there is none."""
        self._ended = True
        process = self._process
        if process is None or self._pid != os.getpid():
            return
        process.kill()
        if self._turn.acquire(blocking=False):  # else the thread that uses the pipes closes them
            process.end()
            self._turn.release()


_HELPERS: dict[int, _Helper] = {}  # by process: a forked child inherits those of its parents, and uses none of them


class _Silent(Exception):
    """The helper does not do its part in time."""


@final
class _Process:
    """A helper, and its pipes."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", _START, str(os.getpid()), *sys.path]
        self._process = processes.start_program(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._pipes = [cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)]
        self._requests, self._answers = (pipe.fileno() for pipe in self._pipes)
        for descriptor in (self._requests, self._answers):
            os.set_blocking(descriptor, False)
        with contextlib.suppress(OSError, AttributeError):  # only for speed, and not everywhere
            fcntl.fcntl(self._answers, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def call(
        self, function: str, arguments: Mapping[str, Any], limit: float
    ) -> tuple[list[bytearray], Exception | None]:
        """Return what the function yields, and the exception that it raises; see `call` for all others."""
        request = json.dumps([function, arguments]).encode()
        try:
            self._send(_SIZE.pack(len(request)) + request, _START_SECONDS)
            kind, content = self._receive(_START_SECONDS)
        except (_Silent, EOFError):
            raise errors.WorkerDied(f"a helper process (process {self._process.pid}) does not start") from None
        values: list[bytearray] = []
        while kind in (_ACCEPTED, _VALUE):
            try:
                kind, content = self._receive(limit)
            except _Silent:
                raise CallTimeout(f"no answer within {limit:.3g} s", len(values)) from None
            except EOFError:
                code = self.code(wait=True)
                raise HelperDied(f"the helper process ended with exit code {code}", len(values)) from None
            if kind == _VALUE:
                values.append(content)
        return values, _exception(*json.loads(content)) if kind == _ERROR else None

    def code(self, *, wait: bool = False) -> int | None:
        """Return the exit code; None if the process is running."""
        if wait:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
        return self._process.poll()

    def kill(self) -> None:
        """Kill the process, and wait for its end unless the kernel keeps it waiting for a disk."""
        self._process.kill()
        self.code(wait=True)

    def end(self) -> None:
        """Kill the process and close the pipes, which no other thread may be using."""
        self.kill()
        for pipe in self._pipes:
            pipe.close()

    def _send(self, data: bytes, limit: float) -> None:
        """Send all of `data`; _Silent if the helper does not take it, EOFError if it has ended."""
        left = memoryview(data)
        while left:
            _wait(self._requests, select.POLLOUT, limit)
            try:
                left = left[os.write(self._requests, left) :]
            except BrokenPipeError as error:
                raise EOFError from error

    def _receive(self, limit: float) -> tuple[int, bytearray]:
        """Return the kind of the next frame and its bytes; _Silent if none comes, EOFError if the helper has ended."""
        kind, size = _FRAME.unpack(self._read(_FRAME.size, limit))
        return kind, self._read(size, limit)

    def _read(self, size: int, limit: float) -> bytearray:
        data = bytearray(size)
        left = memoryview(data)
        while left:
            try:
                got = os.readv(self._answers, [left])
            except BlockingIOError:
                _wait(self._answers, select.POLLIN, limit)
                continue
            if not got:
                raise EOFError
            left = left[got:]
        return data


def _wait(descriptor: int, event: int, limit: float) -> None:
    """Wait until a descriptor is ready; _Silent after `limit` seconds."""
    poll = select.poll()
    poll.register(descriptor, event)
    if not any(poll.poll(math.ceil(1000 * part)) for part in slices(limit)):
        raise _Silent


def _exception(name: str, number: int | None, message: str) -> Exception:
    """Return an exception that the function raised: one of shardio's own, OSError, or RuntimeError for all others."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.ShardioError):
        return kind(message)
    if name == "OSError":
        return OSError(message) if number is None else OSError(number, message)
    return RuntimeError(f"{name}: {message}")


def serve(parent: str) -> None:
    """Be the helper of the process `parent`: carry out calls until its end of the pipe is closed."""
    processes.die_with(int(parent))
    # Damage may also have a library allocate without end: a gigabyte each second, as measured.
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
    processes.limit_memory(min(memory, _MOST_MEMORY))
    # What libraries print goes to the standard error.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(0), "rb") as requests:
        while len(size := requests.read(_SIZE.size)) == _SIZE.size:
            function, arguments = json.loads(requests.read(*_SIZE.unpack(size)))
            _answer(answers, function, arguments)
    os._exit(0)


def _answer(answers: BinaryIO, function: str, arguments: Mapping[str, Any]) -> None:
    def send(kind: int, content: Any = b"") -> None:
        answers.write(_FRAME.pack(kind, len(content)))
        answers.write(content)
        answers.flush()

    try:
        module, _, name = function.partition(":")
        called = getattr(importlib.import_module(module), name)
        send(_ACCEPTED)
        for value in called(**arguments):
            send(_VALUE, value)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001  # raised again in the process that called
        name = "OSError" if isinstance(error, OSError) else type(error).__name__
        number = error.errno if isinstance(error, OSError) else None
        send(_ERROR, json.dumps([name, number, str(error)]).encode(errors="surrogatepass"))
    else:
        send(_END)
