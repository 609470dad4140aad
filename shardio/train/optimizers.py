"""The optimizers of the recipe, for small and for large batches.

Biases and normalization parameters, which are vectors, have no weight decay (Goyal et al. 2017, arXiv:1706.02677,
section 5.3), and no trust ratio.
"""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from ..system.optional import load
from .config import OptimizerName

_BETA2 = 0.999


def make_optimizer(
    name: OptimizerName, model: nn.Module, *, lr: float, momentum: float, weight_decay: float, trust: float
) -> torch.optim.Optimizer:
    """Return an optimizer of the model's trainable parameters.

    Args:
        name: `"sgd"`, with Nesterov momentum; `"adam"`; `"adamw"`; `"lars"` (You et al. 2017, arXiv:1708.03888);
            `"larc"`, which is LARS whose rate is at most that of SGD; `"lamb"` (You et al. 2019, arXiv:1904.00962).
        model: the model.
        lr: the learning rate.
        momentum: the momentum; of Adam, AdamW and LAMB the first beta.
        weight_decay: the weight decay of weights.
        trust: the trust coefficient of LARS and LARC.

    Raises:
        MissingDependency: if `pytorch_optimizer`, which LARS and LAMB come from, is not installed.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in trainable if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trainable if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    betas = (momentum, _BETA2)
    match name:
        case "sgd":
            return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0)
        case "adam":
            return torch.optim.Adam(groups, lr=lr, betas=betas)
        case "adamw":
            return torch.optim.AdamW(groups, lr=lr, betas=betas)
        case "larc":
            return Larc(groups, lr=lr, momentum=momentum, trust_coefficient=trust)
        case "lars":
            lars = _from_pytorch_optimizer(name, "LARS")
            return lars(groups, lr=lr, momentum=momentum, trust_coefficient=trust)
        case "lamb":
            groups[1]["adam"] = True  # its word for a trust ratio of 1
            lamb = _from_pytorch_optimizer(name, "Lamb")
            # As in the paper: decay is part of what the trust ratio scales, and nothing scales the rate after it.
            return lamb(groups, lr=lr, betas=betas, weight_decouple=False, adam_debias=True)


def _from_pytorch_optimizer(name: str, cls: str) -> Callable[..., torch.optim.Optimizer]:
    module = load("pytorch_optimizer", purpose=f"the optimizer {name!r}", extra="train")
    found: Callable[..., torch.optim.Optimizer] = getattr(module, cls)
    return found


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
