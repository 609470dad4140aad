"""Gradients that are applied one step late, so that the ranks add them up while the next step computes.

This is the lag-synchronous gradient (Kurth et al. 2018, arXiv:1810.01993), also called stale-synchronous or pipelined:
step k + 1 applies the mean gradient of step k to weights that have changed once since it was computed. The ranks stay
equal. The first step applies nothing; what the last one sends is applied at the end of the run.

DDP chooses its buckets anew after its first step, so what is in flight is kept by parameter, not by bucket.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch exports it

from .distributed import Job


class _Sent(NamedTuple):
    """Gradients in flight: what the ranks add up, and the part of each parameter, which is the mean once it's done."""

    work: dist.Work | None
    means: Sequence[tuple[Tensor, Tensor]]


@final
class LaggedGradients:
    """The communication hook that sends gradients, and what is in flight.

    Args:
        model: the model.
        job: the ranks.
        dtype: what gradients are sent as; None: as they are.

    Attributes:
        waited: the seconds that the last step has waited for the means; a GPU waits by itself, which is not counted.
    """

    def __init__(self, model: nn.Module, job: Job, dtype: torch.dtype | None) -> None:
        self._parameters = dict(model.named_parameters())
        self._ranks, self._dtype = job.world.size, dtype
        # A group of its own: what is sent in the forward pass, such as running statistics, needn't wait for gradients.
        self._group = dist.new_group(timeout=job.timeout) if self._ranks > 1 else None
        self._sent: list[_Sent] = []  # in this step
        self._in_flight: list[_Sent] = []  # since the step before
        self._scale = 1.0  # of what is in flight
        self.waited = 0.0

    def hook(self, state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Begin to add up a copy of a bucket over the ranks, and return the bucket as it is."""
        buffer = bucket.buffer()
        mean = buffer.to(self._dtype or buffer.dtype, copy=True).div_(self._ranks)
        begin, means = buffer.storage_offset(), list[tuple[Tensor, Tensor]]()
        for parameter in bucket.parameters():
            own = parameter.grad  # part of the bucket; `bucket.gradients()` has other strides where channels are last
            if own is not None:
                means.append((parameter, mean.as_strided(own.size(), own.stride(), own.storage_offset() - begin)))
        self._sent.append(_Sent(dist.all_reduce(mean, group=self._group, async_op=True), means))
        unchanged: torch.futures.Future[Tensor] = torch.futures.Future()
        unchanged.set_result(buffer)
        return unchanged

    @torch.no_grad()
    def replace(self, scale: float) -> bool:
        """Put the means of the step before in place of this step's gradients, and keep these in flight.

        All ranks must call it before each step of the optimizer, and once after the last one.

        Args:
            scale: what the loss of this step was multiplied by.

        Returns whether there are means: there are none at the first step.
        """
        if self._group is None:
            own = [(weight, weight.grad) for weight in self._parameters.values() if weight.grad is not None]
            self._sent = [_Sent(None, own)] if own else []
        begun = time.perf_counter()
        means, factor = list(self._arrived()), scale / self._scale
        self.waited = time.perf_counter() - begun
        self._in_flight, self._sent, self._scale = self._sent, [], scale
        for weight in self._parameters.values():
            weight.grad = None  # also of one that had no gradient in the step before
        for parameter, mean in means:
            mean = mean.to(parameter.dtype)
            parameter.grad = mean if factor == 1 else mean.mul_(factor)
        return bool(means)

    def state(self) -> dict[str, Any]:
        """Return what `restore` takes: the means in flight, the same on all ranks, which must all call it."""
        names: dict[Tensor, str] = {parameter: name for name, parameter in self._parameters.items()}
        return {"lagged": {names[weight]: mean.to(weight.dtype) / self._scale for weight, mean in self._arrived()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned on any number of ranks; ValueError if it isn't of this model's gradients."""
        means, here = state.get("lagged", {}), self._parameters
        if not isinstance(means, dict) or not all(isinstance(mean, Tensor) for mean in means.values()):
            raise ValueError("gradients in flight must be tensors by the name of their parameter")
        for name, mean in means.items():
            if name not in here or (mean.shape, mean.dtype) != (here[name].shape, here[name].dtype):
                raise ValueError(
                    f"gradients in flight of {name!r}, {mean.dtype} {[*mean.shape]}, are not of this model"
                )
        restored = [(here[name], mean.to(here[name].device, copy=True)) for name, mean in means.items()]
        self._in_flight, self._scale = [_Sent(None, restored)] if restored else [], 1.0

    def _arrived(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter and the mean of its gradients of the step before; this waits for what is in flight."""
        for sent in self._in_flight:
            if sent.work is not None:
                sent.work.wait()
            yield from sent.means
