"""A run from its configuration to its result: epochs, validation, checkpoints and records."""

import json
import math
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import torch

from ..errors import ConfigError, ShardioError, StateMismatch
from ..system import durable
from . import checkpoint, distributed
from .checkpoint import Checkpoint, TrainingPosition
from .config import TrainConfig, TrainResult
from .data import BAD, Data, open_data
from .distributed import Job
from .learner import Evaluation, Learner, evaluate
from .model import load_model
from .progress import Display, Status, display

LOG = "log.jsonl"
RESULT = "result.json"


def run(config: TrainConfig) -> TrainResult:
    """Trains an image classifier on all ranks of the job; every rank calls it and gets the same result.

    Rank 0 writes into `config.output`: `last.pt` and `best.pt`, a line of `log.jsonl` per epoch, and `result.json`.

    Raises ConfigError for a configuration that the data, the model or the machine contradicts, StateMismatch for a
    checkpoint of something else, ShardioError if the loss is no longer a number. Whatever is raised ends this rank
    alone; its launcher has to end the others, as torchrun does.
    """
    with distributed.join(config.device) as job, display(job.leads, config.log_every) as shown:
        return _Run(config, job, shown).all_epochs()


@dataclass(frozen=True, slots=True)
class _Epoch:
    """What training for one epoch came to, over all ranks. Zeros where nothing of it was left."""

    samples: int = 0  # on this rank
    seconds: float = 0.0
    waited: float = 0.0  # on the rank that waited longest: the others wait for it in turn
    loss: float | None = None
    lr: float = 0.0
    bad: int = 0  # samples that others came in place of

    @property
    def rate(self) -> float:
        """Samples per second and rank."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def starved(self) -> float:
        """Share of the time that was spent waiting for input."""
        return min(1.0, self.waited / self.seconds) if self.seconds else 0.0


@final
class _Run:
    def __init__(self, config: TrainConfig, job: Job, shown: Display) -> None:
        self._config = config
        self._job = job
        self._shown = shown
        self._output = Path(config.output)
        self._data = data = open_data(config, job)
        resume = self._resume_path()
        torch.manual_seed(config.seed)  # the same initial weights on every rank
        model = load_model(config.model, data.num_classes, data.channels, data.image_size).to(job.device)
        torch.manual_seed(config.seed + 1 + job.world.rank)  # but not the same dropout
        self._learner = Learner(config, job, model, len(data.train.dataset))
        self._place = TrainingPosition()
        if resume is not None:
            self._restore(resume)
        if job.leads:
            self._output.mkdir(parents=True, exist_ok=True)

    def all_epochs(self) -> TrainResult:
        """Trains what is left of the run."""
        accuracy, samples, seconds, waited = None, 0, 0.0, 0.0
        if self._place.epoch >= self._config.epochs and self._data.val is not None:  # nothing left: only look again
            accuracy = self._validate(self._data).accuracy
        while self._place.epoch < self._config.epochs:
            trained = self._train_epoch()
            samples, seconds, waited = samples + trained.samples, seconds + trained.seconds, waited + trained.waited
            found = None if self._data.val is None else self._validate(self._data)
            accuracy = None if found is None else found.accuracy
            self._end_epoch(trained, found)
        total = _Epoch(samples, seconds, waited)
        last = str(self._output / checkpoint.LAST)
        result = TrainResult(accuracy, self._place.best_accuracy, total.rate, total.starved, self._place.epoch, last)
        if self._job.leads:
            durable.write(self._output / RESULT, json.dumps(asdict(result), indent=1).encode() + b"\n")
        return result

    def _train_epoch(self) -> _Epoch:
        loader, place = self._data.train, self._place
        global_batch = loader.batch_size * self._job.world.size
        if place.samples == 0:
            loader.set_epoch(place.epoch)
        elif len(loader.dataset) - place.samples < global_batch:
            return _Epoch()  # resumed with larger global batches, where a smaller tail is left than one of them
        total = torch.zeros((), dtype=torch.float64, device=self._job.device)
        begun, steps, lr, met = time.perf_counter(), 0, 0.0, len(loader.quarantine())
        with closing(iter(loader)) as batches:
            for batch in batches:
                lr = self._learner.rate(place.epoch, place.samples)
                total += self._learner.step(batch, lr)
                steps += 1
                place = replace(place, samples=place.samples + global_batch, step=place.step + 1)
                self._place = place
                if self._shown.due():
                    loss = self._finite(float(total) / steps)
                    self._shown.show(self._status(loss, lr, steps, time.perf_counter() - begun))
                every = self._config.checkpoint_every_steps
                # The epoch's last step is followed by validation, and by a checkpoint that knows of it.
                if every and place.step % every == 0 and len(loader.dataset) - place.samples >= global_batch:
                    self._checkpoint_midway(float(total))
        loss = float(total)
        seconds = time.perf_counter() - begun
        summed, bad = self._job.total(loss / steps, len(loader.quarantine()) - met)
        seconds, waited = self._job.largest(seconds, loader.stats().wait_seconds)
        mean = self._finite(summed / self._job.world.size)
        return _Epoch(steps * loader.batch_size, seconds, waited, mean, lr, round(bad))

    def _validate(self, data: Data) -> Evaluation:
        if data.val is None:
            raise ConfigError("validation needs a validation set: give val")
        with closing(iter(data.val)) as batches:
            return evaluate(self._learner.model, batches, self._job)

    def _end_epoch(self, trained: _Epoch, found: Evaluation | None) -> None:
        best = self._place.best_accuracy
        better = found is not None and (best is None or found.accuracy > best)
        self._place = TrainingPosition(
            epoch=self._place.epoch + 1,
            step=self._place.step,
            best_accuracy=found.accuracy if found is not None and better else best,
        )
        self._data.train.set_epoch(self._place.epoch)
        if not self._job.leads:
            return
        self._save(checkpoint.LAST)
        if better:
            self._save(checkpoint.BEST)
        record = {
            "epoch": self._place.epoch,
            "step": self._place.step,
            "world_size": self._job.world.size,
            "train_loss": trained.loss,
            "lr": trained.lr,
            "bad_samples": trained.bad,
            "val_loss": found and found.loss,
            "val_accuracy": found and found.accuracy,
            "val_correct": found and found.correct,
            "val_count": found and found.count,
            "samples_per_second_per_rank": round(trained.rate, 1),
            "starved": round(trained.starved, 4),
        }
        with open(self._output / LOG, "a") as log:
            log.write(json.dumps(record) + "\n")
        self._shown.line(_summary(record, self._config.epochs))

    def _checkpoint_midway(self, loss: float) -> None:
        # A rank whose loss is no number has already spoiled the weights of all: ask before they are kept.
        self._finite(self._job.total(loss)[0])
        if self._job.leads:
            self._save(checkpoint.LAST)

    def _save(self, name: str) -> None:
        checkpoint.save(
            self._output / name,
            Checkpoint(
                place=self._place,
                model=self._learner.model.state_dict(),
                optimizer=self._learner.optimizer.state_dict(),
                loader=self._data.train.state_dict(),
                shape=self._shape(),
                config=self._config.to_dict(),
            ),
        )

    def _shape(self) -> dict[str, Any]:
        data = self._data
        return {"model": self._config.model, "num_classes": data.num_classes, "channels": data.channels}

    def _resume_path(self) -> Path | None:
        """The checkpoint to go on from; the same on all ranks, or ConfigError on all."""
        last = self._output / checkpoint.LAST
        if self._config.resume not in (None, "auto"):
            return Path(str(self._config.resume))
        here = float(last.is_file())
        some, none = self._job.largest(here, 1 - here)
        if some and none:
            raise ConfigError(f"output must be a directory that all ranks share; only some of them see {last}")
        if some and self._config.resume is None:
            raise ConfigError(f"output already holds a run ({last}): give resume='auto' to go on, or another output")
        return last if some else None

    def _restore(self, path: Path) -> None:
        found = checkpoint.load(path, self._job.device)
        found.check_shape(self._shape(), path)
        try:
            self._learner.restore(found.model, found.optimizer)
        except (RuntimeError, ValueError) as error:
            raise StateMismatch(f"{path}: its weights do not fit this model: {error}") from error
        self._data.train.load_state_dict(found.loader)
        self._place = found.place
        self._shown.line(f"going on from {path}: epoch {found.place.epoch + 1}, {found.place.samples} samples into it")

    def _status(self, loss: float, lr: float, steps: int, seconds: float) -> Status:
        loader, place, size = self._data.train, self._place, self._job.world.size
        return Status(
            epoch=place.epoch + 1,
            epochs=self._config.epochs,
            step=place.samples // (loader.batch_size * size),
            steps=len(loader),
            loss=loss,
            lr=lr,
            samples_per_second=steps * loader.batch_size * size / seconds,
            starved=loader.stats().starved,
        )

    def _finite(self, loss: float) -> float:
        if not math.isfinite(loss):
            place = f"epoch {self._place.epoch + 1}, step {self._place.step}"
            raise ShardioError(f"the loss must stay finite, got {loss} by {place}: try a smaller lr or more warm-up")
        return loss


def _summary(record: Mapping[str, Any], epochs: int) -> str:
    parts = [f"epoch {record['epoch']}/{epochs}"]
    if record["train_loss"] is not None:
        parts.append(f"train loss {record['train_loss']:.3f}")
    if record["val_accuracy"] is not None:
        parts.append(f"val loss {record['val_loss']:.3f}  val accuracy {record['val_accuracy']:.4f}")
    rate = record["samples_per_second_per_rank"]
    parts.append(f"{rate * record['world_size']:.0f} samples/s  starved {100 * record['starved']:.0f} %")
    if record["bad_samples"]:
        parts.append(f"{record['bad_samples']} bad samples replaced: see {BAD}")
    return "  ".join(parts)
