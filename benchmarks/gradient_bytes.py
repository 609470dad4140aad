"""Bytes that two ranks send per training step, for each way to exchange gradients.

    python benchmarks/gradient_bytes.py [--steps 32] [--json FILE]

The ranks run in a network namespace of their own, whose loopback interface counts what both of them send: gradients,
weights, the trainer's own messages, and the headers of TCP. It needs the right to make namespaces (root, or user
namespaces), and Linux's `unshare` and `ip`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks._results import finish, options
from shardio.train import TrainConfig
from shardio.train.distributed import join
from shardio.train.image_classification import ImageClassification
from shardio.train.learner import Learner
from shardio.train.model import ResNet

RANKS, BATCH, SIDE = 2, 2, 64
WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "fp16": {"hook": "fp16"},
    "bf16": {"hook": "bf16"},
    "powersgd, rank 1": {"hook": "powersgd", "powersgd_rank": 1, "powersgd_start": 2},
    "powersgd, rank 2": {"hook": "powersgd", "powersgd_rank": 2, "powersgd_start": 2},
    "powersgd, rank 4": {"hook": "powersgd", "powersgd_rank": 4, "powersgd_start": 2},
    "lag": {"gradient_lag": 1},
    "local SGD, period 8": {"local_sgd_period": 8},
    "local SGD, period 32": {"local_sgd_period": 32},
    "outer steps, period 32": {"local_sgd_period": 32, "outer_optimizer": "nesterov"},
    "overlapped, period 32": {"local_sgd_period": 32, "local_sgd_overlap": 16},
}


def sent_so_far() -> int:
    """Return the bytes that the loopback interface of this network namespace has sent."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[8])
    raise SystemExit("there is no loopback interface")


def measure(steps: int) -> None:
    """Train in each way on this rank; rank 0 prints the bytes per step and rank."""
    with join("cpu", 60) as job:
        for name, options in WAYS.items():
            torch.manual_seed(0)
            model = ResNet(1000, 3, 224)  # ResNet-18
            config = TrainConfig(train="none", output="none", batch_size=BATCH, **options)
            learner = Learner(config, job, model, 10**6, ImageClassification(1000, 3))
            batch = {
                "image": torch.randn(BATCH, 3, SIDE, SIDE),
                "label": torch.zeros(BATCH, dtype=torch.int64),
                "valid": torch.ones(BATCH, dtype=torch.bool),
            }

            def step(learner: Learner = learner, batch: Any = batch) -> None:
                learner.step(batch, lr=1e-4, count=learner.global_batch, last=True)

            for _ in range(8):
                step()
            job.wait()
            before = sent_so_far()
            job.wait()
            for _ in range(steps):
                step()
            job.wait()
            sent = sent_so_far() - before
            weights = sum(weight.numel() for weight in model.parameters())
            if job.leads:
                print(json.dumps({"way": name, "bytes": sent / steps / RANKS, "weights": weights}), flush=True)
            del learner, step


def main() -> None:
    """Start the ranks, and report."""
    parser = options(__doc__, rounds=None)
    parser.add_argument("--steps", type=int, default=32, help="steps to count, a multiple of 32")
    given = parser.parse_args()
    if "RANK" in os.environ:
        measure(given.steps)
        return
    launch = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node={RANKS}"
    command = f"ip link set lo up && exec {launch} -m benchmarks.gradient_bytes --steps={given.steps}"
    done = subprocess.run(
        ["unshare", "--net", "--map-root-user", "sh", "-c", command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    size = 4 * rows[0]["weights"]
    result = {row["way"]: {"bytes": round(row["bytes"]), "share": round(row["bytes"] / size, 4)} for row in rows}
    for name, figures in result.items():
        print(f"{name:<24}{figures['bytes'] / 1e6:8.2f} MB  {figures['share']:.3f} of the gradients", file=sys.stderr)
    finish(
        {"model": "ResNet-18", "gradient_bytes": size, "ranks": RANKS, "steps": given.steps, "sent": result}, given.json
    )


if __name__ == "__main__":
    main()
