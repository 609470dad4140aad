"""A model and its optimizer: one training step, and an exact evaluation over all ranks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from .config import TrainConfig
from .distributed import Job
from .schedule import learning_rate, scaled_rate


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
    """A model that all ranks train together: each on its own samples, with the mean of all gradients.

    Args:
        config: the configuration of the run.
        job: this process's place in the job.
        model: the model on the job's device, the same on all ranks.
        samples: number of samples in the training set.
    """

    def __init__(self, config: TrainConfig, job: Job, model: nn.Module, samples: int) -> None:
        self.model = model
        self._config = config
        self._samples = samples
        self._global_batch = job.world.size * config.batch_size
        self._device = job.device
        self.optimizer = torch.optim.SGD(
            _parameter_groups(model, config.weight_decay),
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.momentum > 0,
        )
        devices = [job.device] if job.device.type == "cuda" else None
        self._parallel = DistributedDataParallel(model, device_ids=devices) if job.world.size > 1 else model

    def rate(self, epoch: int, samples: int) -> float:
        """Return the learning rate at the middle of the step that begins `samples` into `epoch`."""
        config = self._config
        return learning_rate(
            epoch * self._samples + samples + self._global_batch / 2,
            peak=scaled_rate(config.lr, global_batch=self._global_batch, reference_batch=config.lr_reference_batch),
            warmup_steps=config.warmup_epochs * self._samples,
            total_steps=config.epochs * self._samples,
        )

    def step(self, batch: Mapping[str, Any], lr: float) -> Tensor:
        """Train on this rank's batch; return its mean loss, float64 (), without waiting for the device."""
        self._parallel.train()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        images, labels = _inputs(batch, self._device)
        loss = functional.cross_entropy(self._parallel(images), labels, label_smoothing=self._config.label_smoothing)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach().double()

    def restore(self, model: Mapping[str, Any], optimizer: Mapping[str, Any]) -> None:
        """Load the weights and the momentum of a checkpoint; all hyperparameters stay those of this run.

        Raises RuntimeError or ValueError, as torch does, if they belong to another model.
        """
        if not all(isinstance(name, str) for name in model):
            raise ValueError("the names of its weights must be text")
        self.model.load_state_dict(model)
        groups = self.optimizer.state_dict()["param_groups"]
        _check_optimizer_state(
            optimizer.get("state"), [p for group in self.optimizer.param_groups for p in group["params"]]
        )
        self.optimizer.load_state_dict({"state": optimizer["state"], "param_groups": groups})


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Mapping[str, Any]], job: Job) -> Evaluation:
    """Evaluate the model on all samples that `valid` marks. All ranks must call it.

    Sums, not means, are added over the ranks, so the counts equal those of a single process.
    """
    job.share_buffers(model)
    model.eval()
    correct = torch.zeros((), dtype=torch.float64, device=job.device)
    count, loss = torch.zeros_like(correct), torch.zeros_like(correct)
    for batch in batches:
        images, labels = _inputs(batch, job.device)
        valid = batch["valid"].to(job.device)
        scores = model(images)
        correct += ((scores.argmax(dim=1) == labels) & valid).sum()
        loss += (functional.cross_entropy(scores, labels, reduction="none") * valid).double().sum()
        count += valid.sum()
    total_correct, total_count, total_loss = job.total(float(correct), float(count), float(loss))
    return Evaluation(int(total_correct), int(total_count), total_loss / total_count)


def _inputs(batch: Mapping[str, Any], device: torch.device) -> tuple[Tensor, Tensor]:
    return batch["image"].to(device), batch["label"].to(device).long()


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


def _parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    # Biases and normalization parameters are vectors; weight decay only hurts them (Goyal et al. 2017, section 5.3).
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in trainable if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trainable if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
