"""A slow file system: a folder behind a latency and a bandwidth, mounted by `limits/slow_fs.c`. Only root can mount."""

import mmap
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

import numpy as np

from benchmarks._limits import compile_limit


class NoMount(Exception):
    """The file system cannot be mounted here; the message says why."""


@final
class SlowFolder:
    """A mounted folder.

    Attributes:
        path: where it is.
    """

    def __init__(self, path: Path, counters: Path) -> None:
        self.path = path
        with open(counters, "r+b") as file:
            self._numbers = np.frombuffer(mmap.mmap(file.fileno(), 32), np.uint64)

    @property
    def reads(self) -> int:
        """Reads that it has answered."""
        return int(self._numbers[0])

    @property
    def bytes(self) -> int:
        """Bytes that it has given."""
        return int(self._numbers[1])

    @property
    def opens(self) -> int:
        """Files that were opened."""
        return int(self._numbers[2])

    def fail(self, error: int) -> None:
        """Have all reads fail with an error number from now on; 0 for none."""
        self._numbers[3] = error


@contextmanager
def slow_folder(folder: Path, latency_ms: float, mbytes_per_s: float, work: Path) -> Iterator[SlowFolder]:
    """Mount a folder anew in the `with` block, with nothing of it in the page cache; 0 for no limit.

    Raises NoMount.
    """
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise NoMount("/dev/fuse is not there, or not for this user")
    program = compile_limit("slow_fs", work)
    mounted, counters = work / "slow", work / "slow-counters"
    mounted.mkdir(parents=True, exist_ok=True)
    counters.unlink(missing_ok=True)
    command = [str(program), str(folder), str(mounted), str(latency_ms), str(mbytes_per_s), str(counters)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise RuntimeError("pipes were asked for")
        if process.stdout.readline() != b"mounted\n":
            raise NoMount(process.stderr.read().decode().strip())
        try:
            yield SlowFolder(mounted, counters)
        finally:
            process.stdin.close()  # it unmounts, and ends
            process.wait(10)
            subprocess.run(["umount", "-l", str(mounted)], check=False, capture_output=True)  # if it was killed
