"""A file system that is small, for tests of full disks."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of `size`, such as `40m`, on a new folder; skip the test where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only a user who may mount file systems can make a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)  # the cache's files are still open
