"""A batch as the host hands it over: tensors, and fields of which the device makes the rest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray

from ...system.types import Buffer
from ...transforms.steps import Sizes, Step
from .bad_samples import BadSampleRecord

SMALLEST = 1 << 16
"""Bytes of a row from which on it is read that way: for smaller ones the host is quicker."""

Batch: TypeAlias = dict[str, Any]


Finishing: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
Finish: TypeAlias = Callable[[Batch], Batch]


@dataclass(frozen=True, slots=True)
class EncodedImages:
    """The images of a batch on their way to an engine for whole batches.

    Attributes:
        rows: of each its file, or a tensor where it has been made on the host already.
        sizes: heights and widths in pixels, int32 [B, 2].
        steps: with a row for each.
        remake: makes the image in a row on the host, or another in its place.
    """

    rows: Sequence[Buffer | torch.Tensor]
    sizes: Sizes
    steps: tuple[Step, ...]
    remake: Callable[[int], torch.Tensor]


@dataclass(frozen=True, slots=True)
class DeferredField:
    """A field of a batch of which the rest is made on the device.

    Attributes:
        tensor: what is copied there.
        finish: makes of it, there, what is delivered.
    """

    tensor: torch.Tensor
    finish: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class FieldInFiles:
    """Rows of a field where they stand.

    Attributes:
        paths: of the files.
        which: for each row its file, int64 [B].
        offsets: for each row its first byte there, int64 [B].
        shape: of the whole, [B, ...].
        dtype: of its elements.
        finish: makes of it, on the device, what is delivered.
        where: names the sample of a row.
    """

    paths: Sequence[str]
    which: NDArray[np.int64]
    offsets: NDArray[np.int64]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    finish: Callable[[torch.Tensor], torch.Tensor]
    where: Callable[[int], str]


@final
@dataclass(frozen=True, slots=True)
class HostBatch:
    """A batch on the host, how many stored bytes were read for it, and the bad samples that were met.

    A field may be Pictures or Later, of which the device makes the rest; `again` gives it after some have been remade;
    `by_host` gives it without what the device reads itself, None where a file's damage is to be raised; `finish` is for
    the batch when it is there.
    """

    batch: Batch
    size: int
    bad: tuple[BadSampleRecord, ...] = ()
    again: Callable[[], "HostBatch"] | None = None
    by_host: Callable[[], "HostBatch"] | None = None
    finish: Finish | None = None


BatchResult: TypeAlias = HostBatch | Exception
"""A batch, or what went wrong."""
