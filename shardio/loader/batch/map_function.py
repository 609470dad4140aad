"""A user's own function in the pipeline, for each sample or each batch, and how samples become a batch again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np
import torch

from ...errors import ConfigError, MapError

By: TypeAlias = Literal["batch", "sample"]
Function: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]


@final
@dataclass(frozen=True, slots=True)
class MapFunction:
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


def collate(samples: Sequence[Mapping[str, Any] | None], example: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """A batch of samples: by name a tensor [B, ...] of numbers, or of tensors or arrays of one shape, else a list.

    None stands for a masked sample, and becomes zeros like the first that is not, or like an `example()`. Raises
    MapError unless all samples have the same names.
    """
    first = next((sample for sample in samples if sample is not None), None)
    if first is None:
        first = example()
    for place, sample in enumerate(samples):
        if sample is not None and sample.keys() != first.keys():
            raise MapError(
                f"the map function must give all samples the same names; the first has {list(first)}, number {place} "
                f"of the batch has {list(sample)}"
            )
    blank = {name: _blank(value) for name, value in first.items()}
    return {name: _column([(sample or blank)[name] for sample in samples]) for name in first}


def _blank(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, np.ndarray):
        return np.zeros_like(value)
    return type(value)() if isinstance(value, (bool, int, float, np.generic, str, bytes)) else None


def _column(values: list[Any]) -> Any:
    if all(isinstance(value, (bool, int, float, np.generic)) for value in values):
        return torch.as_tensor(np.array(values))
    if not all(isinstance(value, (torch.Tensor, np.ndarray)) for value in values):
        return values
    tensors = [torch.as_tensor(value) for value in values]
    alike = len({(tensor.shape, tensor.dtype) for tensor in tensors}) == 1
    return torch.stack(tensors) if alike else tensors
