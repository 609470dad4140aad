"""shardio works without the calls that Linux alone has, as on macOS; these tests take the calls away."""

import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from _datasets import photo_folders
from _time_limit import within

import shardio
from shardio.system import portable

WITHOUT = """
    import ctypes, errno, fcntl, io, os
    for name in ("sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate", "memfd_create",
                 "copy_file_range", "sendfile", "eventfd", "pidfd_open", "O_PATH", "O_TMPFILE", "O_DIRECT"):
        if hasattr(os, name):
            delattr(os, name)
    for name in ("F_SETPIPE_SZ", "F_OFD_SETLK"):
        if hasattr(fcntl, name):
            delattr(fcntl, name)
    if hasattr(errno, "EREMOTEIO"):
        del errno.EREMOTEIO
    if not hasattr(fcntl, "F_GETPATH"):  # macOS has it
        plain, fcntl.F_GETPATH = fcntl.fcntl, -50
        fcntl.fcntl = lambda file, command, *given: (
            os.fsencode(os.readlink(f"/proc/self/fd/{file}")).ljust(1024, b"\\0")
            if command == fcntl.F_GETPATH else plain(file, command, *given))
    class Library(ctypes.CDLL):
        def __getattr__(self, name):
            if self._name is None and name in ("prctl", "fallocate", "statx", "openat2"):
                raise AttributeError(name)
            return super().__getattr__(name)
    ctypes.CDLL = Library
    def without_proc(call):
        def elsewhere(path, *arguments, **options):
            if str(path).startswith(("/proc", "/sys")):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return call(path, *arguments, **options)
        return elsewhere
    os.open, io.open = without_proc(os.open), without_proc(io.open)
"""
"""A module that the interpreter imports as it starts, in processes that multiprocessing spawns, too."""


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, str]:
    """The environment of Python processes on another system."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(textwrap.dedent(WITHOUT))
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "TMPDIR": str(tmp_path)}


def start(environ: dict[str, str], *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-Wignore", *words]
    return subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.long
def test_from_files_to_batches(elsewhere: dict[str, str], tmp_path: Path) -> None:
    """Conversion to each container, and loading by threads and by processes, give what they give on Linux."""
    photo_folders(tmp_path / "photos", 24)
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import hashlib, os, sys
            import shardio

            if __name__ == "__main__":
                assert not hasattr(os, "memfd_create")
                found = set()
                for to in ("tar", "hdf5", "lmdb"):
                    out = f"{sys.argv[1]}/{to}"
                    options = {"container": to, "shard_size": "20KB", "workers": 2}
                    shardio.convert(f"{sys.argv[1]}/photos", out, converter="imagefolder", **options)
                    shardio.verify(out, deep=True)
                    for isolate in (False, True)[: 1 + (to == "tar")]:
                        crop = [shardio.RandomResizedCrop(16)]
                        loader = shardio.Loader(out, batch_size=4, transforms=crop, seed=1, isolate=isolate)
                        found.add(b"".join(batch["image"].numpy().tobytes() for batch in loader))
                print(*(hashlib.sha256(data).hexdigest() for data in found))
            """)
    )
    process = start(elsewhere, str(script), str(tmp_path))
    told = process.communicate(timeout=120)[0].split()
    here = shardio.Loader(tmp_path / "tar", batch_size=4, transforms=[shardio.RandomResizedCrop(16)], seed=1)
    assert told == [hashlib.sha256(b"".join(batch["image"].numpy().tobytes() for batch in here)).hexdigest()]


def test_a_child_ends_with_its_parent(elsewhere: dict[str, str]) -> None:
    """A process that calls `die_with` ends soon after its parent is killed."""
    child = (
        "import os, time; from shardio.system.processes import die_with\n"
        "die_with(os.getppid()); print('begun', flush=True); time.sleep(100)"
    )
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    process = start(elsewhere, "-c", parent)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.kill()
    with within(30):
        assert process.stdout.read() == ""  # both have closed it
    process.communicate()


def test_a_folder_that_cannot_hold_a_cache_says_so(elsewhere: dict[str, str], tmp_path: Path) -> None:
    """Without holes in files there is no cache, which its error says with what to do instead."""
    code = """if True:
        import sys
        from pathlib import Path
        from shardio.cache.node_cache import NodeCache
        from shardio.errors import CacheError
        try:
            NodeCache(Path(sys.argv[1]), 1 << 20)
        except CacheError as error:
            print(error)
    """
    told = start(elsewhere, "-c", code, str(tmp_path)).communicate(timeout=60)[0]
    assert told.startswith(
        f"{tmp_path}: cannot hold a cache: its file system cannot free parts of files: give a folder"
    )


def test_space_is_taken_and_nothing_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`allocate` without its call makes a file as long as asked for, and leaves what it holds."""
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    with open(tmp_path / "a", "w+b", buffering=0) as file:
        file.write(b"held")
        portable.allocate(file.fileno(), 2)
        portable.allocate(file.fileno(), 3 << 20)
        file.seek(0)
        assert file.read() == b"held" + bytes((3 << 20) - 4)
        assert os.fstat(file.fileno()).st_blocks * 512 >= (3 << 20) - 4


@pytest.mark.parametrize("without", [False, True])
def test_files_are_copied_whole(tmp_path: Path, without: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`copy_file` copies to an offset, with and without the kernel's call; of a file that is too short it says so."""
    if without:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    (tmp_path / "a").write_bytes(b"0123456789")
    with open(tmp_path / "a", "rb") as source, open(tmp_path / "b", "w+b") as target:
        portable.copy_file(source.fileno(), 8, target.fileno(), 3)
        assert (tmp_path / "b").read_bytes() == b"\0\0\x0001234567"
        with pytest.raises(OSError, match="ends after 10 of 11 bytes"):
            portable.copy_file(source.fileno(), 11, target.fileno(), 0)
