"""Learn from lists of images: each sample has any number of image files, and one label.

shardio convert idx examples/fashion-mnist/train data/fashion --to hdf5
python examples/image_lists.py data/fashion data/lists

The first run makes lists of 1 to 8 images. The model predicts whether a list shows trousers.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn

import shardio

TROUSERS = 1  # the class's number


def write(images: Path, path: Path, count: int = 1200) -> None:
    """Write so many lists of the images, half of which have trousers among them."""
    random = np.random.default_rng(0)
    whole = shardio.open(images)
    samples = [whole[number] for number in range(len(whole))]
    trousers = [sample["image"] for sample in samples if sample["label"] == TROUSERS]
    others = [sample["image"] for sample in samples if sample["label"] != TROUSERS]
    fields = {"images": "images", "label": "int64"}
    with shardio.create(path, container="hdf5", fields=fields) as writer:
        for number in range(count):
            chosen = [others[each] for each in random.integers(len(others), size=random.integers(1, 9))]
            if number % 2:
                chosen[random.integers(len(chosen))] = trousers[random.integers(len(trousers))]
            writer.append({"images": chosen, "label": number % 2})


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    if not args.dataset.exists():
        write(args.images, args.dataset)
    # Each image of a list is cropped and flipped by itself.
    steps = [shardio.RandomCrop(26), shardio.RandomHorizontalFlip(), shardio.Normalize(0.29, 0.35), shardio.Ragged()]
    loader = shardio.Loader(args.dataset, batch_size=40, transforms={"images": steps}, seed=0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 11 * 11, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        total = 0.0
        for batch in loader:
            scores = model(batch["images"])[:, 0]  # of all images of the batch, float32 [sum, 3, 26, 26]
            score = torch.segment_reduce(scores, "max", offsets=batch["images_offsets"])  # [B]
            loss = nn.functional.binary_cross_entropy_with_logits(score, batch["label"].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.3f}", flush=True)


if __name__ == "__main__":
    main()
