"""A link of some latency and bandwidth to a server on this machine, which counts what passes: `limits/link.c`."""

import mmap
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from benchmarks._limits import compile_limit


@dataclass(frozen=True, slots=True)
class Passed:
    """The bytes and requests that have passed a link.

    Attributes:
        requests: HTTP requests.
        bytes: bytes of answers, headers included.
        connections: connections.
    """

    requests: int
    bytes: int
    connections: int

    def __sub__(self, other: "Passed") -> "Passed":
        return Passed(self.requests - other.requests, self.bytes - other.bytes, self.connections - other.connections)


@final
class Counters:
    """The counters of a link, which any process may read."""

    def __init__(self, file: Path) -> None:
        with open(file, "rb") as opened:
            self._numbers = np.frombuffer(mmap.mmap(opened.fileno(), 32, prot=mmap.PROT_READ), np.uint64)

    def read(self) -> Passed:
        """Return what has passed until now."""
        return Passed(*self._numbers[:3].tolist())


@dataclass(frozen=True, slots=True)
class Link:
    """A running link.

    Attributes:
        port: where it listens at 127.0.0.1.
        counters: the file of its counters.
        pid: its process.
    """

    port: int
    counters: Path
    pid: int


@contextmanager
def link(port: int, round_trip_ms: float, mbit: float, work: Path) -> Iterator[Link]:
    """Run a link to a port in the `with` block; a bandwidth of 0 is unlimited."""
    program = compile_limit("link", work)
    counters = work / f"link-{os.getpid()}-{round_trip_ms:g}-{mbit:g}"
    counters.unlink(missing_ok=True)
    command = [str(program), str(port), str(round_trip_ms), str(mbit), str(counters)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None:
                raise RuntimeError("the link has no output")
            yield Link(int(process.stdout.readline()), counters, process.pid)
        finally:
            process.kill()
            counters.unlink(missing_ok=True)
