"""Files are replaced whole or not at all, errors name them, and nothing is left of processes that were killed."""

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from shardio.system import replacement
from shardio.system.directory import Directory
from shardio.system.os_errors import naming


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """The new content replaces the old at the end of the block; an error leaves the old, and no other file."""
    path = tmp_path / "a.json"
    path.write_bytes(b"one")
    with replacement.replacing(path, previous=tmp_path / "b.json") as file:
        file.write(b"two")
        assert path.read_bytes() == b"one"
    assert (path.read_bytes(), (tmp_path / "b.json").read_bytes()) == (b"two", b"one")
    with pytest.raises(TypeError), replacement.replacing(path) as file:
        file.write("three")  # type: ignore[arg-type]
    assert path.read_bytes() == b"two"
    assert sorted(os.listdir(tmp_path)) == ["a.json", "b.json"]


@pytest.mark.parametrize("locks", [True, False])
def test_what_nobody_writes_is_removed(locks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary files without a lock are removed, without locks those older than a day; others' files are not."""

    def no_locks(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    if not locks:
        monkeypatch.setattr(fcntl, "flock", no_locks)
    with replacement.replacing(tmp_path / "a.json") as file:
        (living,) = os.listdir(tmp_path)
        for name in (".a.json.12345.tmp", ".other.0a.tmp", ".a.json.tmp", "a.json.0a.tmp"):
            (tmp_path / name).touch()
            os.utime(tmp_path / name, (0, 0))
        (tmp_path / ".a.json.0b.tmp").symlink_to(".other.0a.tmp")
        replacement.remove_abandoned(tmp_path, ("a.json",))
        left = {".other.0a.tmp", ".a.json.tmp", "a.json.0a.tmp", ".a.json.0b.tmp"}
        assert set(os.listdir(tmp_path)) == {living} | left
        file.write(b"one")
    assert (tmp_path / "a.json").read_bytes() == b"one"


def test_errors_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's errors for a full disk carry no name; those of durable writes do, and they leave no file."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for way in (Directory(tmp_path).replacing("a.json"), replacement.replacing(tmp_path / "a.json")):
        with pytest.raises(OSError, match=r"No space left on device: '.*a\.json'"), way as file:
            file.write(b"one")
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError, match="No such file or directory: '/not/here'"), naming(tmp_path):
        os.stat("/not/here")  # an error that names a file keeps it
    with pytest.raises(OSError, match=r"^/the/file: Can't close file$"), naming("/the/file"):
        raise OSError("Can't close file")  # a library's own words


def test_a_file_that_is_taken_for_abandoned_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cleaner that comes between the creation of a file and its lock removes it; the writer begins another one."""
    flock, first = fcntl.flock, True

    def interrupted(descriptor: int, operation: int) -> None:
        nonlocal first
        if first:
            first = False
            replacement.remove_abandoned(tmp_path, ("a.json",))
            assert os.listdir(tmp_path) == []
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", interrupted)
    with replacement.replacing(tmp_path / "a.json") as file:
        file.write(b"one")
    assert os.listdir(tmp_path) == ["a.json"]


PREFIX = "shardio-test-"
_HOLDER = """
import sys
from shardio.system.replacement import temporary_folder
with temporary_folder(sys.argv[1]) as folder:
    (folder / "file").write_bytes(b"content")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_goes_with_its_block(place: Path) -> None:
    """The folder is there in the block, and gone after it, with what it holds, after an error too."""

    def fail(folder: Path) -> None:
        (folder / "file").write_bytes(b"content")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), replacement.temporary_folder(PREFIX) as folder:
        fail(folder)
    assert list(place.iterdir()) == []


def test_killed_processes(place: Path) -> None:
    """A killed process's folder is removed by the next; one that is in use, or has another prefix, stays."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, PREFIX], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        folder = Path(holder.stdout.readline().strip())
        (place / "other").mkdir()
        (place / f"{PREFIX}file").write_bytes(b"")
        replacement.remove_abandoned_folders(PREFIX)
        assert (folder / "file").exists()
        holder.kill()
        holder.wait()
    assert (folder / "file").exists()
    (place / f"{PREFIX}link").symlink_to(place / "other")
    replacement.remove_abandoned_folders(PREFIX)
    assert {path.name for path in place.iterdir()} == {"other", f"{PREFIX}file", f"{PREFIX}link"}
