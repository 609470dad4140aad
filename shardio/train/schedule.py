"""The learning rate: its peak for a global batch, linear warm-up, then one of six curves.

All are functions of the samples seen, not of steps, so that the curve is the same for any number of ranks and any batch
size, and a resumed run needs no state; torch's schedulers count steps.
"""

import math
from dataclasses import dataclass

from .config import Curve, Scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Decay:
    """How the learning rate falls. Lengths are in the unit of the steps that `learning_rate` takes.

    Attributes:
        curve: `"cosine"` falls to 0 as half a cosine (Loshchilov and Hutter 2016, arXiv:1608.03983); `"polynomial"` to
            0 as a power of the share that is left (You et al. 2017, arXiv:1708.03888); `"step"` by `factor` at once,
            each `every` (He et al. 2015, arXiv:1512.03385); `"exponential"` by `factor` per `every`, evenly;
            `"inverse-time"` as 1 / (1 + t), to `factor` after the first `every`; `"constant"` stays.
        every: the length of `"step"`, `"exponential"` and `"inverse-time"`.
        factor: what is left after `every`, in (0, 1).
        power: the exponent of `"polynomial"`.
    """

    curve: Curve = "cosine"
    every: float = math.inf
    factor: float = 0.1
    power: float = 2.0


def learning_rate(step: float, *, peak: float, warmup_steps: float, total_steps: float, decay: Decay) -> float:
    """Return the learning rate at `step`.

    It rises linearly from 0 to `peak` over `warmup_steps` (Goyal et al. 2017, arXiv:1706.02677, section 2.2), then
    falls until `total_steps`. The steps of `"step"` are counted from the beginning, those of other curves from the end
    of the warm-up.

    Args:
        step: the progress of training, in the unit of `warmup_steps` and `total_steps`. The trainer counts samples.
        peak: the highest learning rate.
        warmup_steps: the step at which the rate reaches its peak; 0 begins there.
        total_steps: the length of training.
        decay: how the rate falls.
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    past = step - warmup_steps
    share = past / (total_steps - warmup_steps) if step < total_steps else 1.0
    match decay.curve:
        case "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * share))
        case "polynomial":
            return float(peak * (1 - share) ** decay.power)
        case "step":
            return float(peak * decay.factor ** (step // decay.every))
        case "exponential":
            return float(peak * decay.factor ** (past / decay.every))
        case "inverse-time":
            return peak / (1 + (1 / decay.factor - 1) * past / decay.every)
        case _:
            return peak


def scaled_rate(lr: float, *, global_batch: int, reference_batch: int, scaling: Scaling = "linear") -> float:
    """Return the peak rate for a global batch.

    `"linear"` keeps the sum of the steps over an epoch (Goyal et al. 2017, section 2.1), `"sqrt"` the variance of their
    sum (Krizhevsky 2014, arXiv:1404.5997), which suits Adam and LAMB.
    """
    ratio = global_batch / reference_batch
    return lr * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[scaling]
