"""The training step of `shardio train` against a minimal loop of one's own with DistributedDataParallel.

    python benchmarks/train_step.py [--ranks 2] [--rounds 7] [--json FILE]

Both train the trainer's model of small images on the same batches, which lie in memory, with the same optimizer, on
ranks of one thread each. The minimal loop does a step and nothing else. The trainer's also counts losses and scores,
asks the other ranks whether to stop, and takes part in `metrics.jsonl`. Rounds take turns; the ratio is of the medians.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks._results import finish, options
from shardio.train import TrainConfig
from shardio.train.checkpoint import TrainingPosition
from shardio.train.distributed import Job, StopRequest, join
from shardio.train.image_classification import ImageClassification
from shardio.train.learner import Learner
from shardio.train.model import load_model
from shardio.train.step_monitor import StepMonitor

BATCH, BATCHES, STEPS = 128, 16, 100
TASK = ImageClassification(10, 1, (28, 28))


def batches(rank: int) -> list[dict[str, Tensor]]:
    """Return what a rank trains on."""
    random = torch.Generator().manual_seed(rank)
    valid = torch.ones(BATCH, dtype=torch.bool)
    return [
        {
            "image": torch.randn(BATCH, 1, 28, 28, generator=random),
            "label": torch.randint(0, 10, (BATCH,), generator=random),
            "valid": valid,
        }
        for _ in range(BATCHES)
    ]


def minimal(data: list[dict[str, Tensor]]) -> Callable[[], float]:
    """Return what does so many steps by hand, and returns their seconds."""
    torch.manual_seed(0)
    model = DistributedDataParallel(load_model("resnet", TASK))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def run() -> float:
        begun = time.perf_counter()
        model.train()  # type: ignore[no-untyped-call]  # torch has no hints
        for step in range(STEPS):
            batch = data[step % BATCHES]
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no hints
            optimizer.step()
        return time.perf_counter() - begun

    return run


class _Loader:
    """A loader that never made a step wait, for the monitor to ask."""

    def stats(self) -> Any:
        return argparse.Namespace(wait_seconds=0.0)


def trainer(data: list[dict[str, Tensor]], job: Job, stop: StopRequest) -> Callable[[], float]:
    """Return what does the trainer's steps, and returns their seconds."""
    torch.manual_seed(0)
    config = TrainConfig(train="none", output="none", batch_size=BATCH)
    learner = Learner(config, job, load_model("resnet", TASK), 60_000, TASK)
    monitor = StepMonitor(config, job, learner, metric="accuracy", records=None, say=print)
    loader: Any = _Loader()
    count = learner.global_batch

    def run() -> float:
        begun = time.perf_counter()
        place = TrainingPosition()
        monitor.begin_epoch(loader)
        total = torch.zeros(2, dtype=torch.float64)
        for step in range(1, STEPS + 1):
            measured = monitor.due(step)
            sums = learner.step(data[step % BATCHES], lr=0.01, count=count, last=True, measure_norm=measured)
            norm = learner.gradient_norm if measured else None
            monitor.end_step(place.epoch + 1, step, count=count, lr=0.01, sums=sums, norm=norm)
            total = total + sums
            stop.agreed()
        total.tolist()
        monitor.flush()
        return time.perf_counter() - begun

    return run


def measure(rounds: int, file: str) -> None:
    """Measure on this rank; rank 0 writes the seconds of each round to a file."""
    with join("cpu", 60) as job, ExitStack() as handlers, StopRequest(job, handlers) as stop:
        torch.set_num_threads(1)
        data = batches(job.world.rank)
        runs = {"minimal": minimal(data), "trainer": trainer(data, job, stop)}
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(rounds + 1):
            for name in sorted(runs, reverse=bool(number % 2)):
                job.wait()
                seconds[name].append(job.largest(runs[name]())[0])
        if job.leads:
            Path(file).write_text(json.dumps({name: values[1:] for name, values in seconds.items()}))
        del runs


def main() -> None:
    """Start the ranks, and report."""
    parser = options(__doc__, rounds=7)
    parser.add_argument("--ranks", type=int, default=2)
    given = parser.parse_args()
    if "RANK" in os.environ:
        measure(given.rounds, os.environ["SECONDS_FILE"])
        return
    with tempfile.NamedTemporaryFile() as file:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={given.ranks}"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "SECONDS_FILE": file.name}
        subprocess.run([*launch, __file__, f"--rounds={given.rounds}"], env=environment, check=True)
        seconds = json.loads(Path(file.name).read_text())
    rates = {name: round(STEPS * BATCH / median(values)) for name, values in seconds.items()}
    ratio = median(seconds["minimal"]) / median(seconds["trainer"])
    finish({"ranks": given.ranks, "samples_per_second_per_rank": rates, "ratio": round(ratio, 3)}, given.json)


if __name__ == "__main__":
    main()
