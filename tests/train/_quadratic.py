"""Ranks that measure the noise scale of a quadratic problem, whose noise scale is known; rank 0 prints the estimate.

The loss of a sample x is |w - x|^2 / 2, so its gradient is w - x. Samples have the variance 1 / 64 in each of 1024
dimensions and a mean of length 1: at w = 0 the noise is 16, the signal 1, and the noise scale 16 samples.
"""

import json
import sys
from typing import Any

import torch
from _ends import fail_if_threads_stay, watch
from torch import Tensor, nn

from shardio.train import TrainConfig
from shardio.train.distributed import join
from shardio.train.gradient_exchange import GradientExchange
from shardio.train.noise_scale import NoiseScaleMeter

SIZE, BATCH, STEPS = 1024, 16, 150
NOISE_SCALE = 16.0


class Quadratic(nn.Module):
    """The problem, in two parameters, so that there may be two buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Parameter(torch.zeros(SIZE // 2)) for _ in range(2))

    def forward(self, samples: Tensor) -> Tensor:
        """The mean loss of samples [B, SIZE]."""
        losses: Tensor = (torch.cat((self.left, self.right)) - samples).square().sum(dim=1) / 2
        return losses.mean()


def main() -> None:
    """Measure on all ranks."""
    hook: Any = sys.argv[1]
    config = TrainConfig(train="none", output="none", hook=hook, bucket_mb=0.0001)
    with join("cpu", config.timeout) as job:
        random = torch.Generator().manual_seed(job.world.rank)
        meter = NoiseScaleMeter(job, BATCH)
        model = GradientExchange(Quadratic(), config, job, tuple, meter).parallel
        for step in range(STEPS):
            samples = torch.randn(BATCH, SIZE, generator=random) / 8 + SIZE**-0.5
            model.zero_grad()
            model(samples).backward()
            meter.end_step(whole=step % 50 != 49)
        estimate = meter.estimate
        if job.leads and estimate is not None:
            print(json.dumps([estimate.noise, estimate.signal]))
        del model


if __name__ == "__main__":
    watch()
    main()
    fail_if_threads_stay()
