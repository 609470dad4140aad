"""Temporary folders, and those that killed processes leave."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shardio.system.replacement import remove_abandoned_folders, temporary_folder

PREFIX = "shardio-test-"
_HOLDER = """
import sys
from shardio.system.replacement import temporary_folder
with temporary_folder(sys.argv[1]) as folder:
    (folder / "file").write_bytes(b"content")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_goes_with_its_block(place: Path) -> None:
    """The folder is there in the block, and gone after it, with what it holds, after an error too."""

    def fail(folder: Path) -> None:
        (folder / "file").write_bytes(b"content")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), temporary_folder(PREFIX) as folder:
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
        remove_abandoned_folders(PREFIX)
        assert (folder / "file").exists()
        holder.kill()
        holder.wait()
    assert (folder / "file").exists()
    (place / f"{PREFIX}link").symlink_to(place / "other")
    remove_abandoned_folders(PREFIX)
    assert {path.name for path in place.iterdir()} == {"other", f"{PREFIX}file", f"{PREFIX}link"}
