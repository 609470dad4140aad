"""The sum of the ranks' gradients: DDP, its buckets and communication hooks, PowerSGD; and what takes its place.

PowerSGD sends gradients as products of two thin matrices (Vogels et al. 2019, arXiv:1905.13727), as torch does it. What
an approximation leaves out, the error, is added to the rank's gradients of the next step. So the errors, which differ
by rank, and the thin matrices, from which the next approximation begins, are part of a checkpoint.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch exports it
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .config import TrainConfig
from .distributed import Job
from .lagged_gradients import LaggedGradients
from .local_sgd import LocalSgd
from .noise_scale import Hook, NoiseScaleMeter

# Whether buffers are sent before each forward pass: torch renames the option, and warns of the old name.
_SYNC_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel.__init__).parameters
)


@final
class GradientExchange:
    """Keeps the copies of a model that the ranks train one model.

    Gradients are sent while the backward pass goes on, in buckets of `config.bucket_mb`, through `config.hook`, and are
    measured by `meter` if there is one. A single rank exchanges nothing. `shared` returns what local SGD averages: the
    weights, running statistics and the optimizer's state.

    Attributes:
        parallel: the model, wrapped in DDP if there are several ranks.
        lagged: what applies gradients a step late; None unless the configuration asks for it.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        job: Job,
        shared: Callable[[], Iterable[Tensor]],
        meter: NoiseScaleMeter | None = None,
    ) -> None:
        self.parallel = model
        self._powersgd: PowerSgd | None = None
        self._local: LocalSgd | None = None
        compressed = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(config.hook)
        self.lagged = LaggedGradients(model, job, compressed) if config.gradient_lag else None
        if config.local_sgd_period is not None and (job.world.size > 1 or config.outer_optimizer != "none"):
            self._local = LocalSgd(config, job, model.parameters(), shared)
        if job.world.size == 1:
            return
        hook: Hook | None = None
        match config.hook:
            case "fp16":
                hook = default_hooks.fp16_compress_hook
            case "bf16":
                hook = _bf16_hook
            case "powersgd":
                self._powersgd = PowerSgd(config, job, sum(weight.numel() for weight in model.parameters()))
                hook = self._powersgd.hook
        if self._local is not None:
            hook = self._local.hook
        if self.lagged is not None:
            hook = self.lagged.hook
        if meter is not None:
            hook = meter.watching(hook or default_hooks.allreduce_hook)
        options: Any = {_SYNC_BUFFERS: self._local is None or self._local.shares_buffers}
        self.parallel = parallel = DistributedDataParallel(
            model,
            device_ids=[job.device] if job.device.type == "cuda" else None,
            bucket_cap_mb=config.bucket_mb,
            gradient_as_bucket_view=True,
            **options,
        )
        set_rate: Any = parallel._set_ddp_runtime_logging_sample_rate  # torch has no hints
        set_rate(config.metrics_every_steps)
        if hook is not None:  # without a hook, DDP adds gradients in C++
            parallel.register_comm_hook(None, hook)

    def step_times(self) -> tuple[float, float]:
        """Return the seconds of a recent step: of its passes, and from then until all gradients were added.

        They are zeros for a single rank, and before the first step that DDP has measured.
        """
        if not isinstance(self.parallel, DistributedDataParallel):
            return 0.0, 0.0
        times = self.parallel._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # torch has no hints
        names = ("forward_compute_time", "backward_compute_time", "backward_comm_time")
        forward, backward, sent, overlap = (
            times.get(name, 0) / 1e9 for name in (*names, "backward_compute_comm_overlap_time")
        )
        late = 0.0 if self.lagged is None else self.lagged.waited
        return forward + backward, sent - overlap + late

    def end_step(self) -> None:
        """Do what follows a step of the optimizer; all ranks must call it."""
        if self._local is not None:
            self._local.end_step()
            self._share_buffers(self._local)

    def _share_buffers(self, local: LocalSgd) -> None:
        if isinstance(self.parallel, DistributedDataParallel):
            setattr(self.parallel, _SYNC_BUFFERS, local.shares_buffers)

    @property
    def agreed(self) -> bool:
        """Whether the models of all ranks are equal."""
        return self._local is None or self._local.agreed

    def ready_for_checkpoint(self) -> bool:
        """Return whether the models of all ranks are equal, maybe after making them so; all ranks must call it."""
        return self._local is None or self._local.ready_for_checkpoint()

    def agree(self) -> None:
        """Make the models of all ranks equal; all ranks must call it."""
        if self._local is not None:
            self._local.average()

    def state(self) -> dict[str, Any]:
        """Return what `restore` takes, on rank 0; all ranks must call it."""
        held = self._powersgd or self.lagged or self._local
        return {} if held is None else held.state()

    def restore(self, state: Mapping[str, Any], steps: int) -> str | None:
        """Load what `state` returned after so many steps; return what of it is not loaded, in words, or None.

        Raises ValueError if it is not what `state` returns.
        """
        if self._local is not None:
            self._local.restore(state, steps)
            self._share_buffers(self._local)
        lost: list[str] = []
        if self.lagged is not None:
            self.lagged.restore(state)
        elif state.get("lagged"):
            lost.append("the gradients of its last step are left out: they are for gradient_lag=1")
        if self._powersgd is not None and (reason := self._powersgd.restore(state, steps)) is not None:
            lost.append(f"the memory of PowerSGD begins anew: {reason}")
        return "; ".join(lost) or None


def _bf16_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """torch's hook, which DDP admits by its name for NCCL only, though gloo adds bfloat16 as well."""
    return default_hooks.bf16_compress_hook(state, bucket)


@final
class PowerSgd:
    """PowerSGD's hook and its memory, for a model of so many weights, on at least two ranks."""

    def __init__(self, config: TrainConfig, job: Job, weights: int) -> None:
        self._job, self._weights = job, weights
        self._layout = {
            "world_size": job.world.size,
            "rank": config.powersgd_rank,
            "bucket_mb": float(config.bucket_mb),
        }
        self._state = powerSGD_hook.PowerSGDState(
            process_group=dist.group.WORLD,
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
        if state.keys().isdisjoint(self._layout):  # of a run without PowerSGD
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
