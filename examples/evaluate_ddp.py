"""The accuracy of the model that train_ddp.py has trained: the same number on any number of ranks.

shardio convert idx examples/fashion-mnist/test data/fashion/test --to hdf5
torchrun --standalone --nproc-per-node 2 examples/evaluate_ddp.py data/fashion/test

All ranks take the same number of steps, as collective operations need it. With tail="pad" the last ones repeat samples
where none are left, and `valid` is False for these: so each sample counts once.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import shardio


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    if "RANK" not in os.environ:
        evaluate(args)
        return
    dist.init_process_group("gloo")
    evaluate(args)
    dist.destroy_process_group()


@torch.no_grad()
def evaluate(args: argparse.Namespace) -> None:
    """Count the samples of all ranks that the model predicts right, and print their share."""
    loader = shardio.Loader(
        args.dataset,
        batch_size=args.batch_size,
        transforms=[shardio.Normalize(0.5, 0.25)],
        shuffle=None,
        tail="pad",
    )
    model = nn.Sequential(nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 12 * 12, 10))
    model.load_state_dict(torch.load(args.checkpoint, weights_only=True)["model"])
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64)  # right, all
    for batch in loader:
        right = model(batch["image"]).argmax(dim=1) == batch["label"]
        counts += torch.stack([(right & batch["valid"]).sum(), batch["valid"].sum()])
    if dist.is_initialized():
        dist.all_reduce(counts)
    if loader.world.rank == 0:
        correct, total = counts.tolist()
        print(f"accuracy {correct / total:.4f}: {correct} of {total}", flush=True)


if __name__ == "__main__":
    main()
