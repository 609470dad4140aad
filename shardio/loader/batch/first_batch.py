"""Warnings about what a loader's first batch shows: fields that hold the same, and tokens that torch hardly takes."""

import warnings
from collections.abc import Collection, Mapping
from typing import Any, final

import torch

from ...errors import PairingWarning
from ...order.plan import Order, Schedule
from ...system.types import Indices
from .quarantine import is_bad_sample
from .spec import BatchSpec

_TOKEN_DTYPES = (torch.uint16, torch.uint32)  # which index no embedding


@final
class FirstBatch:
    """Looks at a loader's first batch.

    Args:
        spec: the batches.
        arrays: the fields of arrays; none if another process of this node looks at their dtypes.
    """

    def __init__(self, spec: BatchSpec, arrays: Collection[str]) -> None:
        self._spec, self._compares, self._arrays = spec, True, tuple(arrays)

    def compare_fields(self, order: Order, schedule: Schedule) -> None:
        """Compare fields in the samples of the first batch, before its loop begins; later loops' are passed over."""
        compares, self._compares = self._compares, False
        if compares and self._spec.drawn_alike:
            warn_of_equal_views(self._spec, schedule.part(order, 0).indices, stacklevel=5)

    def look(self, batch: Mapping[str, Any]) -> None:
        """Warn of rows of uint16 or uint32 in the first batch as it is delivered; later ones are passed over.

        Arrays of more axes are no tokens: images and volumes of 16 bits are common, and cropped or converted to floats.
        """
        fields, self._arrays = self._arrays, ()
        for name in fields:
            if (dtype := _row_dtype(batch.get(name))) in _TOKEN_DTYPES:
                warnings.warn(
                    f"field {name!r} holds rows of {dtype}, with which torch hardly computes: if they are tokens, "
                    f"transforms={{{name!r}: [shardio.ToInt64()]}} delivers int64, which embeddings and losses take",
                    UserWarning,
                    stacklevel=4,
                )


def warn_of_equal_views(spec: BatchSpec, indices: Indices, *, stacklevel: int) -> None:
    """Warn of fields that are `drawn_alike` and hold the same stored bytes in all of the samples `indices`."""
    for one, other in spec.drawn_alike:
        stored = spec.names.stored[one], spec.names.stored[other]
        # The first sample tells an image and its mask apart, so only fields that may be equal cost more than that.
        if all(_hold_the_same(spec, *stored, part) for part in (indices[:1], indices[1:])):
            warnings.warn(
                f"fields {one!r} and {other!r} hold the same bytes in every sample of the first batch, and their "
                "random transforms draw alike: both show one view of each sample. For two views, deliver one field "
                f"under two names, fields={{{one!r}: {stored[0]!r}, {other!r}: {stored[0]!r}}} (see 'Two views of one "
                "image' in docs/loading.md); if one view is what you want, filter shardio.PairingWarning",
                PairingWarning,
                stacklevel=stacklevel,
            )


def _hold_the_same(spec: BatchSpec, one: str, other: str, indices: Indices) -> bool:
    if not len(indices):
        return True
    dataset = spec.dataset
    try:
        selection = dataset.selection(indices, spec.options.limits.max_value_bytes)
        with selection.fetch([one, other]):
            first, second = selection.stored(one), selection.stored(other)
            if dataset.fields[one].fixed:
                return bool(first.tobytes() == second.tobytes())  # NaN too
            return all(memoryview(a) == memoryview(b) for a, b in zip(first, second, strict=True))
    except Exception as error:
        if not is_bad_sample(error):
            raise
        return False  # the loop says what is wrong with it


def _row_dtype(values: Any) -> torch.dtype | None:
    """Return the dtype of a field's values, if each is an array of one axis."""
    if isinstance(values, list):
        values = next((value[None] for value in values if isinstance(value, torch.Tensor)), None)
    return values.dtype if isinstance(values, torch.Tensor) and values.ndim == 2 else None
