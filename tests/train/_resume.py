"""Ranks that train once in one go and once in two halves, in each of the given ways, and compare the two.

Rank 0 prints for each way the largest relative difference between the losses of any step, and between the weights.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _tiny import Stopped
from torch import Tensor

from shardio.order.world import World
from shardio.train import TrainConfig, checkpoint, run
from shardio.train.distributed import Job
from shardio.train.learner import Learner
from shardio.train.powersgd import PowerSgd

WEIGHTS = 64 * 3 + 3


def losses(made: TrainConfig) -> list[tuple[int, float]]:
    """The step and the loss of each line of `metrics.jsonl`."""
    lines = (Path(made.output) / "metrics.jsonl").read_text().splitlines()
    return [(line["step"], line["loss"]) for line in map(json.loads, lines)]


def weights(made: TrainConfig) -> list[Tensor]:
    """The weights at the end of a run."""
    model = checkpoint.load(Path(made.output) / "last.pt").model
    return [weight.double() for weight in model.values() if weight.is_floating_point()]


def run_until(made: TrainConfig, number: int) -> None:
    """Train until before step `number`, counted from 0."""
    steps, step = iter(range(1000)), Learner.step

    def until(self: Learner, batch: Any, **options: Any) -> Tensor:
        if next(steps) == number:
            raise Stopped
        return step(self, batch, **options)

    Learner.step = until  # type: ignore[method-assign]  # for these lines only
    try:
        run(made)
    except Stopped:
        return
    finally:
        Learner.step = step  # type: ignore[method-assign]  # as above
    raise AssertionError("the run was not stopped")


def main() -> None:
    """Train in each way."""
    dist.init_process_group("gloo")
    described = json.loads(sys.argv[1])
    for number, (options, stop) in enumerate(described["ways"]):
        whole = TrainConfig(**described["config"] | options | {"metrics_every_steps": 1})
        whole = replace(whole, output=f"{whole.output}/whole-{number}")
        halves = replace(whole, output=whole.output.replace("whole", "halves"), resume="auto")
        run(whole)
        run_until(halves, stop)
        run(halves)
        if dist.get_rank() == 0:
            curves = losses(whole), losses(halves)
            assert [step for step, _ in curves[0]] == [step for step, _ in curves[1]] == list(range(1, 13))
            loss = max(abs(one / other - 1) for (_, one), (_, other) in zip(*curves, strict=True))
            pairs = zip(weights(whole), weights(halves), strict=True)
            print(json.dumps([loss, max(float((one - other).abs().max() / one.abs().max()) for one, other in pairs)]))
    check_powersgd(halves)
    dist.destroy_process_group()


def check_powersgd(made: TrainConfig) -> None:
    """PowerSGD's memory is saved and restored rank by rank, and not restored for another number of ranks."""
    saved = checkpoint.load(Path(made.output) / "last.pt").hook
    job = Job(World(dist.get_rank(), 2), torch.device("cpu"))
    powersgd = PowerSgd(made, job, WEIGHTS)
    assert powersgd.restore(saved, 12) is None
    state = powersgd.state()
    if job.leads:
        assert saved["errors"].keys() == state["errors"].keys() != set()
        for number, error in saved["errors"].items():
            assert torch.equal(state["errors"][number], error)
            assert not torch.equal(error[0], error[1])
    other = {**saved, "world_size": 3}
    assert PowerSgd(made, job, WEIGHTS).restore(other, 12) == "its world_size is 3 there, 2 here"
    with pytest.raises(ValueError, match="must have at most as many numbers as the model"):
        PowerSgd(made, job, WEIGHTS).restore({**saved, "errors": {0: torch.zeros(1, 1).expand(2, 1 << 40)}}, 12)


if __name__ == "__main__":
    main()
