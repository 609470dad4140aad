"""Two ranks that train by local SGD as a simulation does, and measure a noise scale that is known; rank 0 prints both.

The simulation holds the models of all ranks, and does with plain torch what they are to do. The noise scale is that of
a quadratic problem: the loss of a sample x is |w - x|^2 / 2, so its gradient is w - x. Samples have the variance 1 / 64
in each of 1024 dimensions and a mean of length 1: at w = 0 the noise is 16, the signal 1, the noise scale 16 samples.
"""

import json
from typing import Any

import torch
from _ends import fail_if_threads_stay, watch
from torch import Tensor, nn
from torch.nn import functional

from shardio.train import TrainConfig
from shardio.train.distributed import Job, join
from shardio.train.gradient_exchange import GradientExchange
from shardio.train.image_classification import ImageClassification
from shardio.train.learner import Learner
from shardio.train.noise_scale import NoiseScaleMeter

RANKS, STEPS, BATCH, LR = 2, 12, 4, 0.1
START, PERIOD = 4, 3
SIZE, LARGE_BATCH, MANY_STEPS = 1024, 16, 150
NOISE_SCALE = 16.0
NONE: Any = {"train": "none", "output": "none"}


def model() -> nn.Module:
    """A small model, whose convolution has channels last, as averages should keep them."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3)).to(
        memory_format=torch.channels_last  # type: ignore[call-overload]  # torch's hints lack it
    )


def batch(step: int, rank: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(100 * step + rank)
    images = torch.randn(BATCH, 2, 8, 8, generator=random)
    labels = torch.randint(0, 3, (BATCH,), generator=random)
    return {"image": images, "label": labels, "valid": torch.ones(BATCH, dtype=torch.bool)}


class Simulation:
    """All ranks of the job, in one process."""

    def __init__(self) -> None:
        self.models = [model() for _ in range(RANKS)]
        self.optimizers = [torch.optim.SGD(m.parameters(), lr=LR, momentum=0.9, nesterov=True) for m in self.models]

    def step(self, step: int) -> None:
        for rank, (network, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            optimizer.zero_grad()
            given = batch(step, rank)
            network.train()
            functional.cross_entropy(network(given["image"]), given["label"]).backward()
        if step < START:
            average([[weight.grad for weight in network.parameters()] for network in self.models])
        for optimizer in self.optimizers:
            optimizer.step()
        if step >= START and (step - START) % PERIOD == 0:
            average([self.state(rank) for rank in range(RANKS)])

    def state(self, rank: int) -> list[Tensor]:
        """The weights of a rank, its running statistics and its momentum."""
        network, optimizer = self.models[rank], self.optimizers[rank]
        statistics = (buffer for buffer in network.buffers() if buffer.is_floating_point())
        momentum = (optimizer.state[weight]["momentum_buffer"] for weight in network.parameters())
        return [*network.parameters(), *statistics, *momentum]


@torch.no_grad()
def average(ranks: list[list[Any]]) -> None:
    """Give the tensors of all ranks their mean."""
    for tensors in zip(*ranks, strict=True):
        mean = torch.stack(tensors).mean(0)
        for tensor in tensors:
            tensor.copy_(mean)


def local_sgd(job: Job) -> list[int]:
    """Train by local SGD, and compare; return after which steps the ranks were equal."""
    options: Any = {"local_sgd_period": PERIOD, "local_sgd_start": START, "weight_decay": 0.0}
    config = TrainConfig(batch_size=BATCH, lr=LR, **options, **NONE)
    simulation, learner = Simulation(), Learner(config, job, model(), 1000, ImageClassification(3, 2))
    agreed = []
    for step in range(STEPS):
        learner.step(batch(step, job.world.rank), lr=LR, count=RANKS * BATCH, last=True)
        simulation.step(step)
        expected = simulation.models[job.world.rank].parameters()
        for mine, theirs in zip(learner.model.parameters(), expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
            assert mine.stride() == theirs.stride()
        if learner.exchange.agreed:
            agreed.append(step)
            check_equal(learner)
    learner.exchange.agree()
    check_equal(learner)
    return agreed


def check_equal(learner: Learner) -> None:
    for weight in learner.model.parameters():
        all_of_them = [torch.empty_like(weight) for _ in range(RANKS)]
        torch.distributed.all_gather(all_of_them, weight.detach().contiguous())
        assert all(torch.equal(other, all_of_them[0]) for other in all_of_them)


class Quadratic(nn.Module):
    """The quadratic problem, in two parameters, so that there may be two buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Parameter(torch.zeros(SIZE // 2)) for _ in range(2))

    def forward(self, samples: Tensor) -> Tensor:
        """The mean loss of samples [B, SIZE]."""
        losses: Tensor = (torch.cat((self.left, self.right)) - samples).square().sum(dim=1) / 2
        return losses.mean()


def noise_scale(job: Job, hook: Any) -> float:
    """Return the noise scale of the quadratic problem that the ranks measure; some steps are part of a batch."""
    config = TrainConfig(hook=hook, bucket_mb=0.0001, **NONE)
    random = torch.Generator().manual_seed(job.world.rank)
    meter = NoiseScaleMeter(job, LARGE_BATCH)
    parallel = GradientExchange(Quadratic(), config, job, tuple, meter).parallel
    for step in range(MANY_STEPS):
        samples = torch.randn(LARGE_BATCH, SIZE, generator=random) / 8 + SIZE**-0.5
        parallel.zero_grad()
        parallel(samples).backward()
        meter.end_step(whole=step % 50 != 49)
    return meter.estimate.batch  # type: ignore[union-attr]  # there is one after ten steps


def main() -> None:
    with join("cpu", 60) as job:
        found = {"agreed": local_sgd(job), "noise": {hook: noise_scale(job, hook) for hook in ("none", "fp16")}}
        if job.leads:
            print(json.dumps(found))


if __name__ == "__main__":
    watch()
    main()
    fail_if_threads_stay()
