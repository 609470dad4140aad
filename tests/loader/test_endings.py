"""However a job ends, its threads and processes end too, and nothing is left in /dev/shm and temporary folders.

Loaders that are created before a fork, or pickled, work in the other process.
"""

import json
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from _cli import python
from _leftovers import left_behind, names, running
from _time_limit import wait_until
from _workers import workers_of

import shardio
from shardio import World

ENDS = 2.0 + 3.0  # seconds: the promised time, plus what a loaded machine and the interpreter's exit may add

SCRIPT = """
import multiprocessing, os, sys, threading, time
import shardio

def slow(batch):
    time.sleep(0.02)
    return batch

def main(how, isolate):
    data = shardio.from_samples([{"x": n} for n in range(100_000)], {"x": "int64"})
    loader = shardio.Loader(data, 4, isolate=isolate, threads=2, map=slow)
    for step, batch in enumerate(loader):
        if step == 3:
            print(*[process.pid for process in multiprocessing.active_children()], flush=True)
            if how == "break":
                break
            if how == "raise":
                raise RuntimeError("a bug in the training loop")
            if how == "exit":
                sys.exit(3)
    if how == "break":
        deadline = time.monotonic() + 2
        while any(t.name.startswith("shardio rank") for t in threading.enumerate()):
            assert time.monotonic() < deadline, threading.enumerate()
            time.sleep(0.01)

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "True")
"""

CODES = {"break": 0, "raise": 1, "exit": 3, "SIGINT": -2, "SIGTERM": -15, "SIGKILL": -9}


@pytest.mark.long
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("how", list(CODES))
def test_all_ends_with_the_job(tmp_path: Path, how: str, isolate: bool) -> None:
    """A loop left early, an exception, sys.exit, Ctrl-C, SIGTERM and SIGKILL leave nothing behind."""
    (tmp_path / "main.py").write_text(SCRIPT)
    (tmp_path / "tmp").mkdir()
    before = names()
    job = subprocess.Popen(
        [sys.executable, tmp_path / "main.py", how, str(isolate)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
        start_new_session=True,
    )
    workers = [int(pid) for pid in job.stdout.readline().split()]
    assert len(workers) == 2 * isolate
    if how.startswith("SIG"):
        time.sleep(0.2)
        os.killpg(job.pid, getattr(signal, how)) if how == "SIGINT" else job.send_signal(getattr(signal, how))
    begun = time.monotonic()
    _, told = job.communicate(timeout=60)
    assert time.monotonic() - begun < ENDS, told
    assert job.returncode == CODES[how], told
    assert ("KeyboardInterrupt" in told) == (how == "SIGINT")
    assert told == "" or how in ("raise", "SIGINT"), told
    wait_until(lambda: not any(running(pid) for pid in workers), seconds=ENDS)
    assert not left_behind(before)
    assert os.listdir(tmp_path / "tmp") == []


def numbers() -> shardio.Dataset:
    return shardio.from_samples([{"x": n} for n in range(64)], {"x": "int64"}, shard_samples=9)


def make(**options: Any) -> shardio.Loader:
    return shardio.Loader(numbers(), 4, **{"world": World(), "threads": 2, "seed": 5, "timeout": 30.0} | options)


def epoch(loader: shardio.Loader) -> list[int]:
    return [n for batch in loader for n in batch["x"].tolist()]


def send_epoch(loader: shardio.Loader, pipe: Any) -> None:
    pipe.send((epoch(loader), epoch(loader)))


@pytest.mark.long
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_loader_works_in_another_process(method: str, isolate: bool) -> None:
    """A loader in use continues in a forked child and after pickling, and in this process too."""
    loader, wanted = make(isolate=isolate), make()
    assert epoch(loader) == epoch(wanted)
    begun = iter(loader)  # fork in the middle of a loop
    next(begun), next(begun)
    context = multiprocessing.get_context(method)
    if method == "fork":
        begun_elsewhere = wanted.state_dict()
        wanted.set_epoch(2)  # a loop left early is over, so that the next one is the next epoch
    else:
        wanted.set_epoch(1)
        begun_elsewhere = loader.state_dict()
        wanted.load_state_dict(begun_elsewhere)
    ours, theirs = context.Pipe()
    child = context.Process(target=send_epoch, args=(loader, theirs))
    child.start()
    assert ours.poll(60)
    assert ours.recv() == (epoch(wanted), epoch(wanted))
    child.join(10)
    assert child.exitcode == 0
    assert len(list(begun)) == 14  # the parent continues
    assert sorted(epoch(loader)) == list(range(64))


def test_pickling_keeps_where_it_stands() -> None:
    """A loader pickled in the middle of an epoch delivers the rest of it."""
    loader = make(shuffle="block", block=4, window=3)
    batches = iter(loader)
    seen = [n for _ in range(5) for n in next(batches)["x"].tolist()]
    copy = pickle.loads(pickle.dumps(loader))  # noqa: S301
    assert sorted(seen + epoch(copy)) == list(range(64))
    assert (copy.threads, copy.world, copy.batch_size) == (loader.threads, loader.world, loader.batch_size)


@pytest.mark.slow
def test_worker_processes_outlive_the_thread_that_began_the_loop() -> None:
    """Worker processes survive the thread that began the loop, although the kernel ends children with their thread."""
    loader = make(isolate=True, threads=1)
    found: list[int] = []

    def begin() -> None:
        batches = iter(loader)
        found.extend(next(batches)["x"].tolist())
        batches_of.append(batches)

    batches_of: list[Any] = []
    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    time.sleep(0.3)
    found += [n for batch in batches_of[0] for n in batch["x"].tolist()]
    assert sorted(found) == list(range(64))


@pytest.mark.long
def test_worker_processes_that_died_are_made_anew() -> None:
    """After an error about a dead worker process, the next loop works with new ones."""
    loader = make(isolate=True)
    next(iter(loader))
    for process in workers_of(loader):
        process.kill()
        process.join()
    assert sorted(epoch(loader)) == list(range(64))


WAITING = """
import sys, threading, time
import shardio, torch

def grown(argument):
    if not quick:
        slow.set()
        torch.nn.functional.interpolate(images, size=(201, 201), mode="bicubic", antialias=True)
        time.sleep(seconds)
    quick[-1:] = []
    return argument

seconds, by, timeout = float(sys.argv[1]), sys.argv[2], float(sys.argv[3])
images, quick, slow = torch.zeros(100, 3, 200, 200), [None] * (4 if by == "sample" else 1), threading.Event()
data = shardio.from_samples([{"x": n} for n in range(100)], {"x": "int64"})
batches = iter(shardio.Loader(data, 4, threads=1, map=grown, map_by=by, timeout=timeout, world=shardio.World()))
next(batches)
slow.wait()
sys.exit(3)
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("by", ["batch", "sample"])
def test_the_end_waits_for_a_map_and_says_for_which(by: str) -> None:
    """A script that ends inside a `map` waits for that call alone, names it after 2 s, and keeps its exit status."""
    done = python("-c", WAITING, "5", by, "60", code=3)
    what = r"the batch of samples \[\d+, \d+, \d+, \d+\]" if by == "batch" else r"sample \d+"
    line = rf"shardio: the process waits up to \d+ s to end: shardio rank 0-0 is in map function grown, {what}\n"
    assert re.fullmatch(line, done.stderr)


@pytest.mark.long
@pytest.mark.slow
def test_the_end_waits_for_a_map_no_longer_than_timeout() -> None:
    """A `map` that does not return delays the end by `timeout` seconds, counted from the call's beginning."""
    begun = time.monotonic()
    python("-c", WAITING, "1000", "batch", "3", code=3)
    assert time.monotonic() - begun >= 3


@pytest.mark.parametrize("by", ["batch", "sample"])
def test_a_loop_that_is_over_begins_no_call_of_a_map(by: Literal["batch", "sample"]) -> None:
    """Workers end with the call of `map` that they are in, though their task has more samples or batches."""
    calls: list[int] = []
    blocked, go_on = threading.Event(), threading.Event()

    def blocks(argument: dict[str, Any]) -> dict[str, Any]:
        calls.append(0)
        if len(calls) == 10:
            blocked.set()
            go_on.wait(30)
        return argument

    batches = iter(shardio.Loader(numbers(), 1, threads=1, prefetch=40, map=blocks, map_by=by, world=World()))
    next(batches)
    assert blocked.wait(30)
    closing = threading.Thread(target=batches.close)  # type: ignore[attr-defined]
    closing.start()
    wait_until(lambda: batches._progress.closed)  # type: ignore[attr-defined]
    go_on.set()
    closing.join()
    assert len(calls) == 10


@pytest.mark.attack
def test_a_short_stress_of_exits() -> None:
    """`exits.py` ends scripts early, while their maps are inside torch, OpenCV and Python: each with its own status."""
    exits = Path(__file__).parents[1] / "attacks" / "exits.py"
    done = python(exits, "--count", "16", "--jobs", "1", "--seed", "5", timeout=600)
    assert json.loads(done.stdout)["wrong"] == []


@pytest.mark.attack
def test_a_short_soak() -> None:
    """`soak.py` kills ranks, damages shards and fills disks for half a minute; no sample is lost or repeated."""
    soak = Path(__file__).parents[1] / "attacks" / "soak.py"
    done = python(soak, "--minutes", "0.5", "--seed", "3", timeout=300)
    found = json.loads(done.stdout)
    assert found["lost"] == found["repeated"] == 0
    assert found["restarts"] >= 1
    assert found["samples_delivered"] > 0
    assert len(found["faults"]) >= 3
    assert found["interrupts"]["interrupts"] >= 50
