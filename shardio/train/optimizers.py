"""The optimizers of the recipe, for small and for large batches, and the learning rate.

Biases and normalization parameters, which are vectors, have no weight decay (Goyal et al. 2017, arXiv:1706.02677,
section 5.3), and no trust ratio.
"""

import math
from collections.abc import Sequence
from types import NoneType
from typing import Any, final

import torch
from torch import Tensor, nn

from ..system.optional import load
from .config import TrainConfig

_BETA2 = 0.999


def make_optimizer(config: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of the model's trainable parameters that a configuration names.

    These are `"sgd"`, with Nesterov momentum; `"adam"`; `"adamw"`; `"lars"` (You et al. 2017, arXiv:1708.03888);
    `"larc"`, which is LARS whose rate is at most that of SGD; `"lamb"` (You et al. 2019, arXiv:1904.00962).

    Raises MissingDependency if `pytorch_optimizer`, which LARS and LAMB come from, is not installed.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in trainable if parameter.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [parameter for parameter in trainable if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    name, lr, momentum, betas = config.optimizer, config.lr, config.momentum, (config.momentum, _BETA2)
    match name:
        case "sgd":
            return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0)
        case "adam":
            return torch.optim.Adam(groups, lr=lr, betas=betas)
        case "adamw":
            return torch.optim.AdamW(groups, lr=lr, betas=betas)
        case "larc":
            return Larc(groups, lr=lr, momentum=momentum, trust_coefficient=config.trust_coefficient)
    others: Any = load("pytorch_optimizer", purpose=f"the optimizer {name!r}", extra="train")
    made: torch.optim.Optimizer
    if name == "lars":
        made = others.LARS(groups, lr=lr, momentum=momentum, trust_coefficient=config.trust_coefficient)
    else:
        groups[1]["adam"] = True  # its word for a trust ratio of 1
        # As in the paper: decay is part of what the trust ratio scales, and nothing scales the rate after it.
        made = others.Lamb(groups, lr=lr, betas=betas, weight_decouple=False, adam_debias=True)
    return made


@final
class Larc(torch.optim.SGD):
    """SGD with the rate of each weight clipped by its trust ratio.

    The gradient `g` of a weight `w` becomes `(g + decay * w) * min(trust * |w| / (|g| + decay * |w|) / lr, 1)`. Then
    SGD adds it to the momentum. Vectors keep the plain gradient.

    Source: LARC of NVIDIA Apex, with `clip=True`; its denominator is that of LARS.

    Args:
        params: groups of parameters.
        lr: the learning rate.
        momentum: the momentum; not Nesterov's.
        trust_coefficient: the share of a weight's norm that a step may change.
    """

    def __init__(self, params: Any, lr: float, momentum: float, trust_coefficient: float) -> None:
        super().__init__(params, lr=lr, momentum=momentum)
        for group in self.param_groups:
            group["trust_coefficient"] = trust_coefficient

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Do a step of the optimizer."""
        decays = [group["weight_decay"] for group in self.param_groups]
        for group, decay in zip(self.param_groups, decays, strict=True):
            weights = [p for p in group["params"] if p.grad is not None and p.ndim > 1]
            for weight in weights:
                _clip_rate(weight, decay, group["lr"], group["trust_coefficient"])
            if weights:
                group["weight_decay"] = 0.0  # the gradients hold it already
        try:
            return super().step(closure)
        finally:
            for group, decay in zip(self.param_groups, decays, strict=True):
                group["weight_decay"] = decay


def _clip_rate(weight: Tensor, decay: float, lr: float, trust: float) -> None:
    assert weight.grad is not None
    norm, gradient = torch.linalg.vector_norm(weight), torch.linalg.vector_norm(weight.grad)
    denominator = gradient + decay * norm
    lr = max(lr, 1e-30)
    rate = torch.where((norm > 0) & (denominator > 0), trust * norm / denominator, lr)
    weight.grad.add_(weight, alpha=decay).mul_((rate / lr).clamp(max=1.0))


def learning_rate(config: TrainConfig, seen: float, *, samples: int, global_batch: int) -> float:
    """Return the learning rate after so many samples of training.

    It rises linearly to a peak (Goyal et al. 2017, arXiv:1706.02677, section 2.2), then falls until the end. All are
    functions of the samples seen, not of steps, so that the curve is the same for any number of ranks and any batch
    size, and a resumed run needs no state; torch's schedulers count steps.

    The peak follows the global batch: `"linear"` keeps the sum of the steps over an epoch (section 2.1), `"sqrt"` the
    variance of their sum (Krizhevsky 2014, arXiv:1404.5997), which suits Adam and LAMB.

    `"cosine"` falls to 0 as half a cosine (Loshchilov and Hutter 2016, arXiv:1608.03983); `"polynomial"` to 0 as a
    power of the share that is left (You et al. 2017, arXiv:1708.03888); `"step"` by `lr_decay_factor` at once, each
    `lr_decay_epochs` from the beginning (He et al. 2015, arXiv:1512.03385); `"exponential"` by the factor per
    `lr_decay_epochs`, evenly; `"inverse-time"` as 1 / (1 + t), to the factor after the first `lr_decay_epochs`;
    `"constant"` stays. All but `"step"` count from the end of the warm-up.

    Args:
        config: the configuration of the run.
        seen: the samples that training has seen.
        samples: number of samples in the training set.
        global_batch: the samples of a step, of all ranks.
    """
    ratio = global_batch / config.lr_reference_batch
    peak = config.lr * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[config.lr_scaling]
    warmup, total = config.warmup_epochs * samples, config.epochs * samples
    if seen < warmup:
        return peak * seen / warmup
    past = seen - warmup
    share = past / (total - warmup) if seen < total else 1.0
    every = samples * (config.epochs / 3 if config.lr_decay_epochs is None else config.lr_decay_epochs)
    match config.lr_schedule:
        case "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * share))
        case "polynomial":
            return float(peak * (1 - share) ** config.lr_power)
        case "step":
            return float(peak * config.lr_decay_factor ** (seen // every))
        case "exponential":
            return float(peak * config.lr_decay_factor ** (past / every))
        case "inverse-time":
            return peak / (1 + (1 / config.lr_decay_factor - 1) * past / every)
        case "constant":
            return peak


def check_optimizer_state(state: Any, parameters: Sequence[Tensor]) -> None:
    """Raise ValueError unless `state` fits the parameters: torch checks no shapes, and fails at the first step."""
    if not isinstance(state, dict):
        raise ValueError(f"the optimizer's state must be a mapping, got {type(state).__name__}")
    for number, values in state.items():
        if type(number) is not int or not 0 <= number < len(parameters) or not isinstance(values, dict):
            raise ValueError(f"the optimizer's state of parameter {number!r} is of no parameter here")
        for name, value in values.items():
            shape, plain = parameters[number].shape, isinstance(value, (int, float, NoneType))
            if not plain and not (isinstance(value, Tensor) and value.shape in ((), shape)):
                raise ValueError(f"the optimizer's {name} of parameter {number} must be numbers of shape {list(shape)}")
