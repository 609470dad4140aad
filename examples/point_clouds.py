"""Classify point clouds of any number of points, padded to one tensor or end to end, with the same result.

python examples/point_clouds.py data/clouds
python examples/point_clouds.py data/clouds --collate ragged

The clouds are noisy spheres, cubes and cylinders; the first command makes them.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import shardio

CLASSES = ("cube", "cylinder", "sphere")


def cloud(label: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Points on a shape, float32 [n, 3], turned at random."""
    points = random.normal(size=(random.integers(64, 512), 3))
    if CLASSES[label] == "cube":
        points /= np.abs(points).max(axis=1, keepdims=True)
    elif CLASSES[label] == "cylinder":
        points[:, :2] /= np.linalg.norm(points[:, :2], axis=1, keepdims=True)
        points[:, 2] = np.tanh(points[:, 2])
    else:
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    turn, _ = np.linalg.qr(random.normal(size=(3, 3)))
    return (points @ turn + random.normal(scale=0.02, size=points.shape)).astype(np.float32)


def write(path: Path, count: int = 900) -> None:
    """Write so many clouds."""
    random = np.random.default_rng(0)
    fields = {"points": ("float32", (None, 3)), "label": "int64"}
    with shardio.create(path, container="hdf5", fields=fields) as writer:
        for number in range(count):
            writer.append({"points": cloud(number % len(CLASSES), random), "label": number % len(CLASSES)})


class PointNet(nn.Module):
    """Features of each point, and their maximum over each cloud."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU())
        self.cloud = nn.Linear(128, len(CLASSES))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return logits [B, classes] for a batch that PadTo or Ragged has made."""
        features = self.point(batch["points"])
        if "points_length" in batch:  # [B, L, 128]; ReLU's features aren't negative, so zeros change no maximum
            real = torch.arange(features.shape[1]) < batch["points_length"][:, None]
            return self.cloud((features * real[:, :, None]).amax(dim=1))
        return self.cloud(torch.segment_reduce(features, "max", offsets=batch["points_offsets"]))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--collate", choices=("pad", "ragged"), default="pad")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    if not args.dataset.exists():
        write(args.dataset)
    collate = shardio.PadTo(multiple_of=8) if args.collate == "pad" else shardio.Ragged()
    loader = shardio.Loader(args.dataset, batch_size=30, transforms={"points": [collate]}, seed=0)
    torch.manual_seed(0)
    model = PointNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        total = 0.0
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
