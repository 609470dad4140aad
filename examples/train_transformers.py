"""transformers' Trainer takes the Loader from `get_train_dataloader`; a callback saves its state in each checkpoint, so
that `--resume` continues in the middle of an epoch, on any number of ranks. Another Loader evaluates.

shardio convert idx examples/fashion-mnist/train data/fashion/train --to hdf5
shardio convert idx examples/fashion-mnist/test data/fashion/test --to hdf5
python examples/train_transformers.py data/fashion/train --val data/fashion/test
"""

import argparse
import gc
import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed.nn.functional  # if imported later, it keeps the group's threads alive after its end
from torch import nn
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import shardio

STATE = "loader.json"
NORMALIZE = [shardio.Normalize(0.5, 0.25)]


class Classifier(nn.Module):
    """A small network, which takes the fields of a batch as arguments, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 12 * 12, 10))

    def forward(
        self, image: torch.Tensor, label: torch.Tensor, index: torch.Tensor, valid: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the loss of a batch, and the scores that it comes from."""
        scores = self.layers(image)
        return {"loss": nn.functional.cross_entropy(scores, label), "logits": scores}


class LoaderTrainer(Trainer):
    """A Trainer whose batches come from Loaders."""

    def __init__(self, loader: shardio.Loader, val: str | None, **options: Any) -> None:
        callbacks = [SaveState(loader), LastUpdate(loader, options["args"]), PrintLoss()]
        super().__init__(callbacks=callbacks, compute_metrics=metrics, **options)
        self.loader, self.val = loader, val

    def get_train_dataloader(self) -> shardio.Loader:
        """Return the Loader itself."""
        return self.loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> shardio.Loader:
        """Return a Loader whose last batches are filled up, so that all ranks take the same number of steps."""
        return shardio.Loader(self.val, batch_size=50, transforms=NORMALIZE, shuffle=None, tail="pad")


def metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Return the loss and the accuracy of all ranks' samples; each sample counts once.

    Trainer's own loss counts the samples that fill the last batches, too: "loss" takes its place.
    """
    label, valid = prediction.label_ids  # as `label_names` says
    scores, label = torch.from_numpy(prediction.predictions)[valid], torch.from_numpy(label)[valid]
    right = int((scores.argmax(dim=1) == label).sum())
    return {"loss": float(nn.functional.cross_entropy(scores, label)), "right": right, "samples": len(label)}


class SaveState(TrainerCallback):
    """Saves the Loader's state, the same on every rank, next to the weights."""

    def __init__(self, loader: shardio.Loader) -> None:
        self.loader = loader

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **others: Any) -> None:
        """Write the state into the checkpoint that was just saved."""
        if state.is_world_process_zero:
            path = Path(args.output_dir, f"checkpoint-{state.global_step}", STATE)
            path.write_text(json.dumps(self.loader.state_dict()))


class LastUpdate(TrainerCallback):
    """Has Trainer update the weights at the end of every epoch.

    Trainer updates them after each `gradient_accumulation_steps` batches, and after `len(loader)`. In a resumed epoch,
    which has fewer batches, gradients of the last ones would be added to those of the next epoch. So before the last
    update, this makes the number of the epoch's batches the one after which Trainer updates.
    """

    def __init__(self, loader: shardio.Loader, args: TrainingArguments) -> None:
        self.loader, self.accumulate = loader, args.gradient_accumulation_steps

    def on_epoch_begin(self, args: TrainingArguments, state: Any, control: Any, **others: Any) -> None:
        """Ask the Loader how many batches it is going to deliver."""
        self.batches = self.left = self.loader.steps_left or len(self.loader)
        self.prepare(args)

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **others: Any) -> None:
        """Count the batches of an update."""
        self.left -= self.accumulate
        self.prepare(args)

    def prepare(self, args: TrainingArguments) -> None:
        """Choose the batch after which the next update comes."""
        args.gradient_accumulation_steps = self.batches if 0 < self.left < self.accumulate else self.accumulate


def resume(trainer: LoaderTrainer, checkpoint: Path) -> Path:
    """Have the Loader go on where a checkpoint stands, and Trainer count its steps as this job's ranks would have."""
    loader, counted = trainer.loader, str(checkpoint / "trainer_state.json")
    loader.load_state_dict(json.loads((checkpoint / STATE).read_text()))
    with trainer.args.main_process_first():
        if trainer.is_world_process_zero():
            state = TrainerState.load_from_json(counted)
            accumulate = trainer.args.gradient_accumulation_steps
            updates, left = (math.ceil(steps / accumulate) for steps in (len(loader), loader.steps_left))
            state.global_step = (loader.epoch + 1) * updates - left
            state.save_to_json(counted)
    return checkpoint


class PrintLoss(TrainerCallback):
    """Prints the mean loss of each epoch."""

    def on_log(self, args: TrainingArguments, state: Any, control: Any, logs: dict[str, float], **others: Any) -> None:
        """Print one line."""
        if "loss" in logs and state.is_world_process_zero:
            print(f"epoch {math.ceil(state.epoch) - 1}: loss {float(logs['loss']):.3f}", flush=True)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--val", metavar="DATASET", help="print loss and accuracy on this dataset at the end")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1, help="batches per update of the weights")
    parser.add_argument("--output", default="transformers-output")
    parser.add_argument("--save-steps", type=int, default=50)
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint in the output folder")
    args = parser.parse_args()

    options = TrainingArguments(
        args.output,
        num_train_epochs=args.epochs,
        gradient_accumulation_steps=args.accumulate,
        optim="sgd",
        learning_rate=0.05,
        lr_scheduler_type="constant",
        logging_strategy="epoch",
        save_steps=args.save_steps,
        label_names=["label", "valid"],  # what `metrics` gets
        ignore_data_skip=True,  # the Loader's state says where it goes on: nothing is read to be skipped
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    torch.manual_seed(0)
    loader = shardio.Loader(args.dataset, batch_size=50, transforms=NORMALIZE, seed=0)
    trainer = LoaderTrainer(loader, args.val, model=Classifier(), args=options)
    checkpoint = get_last_checkpoint(args.output) if args.resume else None
    trainer.train(resume_from_checkpoint=checkpoint and resume(trainer, Path(checkpoint)))
    if args.val is not None:
        found = trainer.evaluate()
        if trainer.is_world_process_zero():
            right, samples = found["eval_right"], found["eval_samples"]
            print(f"val loss {found['eval_loss']:.4f}, accuracy {right / samples:.4f}: {right} of {samples}")


if __name__ == "__main__":
    main()
    gc.collect()  # the trainer and its callbacks refer to one another
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
