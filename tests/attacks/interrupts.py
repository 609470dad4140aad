"""A stress of interrupts: loops over a loader are interrupted at random moments, thousands of times.

    python tests/attacks/interrupts.py --count 5000 --seed 1

Each job is a process of its own, which loops over one loader: tar, HDF5 or LMDB, threads or processes, the CPU engine,
DALI or nvImageCodec, a loop body of 0, 0.1 or 1 ms. An interrupt comes from a timer of the process; some come in
bursts, which strike what ends a loop. After each one, the state must say what the loop was given, a batch must have its
own images, the interrupt must have come out of the loop, and the next loop must run. A job without progress for 30 s
hangs; its stacks are printed.
"""

import argparse
import faulthandler
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

import cv2
import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from _builders import encode
from _datasets import CONTAINERS, packed

import shardio

SAMPLES, BATCH = 640, 8
ENGINES = ("cpu", "cpu", "dali", "nvimgcodec")
BODIES = (0.0, 0.0001, 0.001)  # seconds
FAILURES = ("wrong", "swallowed", "ignored", "hangs")
HANG = 30.0  # seconds
ROUNDS = 200  # per job; processes, which start slowly, have a tenth of them
DELAYS = (0.0002, 0.002, 0.02, 0.05)  # seconds at most until an interrupt
DELAYS_OF_PROCESSES = (0.002, 0.05, 0.5, 3.0)


def prepare(folder: Path) -> None:
    """Write the same samples in each container; their images are of one grey each."""
    greys = [encode("jpg", np.full((16, 16, 3), grey, np.uint8), cv2.IMWRITE_JPEG_QUALITY, 95) for grey in range(256)]
    for container in CONTAINERS:
        rows = (
            {"x": n, "text": f"sample {n}", "array": np.full(16, n, np.float32), "image": greys[n % 256]}
            for n in range(SAMPLES)
        )
        packed(folder / container, rows, container=container, shard_size="20KB")


class Job:
    """Loops over a loader, and counts what the interrupts did."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        self.options = options
        self.chance = random.Random(options.seed)
        self.loader = shardio.Loader(
            shardio.open(path),
            BATCH,
            isolate=options.isolate,
            transforms=[shardio.RandomResizedCrop(8)],
            engine=options.engine,
            threads=2,
            seed=3,
            world=shardio.World(),
            timeout=2 * HANG,
        )
        self.armed = False
        self.found = {"interrupts": 0, "wrong": 0, "swallowed": 0, "batches": 0}

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise within the loop, as Python's own handler does."""
        if self.armed:
            self.found["interrupts"] += 1
            raise KeyboardInterrupt

    def run(self) -> None:
        """Run all rounds, and print a line of JSON after each."""
        signal.signal(signal.SIGALRM, self.handle)
        assert len(list(self.loader)) == SAMPLES // BATCH
        for number in range(self.options.rounds):
            faulthandler.dump_traceback_later(HANG, exit=True)
            if self.chance.random() < 0.5:
                self.loader.load_state_dict(self.loader.state_dict())  # the next loop resumes this one
            delays = DELAYS_OF_PROCESSES if self.options.isolate else DELAYS
            self.round(self.chance.choice(delays) * self.chance.random() + 1e-6)
            print(json.dumps({"round": number, **self.found}), flush=True)
        faulthandler.cancel_dump_traceback_later()

    def round(self, delay: float) -> None:
        """Interrupt one loop, and compare the state with the last batch."""
        before, fired = self.loader.state_dict(), self.found["interrupts"]
        batch, given, came = None, 0, False
        try:
            self.armed = True
            signal.setitimer(signal.ITIMER_REAL, delay, delay / 5 + 1e-5 if self.options.burst else 0)
            for given, batch in enumerate(self.loader, 1):  # noqa: B007
                if self.options.body:
                    time.sleep(self.options.body)
        except KeyboardInterrupt:
            came = True
        while self.armed:
            try:
                self.armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                came = True
        self.found["batches"] += batch is not None
        self.found["swallowed"] += (self.found["interrupts"] > fired) != came
        after = self.loader.state_dict()
        if given != 1 or after != before:  # a loop that is left after its first batch counts as a peek
            self.found["wrong"] += not self.is_right(before, after, batch)

    def is_right(self, before: dict[str, Any], after: dict[str, Any], batch: dict[str, Any] | None) -> bool:
        """Return whether a state is where the last batch ended."""
        place = after["epoch"], after["position"]
        if batch is None:  # nothing was delivered; but a loop that begins after one that was left is the next epoch
            return place in ((before["epoch"], before["position"]), (before["epoch"] + 1, 0))
        images, first = batch["image"].double().mean(dim=(1, 2, 3)), int(batch["x"][0])
        if (images - batch["x"] % 256).abs().max() > 3:
            return False
        epoch, position = divmod(place[0] * SAMPLES + place[1] - BATCH, SAMPLES)
        return int(shardio.Plan(SAMPLES, seed=3, epoch=epoch).indices(position, position + 1)[0]) == first


def attack(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Run one job, and return what it found."""
    command = [sys.executable, __file__, "--job", str(folder), "--options", json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True)
    last = json.loads((done.stdout.splitlines() or ["{}"])[-1])
    hung, ignored = done.returncode != 0, done.stderr.count("Exception ignored")
    return options | last | {"hangs": int(hung), "ignored": ignored, "told": done.stderr if hung or ignored else ""}


def stress(count: int, seed: int, *, quiet: bool = False) -> dict[str, int]:
    """Run jobs until `count` interrupts have struck, and return the sums of what they found."""
    chance = random.Random(seed)
    sums = dict.fromkeys(("interrupts", "batches", *FAILURES), 0)
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        while sums["interrupts"] < count:
            isolate = chance.random() < 0.15
            options = {
                "container": chance.choice(CONTAINERS),
                "isolate": isolate,
                "engine": "cpu" if isolate else chance.choice(ENGINES),
                "burst": chance.random() < 0.25,
                "body": chance.choice(BODIES),
                "rounds": min(count, ROUNDS // 10 if isolate else ROUNDS),
                "seed": chance.randrange(2**32),
            }
            found = attack(Path(name), options)
            for key in sums:
                sums[key] += found.get(key, 0)
            if not quiet:
                print({key: value for key, value in found.items() if key != "told"}, flush=True)
            if found["told"]:
                print(found["told"], flush=True)
    return sums


def main() -> None:
    """Run the stress, or one job of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=5000, help="stop after as many interrupts")
    parser.add_argument("--seed", type=int, default=0, help="decides all but the moments, which the machine decides")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--options", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job is not None:
        options = argparse.Namespace(**args.options)
        Job(args.job / options.container, options).run()
        return
    sums = stress(args.count, args.seed)
    print(json.dumps(sums))
    sys.exit(any(sums[kind] for kind in FAILURES))


if __name__ == "__main__":
    main()
