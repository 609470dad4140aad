"""Learn from random windows of series of any length: only the windows are read.

python examples/time_series.py data/series

The series are noisy oscillations of three sensors, each at a frequency of its own, which the model predicts. The first
command makes them.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import shardio

WINDOW = 128


def series(frequency: float, random: np.random.Generator) -> NDArray[np.float32]:
    """The values of three sensors, float32 [n, 3]; `frequency` is in oscillations per window."""
    steps = np.arange(random.integers(200, 5000))[:, None]
    phases = random.uniform(0, 2 * np.pi, 3)
    values = np.sin(2 * np.pi * frequency / WINDOW * steps + phases)
    return (values + random.normal(scale=0.3, size=values.shape)).astype(np.float32)


def write(path: Path, count: int = 600) -> None:
    """Write so many series."""
    random = np.random.default_rng(0)
    fields = {"values": ("float32", (None, 3)), "frequency": "float64"}
    with shardio.create(path, container="hdf5", fields=fields) as writer:
        for _ in range(count):
            frequency = random.uniform(2, 20)
            writer.append({"values": series(frequency, random), "frequency": frequency})


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    if not args.dataset.exists():
        write(args.dataset)
    loader = shardio.Loader(args.dataset, batch_size=50, transforms={"values": [shardio.RandomWindow(WINDOW)]}, seed=0)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(3, 32, 9, stride=2), nn.ReLU(), nn.Conv1d(32, 32, 9, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        total = 0.0
        for batch in loader:
            windows = batch["values"].transpose(1, 2)  # [B, WINDOW, 3], as Conv1d takes them: channels first
            loss = nn.functional.mse_loss(model(windows)[:, 0], batch["frequency"].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.3f}", flush=True)


if __name__ == "__main__":
    main()
