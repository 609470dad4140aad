"""Datasets staged into the cache of a node: all of it is there, whatever happens meanwhile, or the error says what."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _cli import ended, here
from _datasets import CONTAINERS, load, packed
from _small_disk import small_disk

import shardio
from shardio.errors import CacheError, ConfigError

COUNT = 60


def place_of(folder: Path, container: str = "tar") -> Path:
    """A dataset of 6 MB in seven shards."""
    rows = ({"x": values(number), "n": number} for number in range(COUNT))
    packed(folder, rows, container=container, shard_size="1MB")
    return folder


def values(number: int) -> Any:
    """The array of a sample."""
    return np.random.default_rng(number).integers(0, 255, 100_000, np.uint8)


def check_staged(place: Path, cache: Path) -> None:
    """Load an epoch without the files of the shards."""
    for path in place.iterdir():
        if path.name != "shardio.json":
            path.unlink()
    dataset = shardio.open(place, cache=cache, cache_size="100MB")
    for batch in load(dataset, 4, verify=True):
        for x, n in zip(batch["x"], batch["n"].tolist(), strict=True):
            assert np.array_equal(x, values(n))
    assert dataset.fetched.bytes == 0


@pytest.mark.parametrize("container", CONTAINERS)
def test_all_is_there_and_stays(tmp_path: Path, container: str) -> None:
    """After it an epoch reads nothing of the slow file system; a second time nothing is fetched."""
    place, told = place_of(tmp_path / "d", container), list[tuple[int, int]]()
    given: dict[str, Any] = {"cache": tmp_path / "cache", "cache_size": "100MB"}
    done = shardio.stage(place, progress=lambda some, total: told.append((some, total)), **given)
    stored = sum(path.stat().st_size for path in place.iterdir() if path.name != "shardio.json")
    assert (done.bytes, done.fetched, done.problems) == (stored, stored, ())
    assert [some for some, _ in told] == sorted(some for some, _ in told)
    assert told[-1][0] == told[-1][1] == stored
    again = shardio.stage(shardio.open(place, **given))
    assert (again.bytes, again.fetched, again.requests) == (stored, 0, 0)
    check_staged(place, tmp_path / "cache")


SLOW = """
import sys, time, shardio
from shardio.stores.folder import FolderStore
read = FolderStore.read
FolderStore.read = lambda *given, **more: (time.sleep(0.02), read(*given, **more))[1]
print(shardio.stage(sys.argv[1], cache=sys.argv[2], cache_size="100MB").fetched)
"""


@pytest.mark.slow
def test_processes_that_are_killed_while_others_stage(tmp_path: Path) -> None:
    """kill -9 of one at any moment: the others complete the work, and what was there is not fetched again."""
    place, draw = place_of(tmp_path / "d"), random.Random(4)

    def start() -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", SLOW, str(place), str(tmp_path / "cache")]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    for _ in range(3):
        with start() as victim:
            deadline = time.monotonic() + 20 * draw.random() / 20 + 0.4
            while victim.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            victim.send_signal(signal.SIGKILL)
    both = [start(), start()]
    fetched = [int(one.communicate(timeout=60)[0]) for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert sum(fetched) <= sum(path.stat().st_size for path in place.iterdir())
    check_staged(place, tmp_path / "cache")


def test_what_is_too_small_is_refused_beforehand(tmp_path: Path) -> None:
    """A limit or a disk that cannot hold it all is named with both sizes before anything is fetched."""
    place = place_of(tmp_path / "d")
    with pytest.raises(CacheError, match=r"the cache holds 4\.0 MB, and .*/d takes 7\.\d MB: give a cache_size of at"):
        shardio.stage(place, cache=tmp_path / "small", cache_size="4MB")
    assert not any((tmp_path / "small" / "files").iterdir())
    no_room = pytest.raises(CacheError, match=r"its disk has room for \d.* MB, and .*/d takes 7\.\d MB")
    with small_disk(tmp_path / "disk", "5m") as disk, no_room:
        shardio.stage(place, cache=disk / "cache", cache_size="100MB")
    with pytest.raises(ConfigError, match=r"cache must name a folder on a fast disk for the pieces of .*/d"):
        shardio.stage(place)


def test_what_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A shard that is damaged or gone is told, and the others are staged; the command's exit code is 1."""
    place = place_of(tmp_path / "d")
    shards = sorted(place.glob("shard-*.tar"))
    shards[1].unlink()
    with open(shards[2], "r+b") as file:
        file.seek(500_000)
        file.write(bytes(1000))
    code, printed, error = ended(
        capsys, "stage", place, "--cache", tmp_path / "cache", "--cache-size", "100MB", "--json", "-"
    )
    assert (code, "2 shards of" in error) == (1, True)
    problems = json.loads(printed)["problems"]
    assert [shards[1].name in problems[0], shards[2].name in problems[1], len(problems)] == [True, True, 2]
    dataset = shardio.open(place, cache=tmp_path / "cache", cache_size="100MB")
    last = np.arange(COUNT - 12, COUNT)
    assert (dataset.selection(last).column("n") == last).all()
    assert dataset.fetched.bytes == 0


def test_the_command(tmp_path: Path) -> None:
    """`shardio stage` says what it did, also of a view's dataset; afterwards that all was there."""
    place = place_of(tmp_path / "d")
    shardio.open(place).where("n < 20").save(tmp_path / "view.json")
    for source, words in ((tmp_path / "view.json", "came now"), (place, "all was there")):
        assert words in here("stage", source, "--cache", tmp_path / "cache", "--cache-size", "100MB")
    check_staged(place, tmp_path / "cache")
