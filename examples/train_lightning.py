"""Lightning takes the Loader unchanged, and saves its state in its own checkpoints, so
that `--checkpoint lightning-output/step=150.ckpt` resumes in the middle of an epoch.

shardio convert idx examples/fashion-mnist/train data/fashion/train --to hdf5
python examples/train_lightning.py data/fashion/train --devices 2
"""

import argparse
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import shardio


class Classifier(lightning.LightningModule):
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 12 * 12, 10))
        self.total = 0.0

    def training_step(self, batch: dict[str, Any], step: int) -> torch.Tensor:
        """The loss of a batch."""
        loss = nn.functional.cross_entropy(self.model(batch["image"]), batch["label"])
        self.total += loss.item()
        return loss

    def on_train_epoch_end(self) -> None:
        """Print the loss of the epoch."""
        self.print(f"epoch {self.current_epoch}: loss {self.total / self.trainer.num_training_batches:.3f}", flush=True)
        self.total = 0.0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Data(lightning.LightningDataModule):
    """Create the loader on each rank after Lightning has started it, so that the Loader detects its rank."""

    def __init__(self, dataset: str) -> None:
        super().__init__()
        self.dataset = dataset

    def train_dataloader(self) -> shardio.Loader:
        """Return a Loader, which has the length and the state that Lightning expects."""
        return shardio.Loader(self.dataset, batch_size=50, transforms=[shardio.Normalize(0.5, 0.25)], seed=0)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--checkpoint", help="checkpoint to resume from")
    parser.add_argument("--output", default="lightning-output")
    args = parser.parse_args()
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=args.devices,
        strategy="ddp" if args.devices > 1 else "auto",
        max_epochs=args.epochs,
        callbacks=[ModelCheckpoint(args.output, "{step}", every_n_train_steps=50, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), datamodule=Data(args.dataset), ckpt_path=args.checkpoint)


if __name__ == "__main__":
    main()
