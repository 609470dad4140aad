"""Ranks that train in each way as a simulation does, and measure a noise scale that is known; rank 0 prints both.

The simulation holds the models of all ranks, and does with plain torch what they are to do. The noise scale is that of
a quadratic problem: the loss of a sample x is |w - x|^2 / 2, so its gradient is w - x. Samples have the variance 1 / 64
in each of 1024 dimensions and a mean of length 1: at w = 0 the noise is 16, the signal 1, the noise scale 16 samples.
"""

import json
from collections.abc import Mapping
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

STEPS, BATCH, LR = 20, 4, 0.1
NESTEROV = {"outer_optimizer": "nesterov", "outer_lr": 0.7, "outer_momentum": 0.9}
WAYS: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "lag": {"gradient_lag": 1},
    "lag, fp16": {"gradient_lag": 1, "hook": "fp16"},
    "lag, bf16": {"gradient_lag": 1, "hook": "bf16"},
    "local": {"local_sgd_period": 3, "local_sgd_start": 4},
    "outer": {"local_sgd_period": 3, **NESTEROV},
    "outer, SGD": {"local_sgd_period": 3, "local_sgd_start": 4, "outer_optimizer": "sgd", "outer_lr": 0.5},
    "overlapped": {"local_sgd_period": 4, "local_sgd_start": 3, "local_sgd_overlap": 2},
    "overlapped, outer": {"local_sgd_period": 3, "local_sgd_overlap": 2, **NESTEROV},
    "overlapped, outer, begun at the end": {
        "local_sgd_period": 3,
        "local_sgd_start": 1,
        "local_sgd_overlap": 2,
        **NESTEROV,
    },
}
SENT = {"fp16": torch.float16, "bf16": torch.bfloat16}
TOLERANCE = {"fp16": 5e-3, "bf16": 5e-2}  # gloo adds more than two ranks' numbers in an order of its own
SIZE, LARGE_BATCH, MANY_STEPS = 1024, 16, 150
NOISE_SCALE = 16.0
NONE: Any = {"train": "none", "output": "none"}


def model() -> nn.Module:
    """A small model, whose convolution has channels last, as averages should keep them."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3)).to(
        memory_format=torch.channels_last  # type: ignore[call-overload]  # torch's hints lack it
    )


def batch(step: int, part: int, rank: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(1000 * step + 100 * part + rank)
    images = torch.randn(BATCH, 2, 8, 8, generator=random)
    labels = torch.randint(0, 3, (BATCH,), generator=random)
    return {"image": images, "label": labels, "valid": torch.ones(BATCH, dtype=torch.bool)}


class Simulation:
    """All ranks of the job, in one process, that train in a way."""

    def __init__(self, way: Mapping[str, Any], ranks: int, parts: int) -> None:
        self.models = [model() for _ in range(ranks)]
        self.optimizers = [torch.optim.SGD(m.parameters(), lr=LR, momentum=0.9, nesterov=True) for m in self.models]
        self.sent = SENT.get(way.get("hook", "none"), torch.float32)
        self.parts, self.lag, self.overlap = parts, bool(way.get("gradient_lag")), way.get("local_sgd_overlap", 0)
        self.period, self.start = way.get("local_sgd_period", 0), way.get("local_sgd_start", 0)
        self.outer = None
        self.anchor = [weight.detach().clone() for weight in self.models[0].parameters()]
        if "outer_optimizer" in way:
            nesterov = way["outer_optimizer"] == "nesterov"
            self.outer = torch.optim.SGD(
                self.anchor, way["outer_lr"], way.get("outer_momentum", 0.9), nesterov=nesterov
            )
        self.held: list[Tensor] | None = None
        self.snapshot: list[list[Tensor]] | None = None
        self.began = self.now = -1

    def step(self, step: int) -> None:
        self.now = step
        for rank, (network, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            optimizer.zero_grad()
            network.train()
            for part in range(self.parts):
                given = batch(step, part, rank)
                loss = functional.cross_entropy(network(given["image"]), given["label"]) / self.parts
                loss.backward()
        past = step - self.start
        if not self.period or past < 0:
            average([[weight.grad for weight in network.parameters()] for network in self.models], self.sent)
        if self.lag:
            self.held, now = [weight.grad.clone() for weight in self.models[0].parameters()], self.held
            self.apply(now)
            return
        for optimizer in self.optimizers:
            optimizer.step()
        if not self.period:
            return
        if past == -1:
            self.anchor_here()
        if past >= 0 and self.snapshot is not None and past % self.period == self.overlap:
            self.correct()
        if past >= 0 and past % self.period == 0:
            if self.overlap:
                self.began = step
                self.snapshot = [[w.detach().clone() for w in network.parameters()] for network in self.models]
            else:
                self.agree()

    def apply(self, gradients: list[Tensor] | None) -> None:
        """Take a step with these gradients on all ranks."""
        if gradients is None:
            return
        for network, optimizer in zip(self.models, self.optimizers, strict=True):
            for weight, gradient in zip(network.parameters(), gradients, strict=True):
                weight.grad = gradient.clone()
            optimizer.step()

    @torch.no_grad()
    def anchor_here(self) -> None:
        for anchor, weight in zip(self.anchor, self.models[0].parameters(), strict=True):
            anchor.copy_(weight)

    @torch.no_grad()
    def moved(self, means: list[Tensor]) -> list[Tensor]:
        """Where the mean of the weights leads."""
        if self.outer is None:
            return means
        for anchor, mean in zip(self.anchor, means, strict=True):
            anchor.grad = anchor - mean
        self.outer.step()
        return [anchor.clone() for anchor in self.anchor]

    @torch.no_grad()
    def correct(self) -> None:
        if self.snapshot is None:
            return
        targets = self.moved([torch.stack(weights).mean(0) for weights in zip(*self.snapshot, strict=True)])
        for network, own in zip(self.models, self.snapshot, strict=True):
            for weight, target, before in zip(network.parameters(), targets, own, strict=True):
                weight += target - before
        self.snapshot = None

    @torch.no_grad()
    def agree(self) -> None:
        """Make all ranks equal, by an average of all, and a step of the outer optimizer."""
        if self.began == self.now:  # one average, and one outer step, for the same change
            self.snapshot = None
        self.correct()
        average([self.state(rank) for rank in range(len(self.models))])
        moved = self.moved([weight.detach().clone() for weight in self.models[0].parameters()])
        for network in self.models:
            for weight, target in zip(network.parameters(), moved, strict=True):
                weight.copy_(target)

    def state(self, rank: int) -> list[Tensor]:
        """The weights of a rank, its running statistics and its momentum."""
        network, optimizer = self.models[rank], self.optimizers[rank]
        statistics = (buffer for buffer in network.buffers() if buffer.is_floating_point())
        momentum = (optimizer.state[weight]["momentum_buffer"] for weight in network.parameters())
        return [*network.parameters(), *statistics, *momentum]


@torch.no_grad()
def average(ranks: list[list[Any]], sent: torch.dtype = torch.float32) -> None:
    """Give the tensors of all ranks their mean, which is computed with numbers of the type that is sent."""
    for tensors in zip(*ranks, strict=True):
        mean = sum(tensor.to(sent) / len(tensors) for tensor in tensors)
        for tensor in tensors:
            tensor.copy_(mean)


def train(job: Job, way: Mapping[str, Any]) -> list[int]:
    """Train in a way, and compare after each step; return after which steps the ranks were equal."""
    ranks, parts = job.world.size, 2
    config = TrainConfig(batch_size=BATCH, lr=LR, accumulate=parts, weight_decay=0.0, bucket_mb=0.001, **way, **NONE)
    simulation, learner = Simulation(way, ranks, parts), Learner(config, job, model(), 1000, ImageClassification(3, 2))
    agreed, tolerance = [], TOLERANCE.get(config.hook, 1e-4)

    def compare() -> None:
        expected = simulation.models[job.world.rank].parameters()
        for mine, theirs in zip(learner.model.parameters(), expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance / 10)
            assert mine.stride() == theirs.stride()

    for step in range(STEPS):
        for part in range(parts):
            given = batch(step, part, job.world.rank)
            learner.step(given, lr=LR, count=ranks * parts * BATCH, last=part == parts - 1)
        simulation.step(step)
        compare()
        if learner.exchange.agreed:
            agreed.append(step)
            check_equal(learner)
    if not learner.exchange.agreed:
        learner.exchange.agree()
        simulation.agree()
    learner.finish(LR)
    simulation.apply(simulation.held)
    compare()
    check_equal(learner)
    return agreed


def check_equal(learner: Learner) -> None:
    for weight in learner.model.parameters():
        all_of_them = [torch.empty_like(weight) for _ in range(torch.distributed.get_world_size())]
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
        agreed = {name: train(job, way) for name, way in WAYS.items()}
        found = {"agreed": agreed, "noise": {hook: noise_scale(job, hook) for hook in ("none", "fp16")}}
        if job.leads:
            print(json.dumps(found))


if __name__ == "__main__":
    watch()
    main()
    fail_if_threads_stay()
