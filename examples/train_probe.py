"""Features that a small network makes once, captions joined by key, and a linear probe that learns from the features.

torchrun --standalone --nproc-per-node 2 examples/train_probe.py data/shapes
python examples/train_probe.py data/shapes

The first command draws shapes, and a table of captions for most of them. Then its ranks derive features: four of each
drawing, of random crops. Kill it: the second command keeps what is finished, derives the rest on one rank, joins
features and captions to the drawings, and trains. Each epoch takes another of the four; the accuracy counts all.
"""

import argparse
import csv
import io
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # if imported later, it keeps the group's threads alive after its end
from PIL import Image, ImageDraw
from torch import nn

import shardio

CLASSES = ("disc", "square", "triangle")
FIELDS = {"key": "text", "image": shardio.Field("image", channels=1), "label": "int64"}
CROP = [shardio.RandomCrop(40), shardio.RandomHorizontalFlip(), shardio.ToFloat()]
FEATURES = 512

torch.manual_seed(0)
NETWORK = nn.Sequential(
    nn.Conv2d(1, 32, 5, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 32, 3), nn.ReLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(),
)  # fmt: skip


def features(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the features of a batch of images, float16 [B, 512]. A network that was trained elsewhere does as well."""
    return {"feature": NETWORK(batch["image"]).half()}


def drawing(label: int, random: np.random.Generator) -> tuple[bytes, str]:
    """Return a shape on noise as a PNG of 48 x 48 pixels, and its caption."""
    image = Image.fromarray(random.integers(0, 128, (48, 48), np.uint8))
    side, shade = random.integers(14, 30), int(random.integers(160, 256))
    left, top = random.integers(4, 44 - side, 2).tolist()
    corners, on = (left, top, left + side, top + side), ImageDraw.Draw(image)
    if CLASSES[label] == "triangle":
        on.polygon([(left, top + side), (left + side / 2, top), (left + side, top + side)], shade)
    else:
        (on.ellipse if CLASSES[label] == "disc" else on.rectangle)(corners, shade)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue(), f"a {'small' if side < 22 else 'large'} {CLASSES[label]}"


def write(folder: Path, captions: Path, count: int = 2000) -> None:
    """Write drawings, and the captions of three in four of them in another order."""
    random, rows = np.random.default_rng(0), []
    created = shardio.create(folder, container="hdf5", fields=FIELDS, metadata={"classes": CLASSES}, overwrite=True)
    with created as writer:
        for number in range(count):
            key, label = f"drawings/{number:05d}", int(random.integers(len(CLASSES)))
            image, caption = drawing(label, random)
            writer.append({"key": key, "image": image, "label": label})
            rows.append((key, caption))
    with captions.open("w", newline="") as file:
        csv.writer(file).writerows([("key", "caption"), *random.permutation(rows)[: count * 3 // 4].tolist()])


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    if "RANK" not in os.environ:
        run(args)
        return
    dist.init_process_group("gloo")
    run(args)  # everything that holds the process group ends in `run`
    dist.destroy_process_group()


def run(args: argparse.Namespace) -> None:
    """Make what is missing, and train the probe."""
    derived, captions = (args.dataset.with_name(f"{args.dataset.name}-{it}") for it in ("features", "captions.csv"))
    if not captions.exists() and int(os.environ.get("RANK", "0")) == 0:
        write(args.dataset, captions)
    if dist.is_initialized():
        dist.barrier()
    drawings = shardio.open(args.dataset)
    made = shardio.derive(
        drawings, features, derived, fields=["image"], transforms=CROP, copies=4, batch_size=50, shard_samples=100,
        version="1", if_missing=True,
    )  # fmt: skip
    samples = drawings.join(made).join(captions, on="key", how="optional")
    parts = samples.split({"train": 0.8, "val": 0.2}, by="label", seed=0)
    probe = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, len(CLASSES)))
    train(probe, parts["train"], args.epochs)
    evaluate(probe.eval(), parts["val"])


def train(probe: nn.Module, samples: shardio.Dataset, epochs: int) -> None:
    """Train the probe on one of the four features of each drawing in turn; no image is read."""
    row = [shardio.RandomRow(), shardio.ToFloat()]  # [B, 4, 512] -> [B, 512]
    loader = shardio.Loader(samples, 50, fields=["feature", "label"], transforms={"feature": row}, seed=0)
    replica = nn.parallel.DistributedDataParallel(probe) if dist.is_initialized() else probe
    optimizer = torch.optim.Adam(replica.parameters(), lr=3e-3)
    for epoch in range(epochs):
        total = 0.0
        for batch in loader:
            loss = nn.functional.cross_entropy(replica(batch["feature"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if loader.world.rank == 0:
            print(f"epoch {epoch}: loss {total / len(loader):.3f}", flush=True)


@torch.no_grad()
def evaluate(probe: nn.Module, samples: shardio.Dataset) -> None:
    """Print the accuracy of all ranks, by the mean over the four features, and the captions of a few mistakes."""
    fields = ["feature", "label", "caption"]
    loader = shardio.Loader(samples, 50, fields=fields, shuffle=None, tail="pad")
    counts, mistakes = torch.zeros(2, dtype=torch.int64), []  # right, all
    for batch in loader:
        scores = probe(batch["feature"].float().flatten(0, 1)).unflatten(0, (-1, 4)).mean(dim=1)
        right = scores.argmax(dim=1) == batch["label"]
        counts += torch.stack([(right & batch["valid"]).sum(), batch["valid"].sum()])
        wrong = (~right & batch["valid"]).nonzero()[:, 0].tolist()
        mistakes += [caption for row in wrong if (caption := batch["caption"][row]) is not None]
    if dist.is_initialized():
        dist.all_reduce(counts)
    if loader.world.rank == 0:
        correct, total = counts.tolist()
        print(f"accuracy {correct / total:.4f}: {correct} of {total}")
        print("mistaken:", ", ".join(mistakes[:3]), flush=True)


if __name__ == "__main__":
    main()
