"""A soak test of datasets in object storage: ranks that share a cache are killed while the network fails.

    python tests/attacks/remote_soak.py --faults 5000 --seed 1

A real S3 server holds the dataset, behind a proxy that delays, cuts, corrupts, resets and refuses by a seeded script.
Four rank processes share one cache on this machine. Each logs its batches with the loader's state after them; now and
then one is killed with SIGKILL, and begins again from the last state that it logged. Phases differ in the order, the
container and the cache's limit, from one that is just enough to one that holds all.

At the end of each phase the logs of all ranks must hold every sample of each epoch exactly once, each with its own
content. Meanwhile neither the bytes that the cache counts nor those that its files take on the disk may be above its
limit.
"""

import argparse
import faulthandler
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
from collections import Counter
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from _datasets import packed
from _faulty_proxy import FAULTS, Proxy, Script, proxy_process
from _s3 import S3Server, s3_server

import shardio
from shardio.cache.node_cache import _STATE  # what every process of the cache maps
from shardio.stores import retrying

SAMPLES = 1500
RANKS = 4
BUCKET = "soak"
ORDER_SEED = 11
HANG = 120.0  # seconds without a batch of any rank
# Three corrupt answers in a row are an error, so they must stay unlikely in thousands of requests.
SHARES = Script(slow_down=0.1, failed=0.06, reset=0.08, cut=0.1, corrupt=0.01, late=0.05, expired=0.01, gone=0.002)


@dataclass
class Phase:
    """Some epochs with one cache.

    Attributes:
        limit: bytes of the cache.
    """

    number: int
    container: str
    shuffle: str
    limit: int
    isolate: bool
    batch_size: int
    epochs: int


@dataclass
class Found:
    """The faults, kills and results of one soak."""

    phases: list[dict[str, Any]] = field(default_factory=list)
    kills: int = 0
    samples: int = 0
    lost: int = 0
    repeated: int = 0
    wrong: int = 0
    failures: list[str] = field(default_factory=list)


def content(number: int) -> np.ndarray:
    """The array of a sample: 4 KB that no other sample has."""
    return np.random.default_rng(number).integers(0, 255, 4096, np.uint8)


def sample(number: int) -> dict[str, Any]:
    """A sample with values of one size and of several."""
    array = content(number)
    return {"array": array, "blob": array.tobytes()[: 1000 + number % 3000], "label": number}


def prepare(folder: Path, server: S3Server) -> dict[str, int]:
    """Write the same samples as tar and HDF5, and put both into a bucket; return the bytes of each."""
    sizes = {}
    server.make_bucket(BUCKET)
    for container in ("tar", "hdf5"):
        place = folder / "local" / container
        packed(place, map(sample, range(SAMPLES)), container=container, shard_size="600KB")
        files = [path for path in place.rglob("*") if path.is_file()]
        sizes[container] = sum(path.stat().st_size for path in files)
        for path in files:
            url = f"{server.filer}/buckets/{BUCKET}/{container}/{path.relative_to(place)}"
            urllib.request.urlopen(urllib.request.Request(url, path.read_bytes(), method="PUT"), timeout=30).close()
    return sizes


def rank_main(folder: Path, phase: Phase, rank: int, options: dict[str, str]) -> None:
    """Run one rank from its last state to the end of the phase."""
    out = folder / f"phase-{phase.number}"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stacks = open(out / f"rank-{rank}.stacks", "w")  # noqa: SIM115  # of a rank that hangs: kill -USR1
    faulthandler.register(signal.SIGUSR1, stacks)
    try:
        retrying.FIRST_WAIT, retrying.LONGEST_WAIT = 0.02, 0.5  # a tenth and less of what they are
        train(phase, rank, options, out)
    except BaseException:  # noqa: BLE001  # the soak reports it
        (out / f"rank-{rank}.error").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def train(phase: Phase, rank: int, options: dict[str, str], out: Path) -> None:
    """Log batches, each with the state after it."""
    dataset = shardio.open(
        f"s3://{BUCKET}/{phase.container}", cache=out / "cache", cache_size=phase.limit, store_options=options
    )
    loader = shardio.Loader(
        dataset,
        phase.batch_size,
        seed=ORDER_SEED,
        shuffle=phase.shuffle,
        world=shardio.World(rank, RANKS, rank, RANKS),
        tail="pad",
        threads=2,
        verify=True,
        isolate=phase.isolate,
        timeout=HANG,
    )
    path = out / f"rank-{rank}.jsonl"
    if lines := whole_lines(path):
        loader.load_state_dict(json.loads(lines[-1])["state"])
    with open(path, "wb") as log:
        log.write(b"".join(line + b"\n" for line in lines))
        log.flush()
        while loader.epoch < phase.epochs:
            epoch = loader.epoch
            for batch in loader:
                rows, wrong = [], 0
                for place, index in enumerate(batch["index"].tolist()):
                    expected = sample(index)
                    right = np.array_equal(batch["array"][place], expected["array"]) and batch["label"][place] == index
                    wrong += not (right and bytes(batch["blob"][place]) == expected["blob"])
                    if batch["valid"][place]:
                        rows.append(index)
                line = {"epoch": epoch, "rows": rows, "wrong": wrong, "state": loader.state_dict()}
                log.write(json.dumps(line).encode() + b"\n")
                log.flush()


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a log that were written to their ends."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def _size(out: Path, rank: int) -> int:
    path = out / f"rank-{rank}.jsonl"
    return path.stat().st_size if path.exists() else 0


class Watch:
    """Looks at a cache all the time: it must not be above its limit, by its own count or on the disk."""

    def __init__(self, cache: Path, limit: int) -> None:
        self._cache, self._limit, self._over = cache, limit, threading.Event()
        self.most_counted = self.most_on_disk = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.02):
            state, files = self._cache / "state", self._cache / "files"
            if not state.exists() or not files.exists() or state.stat().st_size < _STATE.itemsize:
                continue
            counted = int(np.frombuffer(state.read_bytes(), _STATE, 1)["used"][0])
            self.most_counted = max(self.most_counted, counted)
            taken = sum(path.stat().st_blocks * 512 for path in files.rglob("*") if path.is_file())
            self.most_on_disk = max(self.most_on_disk, taken)


class Soak:
    """Runs phases, and counts what happened."""

    def __init__(self, folder: Path, proxy: Proxy, options: dict[str, str], seed: int) -> None:
        self._folder, self._proxy, self._options = folder, proxy, options
        self._chance = random.Random(seed)
        self.found = Found()

    def run(self, phase: Phase) -> None:
        """Run a phase to the end of its epochs."""
        before, begun = self._proxy.counts(), time.monotonic()
        out = self._folder / f"phase-{phase.number}"
        out.mkdir()
        watch = Watch(out / "cache", phase.limit)
        try:
            kills = self._train(phase, out)
        finally:
            watch.end()
        self._check(phase, out, watch)
        after = self._proxy.counts()
        told = asdict(phase) | {
            "seconds": round(time.monotonic() - begun, 1),
            "kills": kills,
            "most_counted": watch.most_counted,
            "most_on_disk": watch.most_on_disk,
            **{name: after[name] - before[name] for name in ("requests", "bytes", "faults")},
        }
        self.found.phases.append(told)
        self.found.kills += kills
        print(json.dumps(told), file=sys.stderr, flush=True)
        shutil.rmtree(out / "cache")

    def _start(self, phase: Phase, rank: int) -> BaseProcess:
        arguments = (self._folder, phase, rank, self._options)
        process = multiprocessing.get_context("fork").Process(target=rank_main, args=arguments)
        process.start()
        return process

    def _train(self, phase: Phase, out: Path) -> int:
        """Run the ranks to their ends, and kill some on the way; return how many."""
        ranks = {rank: self._start(phase, rank) for rank in range(RANKS)}
        kills, moved, size = 0, time.monotonic(), -1
        begun_at: dict[int, int] = {}
        next_kill = time.monotonic() + self._pause(phase)
        while ranks:
            time.sleep(0.05)
            for rank, process in list(ranks.items()):
                if process.exitcode is None:
                    continue
                if process.exitcode:
                    error = out / f"rank-{rank}.error"
                    text = error.read_text() if error.exists() else f"exit code {process.exitcode}"
                    self.found.failures.append(f"{phase}: rank {rank} ended: {text}")
                del ranks[rank]
            if ranks and time.monotonic() > next_kill:
                next_kill = time.monotonic() + self._pause(phase)
                grown = [rank for rank in ranks if _size(out, rank) > begun_at.get(rank, 0)]
                if not grown:  # so often that none gets on
                    continue
                rank = self._chance.choice(grown)
                ranks[rank].kill()
                ranks[rank].join()
                kills += 1
                begun_at[rank] = _size(out, rank)
                ranks[rank] = self._start(phase, rank)
            now = sum(path.stat().st_size for path in out.glob("rank-*.jsonl"))
            if now != size:
                moved, size = time.monotonic(), now
            elif time.monotonic() > moved + HANG:
                self.found.failures.append(f"{phase}: no rank has made a batch in {HANG:.0f} s")
                break
        for process in ranks.values():
            process.kill()
            process.join()
        return kills

    def _pause(self, phase: Phase) -> float:
        """Return after how many seconds to kill the next rank; worker processes take a while to start."""
        return self._chance.uniform(2, 7) * (5 if phase.isolate else 1)

    def _check(self, phase: Phase, out: Path, watch: Watch) -> None:
        found, delivered = self.found, [Counter[int]() for _ in range(phase.epochs)]
        for rank in range(RANKS):
            for line in map(json.loads, whole_lines(out / f"rank-{rank}.jsonl")):
                delivered[line["epoch"]].update(line["rows"])
                found.wrong += line["wrong"]
        for counts in delivered:
            found.samples += counts.total()
            found.lost += SAMPLES - len(counts)
            found.repeated += counts.total() - len(counts)
        for what, most in (("counts", watch.most_counted), ("takes on the disk", watch.most_on_disk)):
            if most > phase.limit:
                found.failures.append(f"{phase}: the cache {what} {most} bytes")


PHASES = (
    ("tar", "global", 0.0, False),
    ("hdf5", "block", 0.0, False),
    ("tar", "block", 0.8, False),
    ("hdf5", "global", 0.8, False),
    ("tar", "global", 2.0, False),
    ("tar", "global", 0.8, True),
)
"""Container, order, the cache's share of the data (just enough if that is more), and whether processes make batches."""


def main() -> None:
    """Run the soak from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=300, help="go on until there were so many")
    parser.add_argument("--epochs", type=int, default=2, help="of each phase")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="working folder, which is kept (default: a temporary one)")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="remote-soak-"))
    with s3_server(folder / "server") as server, proxy_process(server.endpoint, Script(), args.seed) as proxy:
        sizes = prepare(folder, server)
        options = server.options | {"endpoint": proxy.url()}
        proxy.set(**asdict(SHARES))
        soak, begun = Soak(folder, proxy, options, args.seed), time.monotonic()
        for number in itertools.count():
            container, shuffle, share, isolate = PHASES[number % len(PHASES)]
            limit = max(6 << 20, round(share * sizes[container]))
            soak.run(Phase(number, container, shuffle, limit, isolate, 5 + number % len(PHASES), args.epochs))
            if soak.found.failures or proxy.counts()["faults"] >= args.faults:
                break
        counts = proxy.counts()
    found = soak.found
    result = {
        "seconds": round(time.monotonic() - begun),
        "faults": counts["faults"],
        **{name: counts[name] for name in FAULTS},
        "requests": counts["requests"],
        **asdict(found),
    }
    print(json.dumps(result, indent=1))
    failed = bool(found.lost or found.repeated or found.wrong or found.failures)
    if args.folder is None and not failed:
        shutil.rmtree(folder)
    sys.exit(failed)


if __name__ == "__main__":
    main()
