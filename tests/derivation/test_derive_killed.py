"""Ranks of a derive that are killed at any moment: each position comes once in the end, with the bytes of one run."""

import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import _forked
import numpy as np
import pytest
from _cli import unfinished
from _datasets import tensors
from _functions import slowly

import shardio
from shardio.care.verify import verify
from shardio.order.world import World

SAMPLES = 90
RANK = """
import os, sys
data, out, here = sys.argv[1:]
with open(f"{here}/{os.environ['RANK']}", "w") as file:
    file.write(f"{os.getpid()} ")
sys.path.insert(0, os.environ["TESTS"])
import shardio
from _functions import slowly
made = shardio.derive(data, slowly, out, version="1", batch_size=3, shard_samples=6, if_missing=True, threads=1)
print(len(made))
"""


class Job:
    """The processes of all ranks of a job that derives from `data`, as a launcher starts them."""

    def __init__(self, size: int, data: Path, out: Path, folder: Path) -> None:
        self._folder, self._size = folder, size
        folder.mkdir()
        shared = os.environ | {
            "WORLD_SIZE": f"{size}",
            "LOCAL_WORLD_SIZE": f"{size}",
            "TESTS": str(Path(__file__).parent),
        }
        shared |= {"TORCHELASTIC_RUN_ID": folder.name}
        self.ended: list[Any] = [None] * size

        def run(rank: int) -> None:
            own = {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"}
            self.ended[rank] = _forked.run(RANK, f"{data}", f"{out}", f"{folder}", environ=shared | own)

        self._threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
        for thread in self._threads:
            thread.start()

    def kill(self, ranks: list[int]) -> bool:
        """Kill ranks in turn, and then the others, as launchers do; return whether any of these still ran."""
        for rank in [*ranks, *range(self._size)]:
            while self.ended[rank] is None and not (pid := self._pid(rank)):
                time.sleep(0.002)
            if self.ended[rank] is None:
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.kill(pid, signal.SIGKILL)
        self.wait()
        return any(done.returncode == -signal.SIGKILL for done in self.ended)

    @property
    def is_over(self) -> bool:
        return None not in self.ended

    def _pid(self, rank: int) -> int:
        path = self._folder / f"{rank}"
        text = path.read_text() if path.exists() else ""
        return int(text) if text.endswith(" ") else 0

    def wait(self) -> list[Any]:
        for thread in self._threads:
            thread.join()
        return self.ended


def files_of(folder: Path) -> dict[str, bytes]:
    """The content of a dataset's files, by their names, without what a killed writer has left to be removed."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".writing-")}


def check_kills(tmp_path: Path, kills: int, seed: int) -> None:
    """Kill jobs of one to three ranks so often, at random moments; whatever is finished must be whole."""
    data, out, one = tmp_path / "data", tmp_path / "out", tmp_path / "one"
    tensors(SAMPLES, data)
    shardio.derive(data, slowly, one, version="1", batch_size=3, shard_samples=6, world=World())
    chance, job, finished, at_work = random.Random(seed), 0, 0, 0
    kills_asked = kills
    while kills > 0 or not finished:
        job += 1
        size = chance.choice((1, 2, 3))
        running = Job(size, data, out, tmp_path / f"job{job}")
        if kills > 0:
            before, more = len(unfinished(out, "*.done")), chance.randint(0, 3)
            limit = time.monotonic() + 10
            while len(unfinished(out, "*.done")) < before + more and not running.is_over and time.monotonic() < limit:
                time.sleep(0.005)
            time.sleep(chance.uniform(0, 0.15))
            kills -= running.kill(chance.sample(range(size), chance.randint(1, size)))
            at_work += 0 < len(unfinished(out, "*.done")) < SAMPLES // 6
        else:
            assert [done.stdout for done in running.wait()] == [f"{SAMPLES}\n"] * size, running.ended
        if (out / "shardio.json").exists():
            finished += 1
            made = shardio.open(out)
            assert made.read(range(SAMPLES))["twice"].tolist() == (2 * np.arange(SAMPLES)).tolist()
            if not (out / ".converting").exists():  # else the next run tidies up
                assert files_of(out) == files_of(one)
            assert verify(made, deep=True).problems == ()
            if kills > 0:
                out.rename(tmp_path / f"finished{job}")
    assert at_work > kills_asked // 3


@pytest.mark.slow
def test_a_few_kills(tmp_path: Path) -> None:
    """Six kills over one to three ranks lose nothing and repeat nothing."""
    check_kills(tmp_path, 6, seed=1)


@pytest.mark.long
def test_sixty_kills(tmp_path: Path) -> None:
    """Sixty kills over one to three ranks lose nothing and repeat nothing."""
    check_kills(tmp_path, 60, seed=2)
