"""Compare two versions of shardio on the same work, to see the cost or gain of a change.

    python benchmarks/before_after.py --before HEAD~1 --photos /tmp/photos --json before-after.json

`--before` and `--after` are git revisions, which are built and installed alike. Both read the same datasets, from the
page cache, with two threads; conversions are whole commands in processes of their own, which write to memory if
there is a tmpfs. Figures are medians over rounds of the rate after divided by the rate before, both of the same round.

    photos      random resized crop to 224 and flip, uint8, batch 256, of a tar     images/s
    tensors     uint16 arrays of 2 MiB as they are, batch 16, of HDF5               arrays/s
    records     3,072 bytes each, batch 512, of HDF5                                records/s
    remote      the photos in a bucket of an S3 server on this machine, into an
                empty cache in memory, and then from it                             images/s
    conversion  a folder of photos to tar shards by `shardio convert`, 2 workers    commands/s
    start-1, start-2, start-4
                1, 2 or 4 workers with isolate=True that are given 1 MB each,
                to the first batch of each                                          starts/s
"""

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOADED = {"photos": 256, "tensors": 16, "records": 512}
"""The batch size of each workload that a Loader reads."""

STARTED = {"start-1": 1, "start-2": 2, "start-4": 4}
MEMORY = Path("/dev/shm")  # a disk's noise would be larger than what is measured
LEAST_SECONDS = 2.0  # of one run; short epochs are repeated


def unchanged(batch: dict[str, Any], blob: bytes) -> dict[str, Any]:
    """Return the batch; `blob` is what the workers are given."""
    return batch


def starts(workers: int) -> float:
    """Starts per second of a Loader's worker processes, until each has delivered a batch."""
    import shardio

    samples, given = shardio.from_samples([{"n": n} for n in range(workers)]), partial(unchanged, blob=bytes(1 << 20))
    loader = shardio.Loader(samples, 1, map=given, isolate=True, threads=workers, world=shardio.World())
    begun = time.perf_counter()
    for _ in loader:
        pass
    return 1 / (time.perf_counter() - begun)


def remote_rate(options: dict[str, str]) -> float:
    """Images per second of the photos in the bucket: an epoch into an empty cache, and one from it."""
    import shardio

    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as cache:
        begun, samples = time.perf_counter(), 0
        dataset = shardio.open("s3://test/photos", cache=cache, store_options=options)
        loader = loader_of("photos", dataset)
        for _ in range(2):
            samples += sum(len(batch["index"]) for batch in loader)
        return samples / (time.perf_counter() - begun)


def loader_of(name: str, dataset: Any, **options: Any) -> Any:
    """A Loader of a workload, on two threads unless `options` say otherwise; runs with either version."""
    import shardio

    crop: list[Any] = [shardio.RandomResizedCrop(224), shardio.RandomHorizontalFlip()]
    given: dict[str, Any] = {"transforms": crop if name == "photos" else None, "threads": 2, "world": shardio.World()}
    return shardio.Loader(dataset, LOADED[name], **(given | options))


def serve(work: Path, options: dict[str, str]) -> None:
    """Load a workload for each line of standard input, and print its rate; runs with either version."""
    loaders: dict[str, Any] = {}
    for line in sys.stdin:
        name = line.strip()
        if name in STARTED:
            print(starts(STARTED[name]), flush=True)
            continue
        if name == "remote":
            print(remote_rate(options), flush=True)
            continue
        if name not in loaders:
            loaders[name] = loader_of(name, work / name)
            for _ in loaders[name]:  # warm up
                pass
        begun, samples = time.perf_counter(), 0
        while time.perf_counter() < begun + LEAST_SECONDS:
            samples += sum(len(batch["index"]) for batch in loaders[name])
        print(samples / (time.perf_counter() - begun), flush=True)


def installed(revision: str, work: Path, side: str) -> Path:
    """Build and install a revision below `work`, without its dependencies; return the folder to import it from."""
    folder, site = work / side, work / f"{side}-site"
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(site)]
    subprocess.run([*pip, str(folder)], check=True, env=os.environ | {"SHARDIO_NATIVE": "require"})
    return site


def prepare(work: Path, photos: Path, names: Iterable[str]) -> None:
    """Create the datasets of these workloads, unless they exist."""
    import shardio
    from benchmarks._workloads import WORKLOADS, arrays, encoded, make_arrays

    for name in LOADED:
        wanted = name in names or (name == "photos" and "remote" in names)
        if not wanted or (work / name / "shardio.json").exists():
            continue
        workload = WORKLOADS["exact" if name == "photos" else name]
        if name == "photos":
            fields: dict[str, Any] = {"image": "image", "label": "int64"}
            with shardio.create(work / name, container="tar", fields=fields) as writer:
                for data, label in encoded(photos, workload.count):
                    writer.append({"image": data, "label": label})
            continue
        make_arrays(workload, work / f"{name}.npy")
        with shardio.create(
            work / name, container="hdf5", fields={"array": (workload.dtype, workload.shape)}
        ) as writer:
            for array in arrays(workload, work / f"{name}.npy"):
                writer.append({"array": array})


@contextmanager
def bucket_of(photos: Path, folder: Path) -> Iterator[dict[str, str]]:
    """Run an S3 server with a dataset as `s3://test/photos`; yield the store options that lead to it."""
    import obstore

    from tests._s3 import s3_server

    with s3_server(folder) as server:
        options: Any = server.options
        store = obstore.store.S3Store("test", config=options, client_options={"allow_http": True})
        for path in photos.iterdir():
            obstore.put(store, f"photos/{path.name}", path)
        yield server.options


def environment(root: Path) -> dict[str, str]:
    """An environment in which `import shardio` finds the version below `root`."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(root / "converters")])}


@contextmanager
def rates_of(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Iterator[Callable[[str], float]]:
    """Start a program that answers each line with a rate; yield a function that asks it. It ends with its input."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, 0, cwd=folder, env=environ, stdin=pipe, stdout=pipe) as process:
        to, answers = process.stdin, process.stdout
        if to is None or answers is None:
            raise RuntimeError("the process has no pipes")

        def ask(question: str) -> float:
            with suppress(BrokenPipeError):
                to.write(f"{question}\n".encode())
            answer = answers.readline()
            if not answer:
                raise RuntimeError(f"{command[0]} has ended with exit code {process.wait()}")
            return float(answer)

        yield ask  # leaving the block closes its input


def convert(root: Path, photos: Path, out: Path) -> float:
    """Return conversions per second: the fastest of three commands, each from its start to its end."""
    command = [sys.executable, "-m", "shardio", "convert", "imagefolder", str(photos), str(out), "--workers", "2"]
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, cwd=out.parent, env=environment(root))
        seconds.append(time.perf_counter() - begun)
        shutil.rmtree(out)
    return 1 / min(seconds)


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="HEAD~1", metavar="REVISION")
    parser.add_argument("--after", default="HEAD", metavar="REVISION")
    parser.add_argument("--photos", type=Path, default=Path("/tmp/photos"), help="made by benchmarks/photos.py")
    parser.add_argument("--work", type=Path, default=Path("/tmp/before-after"))
    parser.add_argument("--rounds", type=int, default=9)
    every = (*LOADED, "remote", "conversion", *STARTED)
    parser.add_argument("--only", nargs="+", choices=every, default=every, metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(Path(options.serve[0]), json.loads(options.serve[1]))
        return
    sys.path[:0] = [str(ROOT)]
    from benchmarks._results import finish

    options.work.mkdir(parents=True, exist_ok=True)
    revisions = {"before": options.before, "after": options.after}
    roots = {side: installed(revision, options.work, side) for side, revision in revisions.items()}
    prepare(options.work, options.photos, options.only)
    scratch = options.work if not MEMORY.is_dir() else MEMORY / options.work.name
    scratch.mkdir(exist_ok=True)
    rates: dict[str, dict[str, list[float]]] = {name: {side: [] for side in roots} for name in options.only}
    with ExitStack() as started:
        store: dict[str, str] = {}
        if "remote" in options.only:
            store = started.enter_context(bucket_of(options.work / "photos", scratch / "s3"))
        command = [sys.executable, str(Path(__file__)), "--serve", str(options.work), json.dumps(store)]
        ask = {
            side: started.enter_context(rates_of(command, options.work, environment(root)))
            for side, root in roots.items()
        }
        for number in range(options.rounds):
            sides = ("before", "after") if number % 2 else ("after", "before")
            for name, measured in rates.items():
                for side in sides:
                    if name == "conversion":
                        rate = convert(roots[side], options.photos, scratch / f"converted-{side}")
                    else:
                        rate = ask[side](name)
                    measured[side].append(rate)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    if scratch != options.work:
        shutil.rmtree(scratch)
    result = {}
    for name, measured in rates.items():
        ratios = [after / before for before, after in zip(measured["before"], measured["after"], strict=True)]
        result[name] = {
            "after / before": round(median(ratios), 3),
            "of rounds": [round(min(ratios), 3), round(max(ratios), 3)],
            "before, per second": round(median(measured["before"]), 3),
            "after, per second": round(median(measured["after"]), 3),
        }
    commits = [
        subprocess.run(["git", "rev-parse", "--short", name], cwd=ROOT, capture_output=True, text=True, check=True)
        for name in revisions.values()
    ]
    revisions = dict(zip(roots, [done.stdout.strip() for done in commits], strict=True))
    finish(
        {"benchmark": "before_after", "rounds": options.rounds, "revisions": revisions, "ratios": result}, options.json
    )


if __name__ == "__main__":
    main()
