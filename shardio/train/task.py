"""Tasks: the fields of a sample that a model takes and is to tell, how they are prepared, and the loss."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from ..transforms import Transform


class Task(Protocol):
    """A task that a model learns. Tasks are frozen.

    Attributes:
        metric: the name of what `scores` gives, as records call it.
        inputs: the field that the model takes.
        targets: the field that it is to tell.
        channels: the channels of its input.
        size: the longest side of its input, in pixels or voxels.
        outputs: how many numbers the model gives for a sample.
    """

    @property
    def metric(self) -> str: ...
    @property
    def inputs(self) -> str: ...
    @property
    def targets(self) -> str: ...
    @property
    def channels(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def outputs(self) -> int: ...

    def transforms(self) -> tuple[Sequence[Transform], Sequence[Transform]]:
        """Return the transforms of inputs in training, and in validation."""

    def prepare(self, inputs: Tensor) -> Tensor:
        """Return what the model takes of a batch's inputs, float32, on their device."""

    def losses(self, outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
        """Return the loss of each sample, float32 [B], of outputs [B, outputs]."""

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the score of each sample, float32 [B]: at most 1, and higher is better."""

    def describe(self) -> dict[str, Any]:
        """Return what must be the same on resuming, plain values."""
