"""Conversion on a Dask cluster: a real scheduler and real workers, some of which are killed."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from _builders import jpeg
from _cli import run, unfinished
from _datasets import files
from _time_limit import wait_until

import shardio
from shardio.care.verify import verify
from shardio.conversion.api import convert
from shardio.errors import ConfigError
from shardio.order.world import World
from shardio_converters.imagefolder import imagefolder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 JPEGs."""
    root = tmp_path_factory.mktemp("source")
    (root / "cat").mkdir()
    for number in range(600):
        (root / "cat" / f"{number:03d}.jpg").write_bytes(jpeg(60, 80, seed=number))
    return root


@pytest.fixture(scope="module")
def whole(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an uninterrupted conversion by one process."""
    out = tmp_path_factory.mktemp("whole") / "out"
    convert(imagefolder(photos), out, container="hdf5", shard_size="8KB")
    return files(out)


def start(command: list[object], log: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a process, and write its errors to a file, if there is one."""
    with open(log or os.devnull, "wb") as errors:
        return subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=errors)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, Callable[[], subprocess.Popen[bytes]]]]:
    """The address of a scheduler on the loopback interface, and a function that starts a worker process of it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    dask = [sys.executable, "-m", "dask"]
    begun = [start([*dask, "scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard", "--no-jupyter"])]
    worker = [*dask, "worker", address, "--nthreads", 1, "--no-dashboard", "--no-nanny", "--local-directory"]

    def start_worker() -> subprocess.Popen[bytes]:
        begun.append(start([*worker, tmp_path / f"{len(begun)}"]))
        return begun[-1]

    try:
        yield address, start_worker
    finally:
        for process in reversed(begun):
            process.kill()
            process.wait()


def wait_for(out: Path, shards: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until this many shards are finished."""
    wait_until(lambda: len(unfinished(out, "*.done")) >= shards or process.poll() is not None)
    assert process.poll() is None, log.read_text()


@pytest.mark.long
@pytest.mark.parametrize("both", [False, True], ids=["worker", "worker and client"])
def test_what_dies_is_made_up_for(
    cluster: tuple[str, Callable[[], subprocess.Popen[bytes]]],
    photos: Path,
    whole: dict[str, bytes],
    tmp_path: Path,
    both: bool,
) -> None:
    """Killing the worker that began, or the command itself before a resume, changes no byte of the result."""
    address, start_worker = cluster
    first = start_worker()
    out, log = tmp_path / "out", tmp_path / "errors"
    command = ["convert", "imagefolder", photos, out, "--to", "hdf5", "--shard-size", "8KB", "--dask", address]
    client = start([sys.executable, "-m", "shardio", *command], log)
    wait_for(out, 10, client, log)
    start_worker()
    first.send_signal(signal.SIGKILL)  # the only one that holds what all shards share
    before = len(unfinished(out, "*.done"))
    assert before < len(whole) - 1
    if both:
        wait_for(out, before + 10, client, log)  # the other one goes on
        client.send_signal(signal.SIGKILL)
        client.wait()
        assert before < len(unfinished(out, "*.done")) < len(whole) - 1
        run(*command, "--resume")
    assert client.wait(120) == (-signal.SIGKILL if both else 0), log.read_text()
    assert files(out) == whole
    assert verify(shardio.open(out), deep=True).problems == ()


@pytest.mark.long
def test_a_cluster_of_its_own(photos: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    """`--dask local` starts a cluster on this machine and stops it at the end, beside other clusters."""
    options = ["--to", "hdf5", "--shard-size", "8KB", "--dask", "local", "--workers", "2"]
    with socket.socket() as dashboard:
        with suppress(OSError):  # it is taken already
            dashboard.bind(("127.0.0.1", 8787))
            dashboard.listen()
        assert "8787" not in run("convert", "imagefolder", photos, tmp_path / "out", *options)
    assert files(tmp_path / "out") == whole


def test_bad_samples_are_told(tmp_path: Path) -> None:
    """A bad file ends the command with one line, as without Dask."""
    (tmp_path / "src" / "a").mkdir(parents=True)
    (tmp_path / "src" / "a" / "x.jpg").write_bytes(b"")
    told = run("convert", "imagefolder", tmp_path / "src", tmp_path / "out", "--dask", "local", code=1)
    assert "x.jpg): field 'image': the image is empty" in told.splitlines()[-1]


def test_wrong_addresses(photos: Path, tmp_path: Path) -> None:
    """Invalid addresses are refused before anything is written."""
    with pytest.raises(ConfigError, match="dask and ranks cannot share the same work"):
        convert(imagefolder(photos), tmp_path / "out", dask="local", world=World(0, 2))
    told = run("convert", "imagefolder", photos, tmp_path / "out", "--dask", "nonsense://x", code=2)
    assert "no Dask scheduler answers at 'nonsense://x'" in told.splitlines()[-1]
