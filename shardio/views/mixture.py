"""Mixtures: a concatenation of several datasets, whose samples are drawn by weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from numpy.typing import NDArray

from ..errors import ConfigError
from ..order.mixed_plan import MixedPlan, Source, Stages, Weights, whole_stages, whole_weights
from ..order.permutation import derive
from ..order.plan import Order, Shuffle
from ..system.rules import as_integer
from .classes import Classes
from .concat import Concat, hashed
from .readable import ReadableDataset


@final
class Mixture(Concat):
    """Several datasets as one, drawn from by weight; `mix` returns it. Sample numbers count through the sources.

    Attributes:
        weights: the turns of each source in a window, as integers, in the first stage.
        stages: the weights of all stages, each with the number of samples after which it begins.
        sources, fields, left_out, path: see `Concat`.
    """

    word = "mix"
    orders_itself = True

    def __init__(
        self,
        datasets: Mapping[str, ReadableDataset],
        weights: Weights | Stages,
        samples: int | None = None,
        classes: Classes | None = None,
    ) -> None:
        if samples is not None and (samples := as_integer(samples, "samples")) < 1:
            raise ConfigError(f"samples must be an integer of at least 1, got {samples!r}")
        stages = whole_stages(weights, [*datasets])
        self.stages = tuple((position, whole_weights(part)) for position, part in stages)
        self.weights = self.stages[0][1]
        super().__init__(datasets, classes)
        self._samples = samples or sum(map(len, self._datasets))
        self._told_weights = [*self.stages] if len(self.stages) > 1 else self.weights

    def __len__(self) -> int:
        return self._samples

    def _drawing(self) -> str:
        return f", weights {self._told_weights}, {self._samples} samples an epoch"

    @property
    def earlier(self) -> Mapping[str, int]:
        """Nothing: where a source grows, its turns lead to other samples."""
        return {}

    def description(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        return {**super().description(arrays), "weights": self._told_weights, "samples": self._samples}

    def plan(self, seed: int, shuffle: Shuffle, block: int, window: int) -> Order:
        """Return the order of the samples in epoch 0."""
        sources = tuple(
            Source(dataset.plan(derive(seed, number), shuffle, block, window), dataset.numbers)
            for number, dataset in enumerate(self._datasets)
        )
        stages = tuple((position, tuple(weights.values())) for position, weights in self.stages)
        digests = hashed([(name, dataset.digest) for name, dataset in self.datasets.items()])
        return MixedPlan(self._samples, sources, stages, seed, 0, shuffle, digests)
