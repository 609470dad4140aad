"""Accelerators that the bench stands in for: how many samples a step takes, how long, and how large samples are.

The figures are those of the MLPerf Storage benchmark (mlcommons/storage, `configs/dlio/workload/*.yaml`). A result that
shardio measures with them is MLPerf-style: it follows the rules for accelerator utilisation, and is no MLPerf result.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError

RULES = "MLPerf Storage v3.0 (mlcommons/storage ce28a98)"
"""The release that the workloads follow, its tag `v3.0`, of 17 September 2026."""

WHAT_IF = "what-if"
SUBMITTABLE = f"{RULES}, closed and open"
PLANNED = f"{RULES}, {WHAT_IF}"
EARLIER = f"MLPerf Storage v2.0 (mlcommons/storage caa90c9), {WHAT_IF}"  # v3.0 has no such accelerator
SAME_SIZE = 2.0  # the largest ratio of mean sample sizes for which utilisation says anything about the workload


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU that trains a model, as the loader sees it.

    Attributes:
        name: its name, such as `resnet50-h100`.
        batch_size: samples per step.
        step_seconds: the time that it computes per step.
        pass_mark: the utilisation at which the input counts as fast enough, 0 to 1.
        sample_bytes: the mean stored size of the workload's samples; None if any will do.
        follows: the release of the benchmark, and the divisions that it takes results for; `what-if` workloads are for
            planning. None for a step of any length.
    """

    name: str
    batch_size: int
    step_seconds: float
    pass_mark: float
    sample_bytes: int | None = None
    follows: str | None = None

    def takes(self, sample_bytes: float) -> bool:
        """Whether a dataset whose samples have so many bytes, on average, can stand for the workload's."""
        return self.sample_bytes is None or 1 / SAME_SIZE <= sample_bytes / self.sample_bytes <= SAME_SIZE

    @property
    def samples_per_second(self) -> float:
        """The samples that it needs per second."""
        return self.batch_size / self.step_seconds


ACCELERATORS = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator("unet3d-b200", 7, 0.162, 0.90, 146_600_628, SUBMITTABLE),
        Accelerator("retinanet-b200", 24, 0.04755, 0.85, 322_957, SUBMITTABLE),
        Accelerator("retinanet-mi355", 32, 0.0634, 0.85, 322_957, SUBMITTABLE),
        Accelerator("unet3d-a100", 7, 0.636, 0.90, 146_600_628, PLANNED),
        Accelerator("unet3d-h100", 7, 0.323, 0.90, 146_600_628, EARLIER),
        Accelerator("resnet50-a100", 400, 0.435, 0.90, 114_660, PLANNED),
        Accelerator("resnet50-h100", 400, 0.224, 0.90, 114_660, PLANNED),
        Accelerator("cosmoflow-a100", 1, 0.00551, 0.70, 2_828_486, PLANNED),
        Accelerator("cosmoflow-h100", 1, 0.00350, 0.70, 2_828_486, PLANNED),
    )
}


def accelerator(name: str) -> Accelerator:
    """Return the accelerator of this name; raise ConfigError if there is none."""
    if name not in ACCELERATORS:
        raise ConfigError("{emulate} must be one of {}, got {!r}", ", ".join(ACCELERATORS), name)
    return ACCELERATORS[name]


def utilisation(ended: NDArray[np.float64], epochs: NDArray[np.int64], step_seconds: float) -> float | None:
    """Return the fraction of time that an accelerator computed, 0 to 1; None if no epoch has two steps.

    As in the MLPerf Storage benchmark, the first step of each epoch does not count.

    Args:
        ended: when each step ended, in seconds, float64 [steps].
        epochs: the epoch of each step, int64 [steps].
        step_seconds: the nominal time of a step, so that a sleep that lasts too long does not count as work.
    """
    seconds = np.diff(ended)[np.diff(epochs) == 0]
    return min(1.0, len(seconds) * step_seconds / float(seconds.sum())) if len(seconds) else None
