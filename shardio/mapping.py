"""A user's own function in the pipeline, for each sample or each batch, and how samples become a batch again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np
import torch

from .errors import ConfigError, MapError

By: TypeAlias = Literal["batch", "sample"]
Function: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]


@final
@dataclass(frozen=True, slots=True)
class Mapped:
    """A function that workers apply.

    Attributes:
        function: takes a dict and returns one.
        by: what a dict is: a `"batch"` of tensors and lists, or one `"sample"`.
    """

    function: Function
    by: By

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"map must be a function, got {self.function!r}")
        if self.by not in get_args(By):
            raise ConfigError(f"map_by must be 'batch' or 'sample', got {self.by!r}")

    def sample(self, value: dict[str, Any], place: str) -> Mapping[str, Any]:
        """What the function makes of one sample; MapError names the sample, `place`, if it fails."""
        return self._call(value, f"sample {place}")

    def batch(self, value: dict[str, Any], place: str) -> dict[str, Any]:
        """What the function makes of a batch; MapError names its samples."""
        return dict(self._call(value, f"the batch of samples {place}"))

    def _call(self, value: dict[str, Any], what: str) -> Mapping[str, Any]:
        name = getattr(self.function, "__qualname__", repr(self.function))
        try:
            made = self.function(value)
        except Exception as error:
            raise MapError(f"map function {name}, {what}: {type(error).__name__}: {error}") from error
        if not isinstance(made, Mapping):
            raise MapError(f"map function {name}, {what}: it must return a dict, got {type(made).__name__}")
        return made


def collate(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A batch of samples: by name a tensor [B, ...] of numbers, or of tensors or arrays of one shape, else a list.

    Raises MapError unless all samples have the same names.
    """
    names = list(samples[0]) if samples else []
    for place, sample in enumerate(samples):
        if sample.keys() != samples[0].keys():
            raise MapError(
                f"the map function must give all samples the same names; the first has {names}, number {place} of the "
                f"batch has {list(sample)}"
            )
    return {name: _column([sample[name] for sample in samples]) for name in names}


def _column(values: list[Any]) -> Any:
    if all(isinstance(value, (bool, int, float, np.generic)) for value in values):
        return torch.as_tensor(np.array(values))
    if not all(isinstance(value, (torch.Tensor, np.ndarray)) for value in values):
        return values
    tensors = [torch.as_tensor(value) for value in values]
    alike = len({(tensor.shape, tensor.dtype) for tensor in tensors}) == 1
    return torch.stack(tensors) if alike else tensors
