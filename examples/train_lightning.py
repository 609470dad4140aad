"""Lightning takes the Loader unchanged, and saves its state in its own checkpoints.

shardio convert idx examples/fashion-mnist/train data/fashion/train --to hdf5
shardio convert idx examples/fashion-mnist/test data/fashion/test --to hdf5
python examples/train_lightning.py data/fashion/train --val data/fashion/test --devices 2

`--checkpoint lightning-output/epoch=0.ckpt` resumes with the next epoch, `--checkpoint lightning-output/step=150.ckpt`
in the middle of one, and both on any number of devices.
"""

import argparse
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torchmetrics import MeanMetric

import shardio
from shardio.lightning import ResumeElastically


class Classifier(lightning.LightningModule):
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 12 * 12, 10))
        self.loss, self.accuracy = MeanMetric(), MeanMetric()

    def training_step(self, batch: dict[str, Any], step: int) -> torch.Tensor:
        """The loss of a batch."""
        loss = nn.functional.cross_entropy(self.model(batch["image"]), batch["label"])
        self.loss.update(loss.detach())
        return loss

    def validation_step(self, batch: dict[str, Any], step: int) -> None:
        """Count what is right, each sample once: `valid` is False for those that only fill the last batch."""
        right = self.model(batch["image"]).argmax(1) == batch["label"]
        self.accuracy.update(right[batch["valid"]].float())
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)  # of all ranks

    def on_train_epoch_end(self) -> None:
        """Print the loss of the epoch, and the accuracy of its validation."""
        loss, accuracy = self.loss.compute(), self.trainer.callback_metrics["accuracy"]
        self.loss.reset()
        self.print(f"epoch {self.current_epoch}: loss {loss:.3f}, accuracy {accuracy:.4f}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.05)


class Data(lightning.LightningDataModule):
    """Create the loaders on each rank after Lightning has started it, so that they detect their rank."""

    def __init__(self, train: str, val: str) -> None:
        super().__init__()
        self.train, self.val = train, val

    def train_dataloader(self) -> shardio.Loader:
        """Return a Loader, which has the length and the state that Lightning expects."""
        return shardio.Loader(self.train, batch_size=50, transforms=[shardio.Normalize(0.5, 0.25)], seed=0)

    def val_dataloader(self) -> shardio.Loader:
        """Return a Loader that delivers every sample, and marks in `valid` those that only fill the last batch."""
        normalize = [shardio.Normalize(0.5, 0.25)]
        return shardio.Loader(self.val, batch_size=128, transforms=normalize, shuffle=None, tail="pad")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--val", required=True, help="dataset for validation")
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
        callbacks=[
            ModelCheckpoint(args.output, "{epoch}", save_top_k=-1),  # at each epoch's end
            ModelCheckpoint(args.output, "{step}", every_n_train_steps=50, save_top_k=-1),
            ResumeElastically(),  # for a checkpoint of the middle of an epoch, and other devices or batch sizes
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), datamodule=Data(args.dataset, args.val), ckpt_path=args.checkpoint)


if __name__ == "__main__":
    main()
