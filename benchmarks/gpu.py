"""Measure the input of one GPU: decoding, copies, training and arrays, with each engine, DALI alone and the limit.

    python benchmarks/gpu.py --photos /tmp/photos --json gpu.json --plot gpu.png

- decode: images per second of each engine and number of threads, random crops of 224 pixels, mirrored and normalized;
- load: the same of DALI with other shares of images for the GPU's JPEG decoder, `hw_decoder_load`;
- overlap: the share of the copies' time that is hidden behind the consumer's work;
- train: ResNet-50 in bfloat16, channels_last: synthetic input, shardio's engines, DALI alone with its file reader;
- tensors: HDF5 arrays to the device beside copies of page-locked memory.
Every measurement is a process of its own. Measurements that cannot run are listed with the reason. Without a GPU the
operators for the CPU are measured, and training is left out. It takes under nine minutes and needs no network.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import _gpu_data
from shardio.bench.machine import describe

PHOTOS, ARRAYS = 4000, 256
LOADS = (0.0, 0.4, 0.65, 0.8, 0.95)
ENGINES = ("cpu", "nvimgcodec", "dali", "dali alone")


@dataclass
class Session:
    """Measurements, one process each, until time is up.

    Attributes:
        deadline: of the clock `time.monotonic`.
        limit: seconds that one may take.
        skipped: what could not be measured, and why.
    """

    deadline: float
    limit: float
    skipped: dict[str, str] = field(default_factory=dict)

    def measure(self, what: str, part: str, **arguments: Any) -> dict[str, Any] | None:
        """The figures of a part, or None, and then `skipped` says why."""
        left = min(self.limit, self.deadline - time.monotonic())
        if left < 5:
            self.skipped[what] = "no time was left"
            return None
        command = [sys.executable, "-c", "from benchmarks.gpu import child; child()", part, json.dumps(arguments)]
        path = os.pathsep.join(dict.fromkeys([str(Path(__file__).parents[1]), *sys.path]))
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=left, env=os.environ | {"PYTHONPATH": path}
            )
        except subprocess.TimeoutExpired:
            self.skipped[what] = f"it took more than {left:.0f} s"
            return None
        if done.returncode:
            self.skipped[what] = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it died"
            print(f"{what}: {self.skipped[what]}", file=sys.stderr)
            return None
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        told = ", ".join(f"{name} {v:.4g}" if isinstance(v, float) else f"{name} {v}" for name, v in found.items())
        print(f"{what}: {told}", file=sys.stderr)
        return found


def child() -> None:
    """Run one part in a process of its own, and print its figures as JSON on the last line."""
    from benchmarks._gpu_parts import run

    print(json.dumps(run(sys.argv[1], json.loads(sys.argv[2]))))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="folder of JPEG photos (default: synthetic images)")
    parser.add_argument("--work", type=Path, help="folder for data, kept between runs (default: a temporary one)")
    parser.add_argument("--device", default="auto", help="cuda, cpu, or auto: a GPU if there is one")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each measurement")
    parser.add_argument(
        "--rounds", type=int, default=1, help="rounds of the engines' rates, of which the median counts"
    )
    parser.add_argument("--budget", type=float, default=510.0, help="seconds for all measurements together")
    parser.add_argument("--photos-count", type=int, default=PHOTOS)
    parser.add_argument("--arrays-count", type=int, default=ARRAYS)
    parser.add_argument("--threads", type=int, nargs="*", help="numbers of threads to try")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(args, args.work or Path(folder))
    text = json.dumps(result, indent=1)
    if args.json is not None:
        args.json.write_text(text + "\n")
    if args.plot is not None:
        plot(result, args.plot)
    print(text)


def measure(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """All figures."""
    session = Session(time.monotonic() + args.budget, limit=120)
    device = args.device if args.device != "auto" else _device(session)
    cores = len(os.sched_getaffinity(0))
    threads = args.threads or [n for n in (1, 2, 4, 8, 16, 32) if n <= cores]
    folder, dataset, said = _gpu_data.photos(args.photos, work, args.photos_count)
    common = {"device": device, "seconds": args.seconds}
    images = common | {"dataset": str(dataset), "folder": str(folder), "batch_size": args.batch_size}
    result: dict[str, Any] = {
        "date": date.today().isoformat(),
        "images": said,
        "count": args.photos_count,
        "batch_size": args.batch_size,
        "versions": session.measure("versions", "versions", device=device),
    }
    best = 0.65
    if device != "cpu":
        loads = {
            str(load): session.measure(
                f"load {load}", "decode", **images, engine="dali", threads=max(threads), load=load
            )
            for load in LOADS
        }
        rates = {load: found["images_per_second"] for load, found in loads.items() if found is not None}
        best = float(max(rates, key=lambda load: rates[load])) if rates else best
        result["load"] = {"best": best, "images_per_second": rates}
    rates_of: dict[str, dict[str, list[float]]] = {}
    for count in threads:
        for number in range(args.rounds):
            for engine in (*ENGINES[number % len(ENGINES) :], *ENGINES[: number % len(ENGINES)]):
                what = f"decode, {engine}, {count} threads"
                found = session.measure(what, "decode", **images, engine=engine, threads=count, load=best)
                if found is not None:
                    rates_of.setdefault(engine, {}).setdefault(str(count), []).append(found["images_per_second"])
    result["decode"] = {e: {count: median(found) for count, found in by.items()} for e, by in rates_of.items()}
    result["rounds"] = rates_of
    arrays = str(_gpu_data.arrays(work, args.arrays_count))
    result["tensors"] = session.measure("tensors", "tensors", arrays=arrays, **common)
    if device == "cpu":
        session.skipped |= dict.fromkeys(("train", "overlap"), "there is no GPU")
    else:
        result["overlap"] = session.measure("overlap", "overlap", arrays=arrays, **common)
        result["train"] = {
            feed: session.measure(
                f"train, {feed}",
                "train",
                **(images | {"seconds": 3 * args.seconds}),
                feed=feed,
                threads=max(threads),
                load=best,
            )
            for feed in ("synthetic", "dali", "nvimgcodec", "cpu", "dali alone")
        }
        result["starved"] = _starved(result["train"])
    return result | {"skipped": session.skipped, "machine": describe()}


def _starved(train: dict[str, dict[str, float] | None]) -> dict[str, float]:
    """By feed, the rate missing relative to training on synthetic input, as a share."""
    limit = train.get("synthetic")
    if limit is None:
        return {}
    rates = {feed: found["images_per_second"] for feed, found in train.items() if found is not None}
    return {feed: 1 - found / limit["images_per_second"] for feed, found in rates.items() if feed != "synthetic"}


def _device(session: Session) -> str:
    """The GPU, if torch finds one."""
    return "cuda" if session.measure("a GPU", "versions", device="cuda") is not None else "cpu"


def plot(result: dict[str, Any], file: Path) -> None:
    """Plot rates by engine and threads, and training rates by input."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for engine, rates in result["decode"].items():
        left.plot([int(count) for count in rates], list(rates.values()), marker="o", label=engine)
    left.set(xlabel="threads", ylabel="images/s", title="decode, crop, resize, normalize", ylim=(0, None))
    left.legend()
    train = {feed: found for feed, found in (result.get("train") or {}).items() if found}
    if train:
        right.barh(list(train), [found["images_per_second"] for found in train.values()])
        right.set(xlabel="images/s", title="training ResNet-50, bf16")
    else:
        right.text(0.5, 0.5, "training was not measured:\nthere is no GPU", ha="center", va="center")
        right.set_axis_off()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
