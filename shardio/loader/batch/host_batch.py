"""A batch on the host: finished tensors and lists, and descriptions of the fields that the device finishes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import torch

from ...system.types import Buffer
from ...transforms.steps import Sizes, Step
from .mixing import BatchFunction
from .quarantine import BadSampleRecord
from .rows import Rows

Batch: TypeAlias = dict[str, Any]
"""A batch as the consumer gets it: for each field a tensor `[B, ...]` or a list of B values, and the columns `index`,
`source` (of mixtures) and `valid` (if rows may be invalid)."""

Finish: TypeAlias = Callable[[torch.Tensor], torch.Tensor | list[torch.Tensor]]
"""A field's last transforms. A second tensor of a list marks the values of the first one that were filled."""


@final
@dataclass(frozen=True, slots=True)
class DeferredField:
    """A field that is copied to the device, which then runs the last transforms.

    Attributes:
        tensor: the values to copy to the device.
        finish: the rest of the field's transforms.
    """

    tensor: torch.Tensor
    finish: Finish


@final
@dataclass(frozen=True, slots=True)
class EncodedImages:
    """The images of a batch for an engine that decodes whole batches.

    Attributes:
        rows: for each row its image file, or a tensor if the host has made the image.
        sizes: heights and widths in pixels, int32 [B, 2].
        steps: the transforms, with parameters for each row.
    """

    rows: Sequence[Buffer | torch.Tensor]
    sizes: Sizes
    steps: tuple[Step, ...]


@final
@dataclass(frozen=True, slots=True)
class HostBatch:
    """A batch on the host.

    Attributes:
        batch: the fields: tensors, lists, or what the classes above describe.
        stored_bytes: the number of stored bytes that were read for the batch.
        bad_samples: the bad samples that were replaced or masked.
        finish: the function to apply to the batch on the device: MixUp or CutMix.
        made_from: the rows that the batch was assembled from, and its part of them: the host makes images of these if
            an engine refuses them. None without such an engine.
        warnings: EngineWarnings that the consumer gets with the batch.
    """

    batch: Batch
    stored_bytes: int
    bad_samples: tuple[BadSampleRecord, ...] = ()
    finish: BatchFunction | None = None
    made_from: tuple[Rows, slice] | None = field(default=None, compare=False)
    warnings: tuple[str, ...] = ()


BatchResult: TypeAlias = HostBatch | Exception
"""A batch, or the error that the consumer gets instead."""

RefusedRows: TypeAlias = Mapping[str, Sequence[int]]
"""The rows whose images an engine could not make, by image field."""
