"""A map-style dataset for torch's own DataLoader, and for whatever else takes one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch.utils.data

from ..dataset.readable import ReadableDataset
from ..dataset.store_access import StoreAccess
from ..engines.fused_images import Decode
from ..errors import ConfigError
from ..format.limits import MAX_IMAGE_PIXELS, MAX_VALUE_BYTES, Limits
from ..order.plan import Plan, PlanSlice
from ..system import allocation
from ..system.timing import StageClock
from .arguments import whole_number
from .batch.bad_samples import OnBadSample
from .batch.rows import BatchRows
from .batch.spec import BatchOptions, DeviceOptions, Transforms, batch_spec
from .dataset_argument import readable


@final
class TorchDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples by number, decoded and transformed, for `torch.utils.data.DataLoader`.

    Use it with a sampler of your own; `shardio.Loader` is several times faster. DataLoader asks for a whole batch at
    once (`__getitems__`), which is read and decoded in one call. A sample is a dict of NumPy numbers, tensors and
    texts, and its `index`. You may pickle and fork the dataset, so any number of workers and any start method work.

    Args:
        dataset: a path or URL, or a Dataset.
        transforms: a list for the one image field, or {field: list}; random choices depend on seed, epoch and index.
        decode, orient: see `shardio.Loader`.
        fields: the fields to deliver; None delivers all.
        seed: the seed of random choices.
        on_bad_sample: `"raise"`, or `"replace"` to deliver another sample under its own `index`; see `shardio.Loader`.
        verify: compare each sample's checksum with the stored one.
        max_image_pixels, max_value_bytes: the most that a sample may claim; see `shardio.Loader`.
        cache, cache_size, store_options: for a `dataset` given as a URL, see `shardio.open`.

    Raises ConfigError for an argument that breaks a rule, and whatever `shardio.open` raises.
    """

    def __init__(
        self,
        dataset: ReadableDataset | str | os.PathLike[str],
        *,
        transforms: Transforms = None,
        decode: Decode = "exact",
        orient: bool = False,
        fields: Sequence[str] | None = None,
        seed: int = 0,
        on_bad_sample: OnBadSample = "raise",
        verify: bool = False,
        max_image_pixels: int = MAX_IMAGE_PIXELS,
        max_value_bytes: int = MAX_VALUE_BYTES,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = None,
        store_options: Mapping[str, str] | None = None,
    ) -> None:
        if on_bad_sample not in ("raise", "replace"):
            raise ConfigError(f"on_bad_sample of a TorchDataset must be 'raise' or 'replace', got {on_bad_sample!r}")
        self.dataset = readable(dataset, StoreAccess(cache, cache_size, store_options))
        if "source" in self.dataset.id_columns:
            raise ConfigError(
                "TorchDataset takes no mixture, which has an order of its own: use shardio.Loader, or a single dataset"
            )
        self._options = BatchOptions(
            batch_size=1,
            fields=fields,
            transforms=transforms,
            decode=decode,
            orient=orient,
            on_bad_sample=on_bad_sample,
            verify=verify,
            limits=Limits(max_image_pixels, max_value_bytes),
        )
        self._spec = batch_spec(self.dataset, self._options, DeviceOptions())
        self._plan = Plan(max(1, len(self.dataset)), whole_number(seed, "seed"))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return many samples at once, in the order asked for; IndexError outside of [-N, N)."""
        asked = np.array([whole_number(index, "a sample's number") for index in indices], np.int64)
        outside = asked[(asked < -len(self)) | (asked >= len(self))]
        if len(outside):
            raise IndexError(f"index must be in [0, {len(self)}), got {outside[0]}")
        asked %= max(1, len(self))
        layout = self._spec.array_layout(len(asked))
        rows = BatchRows(
            self._spec,
            self._plan,
            PlanSlice(asked, asked, np.ones(len(asked), np.bool_)),
            {name: allocation.empty(shape, dtype) for name, (shape, dtype) in layout.items()},
            mark_valid=False,
            clock=StageClock(),
        )
        rows.fill(slice(0, len(asked)))
        filled = rows.filled(slice(0, len(asked)))
        # A NumPy number keeps its type when DataLoader collates it; a Python number would become 64 bits wide.
        numbers = {name: array for name, array in filled.arrays.items() if array.ndim == 1}
        return [
            {name: numbers[name][row] if name in numbers else rows.value(name, row) for name in self._spec.fields}
            | rows.presence_columns(row)
            | {"index": int(filled.indices[row])}
            for row in range(len(asked))
        ]

    def set_epoch(self, epoch: int) -> None:
        """Draw random choices for another epoch; a DataLoader's persistent workers keep the epoch they started with."""
        self._plan = replace(self._plan, epoch=whole_number(epoch, "epoch"))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.dataset, self._options, self._plan.seed, self._plan.epoch)


def _rebuild(dataset: ReadableDataset, options: BatchOptions, seed: int, epoch: int) -> TorchDataset:
    rebuilt = TorchDataset(
        dataset,
        transforms=options.transforms,
        decode=options.decode,
        orient=options.orient,
        fields=options.fields,
        seed=seed,
        on_bad_sample=options.on_bad_sample,
        verify=options.verify,
        max_image_pixels=options.limits.max_image_pixels,
        max_value_bytes=options.limits.max_value_bytes,
    )
    rebuilt.set_epoch(epoch)
    return rebuilt
