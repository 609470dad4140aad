"""Containers on full disks, without file descriptors, and dropped while open; importing them loads no library."""

import errno
import gc
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shardio import containers
from shardio.care.verify import verify
from shardio.containers import Container, Writer
from shardio.errors import ShardCorrupt
from shardio.format.fields import as_fields

ON_DISK = [containers.get(name) for name in containers.names()]
FIELDS = as_fields({"blob": "bytes", "row": ("uint8", (1000,))})


def begun(container: Container, path: Path) -> Writer:
    """A writer to which one sample was given."""
    writer = container.writer(path, FIELDS, 0)
    writer.append({"blob": b"abc", "row": bytes(1000)})
    return writer


def descriptors() -> set[str]:
    """The open descriptors of this process, each with its target."""
    gc.collect()
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return found


def in_child(work: Callable[[], str], limit: int, value: int) -> str:
    """Run `work` in a forked child with a lowered resource limit, and return its result."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(limit, (value, resource.getrlimit(limit)[1]))
            os.write(theirs, work().encode())
        except BaseException as error:  # noqa: BLE001
            os.write(theirs, repr(error).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    os.waitpid(child, 0)
    with open(ours, "rb") as file:
        return file.read().decode()


@pytest.mark.parametrize("container", ON_DISK, ids=lambda container: str(container.name))
@pytest.mark.parametrize("samples", [120, 4000])
def test_full_disk(container: Container, samples: int, tmp_path: Path) -> None:
    """A write that the system refuses raises OSError once, from `append` or `close`; `close` then closes all files.

    120 samples fit the writers' buffers, so that `close` meets the limit; 4,000 do not.
    """
    path = tmp_path / f"s{container.suffix}"

    def work() -> str:
        before = descriptors()
        writer = container.writer(path, FIELDS, 0)
        failures = []
        try:
            for _ in range(samples):
                writer.append({"blob": bytes(5000), "row": bytes(1000)})
        except OSError as error:
            failures.append(type(error).__name__)
            try:
                writer.append({"blob": b"", "row": bytes(1000)})
            except ValueError:
                failures.append("refused")
        try:
            writer.close()
        except OSError as error:
            failures.append(type(error).__name__)
        writer.close()
        try:
            container.reader(path, FIELDS).read(np.array([samples - 1]), "blob")
        except (ShardCorrupt, IndexError):
            failures.append("no shard")
        return f"{failures} {descriptors() - before}"

    assert in_child(work, resource.RLIMIT_FSIZE, 256 << 10) in (
        "['OSError', 'no shard'] set()",
        "['OSError', 'refused', 'no shard'] set()",
    )


@pytest.mark.parametrize("container", ON_DISK, ids=lambda container: str(container.name))
def test_dropped_writer_and_reader(container: Container, tmp_path: Path) -> None:
    """A writer or reader that is dropped without `close` leaves no file open and gives no warning.

    A reader refuses the file of a writer that was never closed.
    """
    before = descriptors()
    path = tmp_path / f"s{container.suffix}"
    begun(container, path)
    assert descriptors() == before
    with pytest.raises((ShardCorrupt, IndexError)):
        container.reader(path, FIELDS).read(np.array([0]), "blob")
    begun(container, path).close()
    assert descriptors() == before
    reader = container.reader(path, FIELDS)
    assert reader.read(np.array([0]), "blob") == [b"abc"]
    del reader
    assert descriptors() == before


@pytest.mark.parametrize("container", ON_DISK, ids=lambda container: str(container.name))
def test_too_many_open_files(container: Container, tmp_path: Path) -> None:
    """Too many open files raise OSError, not ShardCorrupt."""
    path = tmp_path / f"s{container.suffix}"
    begun(container, path).close()
    container.reader(path, FIELDS).close()  # load what is loaded on first use

    def work() -> str:
        spare: list[int] = []
        for _ in range(64):
            try:
                container.reader(path, FIELDS).close()
                return f"opened with {len(spare)} to spare"
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
            # Allow one descriptor more each time, so that each of the reader's files is once the one too many.
            spare.append(1)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + len(spare), hard))
        return "never opened"

    lowest, hard = len(os.listdir("/proc/self/fd")) + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert in_child(work, resource.RLIMIT_NOFILE, lowest).startswith("opened with")


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_a_fork_while_a_shard_is_written(tmp_path: Path, container: str) -> None:
    """A child that ends as programs do, while its parent writes, adds nothing to the parent's files."""
    program = f"""
import os, sys, shardio
fields = {{"x": ("uint8", (1000,)), "t": "text"}}
writer = shardio.create({str(tmp_path / "d")!r}, container={container!r}, fields=fields)
for number in range(60):
    writer.append({{"x": [number] * 1000, "t": str(number)}})
    if number == 20 and os.fork() == 0: sys.exit()
os.wait()
writer.close()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert verify(tmp_path / "d", deep=True).problems == ()
