"""How the ranks add up their gradients: DDP, its buckets, and its communication hooks."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch exports it
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from .config import TrainConfig
from .distributed import Job
from .local_sgd import LocalSgd
from .noise_scale import Hook, NoiseScaleMeter
from .powersgd import PowerSgd

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
    measured by `meter` if there is one. A single rank exchanges nothing.

    Args:
        model: the model, the same on all ranks.
        config: the configuration of the run.
        job: this process's place in the job.
        shared: returns what local SGD averages: the weights, running statistics and the optimizer's state.
        meter: what measures the gradient noise scale.

    Attributes:
        parallel: the model, wrapped in DDP if there are several ranks.

    Raises ConfigError if nodes are to average among themselves, and have different numbers of ranks.
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
        if config.local_sgd_period is not None:
            self._local = LocalSgd(config, job, shared)
            hook = self._local.hook
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
        forward, backward, sent, overlap = (
            times.get(name, 0) / 1e9
            for name in (
                "forward_compute_time",
                "backward_compute_time",
                "backward_comm_time",
                "backward_compute_comm_overlap_time",
            )
        )
        return forward + backward, sent - overlap

    def end_step(self) -> None:
        """Do what follows a step of the optimizer; all ranks must call it."""
        if self._local is not None:
            self._local.end_step()
            setattr(self.parallel, _SYNC_BUFFERS, self._local.shares_buffers)

    @property
    def agreed(self) -> bool:
        """Whether the models of all ranks are equal."""
        return self._local is None or self._local.agreed

    def agree(self) -> None:
        """Make the models of all ranks equal; all ranks must call it."""
        if self._local is not None:
            self._local.average()

    def state(self) -> dict[str, Any]:
        """Return what `restore` takes, on rank 0; all ranks must call it."""
        return {} if self._powersgd is None else self._powersgd.state()

    def restore(self, state: Mapping[str, Any], steps: int) -> str | None:
        """Load what `state` returned after so many steps; return why not, or None.

        Raises ValueError if it is not what `state` returns.
        """
        if self._local is not None:
            self._local.restore(steps)
            setattr(self.parallel, _SYNC_BUFFERS, self._local.shares_buffers)
        return None if self._powersgd is None else self._powersgd.restore(state, steps)


def _bf16_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """torch's hook, which DDP admits by its name for NCCL only, though gloo adds bfloat16 as well."""
    return default_hooks.bf16_compress_hook(state, bucket)
