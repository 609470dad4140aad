"""torch's own DataLoader over a shardio dataset, for a custom sampler such as this one, which balances the classes.

The sampler names samples of rare classes several times in an epoch. Each time they are cropped and mirrored in another
way; only the first times in each worker are alike. With another number of workers the repeats differ. A Loader of
`shardio.open(...).balanced("label")` balances the classes without a sampler, over any ranks, and resumes.

shardio convert idx examples/fashion-mnist/train data/fashion/train --to hdf5
python examples/train_dataloader.py data/fashion/train
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler

import shardio


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    crop = shardio.RandomResizedCrop(28, scale=(0.6, 1.0))
    transforms = [crop, shardio.RandomHorizontalFlip(), shardio.Normalize(0.5, 0.25)]
    dataset = shardio.TorchDataset(args.dataset, transforms=transforms, seed=0)
    torch.manual_seed(0)
    labels = torch.from_numpy(dataset.dataset.read(range(len(dataset)), ["label"])["label"])
    weights = 1.0 / labels.bincount()[labels]
    sampler = WeightedRandomSampler(weights.tolist(), num_samples=len(dataset))
    loader = DataLoader(dataset, batch_size=100, sampler=sampler, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 12 * 12, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    for epoch in range(args.epochs):
        dataset.set_epoch(epoch)  # other crops than in the epoch before, in persistent workers too
        total = 0.0
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.3f}", flush=True)


if __name__ == "__main__":
    main()
