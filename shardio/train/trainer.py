"""The course of a training run: epochs, validation, checkpoints and records."""

import json
import math
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import torch

from ..errors import ConfigError, Preempted, ShardioError, StateMismatch
from ..system import durable
from ..system.os_errors import naming
from ..system.regular_files import open_regular
from . import checkpoint, distributed
from .checkpoint import Checkpoint, CheckpointFolder, TrainingPosition
from .config import TrainConfig, TrainResult
from .data import BAD_SAMPLES_FILE, Data, open_data
from .distributed import Job
from .learner import Evaluation, Learner
from .model import load_model
from .progress import Display, Status, display
from .stop_request import StopRequest

LOG = "log.jsonl"
RESULT = "result.json"


def run(config: TrainConfig) -> TrainResult:
    """Train an image classifier on all ranks of the job; every rank calls it and gets the same result.

    Rank 0 writes `last.pt`, `previous.pt`, `best.pt`, one line of `log.jsonl` per epoch, and `result.json` into
    `config.output`.

    Raises ConfigError for a configuration that contradicts the data, the model or the machine, StateMismatch for a
    checkpoint that is damaged or of another model or dataset, ShardioError if the loss is no longer finite. An error
    ends this rank only; the launcher has to end the others, as torchrun does. Raises Preempted on all ranks after
    SIGTERM or SIGUSR1 on any of them, after a checkpoint.
    """
    with (
        distributed.join(config.device) as job,
        display(job.leads, config.log_every) as screen,
        StopRequest(job) as stop,
    ):
        return _Run(config, job, screen, stop).train()


@dataclass(frozen=True, slots=True)
class _EpochSummary:
    """The figures of training for one epoch, over all ranks; zeros if nothing of it was left to train."""

    samples: float = 0.0  # per rank
    seconds: float = 0.0
    waited: float = 0.0  # on the rank that waited longest, for which the others wait in turn
    loss: float | None = None
    lr: float = 0.0
    bad: int = 0  # samples that were replaced

    @property
    def rate(self) -> float:
        """Samples per second and rank."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def starved(self) -> float:
        """Share of the time spent waiting for input."""
        return min(1.0, self.waited / self.seconds) if self.seconds else 0.0


@final
class _Run:
    def __init__(self, config: TrainConfig, job: Job, screen: Display, stop: StopRequest) -> None:
        self._config = config
        self._stop = stop
        self._job = job
        self._display = screen
        self._output = Path(config.output)
        self._checkpoints = CheckpointFolder(self._output)
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
            self._checkpoints.clean()

    def train(self) -> TrainResult:
        """Train the remaining epochs."""
        accuracy, samples, seconds, waited = None, 0.0, 0.0, 0.0
        if (
            self._place.epoch >= self._config.epochs and self._data.val is not None
        ):  # nothing left to train: only validate
            accuracy = self._validate(self._data).accuracy
        while self._place.epoch < self._config.epochs:
            trained = self._train_epoch()
            samples, seconds, waited = samples + trained.samples, seconds + trained.seconds, waited + trained.waited
            evaluation = None if self._data.val is None else self._validate(self._data)
            accuracy = None if evaluation is None else evaluation.accuracy
            self._end_epoch(trained, evaluation)
        total = _EpochSummary(samples, seconds, waited)
        last = str(self._output / checkpoint.LAST)
        result = TrainResult(accuracy, self._place.best_accuracy, total.rate, total.starved, self._place.epoch, last)
        if self._job.leads:
            durable.write(self._output / RESULT, json.dumps(asdict(result), indent=1).encode() + b"\n")
        return result

    def _train_epoch(self) -> _EpochSummary:
        loader, begun, learner, world = self._data.train, self._place, self._learner, self._job.world
        whole, at_once, seen = len(loader.dataset), loader.batch_size * world.size, begun.samples
        if begun.samples == 0:
            loader.set_epoch(begun.epoch)
        elif begun.samples == whole:  # stopped before its validation
            return _EpochSummary(loss=begun.loss / whole)
        total = torch.zeros((), dtype=torch.float64, device=self._job.device)
        start, lr, known_bad = time.perf_counter(), 0.0, len(loader.quarantine())
        with closing(iter(loader)) as batches:
            for batch in batches:
                place = self._place
                end = min(place.samples + learner.global_batch, whole)
                count, seen = end - place.samples, min(seen + at_once, end)
                lr = learner.rate(place.epoch, place.samples, count)
                total += learner.step(batch, lr=lr, count=count, last=seen == end)
                if seen < end:
                    continue
                self._place = place = replace(place, samples=end, step=place.step + 1)
                if self._display.due():
                    self._display.show(self._status(float(total), lr, begun, time.perf_counter() - start))
                every = self._config.checkpoint_every_steps
                signal = self._stop.agreed()
                # The last step of an epoch is followed by validation, and by a checkpoint that includes its result.
                if signal is not None or (every and place.step % every == 0 and end < whole):
                    self._checkpoint_midway(begun, float(total))
                if signal is not None:
                    raise Preempted(
                        f"{signal.name} stopped the run in epoch {place.epoch + 1}, after step {place.step}; "
                        f"--resume auto continues from {self._output / checkpoint.LAST}"
                    )
        seconds, loss = time.perf_counter() - start, float(total)
        summed, bad = self._job.total(loss, len(loader.quarantine()) - known_bad)
        seconds, waited = self._job.largest(seconds, loader.stats().wait_seconds)
        mean = self._finite((begun.loss + summed) / whole)
        return _EpochSummary((whole - begun.samples) / world.size, seconds, waited, mean, lr, round(bad))

    def _validate(self, data: Data) -> Evaluation:
        if data.val is None:
            raise ConfigError("validation needs a validation set: give val")
        with closing(iter(data.val)) as batches:
            return self._learner.evaluate(batches)

    def _end_epoch(self, trained: _EpochSummary, evaluation: Evaluation | None) -> None:
        best = self._place.best_accuracy
        better = evaluation is not None and (best is None or evaluation.accuracy > best)
        self._place = TrainingPosition(
            epoch=self._place.epoch + 1,
            step=self._place.step,
            best_accuracy=evaluation.accuracy if evaluation is not None and better else best,
        )
        self._data.train.set_epoch(self._place.epoch)
        if not self._job.leads:
            return
        state = self._checkpoint()
        self._checkpoints.save_last(state)
        if better:
            self._checkpoints.save_best(state)
        noise = self._learner.noise and self._learner.noise.estimate
        record = {
            "epoch": self._place.epoch,
            "step": self._place.step,
            "world_size": self._job.world.size,
            "train_loss": trained.loss,
            "lr": trained.lr,
            "bad_samples": trained.bad,
            "val_loss": evaluation and evaluation.loss,
            "val_accuracy": evaluation and evaluation.accuracy,
            "val_correct": evaluation and evaluation.correct,
            "val_count": evaluation and evaluation.count,
            "samples_per_second_per_rank": round(trained.rate, 1),
            "starved": round(trained.starved, 4),
        }
        if noise is not None:
            record["noise_scale"] = noise.batch if math.isfinite(noise.batch) else None
        with naming(self._output / LOG), open(self._output / LOG, "a", opener=open_regular) as log:
            log.write(json.dumps(record) + "\n")
        self._display.line(_summary(record, self._config.epochs))
        if noise is not None:
            self._display.line(noise.advice(self._learner.global_batch, len(self._data.train.dataset)))

    def _checkpoint_midway(self, begun: TrainingPosition, loss: float) -> None:
        # A rank whose loss is not finite has already spoiled the weights of all: check before saving them.
        self._place = replace(self._place, loss=begun.loss + self._finite(self._job.total(loss)[0]))
        if self._job.leads:
            self._checkpoints.save_last(self._checkpoint())

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(
            place=self._place,
            **self._learner.state(),
            loader=self._data.train.state_dict(),
            shape=self._shape(),
            config=self._config.to_dict(),
        )

    def _shape(self) -> dict[str, Any]:
        data = self._data
        return {"model": self._config.model, "num_classes": data.num_classes, "channels": data.channels}

    def _resume_path(self) -> Path | None:
        """Return the checkpoint to resume from, the same on all ranks, or raise ConfigError on all."""
        if self._config.resume not in (None, "auto"):
            return Path(str(self._config.resume))
        there = [path for path in self._checkpoints.candidates if path.is_file()]
        some_see_one, some_do_not = self._job.largest(bool(there), not there)
        if some_see_one and some_do_not:
            raise ConfigError(f"output must be a directory that all ranks share; only some see a run in {self._output}")
        if not there:
            return None
        if self._config.resume is None:
            raise ConfigError(
                f"output already holds a run ({there[0]}): give resume='auto' to resume it, or another output"
            )
        number = 0
        if self._job.leads:  # one rank decides: the others would have to read the whole files as well
            path, reasons = self._checkpoints.choose()
            number = self._checkpoints.candidates.index(path)
            for reason in reasons:
                self._display.line(f"passing over {reason}")
        return self._checkpoints.candidates[int(self._job.largest(number)[0])]

    def _restore(self, path: Path) -> None:
        loaded = checkpoint.load(path, self._job.device)
        loaded.check_shape(self._shape(), path)
        try:
            parts = ("model", "optimizer", "scaler", "average")
            self._learner.restore({part: getattr(loaded, part) for part in parts})
        except (RuntimeError, ValueError) as error:
            raise StateMismatch(f"{path}: its weights do not fit this model: {error}") from error
        self._data.train.load_state_dict(loaded.loader)
        self._place = loaded.place
        self._display.line(
            f"resuming from {path}: epoch {loaded.place.epoch + 1}, {loaded.place.samples} samples into it"
        )

    def _status(self, loss: float, lr: float, begun: TrainingPosition, seconds: float) -> Status:
        loader, place, size = self._data.train, self._place, self._learner.global_batch
        samples = place.samples - begun.samples
        return Status(
            epoch=place.epoch + 1,
            epochs=self._config.epochs,
            step=-(-place.samples // size),
            steps=-(-len(loader.dataset) // size),
            loss=self._finite(loss / samples * self._job.world.size),
            lr=lr,
            samples_per_second=samples / seconds,
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
        parts.append(f"{record['bad_samples']} bad samples replaced: see {BAD_SAMPLES_FILE}")
    return "  ".join(parts)
