"""Accelerators that the bench stands in for: how many samples a step takes, and how long.

The figures are those of the MLPerf Storage benchmark (mlcommons/storage, `configs/**/workload/*.yaml`). A result that
shardio measures with them is MLPerf-style: it follows the rules for accelerator utilisation, and is no MLPerf result.
"""

from dataclasses import dataclass

from ..errors import ConfigError


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU that trains a model, as the loader sees it.

    Attributes:
        name: its name, such as `resnet50-h100`.
        batch_size: samples per step.
        step_seconds: the time that it computes per step.
        pass_mark: the utilisation from which on the input counts as fast enough, 0 to 1.
    """

    name: str
    batch_size: int
    step_seconds: float
    pass_mark: float

    @property
    def samples_per_second(self) -> float:
        """The samples that it needs per second."""
        return self.batch_size / self.step_seconds


ACCELERATORS = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator("unet3d-a100", 7, 0.636, 0.90),
        Accelerator("unet3d-h100", 7, 0.323, 0.90),
        Accelerator("unet3d-b200", 7, 0.162, 0.90),
        Accelerator("resnet50-a100", 400, 0.435, 0.90),
        Accelerator("resnet50-h100", 400, 0.224, 0.90),
        Accelerator("cosmoflow-a100", 1, 0.00551, 0.70),
        Accelerator("cosmoflow-h100", 1, 0.00350, 0.70),
        Accelerator("retinanet-h100", 16, 0.180, 0.85),
        Accelerator("retinanet-b200", 24, 0.04755, 0.85),
    )
}


def accelerator(name: str) -> Accelerator:
    """Return the accelerator of this name; raise ConfigError if there is none."""
    if name not in ACCELERATORS:
        raise ConfigError(f"emulate must be one of {', '.join(ACCELERATORS)}, got {name!r}")
    return ACCELERATORS[name]


def utilisation(steps: int, step_seconds: float, seconds: float) -> float:
    """Return the share of `seconds` in which an accelerator computed, 0 to 1.

    Args:
        steps: the number of steps, without the first.
        step_seconds: the nominal time of a step, so that a sleep that lasts too long does not count as work.
        seconds: from the end of the first step to the end of the last.
    """
    return min(1.0, steps * step_seconds / seconds) if seconds > 0 else 0.0
