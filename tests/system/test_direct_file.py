"""Files that are written past the page cache have every byte, whatever the file system and the parts given."""

import errno
import fcntl
import io
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from _small_disk import small_disk
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardio.system import direct_file
from shardio.system.direct_file import DirectFile

BLOCK = 1 << 14


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_file, "BLOCK", BLOCK)


def opened(path: Path, before: bytes) -> io.FileIO:
    path.write_bytes(before)
    return io.FileIO(os.open(path, os.O_RDWR), "rb+")


def write(path: Path, before: bytes, parts: Sequence[bytes]) -> list[bytes]:
    """Write parts behind what a file has; return the blocks that were seen."""
    seen: list[bytes] = []
    with opened(path, before) as file:
        direct = DirectFile(file, len(before), lambda block: seen.append(bytes(block)))
        for part in parts:
            direct.write(part)
        direct.wait()
        direct.flush()
    return seen


def random(size: int, seed: int) -> bytes:
    return np.random.default_rng([size, seed]).bytes(size)


@settings(deadline=None, max_examples=60)
@given(
    before=st.one_of(st.integers(0, 12).map(lambda pages: pages * 4096), st.integers(0, 3 * BLOCK)),
    sizes=st.lists(st.integers(0, 3 * BLOCK), max_size=6),
)
@example(before=0, sizes=[BLOCK])
@example(before=4096, sizes=[BLOCK - 4096, 0, 4 * BLOCK])
@example(before=777, sizes=[5 * BLOCK])  # no place that O_DIRECT takes
def test_every_byte_is_there(before: int, sizes: list[int]) -> None:
    """The file is what stood before and the parts, and whole blocks of it were seen once each, in order."""
    with TemporaryDirectory() as folder:
        path, parts = Path(folder, "f"), [random(size, number) for number, size in enumerate(sizes)]
        content = random(before, 9) + b"".join(parts)
        seen = write(path, content[:before], parts)
        assert path.read_bytes() == content
        first, whole = before // BLOCK * BLOCK, len(content) // BLOCK * BLOCK
        assert seen == [content[start : start + BLOCK] for start in range(first, whole, BLOCK)]


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this system has no O_DIRECT")
def test_whole_blocks_pass_by_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """O_DIRECT is set for whole blocks, and not for what is left."""
    flags, pwrite = [], os.pwrite

    def recorded(descriptor: int, data: memoryview, offset: int) -> int:
        flags.append((offset, len(data), bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)))
        return pwrite(descriptor, data, offset)

    with opened(tmp_path / "probe", b"") as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETFL, os.O_DIRECT)
        except OSError:
            pytest.skip("the file system of temporary files has no O_DIRECT")
    monkeypatch.setattr(os, "pwrite", recorded)
    write(tmp_path / "f", bytes(4096), [bytes(2 * BLOCK)])
    assert flags == [(4096, BLOCK - 4096, True), (BLOCK, BLOCK, True), (2 * BLOCK, 4096, False)]


def test_a_file_system_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where O_DIRECT is refused, or unknown as on macOS, the cache takes the blocks."""
    content = random(3 * BLOCK + 5, 0)
    with monkeypatch.context() as patch:
        patch.setattr(direct_file, "_DIRECT", 0)
        write(tmp_path / "unknown", b"", [content])
    set_flags = fcntl.fcntl

    def refused(file: io.FileIO, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & direct_file._DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return set_flags(file, command, flags)

    monkeypatch.setattr(fcntl, "fcntl", refused)
    write(tmp_path / "refused", b"", [content])
    assert (tmp_path / "unknown").read_bytes() == (tmp_path / "refused").read_bytes() == content


def test_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that takes only a part of what is given gets the rest, though that is not aligned."""
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:5000], offset))
    content = random(2 * BLOCK + 100, 0)
    write(tmp_path / "f", b"", [content])
    assert (tmp_path / "f").read_bytes() == content


def test_a_full_disk(tmp_path: Path) -> None:
    """The error of a full disk is raised by `write` while more is added, or by `wait`, once."""
    with small_disk(tmp_path / "small", "64k") as folder, opened(folder / "f", b"") as file:
        direct = DirectFile(file, 0)
        with pytest.raises(OSError, match="No space left on device"):
            direct.write(bytes(20 * BLOCK))
        direct.wait()
        direct = DirectFile(file, 20 * BLOCK)
        direct.write(bytes(BLOCK))
        with pytest.raises(OSError, match="No space left on device"):
            direct.wait()


def test_an_error_of_what_sees_the_blocks(tmp_path: Path) -> None:
    """Any error in the other thread is raised."""

    def fail(block: memoryview) -> None:
        raise MemoryError("too much")

    with opened(tmp_path / "f", b"") as file:
        direct = DirectFile(file, 0, fail)
        direct.write(bytes(BLOCK))
        with pytest.raises(MemoryError, match="too much"):
            direct.wait()
