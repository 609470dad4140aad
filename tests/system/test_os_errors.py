"""Errors of the operating system name the file that they are about."""

import errno
import os
from pathlib import Path

import pytest

from shardio.system import replacement
from shardio.system.directory import Directory
from shardio.system.os_errors import naming


def test_errors_of_writing_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's errors for a full disk carry no name; those of durable writes do, and they leave no file."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.json'"):
        Directory(tmp_path).write("a.json", b"one")
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*a\.json'"),
        replacement.replacing(tmp_path / "a.json") as file,
    ):
        file.write(b"one")
    assert os.listdir(tmp_path) == []


def test_a_name_is_added_where_there_is_none(tmp_path: Path) -> None:
    """An error that names a file keeps it, and a library's own words are kept behind the name."""
    with pytest.raises(FileNotFoundError, match="No such file or directory: '/not/here'"), naming(tmp_path):
        os.stat("/not/here")
    with pytest.raises(OSError, match=r"^/the/file: Can't close file$"), naming("/the/file"):
        raise OSError("Can't close file")
