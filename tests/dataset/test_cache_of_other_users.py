"""Caches in folders where another user was first, or is at the same time: two real users, by processes of theirs."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _forked
import h5py
import numpy as np
import pytest
from _builders import npy
from _datasets import packed
from _foreign import write_tar

import shardio
from shardio.cache.location import open_cache
from shardio.cache.node_cache import NodeCache
from shardio.errors import CacheError

OTHER = 65534
COUNT = 40
SIZE = {"cache_size": "100MB"}

EPOCH = """
import json, sys
import numpy as np
import shardio
dataset = shardio.open(sys.argv[1], cache=sys.argv[2], cache_size=None if sys.argv[3:] == ["usual"] else "100MB")
loader = shardio.Loader(dataset, 8, shuffle=None, isolate="isolate" in sys.argv)
numbers = [number for batch in loader for number in batch["x"][:, 0].tolist()]
print(json.dumps([numbers, dataset.fetched.bytes]))
"""
"""Prints the numbers of an epoch by way of a cache, and the bytes that were fetched for it."""

if os.geteuid():
    pytest.skip("only root has two users", allow_module_level=True)


def become(user: int) -> str:
    """The code by which a process of root's becomes one of a user's, for good."""
    return f"import os\nos.setgroups([])\nos.setresgid({user}, {user}, {user})\nos.setresuid({user}, {user}, {user})\n"


def run(user: int, code: str, *argv: object) -> "subprocess.CompletedProcess[str]":
    """Run code as a user, in a process of its own."""
    return _forked.run(become(user) + code, *map(str, argv), folder=Path("/"))


def as_other(code: str, *argv: object) -> str:
    """Run code as the other user; return what it printed."""
    done = run(OTHER, f"import os, sys\nfrom pathlib import Path\nos.umask(0)\n{code}", *argv)
    assert not done.returncode, done.stderr
    return done.stdout


def epoch(user: int, dataset: Path, cache: object, *options: str) -> tuple[list[int], int]:
    """Read a dataset by way of a cache as a user; return its numbers and the bytes that were fetched."""
    done = run(user, EPOCH, dataset, cache, *options)
    assert not done.returncode, done.stderr
    numbers, fetched = json.loads(done.stdout)
    return numbers, fetched


def state(folder: Path) -> dict[str, tuple[Any, ...]]:
    """All that is below a folder: owners, modes, and the bytes of files."""
    return {
        str(path): (os.lstat(path).st_uid, os.lstat(path).st_mode, path.read_bytes() if path.is_file() else None)
        for path in sorted(folder.rglob("*"))
    }


def check_private(cache: Path, user: int) -> None:
    """A cache is its user's alone, in all that it holds, and holds no link."""
    for path in (cache, *cache.rglob("*")):
        status = os.lstat(path)
        assert status.st_uid == user, path
        if path == cache or not path.is_dir():
            assert status.st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
        assert not path.is_symlink()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder like /tmp, where every user may make files."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of root's, with a file that nobody may change."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").write_text("mine")
    (tmp_path / "victim" / "precious").chmod(0o600)
    return tmp_path / "victim"


def tensors(place: Path) -> None:
    """A dataset that shardio wrote."""
    packed(place, ({"x": np.full(9000, number, np.int32)} for number in range(COUNT)), shard_size="1MB")


def adopted_tars(place: Path) -> None:
    """Tars of another program, adopted by links."""
    place.with_name("in").mkdir()
    for number in range(2):
        numbers = range(20 * number, 20 * number + 20)
        members = [(f"{n}.x.npy", npy(np.full(9000, n, np.int32))) for n in numbers]
        write_tar(place.with_name("in") / f"{number}.tar", members)
    shardio.index(place.with_name("in"), place)


def adopted_hdf5(place: Path) -> None:
    """A compressed HDF5 file of another program, adopted by a link: a helper process opens it."""
    place.with_name("in").mkdir()
    with h5py.File(place.with_name("in") / "a.h5", "w") as file:
        values = np.repeat(np.arange(COUNT, dtype=np.int32)[:, None], 900, axis=1)
        file.create_dataset("x", data=values, chunks=(4, 900), compression="gzip")
    shardio.index(place.with_name("in"), place)


KINDS: list[Callable[[Path], None]] = [tensors, adopted_tars, adopted_hdf5]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def dataset(request: pytest.FixtureRequest, shared: Path) -> Path:
    """A dataset that both users may read."""
    request.param(shared / "data")
    return shared / "data"


@pytest.fixture
def plain(shared: Path) -> Path:
    """The first kind of these."""
    tensors(shared / "data")
    return shared / "data"


NAMES = ["lock", "state", "unfinished", "leases", "tables", "files", "manifests", "packed"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o777, 0o755], ids=oct)
def test_a_folder_that_another_user_made(dataset: Path, shared: Path, victim: Path, mode: int) -> None:
    """In another user's folder, with links at every name, the cache is `shardio-UID`, and no link is followed."""
    as_other(
        "folder, victim = Path(sys.argv[1]), Path(sys.argv[2])\nfolder.mkdir()\n"
        f"for name in {NAMES}:\n    (folder / name).symlink_to(victim / 'precious')\nfolder.chmod({mode})",
        shared / "cache",
        victim,
    )
    before = state(victim)
    for again in range(2):
        numbers, fetched = epoch(0, dataset, shared / "cache")
        assert numbers == list(range(COUNT))
        assert bool(fetched) is not bool(again)
    check_private(shared / "cache" / "shardio-0", 0)
    assert {path.name for path in (shared / "cache").iterdir()} == {*NAMES, "shardio-0"}
    assert state(victim) == before


@pytest.mark.long
@pytest.mark.slow
def test_worker_processes_in_a_folder_that_another_user_made(plain: Path, shared: Path) -> None:
    """Processes that a Loader spawns open the cache anew, and look at its folder in the same way."""
    as_other("Path(sys.argv[1]).mkdir()", shared / "cache")
    assert epoch(0, plain, shared / "cache", "isolate")[0] == list(range(COUNT))
    check_private(shared / "cache" / "shardio-0", 0)


def test_what_another_user_put_at_the_name(plain: Path, shared: Path, victim: Path) -> None:
    """A link or a folder of another user's at the name of the cache is refused by name; nothing is written in it."""
    before = state(victim)
    link = "Path(sys.argv[1]).symlink_to(sys.argv[2])"
    for place, code, given in [
        ("a", link, "a"),
        ("b/shardio-0", f"Path(sys.argv[1]).parent.mkdir()\n{link}", "b"),
        ("c/shardio-0", "Path(sys.argv[1]).mkdir(parents=True)", "c"),
    ]:
        as_other(code, shared / place, victim)
        done = run(0, EPOCH, plain, shared / given)
        assert done.returncode
        assert re.search(f"CacheError: {shared / place}: cannot hold a cache: it (is a link|belongs)", done.stderr)
    assert state(victim) == before
    assert not list((shared / "c" / "shardio-0").iterdir())


def test_values_of_another_users_choosing(plain: Path, shared: Path) -> None:
    """Nobody is given values that another user has put into a cache of his own."""
    assert epoch(OTHER, plain, shared / "cache")[0] == list(range(COUNT))
    as_other(
        "folder = Path(sys.argv[1])\n"
        "for path in folder.glob('files/*/*.tar'):\n"
        "    data = path.read_bytes().replace((7).to_bytes(4, 'little'), (1 << 30).to_bytes(4, 'little'))\n"
        "    with open(path, 'r+b') as file:\n        file.write(data)",
        shared / "cache",
    )
    assert epoch(OTHER, plain, shared / "cache")[0][7] == 1 << 30
    for mode in (0o700, 0o777):
        (shared / "cache").chmod(mode)
        numbers, fetched = epoch(0, plain, shared / "cache")
        assert numbers == list(range(COUNT))
        assert bool(fetched) is (mode == 0o700)  # the first time


BOTH = """
import os, sys
def start(user, place):
    if child := os.fork():
        return child
    sys.stdout, sys.stderr = (open(f"{place}.{name}", "w") for name in ("out", "err"))
    sys.argv = ["", *sys.argv[2:], "usual"]
    try:
        exec(BECOME[user] + EPOCH)
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(0)
for again in range(2):
    for child in [start(user, f"{sys.argv[1]}/{again}-{user}") for user in BECOME]:
        os.waitpid(child, 0)
"""


def users_at_once(dataset: Path, cache: object, told: Path, setup: str = "") -> list[tuple[str, str]]:
    """Both users read a dataset at once by way of one folder, twice; return what each of them printed."""
    users = {user: become(user) for user in (0, OTHER)}
    done = _forked.run(f"{setup}\nBECOME, EPOCH = {users}, {EPOCH!r}\n{BOTH}", *map(str, (told, dataset, cache)))
    if done.returncode == 77:
        pytest.skip("this user may mount nothing")
    assert not done.returncode, done.stderr
    places = [told / f"{again}-{user}" for again in range(2) for user in users]
    return [(Path(f"{place}.out").read_text(), Path(f"{place}.err").read_text()) for place in places]


def check_both(ended: list[tuple[str, str]], folder: object) -> None:
    """Both users got all numbers; first each was told of a cache of its own, and then nothing was fetched."""
    for number, (out, error) in enumerate(ended):
        assert out, error
        numbers, fetched = json.loads(out)
        assert numbers == list(range(COUNT))
        assert bool(fetched) is (number < 2)
        told = f"{folder}/shardio-{(0, OTHER)[number % 2]}"
        assert (f"so its cache is {told}; the cache of each user takes space on the disk" in error) is (number < 2)
        assert f"what is fetched stays in {told}, " in error


@pytest.mark.slow
def test_two_users_of_one_folder(plain: Path, shared: Path, tmp_path: Path) -> None:
    """Two users of one folder at once have two caches, and each is told where its own is."""
    check_both(users_at_once(plain, shared, tmp_path), shared)
    for user in (0, OTHER):
        check_private(shared / f"shardio-{user}", user)


MOUNT = """
import ctypes, subprocess, sys
libc = ctypes.CDLL(None)
options = ["mount", "-t", "tmpfs", "-o", "mode=1777", "none", "/dev/shm"]
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x44000, None) or subprocess.run(options).returncode:
    sys.exit(77)
"""
"""Gives a process a /dev/shm of its own."""


@pytest.mark.slow
def test_the_folder_that_the_docs_name(plain: Path, tmp_path: Path) -> None:
    """`/dev/shm`, which errors and docs name for caches in memory, has room for the caches of all users."""
    check_both(users_at_once(plain, "/dev/shm", tmp_path, MOUNT), "/dev/shm")
    docs = Path(__file__).parents[2] / "docs"
    assert all('cache="/dev/shm"' in (docs / page).read_text() for page in ("remote.md", "troubleshooting.md"))


def test_a_folder_that_lets_nobody_else_in(plain: Path, shared: Path) -> None:
    """Where another user's folder takes no folder of this user's, the error names what to give instead."""
    epoch(0, plain, shared / "cache")
    done = run(OTHER, EPOCH, plain, shared / "cache")
    assert f"CacheError: {shared}/cache: cannot hold a cache: Permission denied: give" in done.stderr
    assert "cache='/dev/shm'" in done.stderr


@pytest.mark.slow
def test_links_at_every_name_of_a_cache(plain: Path, tmp_path: Path) -> None:
    """A link, or a second name, at any place in a cache is named in an error or replaced; what it leads to stays."""
    whole = tmp_path / "whole"
    full = shardio.open(plain, cache=whole, **SIZE).selection(np.arange(COUNT)).column("x")
    names = ["unfinished", *sorted(str(path.relative_to(whole)) for path in whole.rglob("*"))]
    assert {"lock", "state", "leases", "leases/0", "files", "tables"} < {*names}
    refused = 0
    for number, (name, kind) in enumerate((name, kind) for name in names for kind in ("symbolic", "hard")):
        cache, target = tmp_path / f"{number}" / "cache", tmp_path / f"{number}" / "victim"
        shutil.copytree(whole, cache)
        cache.chmod(0o700)
        if (cache / name).exists():
            shutil.move(cache / name, target)
        else:
            target.write_text("mine")
        if kind == "hard" and target.is_dir():
            continue
        (cache / name).symlink_to(target) if kind == "symbolic" else (cache / name).hardlink_to(target)
        before = state(target.parent / "victim") if target.is_dir() else target.read_bytes()
        try:
            values = shardio.open(plain, cache=cache, **SIZE).selection(np.arange(COUNT)).column("x")
            assert (values == full).all(), name
        except CacheError as error:
            assert str(cache / name) in str(error), (name, kind)  # noqa: PT017
            assert "remove it" in str(error)  # noqa: PT017
            refused += 1
        assert before == (state(target.parent / "victim") if target.is_dir() else target.read_bytes()), (name, kind)
    assert refused >= 2 * 8


@pytest.mark.parametrize(
    ("mode", "more", "goes_on"),
    [
        (0o755, (), True),  # as earlier versions made it: closed
        (0o700, ("photos",), True),
        (0o755, ("photos",), False),  # closing it would shut others out of the photos
        (0o775, (), False),
        (0o777, (), False),
        (0o1777, (), False),
    ],
)
def test_a_folder_of_this_users(tmp_path: Path, mode: int, more: tuple[str, ...], goes_on: bool) -> None:
    """A folder that others may write to, or read other things in, is left alone; one with a cache alone is closed."""
    folder = tmp_path / "cache"
    open_cache(folder, "10MB")
    for name in more:
        (folder / name).mkdir()
    folder.chmod(mode)
    cache = NodeCache(folder, 1 << 20)
    assert cache.folder == (folder if goes_on else folder / "shardio-0")
    assert folder.stat().st_mode & 0o7777 == (0o700 if goes_on else mode)
    check_private(cache.folder, 0) if not more else None


def test_a_link_that_is_given(tmp_path: Path) -> None:
    """A link of this user's to a folder leads to a cache of its own in it; links above are followed."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "state").write_text("mine")
    (tmp_path / "link").symlink_to("disk")
    assert open_cache(tmp_path / "link", "10MB").folder == tmp_path / "link" / "shardio-0"
    assert open_cache(tmp_path / "link" / "cache", "10MB").folder == tmp_path / "link" / "cache"
    assert (tmp_path / "disk" / "state").read_text() == "mine"


def test_the_folder_above_changes(plain: Path, shared: Path) -> None:
    """An open dataset goes on in the cache that it opened if another user puts a folder of his own in its place."""
    as_other("Path(sys.argv[1]).mkdir()", shared / "cache")
    dataset = shardio.open(plain, cache=shared / "cache", **SIZE)
    assert (dataset.selection(np.arange(10)).column("x")[:, 0] == range(10)).all()
    as_other(
        "folder = Path(sys.argv[1])\n(folder / 'shardio-0').rename(folder / 'moved')\n(folder / 'shardio-0').mkdir()\n",
        shared / "cache",
    )
    assert (dataset.selection(np.arange(COUNT)).column("x")[:, 0] == range(COUNT)).all()
    assert not list((shared / "cache" / "shardio-0").iterdir())
    check_private(shared / "cache" / "moved", 0)
