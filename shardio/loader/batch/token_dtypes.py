"""Fields that look like tokens, in a dtype with which torch hardly computes: uint16 and uint32 index no embedding."""

import warnings
from collections.abc import Collection
from typing import Any, final

import torch

from .types import Batch

_DTYPES = (torch.uint16, torch.uint32)


@final
class TokenDtypes:
    """Looks at the first batch, and warns of rows of uint16 or uint32: arrays of one axis, of one length or several.

    Arrays of more axes are no tokens: images and volumes of 16 bits are common, and cropped or converted to floats.

    Args:
        fields: the names of the fields to look at, none if another process of this node does.
    """

    def __init__(self, fields: Collection[str]) -> None:
        self._fields = tuple(fields)

    def look(self, batch: Batch) -> None:
        """Look at a batch as it is delivered; all but the first are passed over."""
        fields, self._fields = self._fields, ()
        for name in fields:
            if (dtype := _row_dtype(batch.get(name))) in _DTYPES:
                warnings.warn(
                    f"field {name!r} holds rows of {dtype}, with which torch hardly computes: if they are tokens, "
                    f"transforms={{{name!r}: [shardio.ToInt64()]}} delivers int64, which embeddings and losses take",
                    UserWarning,
                    stacklevel=4,
                )


def _row_dtype(values: Any) -> torch.dtype | None:
    """Return the dtype of a field's values, if each is an array of one axis."""
    if isinstance(values, list):
        values = next((value[None] for value in values if isinstance(value, torch.Tensor)), None)
    return values.dtype if isinstance(values, torch.Tensor) and values.ndim == 2 else None
