"""Files of a folder as objects of a store that is only read."""

import errno
import os
import pickle
from pathlib import Path

import pytest
from _stores import in_folder

from shardio.errors import AccessDenied, ObjectChanged, ObjectNotFound, StoreError, StoreUnavailable
from shardio.stores import folder as folder_module
from shardio.stores.folder import FolderStore
from shardio.stores.retrying import RetryingStore
from shardio.system import file_systems

DATA = bytes(range(256)) * 40


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """A folder with one file, `a`."""
    return in_folder(tmp_path / "d", {"a": DATA})


def test_ranges_are_those_of_the_file(store: FolderStore) -> None:
    """Ranges that end in the file, at its end and after it; pickled and in a forked child, too."""
    for one in (store, pickle.loads(pickle.dumps(store))):  # noqa: S301  # our own
        for start, stop in (
            (0, None),
            (0, 5),
            (77, 1000),
            (len(DATA) - 3, len(DATA) + 9),
            (len(DATA) + 1, None),
            (9, 9),
        ):
            content = one.read("a", start, stop)
            assert (bytes(content.data), content.start) == (DATA[start:stop], start)
            assert content.info == one.info("a")
    child = os.fork()
    if not child:
        os._exit(bytes(store.read("a", 3, 9).data) != DATA[3:9])
    assert os.waitpid(child, 0)[1] == 0


def test_a_changed_file_is_told(store: FolderStore) -> None:
    """A file that was replaced, or changed in place with the same size, has another ETag, and a condition fails."""
    path = Path(store.url) / "a"
    seen = [store.read("a", 0, 1).info.etag]
    path.with_name("b").write_bytes(DATA[::-1])
    os.utime(path.with_name("b"), ns=(0, path.stat().st_mtime_ns))  # as `cp -p` of another file
    path.with_name("b").replace(path)
    seen.append(store.read("a", 0, 1).info.etag)
    with open(path, "r+b") as file:
        file.write(b"x")
    os.utime(path)
    seen.append(store.info("a").etag)
    assert len(set(seen)) == 3
    assert bytes(store.read("a", 0, 1, etag=seen[2]).data) == b"x"
    with pytest.raises(ObjectChanged, match="/d/a: was changed"):
        store.read("a", 0, 1, etag=seen[0])


def test_inodes_count_where_they_last(store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On FUSE, which may number files anew when it is mounted, the ETag of a file is not its inode's."""
    (tmp_path / "mountinfo").write_text("20 1 0:52 / / rw - fuse.sshfs host:/data rw\n")
    monkeypatch.setattr(file_systems, "MOUNTS", tmp_path / "mountinfo")
    path, etag = Path(store.url) / "a", store.info("a").etag
    path.with_name("b").write_bytes(DATA)
    os.utime(path.with_name("b"), ns=(0, path.stat().st_mtime_ns))
    path.with_name("b").replace(path)
    assert store.info("a").etag == etag


def test_links_lead_where_adopted_files_are(store: FolderStore, tmp_path: Path) -> None:
    """A link is read, as in every dataset of adopted files; a lost one says where it led."""
    place = Path(store.url) / "a"
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    assert bytes(store.read("a").data) == DATA
    (tmp_path / "elsewhere").unlink()
    with pytest.raises(ObjectNotFound, match=f"/d/a: there is no such file; it is a link to {tmp_path}/elsewhere"):
        store.read("a")


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_refused(store: FolderStore, kind: str) -> None:
    """A folder or a pipe in place of a file is an error in words, and nobody waits for it."""
    (os.mkdir if kind == "folder" else os.mkfifo)(f"{store.url}/b")
    with pytest.raises(StoreError, match="/d/b: not a regular file"):
        store.read("b")
    with pytest.raises(StoreError, match="only read"):
        store.write("b", b"")


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.EIO, StoreUnavailable), (errno.ESTALE, StoreUnavailable), (errno.EACCES, AccessDenied),
     (errno.EINVAL, StoreError)],
)  # fmt: skip
def test_errors_of_the_file_system(
    store: FolderStore, number: int, error: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that a server may recover from is tried again with the file opened anew, and others are told at once."""
    read, failures, opened = os.preadv, [number], []

    def preadv(descriptor: int, buffers: list[bytearray], offset: int) -> int:
        opened.append(descriptor)
        if failures:
            raise OSError(failures.pop(), os.strerror(number))
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(error, match=f"/d/a: bytes 3 to 8: {os.strerror(number)}"):
        store.read("a", 3, 9)
    failures.append(number)
    again = RetryingStore(store, sleep=lambda seconds: None)
    if issubclass(error, StoreUnavailable | AccessDenied):
        assert bytes(again.read("a", 3, 9).data) == DATA[3:9]
        assert again.retries == 1
    else:
        with pytest.raises(error):
            again.read("a", 3, 9)


def test_few_files_are_held_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many files are read, few are open, and reading more again works."""
    monkeypatch.setattr(folder_module, "MOST_OPEN", 16)
    store = in_folder(tmp_path, {f"{number}": bytes([number]) * 9 for number in range(200)})
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        for number in range(200):
            assert bytes(store.read(f"{number}", 2, 4).data) == bytes([number]) * 2
    assert len(os.listdir("/proc/self/fd")) <= before + 16
