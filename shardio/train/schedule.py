"""The learning rate schedule: linear warm-up, then half a cosine down to 0."""

import math


def learning_rate(step: float, *, peak: float, warmup_steps: float, total_steps: float) -> float:
    """Return the learning rate at `step`.

    It rises linearly from 0 to `peak` over `warmup_steps` (Goyal et al. 2017, arXiv:1706.02677, section 2.2), then
    falls as half a cosine to 0 at `total_steps` (Loshchilov and Hutter 2016, arXiv:1608.03983), and stays there.

    Args:
        step: the progress of training, in the unit of `warmup_steps` and `total_steps`. The trainer counts samples, so
            that the curve is the same for any number of ranks.
        peak: the highest learning rate.
        warmup_steps: the step at which the rate reaches its peak; 0 begins there.
        total_steps: the step at which the rate reaches 0.
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    if step >= total_steps:
        return 0.0
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / (total_steps - warmup_steps)))


def scaled_rate(lr: float, *, global_batch: int, reference_batch: int) -> float:
    """Return the peak rate for a global batch, linear in its size (Goyal et al. 2017, section 2.1)."""
    return lr * global_batch / reference_batch
