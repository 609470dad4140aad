"""A model and its optimizer: one training step, and an exact evaluation over all ranks."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..errors import ConfigError, Message
from .checkpoint import Checkpoint
from .config import TrainConfig
from .data import Task
from .distributed import Job
from .gradient_exchange import GradientExchange
from .noise_scale import NoiseScaleMeter
from .optimizers import check_optimizer_state, learning_rate, make_optimizer

_CUDA_RANDOM_BYTES = 16  # a seed and an offset
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The performance of a model on a validation set, over all ranks.

    Attributes:
        score: the mean score: in classification the accuracy.
        count: number of samples.
        loss: mean loss, without label smoothing.
    """

    score: float
    count: int
    loss: float


@final
class Learner:
    """A model that all ranks train together: each on its own samples, with the mean of the gradients of all samples.

    The model is given on the job's device, the same on all ranks; the training set has so many `samples`.

    Attributes:
        model: the model that is trained, without what distributes or compiles it.
        average: the moving average of its weights; None without one.
        noise: what measures the gradient noise scale; None unless the configuration asks for it.
        gradient_norm: the norm of all gradients of the last step that measured it, before they were clipped.

    Raises ConfigError for what the job's device cannot do.
    """

    def __init__(self, config: TrainConfig, job: Job, model: nn.Module, samples: int, task: Task) -> None:
        if config.sync_batchnorm and job.device.type != "cuda":
            raise ConfigError(
                Message("{sync_batchnorm} needs GPUs: torch has no synchronized batch normalization for CPUs")
            )
        if config.measure_noise_scale and job.world.size == 1:
            raise ConfigError(
                Message("{measure_noise_scale} needs at least 2 ranks: it compares their gradients with the mean")
            )
        self._config, self._job, self._samples, self._task = config, job, samples, task
        self.global_batch = job.world.size * config.batch_size * config.accumulate
        if config.sync_batchnorm:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]  # torch has no hints
        if config.channels_last:
            for weight in model.parameters():  # model.to takes one layout, and no model of both
                if weight.ndim in _LAST:
                    weight.data = weight.data.contiguous(memory_format=_LAST[weight.ndim])
        self.model = model
        self.optimizer = make_optimizer(config, model)
        self.average = None
        if config.ema is not None:
            average = get_ema_multi_avg_fn(config.ema)  # type: ignore[no-untyped-call]  # torch has no hints
            self.average = AveragedModel(model, multi_avg_fn=average)
        self._scaler = torch.amp.GradScaler(job.device.type, enabled=config.precision == "fp16")
        self.noise = NoiseScaleMeter(job, config.batch_size * config.accumulate) if config.measure_noise_scale else None
        # Not a method of this: DDP holds the hook that holds it, where no garbage collector sees a cycle.
        averaged = partial(_averaged, model, self.optimizer, self.average)
        self.exchange = GradientExchange(model, config, job, averaged, self.noise)
        parallel = self.exchange.parallel
        self._forward = torch.compile(parallel) if config.compile else parallel
        self.gradient_norm: Tensor | None = None

    def rate(self, epoch: float) -> float:
        """Return the learning rate after so many epochs, which may be a fraction."""
        seen = epoch * self._samples
        return learning_rate(self._config, seen, samples=self._samples, global_batch=self.global_batch)

    def step(
        self, batch: Mapping[str, Any], *, lr: float, count: int, last: bool, measure_norm: bool = False
    ) -> Tensor:
        """Add the gradients of this rank's batch to those of the step, and change the weights at its last batch.

        Args:
            batch: the batch; samples that `valid` does not mark count for nothing.
            lr: the learning rate.
            count: the valid samples of the whole step, of all its batches on all ranks.
            last: whether the batch is the step's last one.
            measure_norm: whether to measure the norm of the gradients, as a step that clips them does anyway.

        Returns:
            Of the batch's valid samples, the sum of the losses and that of the scores, float64 (2,), without waiting
            for the device.
        """
        config, world = self._config, self._job.world
        parallel = self.exchange.parallel
        parallel.train()
        waits = isinstance(parallel, DistributedDataParallel) and not last
        with parallel.no_sync() if waits else nullcontext():  # type: ignore[operator]  # waits says which it is
            outputs, targets, valid = self._outputs(self._forward, batch)
            losses = self._task.losses(outputs, targets, label_smoothing=config.label_smoothing)
            loss = (losses * valid).sum()
            # DDP divides by the number of ranks, which may have different numbers of valid samples.
            scaled = self._scaler.scale(loss * (world.size / count))
            scaled.backward()  # type: ignore[no-untyped-call]  # torch has no hints
        if last:
            self._update(lr, measure_norm)
            if self.noise is not None:
                self.noise.end_step(whole=count == self.global_batch)
        with torch.no_grad():
            score = (self._task.scores(outputs, targets) * valid).sum()
            return torch.stack((loss.double(), score.double()))

    def finish(self, lr: float) -> None:
        """Apply the gradients that lag behind the last step, if there are any; all ranks must call it."""
        if self.exchange.lagged is not None:
            self._update(lr, measure_norm=False)

    def _update(self, lr: float, measure_norm: bool) -> None:
        lagged = self.exchange.lagged
        if lagged is not None and not lagged.replace(self._scaler.get_scale()):
            self.optimizer.zero_grad(set_to_none=True)
            return
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        clip = self._config.clip_norm
        if clip is not None or measure_norm:
            self._scaler.unscale_(self.optimizer)
        if clip is not None:
            self.gradient_norm = nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        elif measure_norm:
            norms = [weight.grad.norm() for weight in self.model.parameters() if weight.grad is not None]
            self.gradient_norm = torch.stack(norms).norm()
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.exchange.end_step()

    def step_times(self) -> tuple[float, float]:
        """Return the seconds of a recent step: of its passes, and from then until all gradients were added."""
        compute, communication = self.exchange.step_times()
        return compute * self._config.accumulate, communication

    def synthetic_rate(self, batch: Mapping[str, Any]) -> float:
        """Return the samples per second and rank of steps that all take this batch; they change the weights.

        This is what remains of a step when input costs nothing. All ranks must call it; it takes some seconds.
        """
        parts = self._config.accumulate

        def seconds(steps: int) -> float:
            begun = time.perf_counter()
            for _ in range(steps):
                for part in range(1, parts + 1):
                    sums = self.step(batch, lr=self._config.lr, count=self.global_batch, last=part == parts)
            float(sums[0])  # waits for the device
            return self._job.largest(time.perf_counter() - begun)[0]

        seconds(5)  # to warm up
        steps = max(5, min(200, round(10.0 / seconds(5))))  # for two seconds
        return steps * self._config.batch_size * parts / seconds(steps)

    def _outputs(self, model: Callable[[Tensor], Tensor], batch: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return a model's outputs for a batch, float32, its targets, and which samples count."""
        task, device = self._task, self._job.device
        inputs = batch[task.inputs].to(device)
        if self._config.channels_last:
            inputs = inputs.contiguous(memory_format=_LAST[inputs.ndim])
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self._config.precision)
        inputs = task.prepare(inputs)
        with nullcontext() if dtype is None else torch.autocast(device.type, dtype):
            outputs = model(inputs)
        return outputs.float(), batch[task.targets].to(device), batch["valid"].to(device)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Mapping[str, Any]]) -> Evaluation:
        """Evaluate the model, or the average of its weights, on all samples that `valid` marks; all ranks must call it.

        Sums, not means, are added over the ranks, so the counts equal those of a single process.
        """
        model, job = self.model if self.average is None else self.average, self._job
        if job.world.size > 1:  # each rank keeps running means and variances of its own samples: take those of rank 0
            for buffer in self.model.buffers():
                dist.broadcast(buffer, 0)
        if self.average is not None:
            for mine, theirs in zip(self.average.module.buffers(), self.model.buffers(), strict=True):
                mine.copy_(theirs)
        model.eval()
        score, loss, count = torch.zeros(3, dtype=torch.float64, device=job.device).unbind()
        for batch in batches:
            outputs, targets, valid = self._outputs(model, batch)
            score += (self._task.scores(outputs, targets) * valid).double().sum()
            loss += (self._task.losses(outputs, targets) * valid).double().sum()
            count += valid.sum()
        total_score, total_loss, total_count = job.total(float(score), float(loss), float(count))
        return Evaluation(total_score / total_count, round(total_count), total_loss / total_count)

    def state(self) -> dict[str, dict[str, Any]]:
        """Return the learner's part of a checkpoint, on rank 0; all ranks must call it."""
        job = self._job
        cuda = torch.cuda.get_rng_state(job.device) if job.device.type == "cuda" else torch.empty(0, dtype=torch.uint8)
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "average": {} if self.average is None else self.average.state_dict(),
            "hook": self.exchange.state(),
            "random": {"cpu": job.gather(torch.get_rng_state()), "cuda": job.gather(cuda)},
        }

    def restore(self, saved: Checkpoint) -> str | None:
        """Load the learner's part of a checkpoint; all hyperparameters stay those of this run.

        A run with `ema` goes on with the checkpoint's average, or begins one with its weights. On another number of
        ranks, random numbers and the memory of PowerSGD begin anew.

        Returns:
            What of the exchange's memory is left out, in words, or None.

        Raises RuntimeError or ValueError, as torch does, if it belongs to another model.
        """
        if not all(isinstance(name, str) for name in (*saved.model, *saved.average)):
            raise ValueError("the names of its weights must be text")
        self.model.load_state_dict(saved.model)
        groups, state = self.optimizer.state_dict()["param_groups"], saved.optimizer.get("state")
        check_optimizer_state(state, [p for group in self.optimizer.param_groups for p in group["params"]])
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        if self._scaler.is_enabled() and saved.scaler:
            self._scaler.load_state_dict(dict(saved.scaler))
        if self.average is not None and saved.average:
            self.average.load_state_dict(saved.average)
        elif self.average is not None:
            self.average.module.load_state_dict(self.model.state_dict())
        self._restore_random(saved.random, saved.place.step)
        return self.exchange.restore(saved.hook, saved.place.step)

    def _restore_random(self, state: Mapping[str, Any], steps: int) -> None:
        job, length = self._job, torch.get_rng_state().numel()
        rank, ranks = job.world.rank, job.world.size
        cpu = _random_states(state.get("cpu"), "cpu", length)
        cuda = _random_states(state.get("cuda"), "cuda", 0, _CUDA_RANDOM_BYTES)
        if len(cpu) != ranks or len(cuda) != ranks:  # numbers of other ranks than these: take new ones
            torch.manual_seed(hash((self._config.seed, ranks, rank, steps)) % (1 << 63))
            return
        torch.set_rng_state(cpu[rank].clone())  # torch needs it at the start of its memory
        if job.device.type == "cuda" and cuda.numel():
            torch.cuda.set_rng_state(cuda[rank].clone(), job.device)


def _random_states(states: Any, name: str, *lengths: int) -> Tensor:
    """Return the states of each rank's random numbers; raise ValueError if they are of another form or size."""
    if not isinstance(states, Tensor) or states.dtype != torch.uint8 or states.ndim != 2:
        raise ValueError(f"the random numbers of {name} must be bytes with a row for each rank")
    if states.shape[1] not in lengths:
        raise ValueError(f"the random numbers of {name} must have {lengths} bytes, got {states.shape[1]}")
    return states


def _averaged(model: nn.Module, optimizer: torch.optim.Optimizer, average: AveragedModel | None) -> Iterator[Tensor]:
    """Yield what local SGD averages over the ranks."""
    for module in (model, *(() if average is None else (average.module,))):
        yield from module.parameters()
        yield from (buffer for buffer in module.buffers() if buffer.is_floating_point())
    for weight, values in optimizer.state.items():
        for name, value in values.items():  # not the steps: ranks share them, maybe in host memory
            if name != "step" and isinstance(value, Tensor) and value.shape == weight.shape:
                yield value
