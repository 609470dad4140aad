"""Local SGD: ranks take steps of their own and average their weights now and then (Lin et al. 2020, arXiv:1808.07217).

Until a start step, post-local SGD is plain data-parallel SGD. Averages include the optimizer's momentum (Yu et al.
2019, arXiv:1905.03817) and the model's running statistics, so that after one all ranks are equal: that is when a
checkpoint of one rank is a checkpoint of all.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch exports it
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
from torch.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager, utils

from ..errors import ConfigError
from .config import TrainConfig
from .distributed import Job


@final
class LocalSgd:
    """The hook and the averages of local SGD.

    Args:
        config: the configuration of the run, with a period.
        job: this process's place in the job, of at least two ranks.
        tensors: returns what is averaged.

    Raises ConfigError if nodes are to average among themselves, and have different numbers of ranks.
    """

    def __init__(self, config: TrainConfig, job: Job, tensors: Callable[[], Iterable[Tensor]]) -> None:
        if config.local_sgd_period is None:
            raise ValueError("local SGD needs a period")
        self._tensors, self._lent = tensors, list[tuple[Tensor, nn.Parameter]]()
        self._start, self._period, self._offset = config.local_sgd_start, config.local_sgd_period, 0
        nodes = config.local_sgd_node_period
        node = 1 if nodes is None else _ranks_per_node(job)
        self._state = post_localSGD_hook.PostLocalSGDState(  # type: ignore[no-untyped-call]  # torch has no hints
            process_group=dist.group.WORLD,
            subgroup=_node_group(node, job) if nodes == 1 else None,
            start_localSGD_iter=self._start,
            post_local_gradient_allreduce=nodes == 1,
        )
        self._averager: Any
        if nodes is None or nodes == 1:
            self._averager = averagers.PeriodicModelAverager(self._period, warmup_steps=self._start)
            self._offset = self._start
        else:
            periods = OrderedDict([(nodes, node), (self._period, job.world.size)])
            hierarchical: Any = hierarchical_model_averager.HierarchicalModelAverager  # torch has no hints
            self._averager = hierarchical(periods, warmup_steps=self._start)
            if node < job.world.size:  # a group with this job's timeout
                self._averager.period_process_group_dict[nodes] = _node_group(node, job)
        self._equal_after = 0

    def hook(self, state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Return a bucket of gradients: their mean over all ranks before the start, over a node, or this rank's own."""
        return post_localSGD_hook.post_localSGD_hook(self._state, bucket)

    def end_step(self) -> None:
        """Average, if it is time; all ranks must call it after each step of the optimizer."""
        self._averager.average_parameters(self._lend())
        self._take_back()
        last = self._averager.step - 1
        if last < self._start or (last - self._offset) % self._period == 0:
            self._equal_after = self._averager.step

    @property
    def agreed(self) -> bool:
        """Whether all ranks are equal after the last step."""
        return bool(self._equal_after == self._averager.step)

    @property
    def shares_buffers(self) -> bool:
        """Whether ranks are to take the running statistics of rank 0 before the next step, as without local SGD."""
        return bool(self._averager.step <= self._start and self._start > 0)

    def average(self) -> None:
        """Average over all ranks now, unless they are equal."""
        if not self.agreed:
            everyone: Any = dist.group.WORLD  # torch's hints allow None, for a process without a group
            utils.average_parameters_or_parameter_groups(self._lend(), everyone)
            self._take_back()
            self._equal_after = self._averager.step

    def restore(self, steps: int) -> None:
        """Resume at `steps`; all ranks hold equal weights."""
        self._averager.step = self._state.iter = self._equal_after = steps

    def _lend(self) -> Iterator[nn.Parameter]:
        """Yield a stand-in for each tensor: torch averages parameters with gradients only, and loses their layout."""
        for tensor in self._tensors():
            stand_in = nn.Parameter(tensor.detach())
            stand_in.grad = stand_in.detach()
            self._lent.append((tensor, stand_in))
            yield stand_in

    @torch.no_grad()
    def _take_back(self) -> None:
        for tensor, stand_in in self._lent:
            tensor.copy_(stand_in)
        self._lent.clear()


def _node_group(ranks: int, job: Job) -> dist.ProcessGroup:
    group, _ = dist.new_subgroups(group_size=ranks, timeout=job.timeout)  # type: ignore[no-untyped-call]  # no hints
    found: dist.ProcessGroup = group
    return found


def _ranks_per_node(job: Job) -> int:
    """Return the number of ranks of each node; all ranks must call it."""
    local_ranks = job.local_ranks()
    size = len(local_ranks) // max(1, local_ranks.count(0))
    if local_ranks != [rank % size for rank in range(len(local_ranks))]:
        raise ConfigError(
            "{local_sgd_node_period} needs nodes of equally many ranks, which are numbered node by node, got "
            "the local ranks {}",
            local_ranks,
        )
    return size
