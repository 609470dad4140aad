"""Directories held open: no name leads out of one, no link is followed, and a path that changes changes nothing."""

import os
import pickle
import random
import re
import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shardio.errors import ConfigError
from shardio.system.directory import Directory
from shardio.system.os_errors import reason

CALLS: dict[str, Callable[[Directory, str], Any]] = {
    "directory": lambda d, name: d.directory(name),
    "make": lambda d, name: d.make(name, exist_ok=True),
    "kind": lambda d, name: d.kind(name),
    "open": lambda d, name: d.open(name, os.O_RDWR | os.O_CREAT),
    "read": lambda d, name: d.read(name),
    "write": lambda d, name: d.write(name, b"new"),
    "rename": lambda d, name: d.rename("file", d, name),
    "link": lambda d, name: d.link(name, "elsewhere"),
    "unlink": lambda d, name: d.unlink(name),
    "remove": lambda d, name: d.remove(name),
}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "victim" / "deep").mkdir(parents=True)
    (tmp_path / "victim" / "file").write_text("mine")
    return tmp_path / "victim"


@pytest.fixture
def folder(tmp_path: Path) -> Directory:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("old")
    return Directory(tmp_path / "folder")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["", ".", "..", "/", "/tmp", "../victim", "a/b", "a/../../victim", "file/", "a\0b"])
def test_a_name_is_that_of_one_entry(folder: Directory, victim: Path, call: str, name: str) -> None:
    """Every method refuses a name that is a path, or no name at all."""
    with pytest.raises(ConfigError, match="is not the name of an entry"):
        CALLS[call](folder, name)
    assert (victim / "file").read_text() == "mine"
    assert folder.names() == ["file"]


@pytest.mark.parametrize("spare", [0, 1])  # a listing takes two descriptors
def test_too_many_open_files(folder: Directory, spare: int) -> None:
    """Whichever call meets the limit, the folder is named, and what raises the limit."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)  # the lowest number that is free
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + spare, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files") as refused:
            folder.names()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert refused.value.filename == str(folder.path)
    assert re.fullmatch(r"Too many open files: this process may have \d+; `ulimit -n` .*", reason(refused.value))


@pytest.mark.parametrize("call", ["directory", "make", "open", "read"])
@pytest.mark.parametrize("target", ["victim", "victim/file", "nothing"])
def test_links_are_not_followed(folder: Directory, victim: Path, call: str, target: str) -> None:
    """A link to a file, to a directory or to nothing is refused by whatever would follow it, in words."""
    folder.link("link", f"../{target}")
    with pytest.raises(ConfigError, match=r"folder/link: a symbolic link; nothing is written, locked or removed"):
        CALLS[call](folder, "link")
    assert not (victim.parent / "nothing").exists()


@pytest.mark.parametrize("call", ["write", "rename", "unlink", "remove"])
def test_links_themselves_are_replaced_and_removed(folder: Directory, victim: Path, call: str) -> None:
    """A link may be replaced or removed; what it leads to stays."""
    for number, target in enumerate((victim, victim / "file")):
        folder.link(f"link{number}", target)
        folder.write("file", b"old")
        CALLS[call](folder, f"link{number}")
        assert folder.kind(f"link{number}") in (None, "file")
    assert sorted(path.name for path in victim.iterdir()) == ["deep", "file"]
    assert (victim / "file").read_text() == "mine"


def test_a_tree_is_removed_without_what_its_links_lead_to(folder: Directory, victim: Path) -> None:
    """Removing a directory removes the links in it, at any depth, and nothing that they lead to."""
    folder.make("a").make("b").link("link", victim)
    folder.directory("a").link("link", victim / "file")
    folder.remove("a")
    assert folder.kind("a") is None
    assert (victim / "file").read_text() == "mine"


def test_a_deep_tree_is_refused(folder: Directory, tmp_path: Path) -> None:
    """A tree deeper than any that shardio makes is refused, however deep, and ends no process."""
    deepest = folder
    for _ in range(200):
        deepest = deepest.make("a")
    with pytest.raises(ConfigError, match="deeper than any directory that shardio makes; remove it yourself"):
        folder.remove("a")
    assert deepest.names() == []


def test_what_is_no_regular_file(folder: Directory, tmp_path: Path) -> None:
    """Pipes and directories are refused without waiting, and so are files with other names, which a write changes."""
    os.mkfifo(tmp_path / "folder" / "pipe")
    for call in ("open", "read"):
        with pytest.raises(ConfigError, match="folder/pipe: not a regular file"):
            CALLS[call](folder, "pipe")
    os.link(tmp_path / "folder" / "file", tmp_path / "folder" / "other")
    with pytest.raises(ConfigError, match=r"folder/other: has other names \(hard links\)"):
        folder.open("other", os.O_RDWR)
    assert folder.read("other") == b"old"


def test_a_directory_in_place_of_a_file(folder: Directory) -> None:
    """A directory is not replaced by a file."""
    folder.make("name")
    with pytest.raises(ConfigError, match="name: a directory where a file is to be written"):
        folder.write("name", b"data")
    assert sorted(folder.names()) == ["file", "name"]


def test_a_file_may_not_be_too_large(folder: Directory, tmp_path: Path) -> None:
    """A file of claimed or real size above the limit is not read into memory."""
    os.truncate(tmp_path / "folder" / "file", 1 << 40)
    with pytest.raises(ConfigError, match="folder/file: has more than 1073741824 bytes"):
        folder.read("file")


def test_a_path_that_changes_changes_nothing(folder: Directory, victim: Path, tmp_path: Path) -> None:
    """Once it is open, a directory is the same one, whatever takes its place: a link, or another directory."""
    inside = folder.make("inside")
    (tmp_path / "folder" / "inside").rename(tmp_path / "moved")
    (tmp_path / "folder" / "inside").symlink_to(victim)
    inside.write("file", b"new")
    inside.place("by path").write_text("new")
    inside.make("deep").write("file", b"new")
    assert sorted(path.name for path in (tmp_path / "moved").iterdir()) == ["by path", "deep", "file"]
    assert (victim / "file").read_text() == "mine"
    assert list((victim / "deep").iterdir()) == []


def test_a_link_that_is_swapped_in(folder: Directory, victim: Path, tmp_path: Path) -> None:
    """While a directory is swapped for a link and back all the time, nothing is written or removed through the link."""
    path, aside = tmp_path / "folder" / "a", tmp_path / "aside"
    path.mkdir()
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            path.rename(aside)
            path.symlink_to(victim)
            path.unlink()
            aside.rename(path)
            time.sleep(random.random() / 1000)  # for the other side to find the directory, too

    thread = threading.Thread(target=swap)
    thread.start()
    written, number, deadline = 0, 0, time.monotonic() + 60
    try:
        # 2,000 tries pass in an instant while the other thread is paused between two renames: then go on.
        while number < 2000 or (not written and time.monotonic() < deadline):
            number += 1
            try:
                inside = folder.directory("a")
                inside.write(f"file{number}", b"new")
                inside.remove(f"file{number}")
                inside.unlink("file")
                inside.remove("deep")
                written += 1
            except (ConfigError, FileNotFoundError, NotADirectoryError):
                continue
    finally:
        ended.set()
        thread.join()
    assert written
    assert sorted(entry.name for entry in victim.iterdir()) == ["deep", "file"]


def test_errors_name_the_path(folder: Directory, tmp_path: Path) -> None:
    """An error of the system states the whole path, not the name alone."""
    with pytest.raises(FileNotFoundError) as error:
        folder.read("nothing")
    assert error.value.filename == str(tmp_path / "folder" / "nothing")
    with pytest.raises(FileNotFoundError) as renamed:
        folder.rename("nothing", folder, "new")
    assert (renamed.value.filename, renamed.value.filename2) == tuple(
        str(tmp_path / "folder" / name) for name in ("nothing", "new")
    )


def test_a_write_that_fails_leaves_the_old_file(folder: Directory) -> None:
    """A write that is interrupted leaves the old content and no temporary file."""

    def interrupted() -> None:
        with folder.replacing("file") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (folder.names(), folder.read("file")) == (["file"], b"old")


def test_threads_list_at_once(folder: Directory) -> None:
    """Threads that list one directory at once each see all of it."""
    for number in range(300):
        folder.make(f"{number}")
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: len(folder.names()), range(200))) == {301}


def test_a_descriptor_stays_in_its_process_and_is_closed(folder: Directory) -> None:
    """A Directory does not pickle, because its descriptor means something else elsewhere; dropped, it is closed."""
    with pytest.raises(TypeError, match="belongs to its process"):
        pickle.dumps(folder)
    folder.make("a")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        folder.directory("a")
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_made_in_a_private_one(tmp_path: Path, folder: Directory) -> None:
    """Files and directories made in a private directory, and below it, are for its user alone."""
    private = Directory(folder.path, private=True)
    inside = private.make("inside")
    inside.write("file", b"")
    os.close(inside.make("deeper").open("opened", os.O_RDWR | os.O_CREAT))
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.path.rglob("*")}
    assert modes == {"inside": 0o700, "file": 0o600, "deeper": 0o700, "opened": 0o600}
    folder.path.chmod(0o755)
    folder.close_to_others()
    assert folder.status().st_mode & 0o777 == 0o700
