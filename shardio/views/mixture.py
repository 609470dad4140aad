"""Mixtures: a concatenation of several datasets, whose samples are drawn by weight."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, final

import xxhash
from numpy.typing import NDArray

from ..errors import ConfigError
from ..order.interleave import MixedPlan, whole_weights
from ..order.plan import Order, Shuffle
from .classes import Classes
from .concat import Concat
from .readable import ReadableDataset


@final
class Mixture(Concat):
    """Several datasets as one, drawn from by weight; `mix` returns it. Sample numbers count through the sources.

    Attributes:
        weights: the turns of each source in a window, as integers.
        sources, fields, left_out, path: see `Concat`.
    """

    word = "mix"
    orders_itself = True

    def __init__(
        self,
        datasets: Mapping[str, ReadableDataset],
        weights: Mapping[str, float],
        samples: int | None = None,
        classes: Classes | None = None,
    ) -> None:
        if not isinstance(weights, Mapping):
            named = ", ".join(f"{name!r}: ..." for name in datasets)
            raise ConfigError(f"weights must be a dict by source, as in {{{named}}}, got {weights!r}")
        if weights.keys() != datasets.keys():
            raise ConfigError(
                f"weights must name the sources {', '.join(datasets)}, got {', '.join(weights) or 'none'}"
            )
        if samples is not None and (not isinstance(samples, int) or samples < 1):
            raise ConfigError(f"samples must be a whole number of at least 1, got {samples!r}")
        for name, dataset in datasets.items():
            if dataset.orders_itself:
                raise ConfigError(f"source {name!r} is itself a mixture; give its datasets instead")
        super().__init__(datasets, classes)
        self.weights = whole_weights({name: weights[name] for name in datasets})
        self._samples = samples or sum(map(len, self._datasets))

    def __len__(self) -> int:
        return self._samples

    def _drawing(self) -> str:
        return f", weights {self.weights}, {self._samples} samples an epoch"

    @property
    def digest(self) -> str:
        """A hash of the sources' names and digests, the weights, and the length of an epoch."""
        sources = [[name, dataset.digest] for name, dataset in self.datasets.items()]
        text = json.dumps([sources, self.weights, self._samples])
        return f"mix:{xxhash.xxh3_128_hexdigest(text.encode())}"

    @property
    def earlier(self) -> Mapping[str, int]:
        """Nothing: where a source grows, its turns lead to other samples."""
        return {}

    def description(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        return {**super().description(arrays), "weights": self.weights, "samples": self._samples}

    def plan(self, seed: int, shuffle: Shuffle, block: int, window: int) -> Order:
        """Return the order of the samples in epoch 0."""
        sizes, weights = tuple(map(len, self._datasets)), tuple(self.weights.values())
        return MixedPlan(self._samples, sizes, weights, seed, 0, shuffle, block, window)
