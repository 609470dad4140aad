"""A stress of early exits: scripts end while `map` functions are in the middle of a call, hundreds of times.

    python tests/attacks/exits.py --count 200 --seed 1

Each script loops over a loader and ends at a random moment, in one of several ways, while its `map` is inside torch,
OpenCV, or Python, for milliseconds or seconds, on threads or in processes. Its exit status must be its own, and it
must print nothing but its own error and the line about what it waits for. The scripts are forked from one process,
which has imported the libraries; each ends as an interpreter does. `--jobs 5` adds jobs of two ranks under torchrun.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import cv2
import numpy as np
import torch

import shardio

AT_ONCE, BATCH = 4, 4
LIMIT = 300.0  # seconds until a script hangs
WAITS = "shardio: the process waits up to "
ENDINGS = {"end": 0, "sys.exit": 3, "SystemExit": 7, "text": 1, "error": 1}
SECONDS = (0.01, 0.05, 0.3, 1.0, 3.0)


@dataclass(frozen=True)
class Case:
    """A script: what its map function does, for how long, and how the script ends."""

    kind: str
    seconds: float
    by: str
    threads: int
    isolate: bool
    ending: str
    delay: float


def random_case(chance: random.Random) -> Case:
    return Case(
        kind=chance.choice(list(KINDS)),
        seconds=chance.choice(SECONDS),
        by=chance.choice(["batch", "sample"]),
        threads=chance.choice([1, 2, 3]),
        isolate=chance.random() < 0.1,
        ending=chance.choice(list(ENDINGS)),
        delay=chance.choice([0.0, 0.02, 0.2]) * chance.random(),
    )


IMAGES, PIXELS = torch.zeros(1, 3, 200, 200), np.zeros((500, 500, 3), np.float32)


def in_torch(images: torch.Tensor = IMAGES) -> None:
    torch.nn.functional.interpolate(images, size=(201, 201), mode="bicubic", antialias=True)


def in_opencv(pixels: Any = PIXELS) -> None:
    cv2.GaussianBlur(pixels, (31, 31), 5.0)


def in_one_call(call: Callable[..., None], work: Any, seconds: float) -> None:
    """Make one call with so much work that it takes about `seconds`."""
    begun = time.monotonic()
    call()
    call(work(max(1, int(seconds / (time.monotonic() - begun)))))


def in_many_calls(call: Callable[..., None], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        call()


KINDS: dict[str, Callable[[float], None]] = {
    "torch": partial(in_one_call, in_torch, lambda times: IMAGES.expand(times, -1, -1, -1)),
    "opencv": partial(in_one_call, in_opencv, lambda times: np.tile(PIXELS, (times, 1, 1))),
    "many of torch": partial(in_many_calls, in_torch),
    "many of OpenCV": partial(in_many_calls, in_opencv),
    "sleep": time.sleep,
    "Python": partial(in_many_calls, lambda: None),
}


class Slow:
    """A map function that is quick until the loop has its first batch."""

    def __init__(self, case: Case) -> None:
        self.case, self.quick = case, 1 if case.by == "batch" else BATCH

    def __call__(self, argument: dict[str, Any]) -> dict[str, Any]:
        self.quick -= 1
        if self.quick < 0:
            KINDS[self.case.kind](self.case.seconds)
        return argument


def script(case: Case) -> None:
    """Leave a loop early, and end in the way of the case."""
    data = shardio.from_samples([{"x": n} for n in range(1000)], {"x": "int64"})
    options: dict[str, Any] = {"threads": case.threads, "isolate": case.isolate, "timeout": LIMIT}
    loader = shardio.Loader(data, BATCH, map=Slow(case), map_by=case.by, **options)
    next(iter(loader))
    time.sleep(case.delay)
    match case.ending:
        case "sys.exit":
            sys.exit(3)
        case "SystemExit":
            raise SystemExit(7)
        case "text":
            sys.exit("mine")
        case "error":
            raise ValueError("mine")


@dataclass
class Running:
    """A script that runs in a process of its own."""

    case: Case
    begun: float
    said: Any

    def problem(self, code: int) -> str | None:
        """Return what is wrong with how it ended."""
        self.said.seek(0)
        lines = self.said.read().splitlines()
        own = self.case.ending in ("text", "error")
        others = [line for line in lines if not line.startswith(WAITS) and not own]
        if code == ENDINGS[self.case.ending] and not others and own == any("mine" in line for line in lines):
            return None
        return f"{asdict(self.case)} ended with {code} after {time.monotonic() - self.begun:.1f} s: {lines}"


def scripts(count: int, chance: random.Random) -> Iterator[Case | str]:
    """Fork a process for each script. Yield its case in that process, and what is wrong with others in this one."""
    running: dict[int, Running] = {}
    while count or running:
        while count and len(running) < AT_ONCE:
            count -= 1
            case, said = random_case(chance), tempfile.TemporaryFile("w+")  # noqa: SIM115  # for as long as it runs
            pid = os.fork()
            if not pid:
                os.dup2(said.fileno(), 2)
                signal.alarm(int(LIMIT))
                yield case
                return
            running[pid] = Running(case, time.monotonic(), said)
        pid, status = os.wait()
        if (problem := running.pop(pid).problem(os.waitstatus_to_exitcode(status))) is not None:
            yield problem


def job(seed: int) -> str | None:
    """Run two ranks under torchrun, each of which is a script that ends with 0; return what is wrong."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*torchrun, __file__, "--rank", "--seed", str(seed)], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if not line.startswith(WAITS)]
    return f"job {seed} ended with {done.returncode}: {said}" if done.returncode or "Traceback" in done.stderr else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="scripts")
    parser.add_argument("--jobs", type=int, default=0, help="jobs of two ranks under torchrun")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)  # no thread of theirs starts before a fork
    cv2.setNumThreads(1)
    shardio.Loader  # noqa: B018  # imported once, and not in each process
    chance = random.Random(options.seed)
    if options.rank:
        return script(replace(random_case(chance), ending="end"))
    wrong = []
    for found in scripts(options.count, chance):
        if isinstance(found, Case):
            return script(found)  # and so the interpreter ends
        wrong.append(found)
    wrong += [found for number in range(options.jobs) if (found := job(options.seed + number)) is not None]
    print(json.dumps({"scripts": options.count, "jobs": options.jobs, "wrong": wrong}, indent=1))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
