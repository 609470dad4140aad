"""The types that a batch is made of."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

Batch: TypeAlias = dict[str, Any]
"""A batch as the consumer gets it: for each field a tensor `[B, ...]` or a list of B values, and the columns `index`,
`source` (of mixtures) and `valid` (if rows may be invalid)."""

TensorFunction: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
BatchFunction: TypeAlias = Callable[[Batch], Batch]
