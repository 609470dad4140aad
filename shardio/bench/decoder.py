"""Finding the best share of images for a GPU's JPEG decoder."""

from collections.abc import Callable
from dataclasses import replace

from ..errors import ConfigError
from .config import BenchConfig
from .measurement import measure
from .result import BenchResult

LOADS = (0.0, 0.25, 0.5, 0.65, 0.8, 0.95)
"""The shares of images that `tune_decoder` tries."""


def tune_decoder(config: BenchConfig, measured: Callable[[float, BenchResult], None] | None = None) -> BenchResult:
    """Measure one epoch with each of several values of `hw_decoder_load`, and return the fastest result.

    Args:
        config: what to measure; the `config` of the result holds the best value.
        measured: called with each value and its result.

    Raises ConfigError if no GPU decodes, and what `measure` raises.
    """
    if not str(config.device).startswith("cuda") or config.engine == "cpu":
        raise ConfigError(
            "only a GPU has a JPEG decoder to share with, and the device is "
            f"{config.device!r}, the engine {config.engine!r}"
        )
    results = []
    for load in LOADS:
        result = measure(replace(config, hw_decoder_load=load, epochs=1))
        results.append(result)
        if measured is not None:
            measured(load, result)
    return max(results, key=lambda result: result.samples_per_second.median)
