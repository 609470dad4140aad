"""A dataset for torch's own DataLoader, and for whatever else takes a map-style Dataset."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch.utils.data

from ..dataset.dataset import Dataset
from ..dataset.dataset import open as open_dataset
from ..dataset.mixture import Mixture
from ..errors import ConfigError
from ..order.plan import Plan, PlanSlice
from ..system.timing import StageClock
from ..transforms import Transform
from .arguments import whole_of
from .batch.bad_samples import OnBadSample
from .batch.batches import Collator
from .batch.rows import BatchRows


@final
class TorchDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples by number, decoded and transformed, for `torch.utils.data.DataLoader`.

    For sampling of your own kind; `shardio.Loader` is several times faster. DataLoader asks for a whole batch at once
    (`__getitems__`), which is read and decoded in one go. A sample is a dict: NumPy numbers, tensors, texts, and
    `index`. It may be pickled and forked, so any number of workers and any start method will do.

    Args:
        dataset: a path or a Dataset.
        transforms: a list for the one image field, or {field: list}; random choices depend on seed, epoch and index.
        fields: the fields to deliver; None is all.
        seed: of random choices.
        on_bad_sample: `"raise"`, or `"replace"` to deliver another sample under its own `index`; see `shardio.Loader`.
        verify: compare each sample's checksum.

    Raises ConfigError for an argument that breaks a rule, and what `shardio.open` raises.
    """

    def __init__(
        self,
        dataset: Dataset | str | os.PathLike[str],
        *,
        transforms: Sequence[Transform] | Mapping[str, Sequence[Transform]] | None = None,
        fields: Sequence[str] | None = None,
        seed: int = 0,
        on_bad_sample: OnBadSample = "raise",
        verify: bool = False,
    ) -> None:
        if on_bad_sample not in ("raise", "replace"):
            raise ConfigError(f"on_bad_sample must be 'raise' or 'replace' here, got {on_bad_sample!r}")
        if isinstance(dataset, Mixture):
            raise ConfigError(
                "a mixture has an order of its own: give it to shardio.Loader, and TorchDataset a dataset"
            )
        self.dataset = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
        self._arguments = (transforms, fields, seed, on_bad_sample, verify)
        self._collator = Collator(
            self.dataset,
            transforms,
            1,
            fields=fields,
            threads=1,
            pin=False,
            on_bad=on_bad_sample,
            verify=verify,
            single=True,
        )
        self._plan = Plan(max(1, len(self.dataset)), whole_of(seed, "seed"))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Many samples at once, in the order asked for; IndexError outside of [-N, N)."""
        asked = np.array([whole_of(index, "a sample's number") for index in indices], np.int64)
        wrong = asked[(asked < -len(self)) | (asked >= len(self))]
        if len(wrong):
            raise IndexError(f"index must be in [0, {len(self)}), got {wrong[0]}")
        asked %= max(1, len(self))
        making = self._collator.making
        arrays = {n: np.empty((len(asked), *shape[1:]), dtype) for n, (shape, dtype) in self._collator.slots.items()}
        part = PlanSlice(asked, asked, np.ones(len(asked), np.bool_))
        canvas = BatchRows(making, self._plan, part, StageClock(), arrays)
        canvas.fill(slice(0, len(asked)))
        return [
            {n: self._value(canvas, n, row) for n in making.fields} | {"index": int(canvas.indices[row])}
            for row in range(len(asked))
        ]

    def set_epoch(self, epoch: int) -> None:
        """Makes random choices those of another epoch. DataLoader's persistent workers keep the one they began with."""
        self._plan = replace(self._plan, epoch=whole_of(epoch, "epoch"))

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.dataset, *self._arguments, self._plan.epoch)

    @staticmethod
    def _value(canvas: BatchRows, name: str, row: int) -> Any:
        array = canvas.arrays.get(name)
        # A NumPy number keeps its type when DataLoader collates it; a Python number would become 64 bits wide.
        return array[row] if array is not None and array.ndim == 1 else canvas.value(name, row)


def _again(
    dataset: Dataset, transforms: Any, fields: Any, seed: int, on_bad: OnBadSample, verify: bool, epoch: int
) -> Any:
    made = TorchDataset(dataset, transforms=transforms, fields=fields, seed=seed, on_bad_sample=on_bad, verify=verify)
    made.set_epoch(epoch)
    return made
