"""Calculate what a large job asks of a bucket: bandwidth, requests, cache hits; and check it by simulation.

    python -m benchmarks.remote_scale --record latencies.json --photos-dataset /tmp/photos-tar
    python -m benchmarks.remote_scale --latencies latencies.json --json scale.json --tables tables.md

10 TB of photos of 110 KB on 64 nodes of 8 GPUs. The order is that of the real plan: for some steps, drawn at random,
the samples of all ranks of a node become pieces and requests by the functions that the loader uses. Each node has a
cache of its own, and samples go to nodes anew in every epoch; so the hits follow from how often it had a piece before:

    a piece that holds parts of m samples is one that a node with 1/W of the samples has not had in e epochs with
    probability (1 - 1/W) ** (m * e)

and a full cache of a share c of the data, which drops first what was used last, hits with probability c. A simulation
of every piece, step and cache on a smaller dataset says how far that is from what happens. `--record` measures how long
requests of some sizes take, through a link of 10 ms; a simulation of a node's requests with these times says what so
many at once bring.
"""

import heapq
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, quantiles

import numpy as np
from numpy.typing import NDArray

from benchmarks._results import finish, options
from shardio.cache.fetcher import REQUESTS
from shardio.cache.pace import LONGEST_RUN
from shardio.format.pieces import PIECE, piece_count, pieces_of, runs
from shardio.order.world import World
from shardio.plan import Plan, Schedule, Shuffle

INDEX_BYTES = 24  # of a sample in the index next to a tar
PREFIX_LIMIT = 5500  # requests per second that S3 answers for one prefix
SHARES = (0.1, 0.5, 1.0)
RECORDED = (128 << 10, 1 << 20, LONGEST_RUN * PIECE)
STEPS = 6  # drawn for the arithmetic of pieces


@dataclass(frozen=True, slots=True)
class Job:
    """A job and its dataset.

    Attributes:
        samples: of the dataset.
        sample_bytes: of one sample, as it lies in its shard.
        shard_samples: samples per shard.
        nodes: each has a cache.
        ranks: per node.
        batch_size: samples per rank and step.
        rate: samples per second and rank.
        block, window: of the block shuffle.
    """

    samples: int
    sample_bytes: int = 110_000
    shard_samples: int = 9090
    nodes: int = 64
    ranks: int = 8
    batch_size: int = 256
    rate: float = 2500.0
    block: int = 64
    window: int = 16

    @property
    def shards(self) -> int:
        """The number of shards."""
        return -(-self.samples // self.shard_samples)

    @property
    def shard_pieces(self) -> int:
        """The pieces of a shard."""
        return piece_count(self.shard_samples * self.sample_bytes)

    @property
    def node_bytes(self) -> float:
        """Bytes per second that a node needs."""
        return self.ranks * self.rate * self.sample_bytes

    def plan(self, shuffle: Shuffle, epoch: int = 0) -> Plan:
        """The order of an epoch."""
        return Plan(self.samples, 0, epoch, shuffle, self.block, self.window)

    def pieces(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The pieces of some samples, numbered over all shards."""
        shard, row = indices // self.shard_samples, indices % self.shard_samples
        found = [
            number * self.shard_pieces
            + pieces_of(row[shard == number] * self.sample_bytes, np.full((shard == number).sum(), self.sample_bytes))
            for number in np.unique(shard).tolist()
        ]
        return np.concatenate(found)

    def node_indices(self, plan: Plan, node: int, step: int) -> NDArray[np.int64]:
        """The samples that all ranks of a node take at a step."""
        size = self.nodes * self.ranks
        parts = [
            Schedule(self.samples, World(node * self.ranks + local, size), self.batch_size).part(plan, step).indices
            for local in range(self.ranks)
        ]
        return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class StepCost:
    """The mean cost of one step on one node with an empty cache.

    Attributes:
        fetched: bytes per byte delivered.
        requests: requests.
        bytes: bytes of a request.
        shards: shards that the step touches.
    """

    fetched: float
    requests: float
    bytes: float
    shards: float


def step_cost(job: Job, shuffle: Shuffle) -> StepCost:
    """Draw steps and nodes, and count pieces and requests."""
    plan, drawn = job.plan(shuffle), random.Random(0)
    steps = len(Schedule(job.samples, World(0, job.nodes * job.ranks), job.batch_size))
    fetched, requests, shards = [], [], []
    for _ in range(STEPS):
        indices = job.node_indices(plan, drawn.randrange(job.nodes), drawn.randrange(steps))
        pieces = np.sort(job.pieces(np.sort(indices)))
        fetched.append(len(pieces) * PIECE)
        requests.append(len(runs(pieces, LONGEST_RUN)))
        shards.append(len(np.unique(indices // job.shard_samples)))
    delivered = job.ranks * job.batch_size * job.sample_bytes
    return StepCost(mean(fetched) / delivered, mean(requests), mean(fetched) / mean(requests), mean(shards))


def touches(job: Job, shuffle: Shuffle) -> NDArray[np.int64]:
    """How many independent draws hit each piece of a shard in an epoch: samples, or blocks, that lie in it in part."""
    unit = job.sample_bytes * (job.block if shuffle == "block" else 1)
    total = job.shard_samples * job.sample_bytes
    starts = np.arange(0, total, unit, dtype=np.int64)
    counts = np.zeros(job.shard_pieces + 1, np.int64)
    np.add.at(counts, starts // PIECE, 1)
    np.add.at(counts, (np.minimum(starts + unit, total) - 1) // PIECE + 1, -1)
    return np.cumsum(counts)[:-1]


def hits(job: Job, shuffle: Shuffle, share: float, epochs: int) -> list[float]:
    """The share of a node's needs of pieces that its cache meets, in each epoch."""
    m, left = touches(job, shuffle), 1 - 1 / job.nodes
    needs = float(m.mean()) / job.nodes  # per piece of the dataset and epoch
    had = [float(1 - (left ** (m * epoch)).mean()) for epoch in range(epochs + 1)]
    found = []
    for before, after in pairwise(had):
        fetched = after - before
        if before >= share:
            fetched = (1 - share) * needs
        elif after > share:  # it fills within the epoch
            part = (share - before) / (after - before)
            fetched = part * fetched + (1 - part) * (1 - share) * needs
        found.append(1 - fetched / needs)
    return found


def simulate_hits(job: Job, shuffle: Shuffle, share: float, epochs: int) -> list[float]:
    """The same by simulation: every step of every node, each with a cache that drops first what was used last."""
    total = job.shards * job.shard_pieces
    limit, found = int(share * total), []
    present = np.zeros((job.nodes, total), np.bool_)
    used = np.zeros((job.nodes, total), np.int64)
    clock = 0
    for epoch in range(epochs):
        plan, needed, met = job.plan(shuffle, epoch), 0, 0
        steps = len(Schedule(job.samples, World(0, job.nodes * job.ranks), job.batch_size))
        for step in range(steps):
            clock += 1
            for node in range(job.nodes):
                pieces = job.pieces(job.node_indices(plan, node, step))
                needed += len(pieces)
                met += int(present[node, pieces].sum())
                present[node, pieces], used[node, pieces] = True, clock
                over = int(present[node].sum()) - limit
                if over > 0:
                    free = np.flatnonzero(present[node] & (used[node] < clock))
                    last = np.argpartition(-used[node, free], over - 1)[:over]
                    present[node, free[last]] = False
        found.append(met / needed)
    return found


def record(dataset: Path, work: Path) -> dict[int, list[float]]:
    """Measure requests of some sizes, few at once, through a link of 10 ms: seconds, by bytes."""
    import obstore

    from benchmarks._link import link
    from benchmarks.remote import BUCKET, bucket, upload
    from tests._s3 import s3_server

    folder = Path(tempfile.mkdtemp(dir=work, prefix="s3-"))
    try:
        with s3_server(folder) as server:
            server.make_bucket(BUCKET)
            upload(server.endpoint, {"shardio": dataset})
            with link(int(server.endpoint.rpartition(":")[2]), 10.0, 0.0, work) as through:
                store, found = bucket(f"http://127.0.0.1:{through.port}"), {}
                files = [(path.name, path.stat().st_size) for path in sorted(dataset.glob("shard-*.tar"))]
                for size in RECORDED:
                    drawn = random.Random(0)

                    def fetch(_: int, size: int = size, drawn: random.Random = drawn) -> float:
                        name, most = drawn.choice(files)
                        start, begun = drawn.randrange(most - size), time.monotonic()
                        obstore.get_range(store, f"shardio/{name}", start=start, end=start + size)
                        return time.monotonic() - begun

                    with ThreadPoolExecutor(2) as pool:
                        found[size] = sorted(pool.map(fetch, range(400 if size < LONGEST_RUN * PIECE else 60)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def simulate_requests(times: Sequence[float], slots: int, count: int = 20_000) -> float:
    """Requests per second that so many at once bring, each taking one of the recorded times: a discrete simulation."""
    drawn, ends, now = random.Random(0), [0.0] * slots, 0.0
    for _ in range(count):
        now = heapq.heappop(ends)
        heapq.heappush(ends, now + drawn.choice(times))
    return count / now


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a Markdown table, the first one its head."""
    head, *others = rows
    lines = [head, ["---"] * len(head), *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figures(job: Job, shuffle: Shuffle, latencies: Mapping[int, Sequence[float]]) -> dict[str, float]:
    """Return the requests and bytes of the job while its caches are empty, and when it starts."""
    cost = step_cost(job, shuffle)
    seconds = job.batch_size / job.rate
    size = min(latencies, key=lambda known: abs(known - cost.bytes))
    latency = mean(latencies[size])
    per_node = cost.requests / seconds
    opened = job.nodes * cost.shards
    start = opened + job.nodes * cost.requests + 2 * job.nodes * job.ranks  # indexes, data, manifest and its table
    return {
        "GB/s per node": job.node_bytes * cost.fetched / 1e9,
        "GB/s of the job": job.nodes * job.node_bytes * cost.fetched / 1e9,
        "fetched per byte delivered": cost.fetched,
        "KB per request": cost.bytes / 1e3,
        "requests per second": job.nodes * per_node,
        "prefixes": float(np.ceil(job.nodes * per_node / PREFIX_LIMIT)),
        "requests in flight per node": per_node * latency,
        "requests that start it": start,
        "seconds of one prefix to start": start / PREFIX_LIMIT,
        "requests per cold epoch": cost.requests * job.samples / (job.ranks * job.batch_size),
    }


def check_hits(epochs: int) -> list[dict[str, object]]:
    """Closed form and simulation side by side, on a dataset that a simulation can hold."""
    job = Job(samples=24_000, shard_samples=3000, nodes=8, ranks=2, batch_size=64, block=32, window=4)
    found: list[dict[str, object]] = []
    for shuffle in ("block", "global"):
        for share in SHARES:
            by_formula = hits(job, shuffle, share, epochs)
            by_simulation = simulate_hits(job, shuffle, share, epochs)
            found.append(
                {
                    "shuffle": shuffle,
                    "cache": share,
                    "formula": [round(value, 3) for value in by_formula],
                    "simulation": [round(value, 3) for value in by_simulation],
                    "largest difference": round(max(abs(np.subtract(by_formula, by_simulation))), 3),
                }
            )
    return found


def tables(job: Job, made: Mapping[str, Mapping[str, float]]) -> str:
    """The two tables of the documentation: what the job asks of the store, and what its caches serve."""
    names = [name for name in made["block"] if name != "KB per request"]
    asked = [["before anything is cached", '`shuffle="block"`', '`shuffle="global"`']]
    asked += [[name, *(f"{made[kind][name]:,.3g}" if made[kind][name] < 1000 else f"{made[kind][name]:,.0f}"
                       for kind in ("block", "global"))] for name in names]  # fmt: skip
    epochs = (2, 10, 50, 200)
    caches = [["cache of each node", "shuffle", *(f"epoch {epoch}" for epoch in epochs)]]
    for share in SHARES:
        for shuffle in ("block", "global"):
            values = hits(job, shuffle, share, max(epochs))
            caches.append([f"{share:.0%} of the data", shuffle, *(f"{values[epoch - 1]:.0%}" for epoch in epochs)])
    return f"{table(asked)}\n\n{table(caches)}\n"


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, rounds=None)
    parser.add_argument("--record", type=Path, metavar="FILE", help="measure requests, write their seconds, and end")
    parser.add_argument("--photos-dataset", type=Path, help="a converted dataset in tars, for --record")
    parser.add_argument("--latencies", type=Path, metavar="FILE", help="written by --record")
    parser.add_argument("--terabytes", type=float, default=10.0)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--rate", type=float, default=2500.0, help="samples per second and GPU")
    parser.add_argument("--tables", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    if arguments.record is not None:
        if arguments.photos_dataset is None:
            parser.error("--record needs --photos-dataset")
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        found = record(arguments.photos_dataset, Path(tempfile.gettempdir()))
        text = {str(size): [round(value, 5) for value in values] for size, values in found.items()}
        finish(
            {"benchmark": "remote-latencies", "link": "10 ms, unlimited", "seconds by bytes": text}, arguments.record
        )
        return
    if arguments.latencies is None:
        parser.error("--latencies is needed")
    recorded = json.loads(arguments.latencies.read_text())["seconds by bytes"]
    latencies = {int(size): values for size, values in recorded.items()}
    job = Job(samples=0)
    job = replace(
        job, samples=round(arguments.terabytes * 1e12 / job.sample_bytes), nodes=arguments.nodes, rate=arguments.rate
    )
    made = {shuffle: figures(job, shuffle, latencies) for shuffle in ("block", "global")}
    slots = REQUESTS * job.ranks
    result: dict[str, object] = {
        "benchmark": "remote-scale",
        "figures": {kind: {name: round(value, 4) for name, value in one.items()} for kind, one in made.items()},
        "check": check_hits(12),
        "latencies": {
            size: {"mean": mean(times), "p50 and p99": [quantiles(times, n=100)[at] for at in (49, 98)]}
            for size, times in latencies.items()
        },
        "a node's most requests at once": {
            str(size): {
                "requests/s by formula": round(slots / mean(times)),
                "requests/s by simulation": round(simulate_requests(times, slots)),
                "GB/s": round(slots / mean(times) * size / 1e9, 2),
            }
            for size, times in latencies.items()
        },
    }
    if arguments.tables is not None:
        arguments.tables.write_text(tables(job, made))
    finish(result, arguments.json)


if __name__ == "__main__":
    main()
