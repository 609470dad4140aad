"""PowerSGD: gradients sent as products of two thin matrices (Vogels et al. 2019, arXiv:1905.13727), as torch does it.

What an approximation leaves out, the error, is added to the rank's gradients of the next step. So the errors, which
differ by rank, and the thin matrices, from which the next approximation begins, are part of a checkpoint.
"""

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch exports it
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from .config import TrainConfig
from .distributed import Job


@final
class PowerSgd:
    """PowerSGD's hook and its memory.

    Args:
        config: the configuration of the run.
        job: this process's place in the job, of at least two ranks.
        weights: how many numbers the model's weights have.
    """

    def __init__(self, config: TrainConfig, job: Job, weights: int) -> None:
        self._job, self._weights = job, weights
        self._layout = {
            "world_size": job.world.size,
            "rank": config.powersgd_rank,
            "bucket_mb": float(config.bucket_mb),
        }
        self._state = powerSGD_hook.PowerSGDState(
            process_group=torch.distributed.group.WORLD,
            matrix_approximation_rank=config.powersgd_rank,
            start_powerSGD_iter=config.powersgd_start,
            random_seed=config.seed,
        )
        self._first_step = True

    def hook(self, state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Return the mean of a bucket of gradients over the ranks, as a communication hook of DDP does."""
        if not self._first_step:
            mean = powerSGD_hook.powerSGD_hook(self._state, bucket)
            if bucket.buffer().device.type == "cpu":
                # Gloo answers whenever it can, and torch sends the second half of a bucket on the answer to the first:
                # two buckets at a time may be sent in another order on another rank, which ends both.
                mean.wait()
            return mean
        # DDP chooses its buckets anew after its first step, so what is remembered of them does not fit before.
        if bucket.is_last():
            self._first_step = False
        self._state.maybe_increase_iter(bucket)  # type: ignore[no-untyped-call]  # torch has no hints
        return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]  # None is the group of all

    def state(self) -> dict[str, Any]:
        """Return what `restore` takes, on rank 0; all ranks must call it."""
        memory = self._state
        return self._layout | {
            "errors": {number: self._job.gather(error) for number, error in sorted(memory.error_dict.items())},
            "p": dict(memory.p_memory_dict),
            "q": dict(memory.q_memory_dict),
        }

    def restore(self, state: Mapping[str, Any], steps: int) -> str | None:
        """Load what `state` returned after so many steps, or begin without it; return why, or None if it was loaded.

        Raises ValueError if it is not what a rank remembers.
        """
        memory = self._state
        memory.iter = steps
        if not state:
            return None
        for name, value in self._layout.items():
            if state.get(name) != value:
                return f"its {name} is {state.get(name)!r} there, {value!r} here"
        errors, p, q = (_by_bucket(state, name) for name in ("errors", "p", "q"))
        if any(error.ndim != 2 or len(error) != self._job.world.size for error in errors.values()):
            raise ValueError("PowerSGD's errors must be matrices with a row for each rank")
        mine = {number: error[self._job.world.rank] for number, error in errors.items()}
        for name, tensors in (("errors", mine), ("p", p), ("q", q)):
            if (size := sum(tensor.numel() for tensor in tensors.values())) > self._weights:
                raise ValueError(f"PowerSGD's {name} must have at most as many numbers as the model, got {size}")
        memory.error_dict, memory.p_memory_dict, memory.q_memory_dict = (
            {number: tensor.to(self._job.device, copy=True) for number, tensor in tensors.items()}
            for tensors in (mine, p, q)
        )
        return None


def _by_bucket(state: Mapping[str, Any], name: str) -> dict[int, Tensor]:
    values = state.get(name)
    if not isinstance(values, dict) or not all(type(number) is int for number in values):
        raise ValueError(f"PowerSGD's {name} must be tensors by bucket")
    if not all(isinstance(value, Tensor) and value.dtype == torch.float32 for value in values.values()):
        raise ValueError(f"PowerSGD's {name} must be float32 tensors")
    return values
