"""Accelerate prepares model and optimizer; the Loader is used unchanged, and registered for checkpoints.

shardio convert idx examples/fashion-mnist/train data/fashion/train --to hdf5
shardio convert idx examples/fashion-mnist/test data/fashion/test --to hdf5
accelerate launch --cpu --num_processes 2 examples/train_accelerate.py data/fashion/train --val data/fashion/test
"""

import argparse
from pathlib import Path

import torch
import torch.distributed.nn.functional  # if imported later, it keeps the group's threads alive after its end
from accelerate import Accelerator
from torch import nn

import shardio

NORMALIZE = [shardio.Normalize(0.5, 0.25)]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--val", metavar="DATASET", help="print the accuracy on this dataset at the end")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("accelerate-output"))
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    loader = shardio.Loader(
        args.dataset,
        batch_size=50,
        transforms=NORMALIZE,
        seed=0,
        device=accelerator.device,  # batches are delivered there
    )
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 12 * 12, 10))
    model, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), lr=0.05))
    accelerator.register_for_checkpointing(loader)
    if args.output.exists():
        accelerator.load_state(args.output)

    while loader.epoch < args.epochs:
        epoch, total = loader.epoch, 0.0
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            total += loss.item()
        accelerator.print(f"epoch {epoch}: loss {total / len(loader):.3f}", flush=True)
        accelerator.save_state(args.output)
    if args.val is not None:
        evaluate(accelerator, model, args.val)
    accelerator.free_memory(model, optimizer)  # before the process group, which must be destroyed last
    del model, optimizer
    accelerator.end_training()


@torch.no_grad()
def evaluate(accelerator: Accelerator, model: nn.Module, dataset: str) -> None:
    """Print the share of all ranks' samples that the model predicts right; each sample counts once."""
    loader = shardio.Loader(
        dataset, batch_size=50, transforms=NORMALIZE, shuffle=None, tail="pad", device=accelerator.device
    )
    model.eval()
    right = total = 0
    for batch in loader:
        guess = model(batch["image"]).argmax(dim=1)
        # `gather_for_metrics` knows nothing of the samples that fill the last batches: `valid` does.
        guess, label, valid = accelerator.gather((guess, batch["label"], batch["valid"]))
        right += int((guess == label)[valid].sum())
        total += int(valid.sum())
    accelerator.print(f"accuracy {right / total:.4f}: {right} of {total}", flush=True)


if __name__ == "__main__":
    main()
