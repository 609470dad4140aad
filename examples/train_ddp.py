"""A plain PyTorch loop that can be resumed, with DistributedDataParallel if torchrun starts several ranks.

shardio convert idx examples/fashion-mnist/train data/fashion/train --to hdf5
torchrun --standalone --nproc-per-node 2 examples/train_ddp.py data/fashion/train --epochs 2
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # if imported later, it keeps the group's threads alive after its end
from torch import nn

import shardio


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    args = parser.parse_args()
    if "RANK" not in os.environ:
        train(args)
        return
    dist.init_process_group("gloo")
    train(args)  # everything that holds the process group ends in `train`
    dist.destroy_process_group()


def train(args: argparse.Namespace) -> None:
    """Train until `args.epochs` are done, from the checkpoint if there is one."""
    loader = shardio.Loader(args.dataset, batch_size=50, transforms=[shardio.Normalize(0.5, 0.25)], seed=0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 12 * 12, 10))
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])  # on any number of ranks, with any batch size
    replica = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    while loader.epoch < args.epochs:
        epoch, total = loader.epoch, 0.0
        for batch in loader:
            loss = nn.functional.cross_entropy(replica(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if loader.world.rank == 0:
            print(f"epoch {epoch}: loss {total / len(loader):.3f}, starved {loader.stats().starved:.1%}", flush=True)
            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, args.checkpoint)


if __name__ == "__main__":
    main()
