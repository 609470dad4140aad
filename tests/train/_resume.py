"""Ranks that train once in one go and once in two halves, in each of the given ways, and compare the two.

Rank 0 prints for each way the largest relative difference between the losses of any step, and between the weights.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from _tiny import records, run_until, weights

from shardio.order.world import World
from shardio.train import TrainConfig, checkpoint, run
from shardio.train.distributed import Job
from shardio.train.gradient_exchange import GradientExchange, PowerSgd

WEIGHTS = 64 * 3 + 3


def main() -> None:
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
            curves = [records(made, "metrics.jsonl") for made in (whole, halves)]
            assert [[line["step"] for line in curve] for curve in curves] == [list(range(1, 13))] * 2
            loss = max(abs(one["loss"] / other["loss"] - 1) for one, other in zip(*curves, strict=True))
            ends = ([w.double() for w in weights(made).values() if w.is_floating_point()] for made in (whole, halves))
            pairs = zip(*ends, strict=True)
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
    exchange = GradientExchange(torch.nn.Linear(64, 3), made, job, tuple)
    told = "the gradients of its last step are left out: they are for gradient_lag=1"
    assert exchange.restore({"lagged": {"weight": torch.zeros(3, 64)}}, 12) == told
    assert exchange._powersgd is not None
    assert exchange._powersgd._state.iter == 12  # so that it goes on to approximate at the same step
    with pytest.raises(ValueError, match="must have at most as many numbers as the model"):
        PowerSgd(made, job, WEIGHTS).restore({**saved, "errors": {0: torch.zeros(1, 1).expand(2, 1 << 40)}}, 12)


if __name__ == "__main__":
    main()
