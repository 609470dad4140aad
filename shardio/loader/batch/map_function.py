"""The user's own function in the loader, applied to each batch, or to each sample before samples become a batch."""

import inspect
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final, get_args

import numpy as np
import torch

from ...errors import ConfigError, MapError
from ...system import stopping
from ...system.at_exit import awaited_calls
from ...transforms import Collation, PadTo
from ...transforms.random_generator import RandomKeys
from .as_numpy import To, as_tensor, with_arrays, with_tensors
from .collate import as_array, cut, joined
from .map_draws import warns_of_global_draws
from .other_draws import map_generator

MapBy: TypeAlias = Literal["batch", "sample"]
UserFunction: TypeAlias = Callable[..., Mapping[str, Any]]
"""A function of a batch or a sample, a dict, which may also have parameters `rng`, `seed`, `epoch` and `position`."""

_EXTRAS = ("rng", "seed", "epoch", "position")


@final
@dataclass(frozen=True, slots=True)
class MapFunction:
    """The user's function, which workers apply last.

    Attributes:
        function: takes a dict and returns one.
        by: whether the dict is a `"batch"` of tensors and lists or one `"sample"`.
        to: whether the dict that the function takes and returns has tensors or arrays.
        timeout: seconds that the interpreter's end waits for a call of the function.
        firsts: what is called instead of the function at first.
        extras: which of `rng`, `seed`, `epoch` and `position` the function takes in addition to the dict.

    Raises ConfigError unless `function` can be called with a dict and these.
    """

    function: UserFunction
    by: MapBy
    to: To = "torch"
    timeout: float = 300.0
    firsts: Iterator[UserFunction] = field(default=iter(()), compare=False)
    extras: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"map must be a function, got {self.function!r}")
        object.__setattr__(self, "extras", _extras(self.function, self.by))

    def apply(
        self, argument: dict[str, Any], samples: int | Sequence[int], keys: RandomKeys, position: int
    ) -> Mapping[str, Any]:
        """Call the function with one sample, or with a batch of `samples`.

        Args:
            argument: the sample or the batch.
            samples: the number of the sample, or the numbers of all of the batch, for messages.
            keys: their random keys.
            position: where their global batch begins.

        Raises a MapError that names the samples if the function fails, PipelineClosed if the loop is over.
        """
        stopping.check()
        thread = threading.get_ident()
        extras: dict[str, Any] = {"seed": keys.seed, "epoch": keys.epoch, "position": position}
        if "rng" in self.extras:
            extras["rng"] = map_generator(keys)
        try:
            given = with_arrays(argument) if self.to == "numpy" else argument
            awaited_calls[thread] = self._describe, samples, time.monotonic() + self.timeout
            try:
                function = next(self.firsts, self.function)
                result = function(given, **{extra: extras[extra] for extra in self.extras})
            finally:
                del awaited_calls[thread]
        except Exception as error:
            raise MapError(f"{self._describe(samples)}: {type(error).__name__}: {error}") from error
        if not isinstance(result, Mapping):
            raise MapError(f"{self._describe(samples)}: it must return a dict, got {type(result).__name__}")
        return with_tensors(result) if self.to == "numpy" else result

    def _describe(self, samples: int | Sequence[int]) -> str:
        what = f"sample {samples}" if isinstance(samples, int) else f"the batch of samples {samples}"
        return f"map function {_name(self.function)}, {what}"


def map_function(
    function: UserFunction | None, by: MapBy, to: To, timeout: float, *, on_threads: bool
) -> MapFunction | None:
    """Return the function of a Loader's options `map` and `map_by`, if it has one; ConfigError for another `map_by`."""
    if by not in get_args(MapBy):
        raise ConfigError("{map_by} must be 'batch' or 'sample', got {!r}", by)
    if function is None:
        return None
    return MapFunction(function, by, to, timeout, iter([warns_of_global_draws(function)] if on_threads else []))


def _extras(function: UserFunction, by: MapBy) -> frozenset[str]:
    """Return the parameters of `function` that the loader fills: those in `_EXTRAS`, without a default or with None.

    Other defaults are values that the user has chosen, as by `functools.partial(function, epoch=3)`.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some compiled functions have none
        return frozenset()
    others = list(signature.parameters.values())[1:]
    extras = frozenset(p.name for p in others if p.name in _EXTRAS and (p.default is p.empty or p.default is None))
    try:
        signature.bind({}, **dict.fromkeys(extras))
    except TypeError as error:
        raise ConfigError(
            f"map must be a function of a {by}, which may also take {', '.join(_EXTRAS)} by keyword, got "
            f"{_name(function)}{signature}: {error}"
        ) from None
    return extras


def _name(function: UserFunction) -> str:
    return getattr(function, "__qualname__", repr(function))


def collate(
    samples: Sequence[Mapping[str, Any] | None],
    example: Callable[[], Mapping[str, Any]],
    collations: Mapping[str, Collation],
) -> dict[str, Any]:
    """Combine samples into a batch.

    Values under the names of `collations` become what these say. Numbers, and tensors or arrays of one shape and dtype,
    become a tensor [B, ...]; other values become a list. None stands for a masked sample, which becomes zeros, or no
    entries, in the form of the first sample that is not masked, or of `example()` if all are.

    Raises MapError unless all samples have the same names, and values that can be joined.
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
    zeros = {name: _zero_like(value, empty=name in collations) for name, value in first.items()}
    batch: dict[str, Any] = {}
    for name in first:
        values = [(zeros if sample is None else sample)[name] for sample in samples]
        rule = collations.get(name)
        batch |= {name: _collate_column(values)} if rule is None else _joined(name, values, rule)
    return batch


def _joined(name: str, values: Sequence[Any], rule: Collation) -> dict[str, Any]:
    """Join the values that a function returned under the name of a field with PadTo or Ragged."""
    arrays, kinds = [], set()
    for value in values:
        tensor = torch.as_tensor(value) if isinstance(value, (torch.Tensor, np.ndarray)) else torch.empty(())
        kinds.add((tensor.dtype, tuple(tensor.shape[1:])))
        if not tensor.ndim or len(kinds) > 1:
            found = f"{list(tensor.shape)} of {tensor.dtype}" if tensor.ndim else repr(value)[:100]
            raise MapError(
                f"the map function must give {name!r}, for {type(rule).__name__}, tensors [n, ...] that differ in "
                f"their first axis only; one is {found}"
            )
        array = cut(as_array(tensor), rule) if isinstance(rule, PadTo) else as_array(tensor)
        if array is None:
            raise MapError(f"the map function gave {name!r} {len(tensor)} entries, more than the length of {rule}")
        arrays.append(array)
    ((dtype, _),) = kinds
    return joined(name, arrays, rule, lambda array: torch.from_numpy(array).view(dtype))


def _zero_like(value: Any, *, empty: bool) -> Any:
    if empty and isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim:
        return value[:0]
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, np.ndarray):
        return np.zeros_like(value)
    return type(value)() if isinstance(value, (bool, int, float, np.generic, str, bytes)) else None


def _collate_column(values: list[Any]) -> Any:
    if all(isinstance(value, (bool, int, float, np.generic)) for value in values):
        return torch.as_tensor(np.array(values))
    tensors = [as_tensor(value) if isinstance(value, np.ndarray) else value for value in values]
    if not all(isinstance(value, torch.Tensor) for value in tensors):
        return values
    same_shape = len({(tensor.shape, tensor.dtype) for tensor in tensors}) == 1
    return torch.stack(tensors) if same_shape else tensors
