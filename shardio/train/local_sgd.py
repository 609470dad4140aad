"""Local SGD: ranks take steps of their own, and make their weights one from time to time.

The ranks average their weights (Lin et al. 2020, arXiv:1808.07217). Until a start step, post-local SGD is plain
data-parallel SGD. Averages include the optimizer's momentum (Yu et al. 2019, arXiv:1905.03817) and the model's running
statistics, so that after one all ranks are equal: that is when a checkpoint of one rank is a checkpoint of all.

Outer steps treat the mean change of the weights since the last average as the gradient of an outer optimizer (DiLoCo,
Douillard et al. 2023, arXiv:2311.08105). Without them, weights become their mean: outer SGD with a rate of 1.

An average may overlap with steps (Streaming DiLoCo, Douillard et al. 2025, arXiv:2501.18512): it begins at its step,
and some steps later each rank adds to its weights what the average would have changed. Only weights are averaged so:
adding the change of a variance that has moved on could make it negative.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch exports it
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from .config import TrainConfig
from .distributed import Job
from .optimizers import check_optimizer_state


class _UnderWay(NamedTuple):
    """An average that has begun after a step: the weights of this rank then, and their mean once the work is done."""

    step: int
    work: dist.Work | None
    own: Tensor
    mean: Tensor


@final
class LocalSgd:
    """The hook and the averages of local SGD.

    Args:
        config: says when to average and how.
        job: the ranks.
        weights: the weights of this rank.
        shared: returns all that is averaged: the weights, running statistics and the optimizer's state.

    Attributes:
        agreed: whether all ranks are equal after the last step.
    """

    def __init__(
        self,
        config: TrainConfig,
        job: Job,
        weights: Iterable[nn.Parameter],
        shared: Callable[[], Iterable[Tensor]],
    ) -> None:
        assert config.local_sgd_period is not None
        self._period, self._start, self._overlap = (
            config.local_sgd_period, config.local_sgd_start, config.local_sgd_overlap
        )  # fmt: skip
        self._ranks, self._weights, self._shared = job.world.size, list(weights), shared
        self._outer = OuterOptimizer(config, self._weights) if config.outer_optimizer != "none" else None
        # A group of its own: other messages needn't wait for an average that is under way.
        self._group = dist.new_group(timeout=job.timeout) if self._overlap and self._ranks > 1 else None
        self._under_way: _UnderWay | None = None
        self._step, self.agreed = 0, True

    def hook(self, state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Return a bucket of gradients: their mean over all ranks before the start, this rank's own from then on."""
        if self._step < self._start:
            return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]  # None is the group of all
        own: torch.futures.Future[Tensor] = torch.futures.Future()
        own.set_result(bucket.buffer())
        return own

    def end_step(self) -> None:
        """Begin, end or make an average, if it is time; all ranks must call it after each step of the optimizer."""
        past = self._step - self._start
        self._step += 1
        self.agreed = past < 0
        if past == -1 and self._outer is not None:
            self._outer.restart()
        if past >= 0 and past % self._period == self._overlap:
            self._correct()
        if past >= 0 and past % self._period == 0:
            if self._overlap:
                self._begin()
            else:
                self.average()

    @property
    def shares_buffers(self) -> bool:
        """Whether ranks are to take the running statistics of rank 0 before the next step, as without local SGD."""
        return 0 < self._start >= self._step

    def ready_for_checkpoint(self) -> bool:
        """Return whether all ranks are equal; averages that overlap with steps never make them so, so one is made."""
        if self._overlap:
            self.average()
        return self.agreed

    @torch.no_grad()
    def average(self) -> None:
        """Average over all ranks now, unless they are equal."""
        if self.agreed:
            return
        self._correct(but_of=self._step)
        tensors = list(self._shared())
        means = _flat(tensors) / self._ranks
        if self._ranks > 1:
            dist.all_reduce(means)
        for tensor, mean in zip(tensors, _like(tensors, means), strict=True):
            tensor.copy_(mean)
        if self._outer is not None:
            for weight, moved in zip(self._weights, self._outer.step(self._weights), strict=True):
                weight.copy_(moved)
        self.agreed = True

    @torch.no_grad()
    def _begin(self) -> None:
        own = _flat(self._weights)
        mean = own / self._ranks
        work = dist.all_reduce(mean, group=self._group, async_op=True) if self._ranks > 1 else None
        self._under_way = _UnderWay(self._step, work, own, mean)

    @torch.no_grad()
    def _correct(self, but_of: int | None = None) -> None:
        """Wait for the average that is under way, if there is one, and add what it changes to the weights.

        One that has begun after the step `but_of` is dropped: an average of all that follows at once replaces it, and
        two would be two outer steps, the second of which has no change of weights behind it.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        if under_way.work is not None:
            under_way.work.wait()
        if under_way.step == but_of:
            return
        targets = _like(self._weights, under_way.mean)
        if self._outer is not None:
            targets = self._outer.step(targets)
        for weight, target, own in zip(self._weights, targets, _like(self._weights, under_way.own), strict=True):
            weight.add_(target - own)

    def state(self) -> dict[str, Any]:
        """Return what `restore` takes, when all ranks are equal."""
        return {} if self._outer is None else self._outer.state()

    def restore(self, state: Mapping[str, Any], steps: int) -> None:
        """Resume at `steps`; all ranks hold equal weights. ValueError if the state is not of these weights."""
        self._step, self.agreed, self._under_way = steps, True, None
        if self._outer is not None:
            self._outer.restore(state)


@final
class OuterOptimizer:
    """SGD, with or without Nesterov's momentum, whose gradients are the mean changes of weights between averages."""

    def __init__(self, config: TrainConfig, weights: Sequence[nn.Parameter]) -> None:
        self._weights = weights
        self._last = [weight.detach().clone() for weight in weights]  # as they were after the last outer step
        self._sgd = torch.optim.SGD(
            self._last,
            lr=config.outer_lr,
            momentum=config.outer_momentum,
            nesterov=config.outer_optimizer == "nesterov",
        )

    @torch.no_grad()
    def restart(self) -> None:
        """Begin with the weights as they are, the same on all ranks."""
        for last, weight in zip(self._last, self._weights, strict=True):
            last.copy_(weight)

    @torch.no_grad()
    def step(self, means: Sequence[Tensor]) -> Sequence[Tensor]:
        """Take a step from the last weights, given the mean of all ranks' weights; return where it leads."""
        for last, mean in zip(self._last, means, strict=True):
            last.grad = last - mean
        self._sgd.step()
        self._sgd.zero_grad()
        return self._last

    def state(self) -> dict[str, Any]:
        """Return what `restore` takes: the momentum."""
        return {"outer": self._sgd.state_dict()["state"]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what `state` returned, and begin with the weights as they are."""
        self.restart()
        momentum = state.get("outer", {})
        check_optimizer_state(momentum, self._last)
        self._sgd.load_state_dict({**self._sgd.state_dict(), "state": momentum})


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _like(tensors: Sequence[Tensor], flat: Tensor) -> Sequence[Tensor]:
    """Return the parts of a flat tensor as tensors of these shapes."""
    sizes = [tensor.numel() for tensor in tensors]
    parts: Any = flat.split(sizes)  # type: ignore[no-untyped-call]  # torch has no hints
    return [part.view(tensor.shape) for tensor, part in zip(tensors, parts, strict=True)]
