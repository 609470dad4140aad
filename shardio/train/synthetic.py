"""The throughput of training on one batch in memory: what remains of a step when input costs nothing."""

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from ..loader.loader import Loader
from .config import TrainConfig
from .data import Data
from .distributed import Job
from .learner import Learner

_WARM_UP, _TRIAL = 5, 5
_SECONDS = 2.0
_MOST_STEPS = 200


def first_batch(config: TrainConfig, job: Job, data: Data) -> dict[str, Any]:
    """Return a batch of the training set, by a loader of its own, so that the run's is not touched."""
    loader = Loader(
        data.train.dataset,
        config.batch_size,
        transforms={data.task.inputs: data.task.transforms()[0]},
        world=job.world,
        tail="pad",
        on_bad_sample=config.on_bad_sample,
        max_bad=config.batch_size,
        device=job.device,
        fields=(data.task.inputs, data.task.targets),
    )
    with closing(iter(loader)) as batches:
        return next(batches)


def synthetic_rate(learner: Learner, batch: Mapping[str, Any], config: TrainConfig, job: Job) -> float:
    """Return the samples per second and rank of steps that all take this batch; they change the learner's weights.

    All ranks must call it; it takes some seconds.
    """

    def seconds(steps: int) -> float:
        begun = time.perf_counter()
        for _ in range(steps):
            for part in range(1, config.accumulate + 1):
                sums = learner.step(batch, lr=config.lr, count=learner.global_batch, last=part == config.accumulate)
        float(sums[0])  # waits for the device
        return job.largest(time.perf_counter() - begun)[0]

    seconds(_WARM_UP)
    steps = max(_TRIAL, min(_MOST_STEPS, round(_TRIAL * _SECONDS / seconds(_TRIAL))))
    return steps * config.batch_size * config.accumulate / seconds(steps)
