"""What engines have in common that take whole batches and leave them on a device."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError, PipelineClosed
from ..system.types import Buffer
from ..transforms.steps import Sizes, Step

Pixels: TypeAlias = Buffer | torch.Tensor
S = TypeVar("S", bound=Step)


class BatchEngine(Protocol):
    """Decodes and transforms the images of whole batches; first in, first out.

    Attributes:
        ahead: batches that should have begun when one is asked for, besides that one.
        reason: why images could not be made, the last time that some could not.
    """

    ahead: int
    reason: str

    def begin(self, encoded: Sequence[Buffer], sizes: Sizes, steps: Sequence[Step]) -> None:
        """Starts on a batch, and returns before it is made."""

    def end(self) -> tuple[torch.Tensor, Sequence[int]]:
        """The oldest batch begun: `[n, ...]` on the device, to be kept by whoever gets it, and the places of the images
        that could not be made. With any of them the tensor may be of any size."""

    def close(self) -> None:
        """Lets go of threads and memory; may be called twice."""


def decoder_share(options: Mapping[str, Any], engine: str) -> float | None:
    """`hw_decoder_load` of an engine's options, if it is given. ConfigError for other options, and beyond [0, 1]."""
    if unknown := set(options) - {"hw_decoder_load"}:
        raise ConfigError(f"the engine {engine!r} has the option hw_decoder_load, not {sorted(unknown)[0]!r}")
    share = options.get("hw_decoder_load")
    if share is not None and (not isinstance(share, (int, float)) or not 0 <= share <= 1):
        raise ConfigError(f"hw_decoder_load must be in [0, 1], got {share!r}")
    return None if share is None else float(share)


def inside(boxes: NDArray[np.int32], sizes: Sizes) -> NDArray[np.int32]:
    """What of boxes (top, left, height, width) lies within their images, one pixel at least: decoders take no more."""
    low = np.clip(boxes[:, :2], 0, sizes - 1)
    high = np.clip(boxes[:, :2] + boxes[:, 2:], low + 1, sizes)
    return np.concatenate((low, high - low), axis=1).astype(np.int32)


class Home:
    """The process that an engine works in. Neither CUDA nor the libraries' threads survive a fork."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._process: int | None = None

    def enter(self) -> None:
        """Makes the first process that comes here its home. PipelineClosed in any other."""
        self._process = self._process or os.getpid()
        if self.left:
            raise PipelineClosed(
                f"the engine {self._name!r} was in use before this process was forked, and cannot be used in it: start "
                "processes by spawn, or make the loader there"
            )

    @property
    def left(self) -> bool:
        """Whether this is another process."""
        return self._process is not None and self._process != os.getpid()


def rows_of(step: S, rows: Any) -> S:
    """A step for some of its images."""
    arrays = {
        f.name: getattr(step, f.name)[rows] for f in fields(step) if isinstance(getattr(step, f.name), np.ndarray)
    }
    return replace(step, **arrays)
