"""One optimiser step, and one exact evaluation: a model, its optimiser and the ranks that share the work."""

from collections.abc import Iterable, Mapping
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
    """A model's mistakes on a validation set, over all ranks.

    Attributes:
        correct: samples whose highest score is that of their label.
        count: samples.
        loss: mean cross-entropy, without label smoothing.
    """

    correct: int
    count: int
    loss: float

    @property
    def accuracy(self) -> float:
        """The share that is correct, 0 to 1."""
        return self.correct / self.count


@final
class Learner:
    """A model that all ranks train together: each on its own samples, with the mean of all gradients.

    Args:
        config: the run's.
        job: this process's place.
        model: on the job's device, the same on all ranks.
        samples: samples in the training set.
    """

    def __init__(self, config: TrainConfig, job: Job, model: nn.Module, samples: int) -> None:
        self.model = model
        self._config = config
        self._samples = samples
        self._global_batch = job.world.size * config.batch_size
        self._device = job.device
        self.optimizer = torch.optim.SGD(
            _groups(model, config.weight_decay), lr=config.lr, momentum=config.momentum, nesterov=config.momentum > 0
        )
        devices = [job.device] if job.device.type == "cuda" else None
        self._parallel = DistributedDataParallel(model, device_ids=devices) if job.world.size > 1 else model

    def rate(self, epoch: int, samples: int) -> float:
        """The learning rate of the step that begins `samples` into `epoch`, taken at the step's middle."""
        config = self._config
        return learning_rate(
            epoch * self._samples + samples + self._global_batch / 2,
            peak=scaled_rate(config.lr, global_batch=self._global_batch, reference_batch=config.lr_reference_batch),
            warmup_steps=config.warmup_epochs * self._samples,
            total_steps=config.epochs * self._samples,
        )

    def step(self, batch: Mapping[str, Any], lr: float) -> Tensor:
        """Trains on this rank's batch; gives its mean loss, float64 (), without waiting for the device."""
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
        """Takes over a checkpoint's weights and momentum; all settings stay this run's own.

        Raises RuntimeError or ValueError, as torch does, if they are of another model.
        """
        self.model.load_state_dict(model)
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": optimizer["state"], "param_groups": groups})


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Mapping[str, Any]], job: Job) -> Evaluation:
    """Evaluates on all samples that `valid` marks, each of them once. All ranks must call it.

    Sums are added over the ranks, not means, so the counts are those that one process alone would find.
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
    right, all_samples, all_loss = job.total(float(correct), float(count), float(loss))
    return Evaluation(int(right), int(all_samples), all_loss / all_samples)


def _inputs(batch: Mapping[str, Any], device: torch.device) -> tuple[Tensor, Tensor]:
    return batch["image"].to(device), batch["label"].to(device).long()


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    # Biases and normalisation's parameters are vectors; decaying them only hurts (Goyal et al. 2017, section 5.3).
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
