"""The base of the whole-batch engines: their base class, options and helpers for steps."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError, PipelineClosed
from ..system.types import Buffer
from ..transforms.arrays import Move
from ..transforms.fuse import EngineStep
from ..transforms.steps import Sizes, Step

S = TypeVar("S", bound=EngineStep | Move)


class BatchEngine(ABC):
    """Decodes and transforms the images of whole batches, first in, first out.

    Only the process that uses an engine first may use it: neither CUDA nor a library's threads survive a fork.

    Attributes:
        name: the engine's name.
        ahead: how many further batches should have begun when one is asked for.
        reason: why images could not be made, the last time that some could not.
    """

    name: str
    ahead: int
    reason = ""
    _process: int | None = None

    @abstractmethod
    def begin(self, encoded: Sequence[Buffer], sizes: Sizes, steps: Sequence[Step]) -> None:
        """Start on a batch; return before it is finished.

        Args:
            encoded: the image files.
            sizes: their heights and widths in pixels, int32 [n, 2].
            steps: the steps of `Recipe.steps`, with a row per image.
        """

    @abstractmethod
    def end(self) -> tuple[torch.Tensor, Sequence[int]]:
        """Return the oldest batch begun, `[n, ...]` on the device, and the rows of images that could not be made.

        The caller owns the tensor. If there are such rows, it may have any size.
        """

    @abstractmethod
    def close(self) -> None:
        """Release threads and memory. Further calls do nothing."""

    @property
    def forked(self) -> bool:
        """Whether this process was forked after the engine had been used."""
        return self._process is not None and self._process != os.getpid()

    def enter(self) -> None:
        """Use the engine in this process alone from now on. Raise PipelineClosed in a forked one."""
        self._process = self._process or os.getpid()
        self.check_process()

    def check_process(self) -> None:
        """Raise PipelineClosed in a process that was forked after the engine had been used."""
        if self.forked:
            raise PipelineClosed(
                f"the engine {self.name!r} was in use before this process was forked and cannot be used in it: "
                "start processes with spawn, or create the loader in this process"
            )


def parse_hw_decoder_load(options: Mapping[str, Any], engine: str) -> float | None:
    """Return the option `hw_decoder_load`, or None. Raise ConfigError for another option or a value not in [0, 1]."""
    if unknown := set(options) - {"hw_decoder_load"}:
        raise ConfigError("the engine {!r} has the option {hw_decoder_load}, not {!r}", engine, sorted(unknown)[0])
    load = options.get("hw_decoder_load")
    if load is not None and (not isinstance(load, (int, float)) or not 0 <= load <= 1):
        raise ConfigError("{hw_decoder_load} must be in [0, 1], got {!r}", load)
    return None if load is None else float(load)


def clip_boxes(boxes: NDArray[np.int32], sizes: Sizes) -> NDArray[np.int32]:
    """Clip boxes (top, left, height, width) to their images, to at least one pixel: decoders accept no others."""
    low = np.clip(boxes[:, :2], 0, sizes - 1)
    high = np.clip(boxes[:, :2] + boxes[:, 2:], low + 1, sizes)
    return np.concatenate((low, high - low), axis=1).astype(np.int32)


def rows_of(step: S, rows: Any) -> S:
    """Return the step, or move of arrays, for some rows of its batch; `rows` is any index of an array's first axis."""
    return replace(step, **{name: array[rows] for name, array in step_arrays(step).items()})


def step_arrays(step: EngineStep | Move) -> dict[str, NDArray[Any]]:
    """Return the arrays of a step, or of a move of arrays, by name and in order."""
    values = {field.name: getattr(step, field.name) for field in fields(step)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
