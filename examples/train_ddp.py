"""A plain PyTorch loop that can be resumed, with DistributedDataParallel if torchrun starts several ranks.

shardio convert idx examples/fashion-mnist/train data/fashion/train --to hdf5
torchrun --standalone --nproc-per-node 2 examples/train_ddp.py data/fashion/train --epochs 2

Run the same command again after an interruption: it goes on from the checkpoint, in the middle of an epoch too, on any
number of ranks. evaluate_ddp.py measures the accuracy.
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints within an epoch")
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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    parts = {"model": model, "optimizer": optimizer, "loader": loader}  # whatever has a state_dict
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])  # the loader's on any number of ranks, with any batch size
    replica = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model

    def save() -> None:
        if loader.world.rank == 0:  # all ranks have the same state
            unfinished = args.checkpoint.with_suffix(".tmp")
            torch.save({name: part.state_dict() for name, part in parts.items()}, unfinished)
            unfinished.replace(args.checkpoint)  # so a job that is killed now leaves the last checkpoint whole

    while loader.epoch < args.epochs:
        epoch, steps, total = loader.epoch, 0, 0.0
        for batch in loader:
            loss = nn.functional.cross_entropy(replica(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps, total = steps + 1, total + loss.item()
            if steps % args.save_every == 0:
                save()
        save()
        if loader.world.rank == 0:
            print(f"epoch {epoch}: loss {total / steps:.3f}, starved {loader.stats().starved:.1%}", flush=True)


if __name__ == "__main__":
    main()
