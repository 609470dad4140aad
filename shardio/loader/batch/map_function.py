"""The user's own function in the loader, applied to each batch, or to each sample before samples become a batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np
import torch

from ...errors import ConfigError, MapError

MapBy: TypeAlias = Literal["batch", "sample"]
UserFunction: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]


@final
@dataclass(frozen=True, slots=True)
class MapFunction:
    """The user's function, which workers apply last.

    Attributes:
        function: takes a dict and returns one.
        by: whether the dict is a `"batch"` of tensors and lists or one `"sample"`.
    """

    function: UserFunction
    by: MapBy

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"map must be a function, got {self.function!r}")
        if self.by not in get_args(MapBy):
            raise ConfigError(f"map_by must be 'batch' or 'sample', got {self.by!r}")

    def apply_to_sample(self, sample: dict[str, Any], index: int) -> Mapping[str, Any]:
        """Call the function with one sample; if it fails, raise a MapError that names the sample."""
        return self._call(sample, f"sample {index}")

    def apply_to_batch(self, batch: dict[str, Any], indices: Sequence[int]) -> dict[str, Any]:
        """Call the function with a batch; if it fails, raise a MapError that names the batch's samples."""
        return dict(self._call(batch, f"the batch of samples {indices}"))

    def _call(self, argument: dict[str, Any], described: str) -> Mapping[str, Any]:
        name = getattr(self.function, "__qualname__", repr(self.function))
        try:
            result = self.function(argument)
        except Exception as error:
            raise MapError(f"map function {name}, {described}: {type(error).__name__}: {error}") from error
        if not isinstance(result, Mapping):
            raise MapError(f"map function {name}, {described}: it must return a dict, got {type(result).__name__}")
        return result


def collate(samples: Sequence[Mapping[str, Any] | None], example: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Combine samples into a batch.

    Numbers, and tensors or arrays of one shape and dtype, become a tensor [B, ...]; other values become a list. None
    stands for a masked sample, which becomes zeros in the form of the first sample that is not masked, or of
    `example()` if all are. Raises MapError unless all samples have the same names.
    """
    first = next((sample for sample in samples if sample is not None), None)
    if first is None:
        first = example()
    for row, sample in enumerate(samples):
        if sample is not None and sample.keys() != first.keys():
            raise MapError(
                f"the map function must give all samples the same names; the first has {list(first)}, number {row} "
                f"of the batch has {list(sample)}"
            )
    zeros = {name: _zero_like(value) for name, value in first.items()}
    return {name: _collate_column([(sample or zeros)[name] for sample in samples]) for name in first}


def _zero_like(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, np.ndarray):
        return np.zeros_like(value)
    return type(value)() if isinstance(value, (bool, int, float, np.generic, str, bytes)) else None


def _collate_column(values: list[Any]) -> Any:
    if all(isinstance(value, (bool, int, float, np.generic)) for value in values):
        return torch.as_tensor(np.array(values))
    if not all(isinstance(value, (torch.Tensor, np.ndarray)) for value in values):
        return values
    tensors = [torch.as_tensor(value) for value in values]
    same_shape = len({(tensor.shape, tensor.dtype) for tensor in tensors}) == 1
    return torch.stack(tensors) if same_shape else tensors
