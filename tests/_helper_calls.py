"""Functions that tests have the helper process call."""

import os
import signal
import time
from collections.abc import Iterator


def count(upto: int) -> Iterator[bytes]:
    """Yield numbers as text."""
    for number in range(upto):
        yield str(number).encode()


def pid() -> Iterator[bytes]:
    """Yield the helper's process."""
    yield str(os.getpid()).encode()


def sleep(seconds: float, upto: int = 1) -> Iterator[bytes]:
    """Sleep before each value."""
    for _ in range(upto):
        time.sleep(seconds)
        yield b"slept"


def hold() -> Iterator[bytes]:
    """Yield a value, and then hold the GIL for a long time, as a library does that is not interrupted."""
    yield b"first"
    yield str(pow(3, 10**9)).encode()


def crash() -> Iterator[bytes]:
    """End as a library does that follows a wrong address."""
    yield b"first"
    os.kill(os.getpid(), signal.SIGSEGV)


def fail(kind: str) -> Iterator[bytes]:
    """Raise an exception."""
    from shardio.errors import ShardCorrupt

    yield b"first"
    raise {"own": ShardCorrupt("x.h5: damaged"), "system": OSError(28, "full"), "other": KeyError("x")}[kind]


def chat() -> Iterator[bytes]:
    """Print, as libraries do."""
    print("to the standard output", flush=True)
    os.write(1, b"and below Python\n")
    yield b"answer"
