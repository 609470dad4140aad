"""The course of a training run: epochs, validation, checkpoints and records."""

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import torch

from ..errors import BadSample, ConfigError, Preempted, ShardioError, StateMismatch
from ..monitoring.monitor import monitor as monitor_input
from ..system.local_path import local_path
from ..system.units import counted
from . import checkpoint, distributed
from .checkpoint import Checkpoint, Checkpoints, TrainingPosition
from .config import TrainConfig, TrainResult
from .data import BAD_SAMPLES_FILE, first_batch, open_data
from .distributed import Job, StopRequest
from .learner import Evaluation, Learner
from .model import load_model
from .pretrained import load_pretrained
from .records import Display, Records, profiling, refuse_links
from .step_monitor import StepMonitor


def run(config: TrainConfig) -> TrainResult:
    """Train on all ranks of the job; every rank calls it and gets the same result.

    Rank 0 writes `last.pt`, `previous.pt`, `best.pt`, a line of `log.jsonl` per epoch, lines of `metrics.jsonl`, and
    `result.json` into `config.output`.

    Raises ConfigError for a configuration that contradicts the data, the model or the machine, StateMismatch for a
    checkpoint that is damaged or of another model or dataset, ShardioError if the loss is no longer finite, or if
    another rank or the network is gone: at once, or after `config.timeout`. An error ends this rank only; the launcher
    has to end the others, as torchrun does. Raises Preempted on all ranks after SIGTERM, SIGUSR1 or SIGINT
    (Ctrl-C) on any of them, after a checkpoint, and KeyboardInterrupt after a second SIGINT more than 2 s later.
    """
    with ExitStack() as handlers:
        return run_with(config, handlers)


def run_with(config: TrainConfig, handlers: ExitStack) -> TrainResult:
    """Train as `run` does, but after Preempted leave it to `handlers` to give the signals their handlers back."""
    with (
        distributed.join(config.device, config.timeout) as job,
        closing(Display(job.leads, config.log_every)) as screen,
        StopRequest(job, handlers) as stop,
        ExitStack() as stack,
    ):
        try:
            return _Run(config, job, screen, stop, stack).train()
        except BadSample as error:
            if config.on_bad_sample != "raise":
                raise
            told = "{}; {on_bad_sample:replace} trains on another sample in its place"
            raise BadSample(told, error) from error


@dataclass(frozen=True, slots=True)
class _EpochSummary:
    """The figures of training for some epochs, over all ranks; zeros if nothing was left to train."""

    samples: float = 0.0  # per rank
    seconds: float = 0.0
    waited: float = 0.0  # on the rank that waited longest, for which the others wait in turn
    loss: float | None = None
    score: float | None = None
    lr: float | None = None
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
    def __init__(self, config: TrainConfig, job: Job, screen: Display, stop: StopRequest, stack: ExitStack) -> None:
        self._config = config
        self._stop = stop
        self._job = job
        self._display = screen
        self._output = local_path(config.output)
        refuse_links(self._output)
        self._checkpoints = Checkpoints(self._output, config.keep_checkpoints)
        self._data = open_data(config, job)
        task = self._data.task
        self._model_name = config.model or {"classification": "resnet", "regression": "cnn3d"}[config.task]
        self._shape = {"model": self._model_name, "task": config.task, **task.describe()}
        resume = self._resume_path()
        self._ceiling: float | None = None
        if config.synthetic:  # with a model that is thrown away
            rate = self._ceiling = self._make_learner().synthetic_rate(first_batch(config, job, self._data))
            screen.line(f"one batch in memory: {rate * job.world.size:,.0f} samples/s, {rate:,.0f} per rank")
        self._learner = self._make_learner(pretrained=config.pretrained if resume is None else None)
        self._place = TrainingPosition()
        if resume is not None:
            self._restore(resume)
        self._records: Records | None = None
        if job.leads:
            self._output.mkdir(parents=True, exist_ok=True)
            self._checkpoints.clean()
            made = Records(
                self._output, epochs=self._place.epoch, step=self._place.step, tensorboard=config.tensorboard
            )
            self._records = stack.enter_context(closing(made))
        stack.enter_context(self._checkpoints)
        monitor = StepMonitor(config, job, self._learner, metric=task.metric, records=self._records, say=screen.line)
        self._monitor = stack.enter_context(closing(monitor))
        job.wait()  # for rank 0 to have made the folder
        if config.monitor_seconds is not None:
            file = self._output / "input.jsonl"
            stack.enter_context(monitor_input(self._data.train, every=config.monitor_seconds, jsonl=file))
        trace = self._output / f"trace-rank{job.world.rank}.json" if config.profile else None
        self._profile_step = stack.enter_context(profiling(trace))

    def _make_learner(self, pretrained: str | None = None) -> Learner:
        config, data, job = self._config, self._data, self._job
        torch.manual_seed(config.seed)  # the same initial weights on every rank
        model = load_model(self._model_name, data.task)
        if pretrained is not None:
            self._display.line(f"{self._model_name} {load_pretrained(model, pretrained)}")
        model = model.to(job.device)
        torch.manual_seed(config.seed + 1 + job.world.rank)  # but not the same dropout
        return Learner(config, job, model, len(data.train.dataset), data.task)

    def train(self) -> TrainResult:
        """Train the remaining epochs."""
        if self._place.epoch < self._config.epochs:
            self._display.line(self._plan())
        samples, seconds, waited = 0.0, 0.0, 0.0
        begun = time.monotonic()
        evaluation = self._validate() if self._place.epoch >= self._config.epochs else None  # nothing is left to train
        while self._place.epoch < self._config.epochs:
            trained = self._train_epoch()
            samples, seconds, waited = samples + trained.samples, seconds + trained.seconds, waited + trained.waited
            evaluation = self._validate()
            self._end_epoch(trained, evaluation)
        total = _EpochSummary(samples, seconds, waited)
        self._checkpoints.wait()
        self._job.wait()  # for rank 0 to have written what the result names
        result = TrainResult(
            metric=self._data.task.metric,
            score=None if evaluation is None else evaluation.score,
            best_score=self._place.best_score,
            samples_per_second_per_rank=total.rate,
            starved=total.starved,
            synthetic_samples_per_second_per_rank=self._ceiling,
            epochs=self._place.epoch,
            checkpoint=str(self._output / checkpoint.LAST),
        )
        if self._records is not None:
            self._records.result(asdict(result))
            for line in _table(result, self._job.world.size, time.monotonic() - begun):
                self._display.line(line)
        return result

    def _plan(self) -> str:
        """Return what is going to be trained, in a line."""
        config, ranks, device = self._config, self._job.world.size, self._job.device.type
        samples, batch = len(self._data.train.dataset), self._learner.global_batch
        each = f" ({ranks} ranks x {batch // ranks})" if ranks > 1 else ""
        return (
            f"training {self._model_name} on {device}: {samples:,} samples in batches of {batch:,}{each}, "
            f"{counted(-(-samples // batch), 'step')} per epoch, {counted(config.epochs, 'epoch')}"
        )

    def _train_epoch(self) -> _EpochSummary:
        loader, begun, learner, world = self._data.train, self._place, self._learner, self._job.world
        at_once, seen = loader.batch_size * world.size, begun.samples
        if seen == 0:
            loader.set_epoch(begun.epoch)
        elif loader.epoch > begun.epoch:  # stopped before its validation
            return _EpochSummary(loss=begun.loss / seen, score=begun.score / seen, bad=begun.bad)
        whole = loader.state_dict()["samples"]  # of the epoch: the dataset may have grown since it began
        total = torch.zeros(2, dtype=torch.float64, device=self._job.device)  # losses, scores
        sums, own = torch.zeros_like(total), torch.zeros((), dtype=torch.int64, device=self._job.device)
        start, lr, saving = time.perf_counter(), 0.0, False
        self._known_bad = len(loader.quarantine())
        with closing(iter(loader)) as batches:
            self._monitor.begin_epoch(loader)
            for batch in batches:
                place = self._place
                end = min(place.samples + learner.global_batch, whole)
                count, seen = end - place.samples, min(seen + at_once, end)
                lr = learner.rate(place.epoch + (place.samples + count / 2) / whole)  # at the middle of the step
                measured = self._monitor.due(place.step + 1)
                sums += learner.step(batch, lr=lr, count=count, last=seen == end, measure_norm=measured)
                own += batch["valid"].to(own.device).sum()
                if seen < end:
                    continue
                self._place = place = replace(place, samples=end, step=place.step + 1)
                norm = learner.gradient_norm if measured else None
                self._monitor.end_step(place.epoch + 1, place.step, count=count, lr=lr, sums=sums, norm=norm)
                total, sums = total + sums, torch.zeros_like(total)
                self._profile_step()
                if self._display.due():
                    self._show(total.tolist(), int(own), lr, begun, whole, time.perf_counter() - start)
                if end == whole:
                    learner.exchange.agree()
                    if place.epoch + 1 == self._config.epochs:
                        learner.finish(lr)
                saving = self._save_if_due(begun, total, late=saving, last=end == whole)
        loss, score = total.tolist()
        seconds = time.perf_counter() - start
        loss, score, bad = self._job.total(loss, score, len(loader.quarantine()) - self._known_bad)
        seconds, waited = self._job.largest(seconds, loader.stats().wait_seconds)
        self._monitor.flush()
        return _EpochSummary(
            samples=(whole - begun.samples) / world.size,
            seconds=seconds,
            waited=waited,
            loss=self._finite((begun.loss + loss) / whole),
            score=(begun.score + score) / whole,
            lr=lr,
            bad=begun.bad + round(bad),
        )

    def _save_if_due(self, begun: TrainingPosition, total: torch.Tensor, *, late: bool, last: bool) -> bool:
        """Save a checkpoint after a step if one is due, and end the run if a signal asks for it.

        With local SGD a checkpoint waits until the ranks are equal, or makes them so.

        Args:
            begun: where this run began with the epoch.
            total: sums of losses and scores since then, on this rank.
            late: whether one was due after an earlier step.
            last: whether the step is the epoch's last one. Validation follows, and a checkpoint with its result.

        Returns whether one is still due.
        """
        every, place, signal = self._config.checkpoint_every_steps, self._place, self._stop.agreed()
        due = (late or (every is not None and place.step % every == 0)) and not last
        if not (due or signal is not None) or not self._learner.exchange.ready_for_checkpoint():
            return due
        # A rank whose loss is not finite has already spoiled the weights of all: check before saving them.
        loss, score, bad = self._job.total(*total.tolist(), len(self._data.train.quarantine()) - self._known_bad)
        self._place = replace(
            place, loss=begun.loss + self._finite(loss), score=begun.score + score, bad=begun.bad + round(bad)
        )
        self._monitor.flush()
        self._save()
        if signal is not None:
            self._checkpoints.wait()
            self._job.wait()  # for rank 0 to have written: a launcher ends all ranks when the first one ends
            raise Preempted(
                "{} stopped the run in epoch {}, after step {}; {resume:auto} continues from {}",
                signal.name,
                place.epoch + 1,
                place.step,
                self._output / checkpoint.LAST,
            )
        return False

    def _validate(self) -> Evaluation | None:
        """Validate on all ranks; None without a validation set."""
        if self._data.val is None:
            return None
        with closing(iter(self._data.val)) as batches:
            return self._learner.evaluate(batches)

    def _end_epoch(self, trained: _EpochSummary, evaluation: Evaluation | None) -> None:
        best = self._place.best_score
        better = evaluation is not None and (best is None or evaluation.score > best)
        self._place = TrainingPosition(
            epoch=self._place.epoch + 1,
            step=self._place.step,
            best_score=evaluation.score if evaluation is not None and better else best,
        )
        self._data.train.set_epoch(self._place.epoch)
        if self._records is not None:
            self._record_epoch(self._records, trained, evaluation)
        self._save(best=better)

    def _record_epoch(self, records: Records, trained: _EpochSummary, evaluation: Evaluation | None) -> None:
        metric = self._data.task.metric
        noise = self._learner.noise and self._learner.noise.estimate
        record = {
            "epoch": self._place.epoch,
            "step": self._place.step,
            "world_size": self._job.world.size,
            "train_loss": trained.loss,
            f"train_{metric}": trained.score,
            "lr": trained.lr,
            "bad_samples": trained.bad,
            "val_loss": evaluation and evaluation.loss,
            f"val_{metric}": evaluation and evaluation.score,
            "val_count": evaluation and evaluation.count,
            "samples_per_second_per_rank": round(trained.rate, 1),
            "starved": round(trained.starved, 4),
        }
        if noise is not None:
            record["noise_scale"] = noise.batch
        records.epoch(record)
        self._display.line(_summary(record, self._config.epochs, metric))
        if noise is not None:
            self._display.line(noise.advice(self._learner.global_batch, len(self._data.train.dataset)))

    def _save(self, *, best: bool = False) -> None:
        state = self._learner.state()
        if not self._job.leads:
            return
        saved = Checkpoint(
            place=self._place,
            **state,
            loader=self._data.train.state_dict(),
            shape=self._shape,
            config=self._config.to_dict(),
        )
        self._checkpoints.save(saved, best=best)

    def _resume_path(self) -> Path | None:
        """Return the checkpoint to resume from, the same on all ranks, or raise ConfigError on all."""
        if self._config.resume not in (None, "auto"):
            return Path(str(self._config.resume))
        there = [path for path in self._checkpoints.candidates if path.is_file()]
        some_see_one, some_do_not = self._job.largest(bool(there), not there)
        if some_see_one and some_do_not:
            raise ConfigError(
                "{output} must be a directory that all ranks share; only some see a run in {}", self._output
            )
        if not there:
            return None
        if self._config.resume is None:
            raise ConfigError(
                "{output} already holds a run ({}): give {resume:auto} to resume it, or another output", there[0]
            )
        number = 0
        if self._job.leads:  # one rank decides: the others would have to read the whole files as well
            path, reasons = self._checkpoints.choose()
            number = self._checkpoints.candidates.index(path)
            for reason in reasons:
                self._display.line(f"passing over {reason}")
        return self._checkpoints.candidates[int(self._job.largest(number)[0])]

    def _restore(self, path: Path) -> None:
        loaded = checkpoint.load(path)
        loaded.check_shape(self._shape, path)
        try:
            left_out = self._learner.restore(loaded)
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise StateMismatch(f"{path}: its weights do not fit this model: {error}") from error
        loader, place = self._data.train, loaded.place
        try:
            loader.load_state_dict(loaded.loader)
        except StateMismatch as error:
            told = "{}: {}; give the options that it was saved with, or another {output}"
            raise StateMismatch(told, path, error) from error
        at = loader.state_dict()
        midway = at["epoch"] == place.epoch and at["position"] == place.samples
        ended = at["epoch"] == place.epoch + 1 and at["position"] == 0 < place.samples <= at["samples"]
        if not (midway or ended):
            raise StateMismatch(
                f"{path}: training is {place.samples} samples into epoch {place.epoch}, its loader {at['position']} "
                f"into epoch {at['epoch']}"
            )
        self._place = place
        self._display.line(f"resuming from {path}: epoch {place.epoch + 1}, {place.samples} samples into it")
        if changes := self._changes_since(loaded):
            self._display.line(f"other than before: {', '.join(changes)}")
        if left_out is not None:
            self._display.line(left_out)

    def _changes_since(self, saved: Checkpoint) -> list[str]:
        """Return how the number of ranks and the configuration differ from those that a checkpoint was saved with."""
        then = {**saved.config, "ranks": len(saved.random["cpu"])}
        now = {**self._config.to_dict(), "ranks": self._job.world.size}
        names = now.keys() & then.keys() - {"resume", "output"}
        return [
            f"{name} {now[name]}, not {then[name]}" for name in sorted(names) if repr(now[name]) != repr(then[name])
        ]

    def _show(
        self, total: list[float], own: int, lr: float, begun: TrainingPosition, whole: int, seconds: float
    ) -> None:
        """Show the means of the epoch so far, over this rank's `own` samples, and the throughput of all ranks."""
        loader, place, ranks = self._data.train, self._place, self._job.world.size
        samples = place.samples - begun.samples
        loss, score = (value / max(own, 1) for value in total)
        norm = "" if self._monitor.gradient_norm is None else f"  |g| {self._monitor.gradient_norm:.2g}"
        each = f" ({_rate(samples / seconds / ranks)} per rank)" if ranks > 1 else ""
        learned = f"loss {self._finite(loss):.3f}  {self._data.task.metric} {score:.3f}{norm}  lr {lr:.3g}"
        rate = f"{_rate(samples / seconds)} samples/s{each}  starved {100 * loader.stats().starved:.0f} %"
        step, steps = (-(-count // self._learner.global_batch) for count in (place.samples, whole))
        self._display.show(f"epoch {place.epoch + 1}/{self._config.epochs}", step, steps, f"{learned}  {rate}")

    def _finite(self, loss: float) -> float:
        if not math.isfinite(loss):
            place = f"epoch {self._place.epoch + 1}, step {self._place.step}"
            raise ShardioError(f"the loss must stay finite, got {loss} by {place}: try a smaller lr or more warm-up")
        return loss


def _summary(record: Mapping[str, Any], epochs: int, metric: str) -> str:
    parts = [f"epoch {record['epoch']}/{epochs}"]
    if record["train_loss"] is not None:
        parts.append(f"train loss {record['train_loss']:.3f}  train {metric} {record[f'train_{metric}']:.4f}")
    if record["val_loss"] is not None:
        parts.append(f"val loss {record['val_loss']:.3f}  val {metric} {record[f'val_{metric}']:.4f}")
    rate = record["samples_per_second_per_rank"]
    parts.append(f"{_rate(rate * record['world_size'])} samples/s  starved {100 * record['starved']:.0f} %")
    if record["bad_samples"]:
        parts.append(f"{counted(record['bad_samples'], 'bad sample')} replaced: see {BAD_SAMPLES_FILE}")
    return "  ".join(parts)


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _table(result: TrainResult, ranks: int, seconds: float) -> list[str]:
    """Return the lines of a table of the whole run."""
    rows = []
    if result.score is not None:
        rows.append((result.metric, f"{result.score:.4f}, in the best epoch {result.best_score:.4f}"))
    rows.append(("epochs", f"{result.epochs}, this run in {seconds:,.0f} s"))
    rate, ceiling = result.samples_per_second_per_rank, result.synthetic_samples_per_second_per_rank
    if rate:
        rows.append(("samples/s", f"{_rate(rate * ranks)}, per rank {_rate(rate)}"))
        rows.append(("starved", f"{100 * result.starved:.1f} % of the time"))
    if rate and ceiling:
        cost = max(0.0, 1 - rate / ceiling)
        rows.append(("in memory", f"{ceiling * ranks:,.0f} samples/s on one batch: input costs {100 * cost:.1f} %"))
    rows.append(("checkpoint", result.checkpoint))
    return [f"{name:<12}{value}" for name, value in rows]
