"""The gradient noise scale: how large a batch is worth its samples (McCandlish et al. 2018, arXiv:1812.06162).

A gradient of `B` samples is the true gradient `G` plus noise whose variance is `S / B`. Their ratio `S / |G|^2`, the
simple noise scale, is the batch at which both are as large: far below it, twice the batch halves the number of steps;
far above it, a larger batch only costs samples. Both follow from the norms of gradients of two batch sizes (appendix
A.1): those of single ranks and that of all ranks together, which data-parallel training computes anyway.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]  # torch exports it

from .distributed import Job

Hook: TypeAlias = Callable[[Any, GradBucket], torch.futures.Future[Tensor]]
"""A communication hook of DDP: from its state and a bucket of gradients to their mean over the ranks."""

_WINDOW = 10  # steps between two reductions over the ranks
_DECAY = 0.9  # of the moving averages, per window


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """An estimate of the noise scale: the variances of a sample's gradient, `S`, over its squared norm, `|G|^2`."""

    noise: float
    signal: float

    @classmethod
    def of_norms(cls, *, small: float, small_batch: float, large: float, large_batch: float) -> "NoiseScale":
        """Return the estimate from the mean squared norms of gradients of two batch sizes; it has no bias."""
        signal = (large_batch * large - small_batch * small) / (large_batch - small_batch)
        noise = (small - large) / (1 / small_batch - 1 / large_batch)
        return cls(noise, signal)

    @property
    def batch(self) -> float:
        """The simple noise scale in samples, about the critical batch size; inf if all is noise."""
        return max(0.0, self.noise) / self.signal if self.signal > 0 else math.inf

    def speed_up(self, batch: float, factor: float) -> float:
        """Return how many times fewer steps training takes with `factor` times the batch (equation 2.11)."""
        if math.isinf(self.batch):
            return factor
        return (1 + self.batch / batch) / (1 + self.batch / (factor * batch))

    def advice(self, batch: int, samples: int) -> str:
        """Return the advice to a run with this global batch and a training set of so many samples."""
        steps = ", ".join(f"{factor:g} x: {self.speed_up(batch, factor):.2f}" for factor in (0.5, 1, 2, 4))
        size = "far above the batch" if math.isinf(self.batch) else f"about {self.batch:,.0f} samples"
        return (
            f"critical batch: {size} (noise scale); by rule of thumb at most {math.isqrt(samples):,} (square root of "
            f"the training set); the batch is {batch:,}. Expected speed in steps by batch: {steps}"
        )


@final
class NoiseScaleMeter:
    """Measures the noise scale while ranks train, two at least, each with a gradient of a `batch` of samples."""

    def __init__(self, job: Job, batch: int) -> None:
        self._job, self._batch = job, batch
        # Squared norms of each bucket of this step, on this rank and of the mean. Appending is safe from any thread.
        self._mine: list[Tensor] = []
        self._means: list[Tensor] = []
        self._window, self._steps = torch.zeros(3, dtype=torch.float64, device=job.device), 0
        self._average, self._weight = (0.0, 0.0), 0.0

    def watching(self, hook: Hook) -> Hook:
        """Return a hook that also adds up the norms of what `hook` gets and returns."""

        def watched(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:  # DDP reads these types
            self._mine.append(bucket.buffer().double().square().sum())

            def add(done: torch.futures.Future[Tensor]) -> Tensor:
                mean = done.value()
                self._means.append(mean.double().square().sum())
                return mean

            return hook(state, bucket).then(add)

        return watched

    def end_step(self, *, whole: bool) -> None:
        """End a step. One whose batch was not `whole` does not count. All ranks must call it."""
        if whole:
            mine, mean = (torch.stack(norms).sum() for norms in (self._mine, self._means))
            norms = torch.stack((mine, mean, torch.ones_like(mean)))
            # A gradient that overflowed, as it may in fp16, does so in the mean too, and so on all ranks.
            self._window += torch.where(torch.isfinite(mean), norms, 0)
            self._steps += 1
        self._mine.clear()
        self._means.clear()
        if self._steps < _WINDOW:
            return
        small, large, count = self._job.total(*self._window.tolist())
        self._window.zero_()
        self._steps = 0
        if count:
            old, self._weight = self._weight * _DECAY, self._weight * _DECAY + 1
            pairs = zip(self._average, (small / count, large / count), strict=True)
            first, second = ((before * old + now) / self._weight for before, now in pairs)
            self._average = first, second

    @property
    def estimate(self) -> NoiseScale | None:
        """The estimate of the last steps; None before the first ten."""
        if not self._weight:
            return None
        small, large = self._average
        return NoiseScale.of_norms(
            small=small, small_batch=self._batch, large=large, large_batch=self._batch * self._job.world.size
        )
