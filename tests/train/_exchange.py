"""Ranks that train by local SGD, each comparing its weights after every step with those of a simulation.

The simulation holds the models of all ranks, and does with plain torch what they are to do.
"""

import json
import sys
from typing import Any

import torch
from _ends import fail_if_threads_stay, watch
from torch import Tensor, nn
from torch.nn import functional

from shardio.order.world import World
from shardio.train import TrainConfig
from shardio.train.distributed import Job, join
from shardio.train.image_classification import ImageClassification
from shardio.train.learner import Learner

STEPS, BATCH, LR, NODE = 12, 4, 0.1, 2
DECAY = 5e-4


def model() -> nn.Module:
    """A small model, whose convolution has channels last, as torch's averages do not keep them."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3)).to(
        memory_format=torch.channels_last  # type: ignore[call-overload]  # torch's hints lack it
    )


def batch(step: int, rank: int) -> dict[str, Tensor]:
    """Return the batch that a rank trains on."""
    random = torch.Generator().manual_seed(100 * step + rank)
    images = torch.randn(BATCH, 2, 8, 8, generator=random)
    labels = torch.randint(0, 3, (BATCH,), generator=random)
    return {"image": images, "label": labels, "valid": torch.ones(BATCH, dtype=torch.bool)}


class Simulation:
    """All ranks of the job, in one process."""

    def __init__(self, config: TrainConfig, ranks: int, node: int) -> None:
        self.config, self.ranks, self.node = config, ranks, node
        self.models = [model() for _ in range(ranks)]
        self.optimizers = [
            torch.optim.SGD(
                [{"params": [w], "weight_decay": DECAY if w.ndim > 1 else 0.0} for w in m.parameters()],
                lr=LR,
                momentum=0.9,
                nesterov=True,
            )
            for m in self.models
        ]

    def step(self, step: int) -> None:
        """Do a step on each rank."""
        for rank, (network, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            optimizer.zero_grad()
            given = batch(step, rank)
            network.train()
            functional.cross_entropy(network(given["image"]), given["label"]).backward()
        config = self.config
        if step < config.local_sgd_start:
            self.average_gradients(self.ranks)
        elif config.local_sgd_node_period == 1:
            self.average_gradients(self.node)
        for optimizer in self.optimizers:
            optimizer.step()
        period, nodes = config.local_sgd_period, config.local_sgd_node_period
        assert period is not None
        if step < config.local_sgd_start:
            return
        if (step - (0 if nodes and nodes > 1 else config.local_sgd_start)) % period == 0:
            self.average_models(self.ranks)
        elif nodes and nodes > 1 and step % nodes == 0:
            self.average_models(self.node)

    def average_gradients(self, size: int) -> None:
        """Average within groups of ranks."""
        for first in range(0, self.ranks, size):
            for weights in zip(*(m.parameters() for m in self.models[first : first + size]), strict=True):
                mean = torch.stack([weight.grad for weight in weights if weight.grad is not None]).mean(0)
                for weight in weights:
                    weight.grad = mean.clone()

    @torch.no_grad()
    def average_models(self, size: int) -> None:
        """Average within groups of ranks, with momentum and running statistics."""
        for first in range(0, self.ranks, size):
            members = range(first, first + size)
            lists = [
                [
                    *self.models[r].parameters(),
                    *(buffer for buffer in self.models[r].buffers() if buffer.is_floating_point()),
                    *(self.optimizers[r].state[w]["momentum_buffer"] for w in self.models[r].parameters()),
                ]
                for r in members
            ]
            for tensors in zip(*lists, strict=True):
                mean = torch.stack(tensors).mean(0)
                for tensor in tensors:
                    tensor.copy_(mean)


def main() -> None:
    """Train in each of the given ways on nodes of two ranks; print after which steps the ranks were equal."""
    fixed: Any = {"train": "none", "output": "none", "batch_size": BATCH, "lr": LR}
    with join("cpu", 60) as joined:
        world = World(joined.world.rank, joined.world.size, joined.world.rank % NODE, NODE)
        for options in json.loads(sys.argv[1]):
            agreed = train(TrainConfig(**fixed, **options), Job(world, joined.device))
            if world.rank == 0:
                print(json.dumps(agreed))


def train(config: TrainConfig, job: Job) -> list[int]:
    """Train, and compare; return after which steps the ranks were equal."""
    world = job.world
    simulation, learner = (
        Simulation(config, world.size, NODE),
        Learner(config, job, model(), 1000, ImageClassification(3, 2)),
    )
    agreed = []
    for step in range(STEPS):
        learner.step(batch(step, world.rank), lr=LR, count=world.size * BATCH, last=True)
        simulation.step(step)
        for mine, expected in zip(learner.model.parameters(), simulation.models[world.rank].parameters(), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
            assert mine.stride() == expected.stride()
        if learner.agreed:
            agreed.append(step)
            check_equal(learner, world.size)
    learner.agree()
    check_equal(learner, world.size)
    return agreed


def check_equal(learner: Learner, ranks: int) -> None:
    """All ranks have the same weights, to the bit."""
    for weight in learner.model.parameters():
        all_of_them = [torch.empty_like(weight) for _ in range(ranks)]
        torch.distributed.all_gather(all_of_them, weight.detach().contiguous())
        assert all(torch.equal(other, all_of_them[0]) for other in all_of_them)


if __name__ == "__main__":
    watch()
    main()
    fail_if_threads_stay()
