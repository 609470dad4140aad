"""The steps of `shardio demo`."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from .. import containers
from ..bench import BenchConfig, BenchResult, measure
from ..care.contact_sheet import contact_sheet
from ..care.verify import verify
from ..conversion.api import convert
from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..errors import ConfigError, ShardioError
from ..loader.loader import Loader
from ..order.world import World
from ..system.directory import Directory
from ..system.units import counted, format_size

SHARD_SIZE = "512KB"  # small, so that the demo has several
_OF_A_RUN = re.compile(r"\.?[a-z-]+([0-9-]*)\.(pt|json|jsonl|csv|log)(\..*tmp)?")  # checkpoints, logs, results


def run(src: Path, output: Path, epochs: int, ranks: int) -> None:
    """Convert, verify, compare, measure and train; print a line per step and a table at the end."""
    started = time.monotonic()
    trains = [_convert(src / "train", output / container / "train", container) for container in containers.names()]
    first = containers.names()[0]
    test = _convert(src / "test", output / first / "test", first)
    _compare_epochs(trains)
    benches = [_bench(dataset) for dataset in trains]
    sheet = output / "sheet.png"
    contact_sheet(trains[0], sheet, augment=True)
    result = _train(Path(trains[0].path), Path(test.path), output / "run", epochs, ranks)
    _print_tables(trains, benches, result, sheet, time.monotonic() - started)


def _convert(src: Path, out: Path, container: str) -> Dataset:
    convert(src, out, converter="idx", container=container, shard_size=SHARD_SIZE, workers=2, overwrite=True)
    dataset = open_dataset(out)
    report = verify(dataset, deep=True)
    if report.problems:
        raise ShardioError(f"{out}: {report.problems[0]}")
    print(
        f"converted  {src} to {out}: {len(dataset)} samples in {counted(report.shards, 'shard')}, verified", flush=True
    )
    return dataset


def _compare_epochs(datasets: list[Dataset]) -> None:
    """Run one epoch of all containers side by side; raise ShardioError at any difference."""
    loaders = [Loader(dataset, 250, world=World(), seed=1) for dataset in datasets]
    samples = 0
    for first, *others in zip(*loaders, strict=True):
        for other in others:
            for name, values in first.items():
                if not torch.equal(values, other[name]):
                    raise ShardioError(f"{name} differs between containers, samples {first['index'].tolist()}")
        samples += len(first["index"])
    print(
        f"compared   one epoch of {', '.join(containers.names())}: {samples} samples, identical order and pixels",
        flush=True,
    )


def _bench(dataset: Dataset) -> BenchResult:
    result = measure(BenchConfig(str(dataset.path), batch_size=250, epochs=5, ranks=2, image_size=28, threads=1))
    rate = f"{result.samples_per_second.median:,.0f} samples/s per rank"
    print(f"measured   {dataset.path}: {rate}, limited by: {result.verdict.sentence}", flush=True)
    return result


def _train(train: Path, val: Path, output: Path, epochs: int, ranks: int) -> dict[str, Any]:
    """Start `torchrun`, as a user would, and return the result that the trainer wrote."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    job = ["-m", "shardio", "train", str(train), "--val", str(val), "--output", str(output), "--epochs", str(epochs)]
    _remove_run(output)  # an earlier demo's, which training would not overwrite
    print(f"training   torchrun --standalone --nproc-per-node {ranks} {' '.join(job)}", flush=True)
    environ = {"OMP_NUM_THREADS": "1"} | os.environ  # torchrun sets it too, with a long warning
    done = subprocess.run([*launch, *job, "--batch-size", "64"], env=environ, check=False)
    if done.returncode:
        raise ShardioError(f"training ended with exit code {done.returncode}")
    result: dict[str, Any] = json.loads((output / "result.json").read_text())
    return result


def _remove_run(output: Path) -> None:
    """Remove what an earlier run of the trainer wrote; ConfigError if the folder holds anything else."""
    folder = Directory(output.parent)
    if folder.kind(output.name) is None:
        return
    run = folder.directory(output.name)
    for name in run.names():
        if not _OF_A_RUN.fullmatch(name):
            raise ConfigError(f"{output} holds {name}, which the trainer did not write: take another --output")
    folder.remove(output.name)


def _print_tables(
    datasets: list[Dataset], benches: list[BenchResult], result: dict[str, Any], sheet: Path, seconds: float
) -> None:
    table = Table(title=f"shardio demo, {seconds:.0f} s")
    for heading in ("container", "shards", "size", "samples/s per rank", "limited by"):
        table.add_column(heading)
    for dataset, bench in zip(datasets, benches, strict=True):
        shards = dataset.manifest.shards
        rate = f"{bench.samples_per_second.median:,.0f}"
        table.add_row(
            dataset.manifest.container,
            str(len(shards)),
            format_size(int(shards.bytes.sum())),
            rate,
            bench.verdict.bottleneck,
        )
    trained = Table(title="training")
    for heading in ("test accuracy", "samples/s per rank", "share starved"):
        trained.add_column(heading)
    trained.add_row(
        f"{result['score']:.1%}",
        f"{result['samples_per_second_per_rank']:,.0f}",
        f"{result['starved']:.1%}",
    )
    console = Console()
    console.print(table)
    console.print(trained)
    print(f"contact sheet  {sheet}\ncheckpoint     {result['checkpoint']}")
