"""A soak test: ranks train while they are killed and restarted in other numbers, and while shards are damaged.

    python tests/attacks/soak.py --minutes 10 --seed 1

The same samples are in a tar, an HDF5 and an LMDB dataset, so that a run may resume from a checkpoint with another
container, number of ranks (2 to 6) and batch size, with threads or processes. In each attempt the ranks sum up their
samples over gloo and log them, and rank 0 saves the loader's state. Meanwhile the soak changes a byte of a shard,
truncates a shard, or fills the disk under the checkpoint; in the end it kills a rank.

At the end, the samples that were delivered before the checkpoints must be the plan's order in every epoch, with none
lost or repeated, and the sums in the checkpoints must match. Damaged samples are masked, and count as delivered if the
quarantine lists them. A rank that still runs 30 s after another one died is a hang, and a failure.

Then `interrupts.py` interrupts loops at random moments, 100 times for each minute of the soak.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import interrupts
import numpy as np
import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1]))
from _builders import encode
from _datasets import CONTAINERS, packed
from _leftovers import left_behind, names

import shardio
from shardio.system.directory import Directory

SAMPLES = 2400
SAVE_EVERY = 4  # steps
TIMEOUT = 15.0  # seconds, of the loader and of each of Gloo's waits
HANG = 60.0  # seconds: meeting, connecting and reducing may each wait in turn for a rank that was killed
ORDER_SEED = 17


@dataclass
class Attempt:
    """One start of all ranks."""

    number: int
    size: int
    batch_size: int
    container: str
    isolate: bool
    ranks: list[BaseProcess] = field(default_factory=list, repr=False)


def sample(n: int) -> dict[str, Any]:
    """A sample whose image and array no other one has."""
    pixels, chance = np.full((32, 32, 3), n % 256, np.uint8), np.random.default_rng(n)
    pixels[:8] = chance.integers(0, 255, (8, 32, 3))
    array = chance.integers(0, 255, 64, np.uint8)
    return {"image": encode("jpg", pixels), "label": n, "key": f"sample {n}", "array": array}


def prepare(folder: Path) -> None:
    """Write the same samples in each container, and a copy to restore from."""
    fields = {"image": "image", "label": "int64", "key": "text", "array": ("uint8", (64,))}
    for container in CONTAINERS:
        place = folder / "whole" / container
        packed(place, map(sample, range(SAMPLES)), fields, container=container, shard_size="200KB")
    shutil.copytree(folder / "whole", folder / "data")


def rank_main(folder: Path, attempt: Attempt, rank: int) -> None:
    """Run one rank until it is killed."""
    out = folder / "logs" / f"{attempt.number:04d}"
    try:
        store = f"file://{folder}/store-{attempt.number}"
        limit = timedelta(seconds=TIMEOUT)
        dist.init_process_group("gloo", store, rank=rank, world_size=attempt.size, timeout=limit)
        train(folder, attempt, rank, out)
    except BaseException as error:
        (out / f"rank-{rank}.error").write_text(f"{error!r}\n{traceback.format_exc()}")
        raise


def train(folder: Path, attempt: Attempt, rank: int, out: Path) -> None:
    """Sum up labels over all ranks, log the samples, and save checkpoints."""
    loader = shardio.Loader(
        folder / "data" / attempt.container,
        attempt.batch_size,
        transforms=[shardio.RandomResizedCrop(16), shardio.RandomHorizontalFlip()],
        seed=ORDER_SEED,
        world=shardio.World(rank, attempt.size, rank, attempt.size),
        tail="pad",
        threads=1 + attempt.number % 2,
        on_bad_sample="mask",
        max_bad=SAMPLES,
        verify=True,
        isolate=attempt.isolate,
        timeout=TIMEOUT,
    )
    saved = folder / "checkpoints" / "state.json"
    total = 0
    if saved.exists():
        state = json.loads(saved.read_text())
        loader.load_state_dict(state["loader"])
        total = state["total"]
    step = met = 0
    with open(out / f"rank-{rank}.jsonl", "w", buffering=1) as log:
        while True:
            epoch = loader.epoch
            for batch in loader:
                bad = {one.location.index for one in loader.quarantine()[met:]}
                met += len(bad)
                rows = zip(batch["index"].tolist(), batch["valid"].tolist(), strict=True)
                came = [[index, int(valid)] for index, valid in rows if valid or index in bad]
                print(json.dumps({"step": step, "epoch": epoch, "rows": came}), file=log)
                mine = torch.tensor(int(batch["label"][batch["valid"]].sum()))
                dist.all_reduce(mine)  # now every rank has logged the step
                total += int(mine)
                step += 1
                if rank == 0 and step % SAVE_EVERY == 0:
                    save(saved, {"loader": loader.state_dict(), "total": total}, out, step)


def save(path: Path, state: dict[str, Any], out: Path, step: int) -> None:
    """Write a checkpoint, or skip it if the disk is full, as a trainer would; a limit of file sizes stands for that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if (path.parent / "full").exists():
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    saved = False
    with contextlib.suppress(OSError):
        content = json.dumps(state | {"attempt": int(out.name), "step": step})
        Directory(path.parent).write(path.name, content.encode())
        saved = True
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    if not saved:
        with open(out / "passed-over", "a") as file:
            file.write(f"step {step}\n")


class Soak:
    """Start ranks, inject faults, and record the results."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.commits: dict[int, dict[str, Any]] = {}
        self.failures: list[str] = []
        self.attempts = 0
        self.damaged: list[Path] = []
        (folder / "checkpoints").mkdir()

    def run(self, seconds: float) -> None:
        """Run attempts until the time is over."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.attempt(min(end, time.monotonic() + self.chance.uniform(1.5, 8.0)))

    def attempt(self, end: float) -> None:
        """Start all ranks, inject faults that they must survive, and finally kill one."""
        chance = self.chance
        attempt = Attempt(
            self.attempts, chance.randint(2, 6), chance.randint(3, 40), chance.choice(CONTAINERS), chance.random() < 0.2
        )
        (self.folder / "logs" / f"{attempt.number:04d}").mkdir(parents=True)
        context = multiprocessing.get_context("fork")
        for rank in range(attempt.size):
            process = context.Process(target=rank_main, args=(self.folder, attempt, rank))
            process.start()
            attempt.ranks.append(process)
        while time.monotonic() < end and all(process.is_alive() for process in attempt.ranks):
            time.sleep(chance.uniform(0.2, 1.0))
            self.fault(attempt)
        victim = chance.choice(attempt.ranks)
        kind = chance.choice([signal.SIGKILL, signal.SIGTERM])
        killed = None
        if all(process.is_alive() for process in attempt.ranks):
            os.kill(victim.pid or 0, kind)
            self.faults[f"{kind.name} of a rank"] += 1
            killed = victim
        self.wait(attempt)
        if killed is None:
            codes = [process.exitcode for process in attempt.ranks]
            told = [path.read_text() for path in (self.folder / "logs" / f"{attempt.number:04d}").glob("*.error")]
            first = next((text for text in told if "/gloo/" not in text), "")
            self.failures.append(f"{attempt}: a rank ended by itself, exit codes {codes}: {first}")
        saved = self.folder / "checkpoints" / "state.json"
        if saved.exists() and (state := json.loads(saved.read_text()))["attempt"] == attempt.number:
            self.commits[attempt.number] = state
        (self.folder / "checkpoints" / "full").unlink(missing_ok=True)
        if chance.random() < 0.5:
            self.heal()
        self.attempts += 1

    def fault(self, attempt: Attempt) -> None:
        """Inject a fault that a job must survive."""
        kind = self.chance.choice(["flip", "flip", "disk", "cut"])
        path = self.chance.choice(sorted((self.folder / "data" / attempt.container).glob("shard-*")))
        if kind == "disk":
            fill = self.folder / "checkpoints" / "full"
            if fill.exists():
                fill.unlink()
            else:
                fill.touch()
                self.faults["full disk under the checkpoint"] += 1
        elif kind == "cut" and len(self.damaged) < 3:
            os.truncate(path, self.chance.randrange(path.stat().st_size))
            self.damaged.append(path)
            self.faults["shard cut short"] += 1
        elif kind == "flip":
            size = path.stat().st_size
            place = self.chance.randrange(size) if size else 0
            with open(path, "r+b") as file:
                file.seek(place)
                byte = file.read(1)
                file.seek(place)
                file.write(bytes([byte[0] ^ 1 << self.chance.randrange(8)]) if byte else b"")
            self.damaged.append(path)
            self.faults["byte of a shard changed"] += 1

    def wait(self, attempt: Attempt) -> None:
        """Wait until all ranks have ended; record those that hang, and kill them."""
        deadline = time.monotonic() + HANG
        for process in attempt.ranks:
            process.join(max(0.0, deadline - time.monotonic()))
        for rank, process in enumerate(attempt.ranks):
            if process.is_alive():
                self.failures.append(f"attempt {attempt.number}: rank {rank} hangs")
                process.kill()
                process.join()

    def heal(self) -> None:
        """Restore damaged shards."""
        for path in set(self.damaged):
            whole = self.folder / "whole" / path.relative_to(self.folder / "data")
            Directory(path.parent).write(path.name, whole.read_bytes())
        self.damaged.clear()


def check(soak: Soak) -> dict[str, Any]:
    """Compare all samples delivered up to the checkpoints that later attempts resumed from with the plan."""
    delivered: dict[int, list[int]] = {}
    masked = 0
    total = 0
    failures = list(soak.failures)
    for number, state in sorted(soak.commits.items()):
        logs = []
        for path in sorted((soak.folder / "logs" / f"{number:04d}").glob("rank-*.jsonl")):
            lines = path.read_text().splitlines()[: state["step"]]
            logs.append([json.loads(line) for line in lines])
        for lines in zip(*logs, strict=True):
            for line in lines:
                rows = delivered.setdefault(line["epoch"], [])
                rows += [index for index, _ in line["rows"]]
                masked += sum(1 - valid for _, valid in line["rows"])
                total += sum(index for index, valid in line["rows"] if valid)
        if total != state["total"]:
            failures.append(f"attempt {number}: the sum in the checkpoint is {state['total']}, of the log {total}")
    lost = repeated = 0
    for epoch, rows in delivered.items():
        order = shardio.Plan(SAMPLES, seed=ORDER_SEED, epoch=epoch).indices(0, SAMPLES).tolist()
        last = epoch == max(delivered)
        lost += len({*order[: len(rows) if last else SAMPLES]} - {*rows})
        repeated += len(rows) - len({*rows})
        if rows != order[: len(rows)]:
            failures.append(f"epoch {epoch} was not delivered in the plan's order")
    return {
        "faults": dict(soak.faults),
        "restarts": soak.attempts - 1,
        "epochs": len(delivered),
        "samples_delivered": sum(map(len, delivered.values())),
        "of_which_masked": masked,
        "checkpoints_passed_over": sum(len(p.read_text().splitlines()) for p in soak.folder.glob("logs/*/passed-over")),
        "lost": lost,
        "repeated": repeated,
        "failures": failures,
    }


def main() -> None:
    """Run the soak from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="working folder, which is kept (default: a temporary one)")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(exist_ok=True)
    before = names()
    torch.set_num_threads(1)  # before forking, because threads do not survive it
    prepare(folder)
    soak = Soak(folder, args.seed)
    soak.run(60 * args.minutes)
    found = check(soak)
    left = [*sorted(left_behind(before)), *map(str, multiprocessing.active_children())]
    found["failures"] += [f"left behind: {name}" for name in left]
    found["interrupts"] = interrupts.stress(round(100 * args.minutes), args.seed, quiet=True)
    struck = {kind: found["interrupts"][kind] for kind in interrupts.FAILURES}
    found["failures"] += [f"interrupts: {count} {kind}" for kind, count in struck.items() if count]
    print(json.dumps(found, indent=1))
    if args.folder is None and not found["failures"]:
        shutil.rmtree(folder)
    sys.exit(bool(found["lost"] or found["repeated"] or found["failures"]))


if __name__ == "__main__":
    main()
