"""A model and its optimizer: one training step, and an exact evaluation over all ranks."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..errors import ConfigError
from .config import TrainConfig
from .distributed import Job
from .gradient_exchange import distribute
from .noise_scale import NoiseScaleMeter
from .optimizers import make_optimizer
from .schedule import Decay, learning_rate, scaled_rate


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The performance of a model on a validation set, over all ranks.

    Attributes:
        correct: number of samples whose highest score is that of their label.
        count: number of samples.
        loss: mean cross-entropy, without label smoothing.
    """

    correct: int
    count: int
    loss: float

    @property
    def accuracy(self) -> float:
        """The share of correct samples, 0 to 1."""
        return self.correct / self.count


@final
class Learner:
    """A model that all ranks train together: each on its own samples, with the mean of the gradients of all samples.

    Args:
        config: the configuration of the run.
        job: this process's place in the job.
        model: the model on the job's device, the same on all ranks.
        samples: number of samples in the training set.

    Attributes:
        model: the model that is trained, without what distributes or compiles it.
        average: the moving average of its weights; None without one.
        noise: what measures the gradient noise scale; None unless the configuration asks for it.

    Raises ConfigError for what the job's device cannot do.
    """

    def __init__(self, config: TrainConfig, job: Job, model: nn.Module, samples: int) -> None:
        if config.sync_batchnorm and job.device.type != "cuda":
            raise ConfigError("sync_batchnorm needs GPUs: torch has no synchronized batch normalization for CPUs")
        if config.measure_noise_scale and job.world.size == 1:
            raise ConfigError("measure_noise_scale needs at least 2 ranks: it compares their gradients with the mean")
        self._config, self._job, self._samples = config, job, samples
        self.global_batch = job.world.size * config.batch_size * config.accumulate
        if config.sync_batchnorm:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]  # torch has no hints
        if config.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's hints lack it
        self.model = model
        self.optimizer = make_optimizer(
            config.optimizer,
            model,
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            trust=config.trust_coefficient,
        )
        self.average = None
        if config.ema is not None:
            average = get_ema_multi_avg_fn(config.ema)  # type: ignore[no-untyped-call]  # torch has no hints
            self.average = AveragedModel(model, multi_avg_fn=average)
        self._scaler = torch.amp.GradScaler(job.device.type, enabled=config.precision == "fp16")
        self.noise = NoiseScaleMeter(job, config.batch_size * config.accumulate) if config.measure_noise_scale else None
        self._parallel = distribute(model, config, job, self.noise)
        self._forward = torch.compile(self._parallel) if config.compile else self._parallel
        self._decay = Decay(
            curve=config.lr_schedule,
            every=samples * (config.epochs / 3 if config.lr_decay_epochs is None else config.lr_decay_epochs),
            factor=config.lr_decay_factor,
            power=config.lr_power,
        )

    def rate(self, epoch: int, samples: int, count: int) -> float:
        """Return the learning rate at the middle of a step of `count` samples that begins `samples` into `epoch`."""
        config = self._config
        peak = scaled_rate(
            config.lr,
            global_batch=self.global_batch,
            reference_batch=config.lr_reference_batch,
            scaling=config.lr_scaling,
        )
        return learning_rate(
            epoch * self._samples + samples + count / 2,
            peak=peak,
            warmup_steps=config.warmup_epochs * self._samples,
            total_steps=config.epochs * self._samples,
            decay=self._decay,
        )

    def step(self, batch: Mapping[str, Any], *, lr: float, count: int, last: bool) -> Tensor:
        """Add the gradients of this rank's batch to those of the step, and change the weights at its last batch.

        Args:
            batch: the batch; samples that `valid` does not mark count for nothing.
            lr: the learning rate.
            count: the valid samples of the whole step, of all its batches on all ranks.
            last: whether the batch is the step's last one.

        Returns:
            The sum of the losses of the batch's valid samples, float64 (), without waiting for the device.
        """
        config, world = self._config, self._job.world
        self._parallel.train()
        images, labels = self._inputs(batch)
        valid = batch["valid"].to(self._job.device)
        parallel = self._parallel
        waits = isinstance(parallel, DistributedDataParallel) and not last
        with parallel.no_sync() if waits else nullcontext():  # type: ignore[operator]  # waits says which it is
            with self._autocast():
                scores = self._forward(images)
            losses = functional.cross_entropy(
                scores.float(), labels, reduction="none", label_smoothing=config.label_smoothing
            )
            loss = (losses * valid).sum()
            # DDP divides by the number of ranks, which may have different numbers of valid samples.
            self._scaler.scale(loss * (world.size / count)).backward()
        if last:
            self._update(lr)
            if self.noise is not None:
                self.noise.end_step(whole=count == self.global_batch)
        total: Tensor = loss.detach().double()
        return total

    def _update(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if self._config.clip_norm is not None:
            self._scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self._config.clip_norm)
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update_parameters(self.model)

    def _inputs(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        images = batch["image"].to(self._job.device)
        layout = torch.channels_last if self._config.channels_last else torch.contiguous_format
        return images.contiguous(memory_format=layout), batch["label"].to(self._job.device).long()

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._config.precision == "float32":
            return nullcontext()
        dtype = torch.bfloat16 if self._config.precision == "bf16" else torch.float16
        return torch.autocast(self._job.device.type, dtype)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Mapping[str, Any]]) -> Evaluation:
        """Evaluate the model, or the average of its weights, on all samples that `valid` marks; all ranks must call it.

        Sums, not means, are added over the ranks, so the counts equal those of a single process.
        """
        model, job = self.model if self.average is None else self.average, self._job
        job.share_buffers(self.model)
        if self.average is not None:
            for mine, theirs in zip(self.average.module.buffers(), self.model.buffers(), strict=True):
                mine.copy_(theirs)
        model.eval()
        correct = torch.zeros((), dtype=torch.float64, device=job.device)
        count, loss = torch.zeros_like(correct), torch.zeros_like(correct)
        for batch in batches:
            images, labels = self._inputs(batch)
            valid = batch["valid"].to(job.device)
            with self._autocast():
                scores = model(images)
            scores = scores.float()
            correct += ((scores.argmax(dim=1) == labels) & valid).sum()
            loss += (functional.cross_entropy(scores, labels, reduction="none") * valid).double().sum()
            count += valid.sum()
        total_correct, total_count, total_loss = job.total(float(correct), float(count), float(loss))
        return Evaluation(int(total_correct), int(total_count), total_loss / total_count)

    def state(self) -> dict[str, dict[str, Any]]:
        """Return what `restore` takes."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "average": {} if self.average is None else self.average.state_dict(),
        }

    def restore(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Load what `state` returned; all hyperparameters stay those of this run.

        A run with `ema` goes on with the checkpoint's average, or begins one with its weights.

        Raises RuntimeError or ValueError, as torch does, if it belongs to another model.
        """
        if not all(isinstance(name, str) for name in (*state["model"], *state["average"])):
            raise ValueError("the names of its weights must be text")
        self.model.load_state_dict(state["model"])
        optimizer, groups = state["optimizer"], self.optimizer.state_dict()["param_groups"]
        _check_optimizer_state(
            optimizer.get("state"), [p for group in self.optimizer.param_groups for p in group["params"]]
        )
        self.optimizer.load_state_dict({"state": optimizer["state"], "param_groups": groups})
        if self._scaler.is_enabled() and state["scaler"]:
            self._scaler.load_state_dict(dict(state["scaler"]))
        if self.average is not None and state["average"]:
            self.average.load_state_dict(state["average"])
        elif self.average is not None:
            self.average.module.load_state_dict(self.model.state_dict())


def _check_optimizer_state(state: Any, parameters: Sequence[Tensor]) -> None:
    """Raise ValueError unless `state` fits the parameters: torch checks no shapes, and fails at the first step."""
    if not isinstance(state, dict):
        raise ValueError(f"the optimizer's state must be a mapping, got {type(state).__name__}")
    for number, values in state.items():
        if type(number) is not int or not 0 <= number < len(parameters) or not isinstance(values, dict):
            raise ValueError(f"the optimizer's state of parameter {number!r} is of no parameter here")
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape not in ((), parameters[number].shape):
                raise ValueError(
                    f"the optimizer's {name} of parameter {number} must have the shape "
                    f"{list(parameters[number].shape)}, got {list(value.shape)}"
                )
