"""How the ranks add up their gradients: DDP, its buckets, and its communication hooks."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch exports it
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .config import TrainConfig
from .distributed import Job
from .noise_scale import Hook, NoiseScaleMeter


def distribute(model: nn.Module, config: TrainConfig, job: Job, meter: NoiseScaleMeter | None = None) -> nn.Module:
    """Return the model with gradients that are the mean over all ranks; the model itself for a single rank.

    Gradients are sent while the backward pass goes on, in buckets of `config.bucket_mb`, through `config.hook`, and are
    measured by `meter` if there is one.
    """
    if job.world.size == 1:
        return model
    parallel = DistributedDataParallel(
        model,
        device_ids=[job.device] if job.device.type == "cuda" else None,
        bucket_cap_mb=config.bucket_mb,
        gradient_as_bucket_view=True,
    )
    state, hook = _hook(config)
    if meter is not None:
        parallel.register_comm_hook(state, meter.watching(hook))
    elif config.hook != "none":  # without a hook, DDP adds gradients in C++
        parallel.register_comm_hook(state, hook)
    return parallel


def _hook(config: TrainConfig) -> tuple[Any, Hook]:
    """Return a communication hook and its state."""
    match config.hook:
        case "fp16":
            return None, default_hooks.fp16_compress_hook
        case "bf16":
            return None, _bf16_hook
        case "powersgd":
            state = powerSGD_hook.PowerSGDState(
                process_group=torch.distributed.group.WORLD,
                matrix_approximation_rank=config.powersgd_rank,
                start_powerSGD_iter=config.powersgd_start,
                random_seed=config.seed,
            )
            return state, powerSGD_hook.powerSGD_hook
        case _:
            return None, default_hooks.allreduce_hook


def _bf16_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """torch's hook, which DDP admits by its name for NCCL only, though gloo adds bfloat16 as well."""
    return default_hooks.bf16_compress_hook(state, bucket)
