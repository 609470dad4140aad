"""A map-style dataset for torch's own DataLoader, and for whatever else takes one."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any, final

import numpy as np
import torch.utils.data
from numpy.typing import NDArray

from ..dataset.store_access import KEYWORDS
from ..engines.fused_images import Decode
from ..engines.video_frames import Matrix
from ..errors import ConfigError
from ..format.limits import MAX_IMAGE_PIXELS, MAX_VALUE_BYTES, Limits
from ..order.plan import Plan, PlanSlice
from ..system import allocation
from ..system.rules import as_integer
from ..system.shared_memory import Shared
from ..system.timing import StageClock
from ..views.readable import ReadableDataset
from .arguments import readable
from .batch.bad_samples import fill
from .batch.field_names import Fields
from .batch.first_batch import warn_of_equal_views
from .batch.quarantine import OnBadSample
from .batch.rows import Rows
from .batch.spec import BatchOptions, DeviceOptions, batch_spec
from .batch.transforms_by_field import Transforms
from .workers.shared_buffers import SharedBuffer, new_shared_buffer


@final
class TorchDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples by number, decoded and transformed, for `torch.utils.data.DataLoader`.

    Use it with a sampler of your own; `shardio.Loader` is several times faster. DataLoader asks for a whole batch at
    once (`__getitems__`), so that one call reads and decodes it. A sample is a dict of NumPy numbers, tensors and
    strings, and its `index`. You may pickle and fork the dataset, so any number of workers and any start method work.

    `dataset[i]` by hand always gives the same in an epoch: what a Loader delivers. A sample that a sampler names again
    in an epoch gets other random choices each time that a DataLoader asks for it. Each worker counts this for itself,
    from the last `set_epoch` on, so the choices of repeats depend on the number of workers, and a sample's first times
    in two workers are alike. The count takes 4 bytes per sample of the dataset in each worker.

    Args:
        dataset: a path or URL, or a Dataset.
        transforms: a list for the one image field, or {field: list}; random choices depend on seed, epoch and index.
        decode, orient, untagged_matrix, geometry: see `shardio.Loader`.
        fields: the fields to deliver, a list or {name: stored field}, see `shardio.Loader`; None delivers all.
        seed: the seed of random choices.
        on_bad_sample: `"raise"`, or `"replace"` to deliver another sample under its own `index`; see `shardio.Loader`.
        verify: compare each sample's checksum with the stored one.
        max_image_pixels, max_value_bytes: the most that a sample may claim; see `shardio.Loader`.
        cache, cache_size, store_options: for a `dataset` given as a path or URL, see `shardio.open`.

    Raises ConfigError for an argument that breaks a rule, and whatever `shardio.open` raises.
    """

    def __init__(
        self,
        dataset: ReadableDataset | str | os.PathLike[str],
        *,
        transforms: Transforms = None,
        decode: Decode = "exact",
        orient: bool = False,
        untagged_matrix: Matrix = "bt601",
        geometry: bool = False,
        fields: Fields = None,
        seed: int = 0,
        on_bad_sample: OnBadSample = "raise",
        verify: bool = False,
        max_image_pixels: int = MAX_IMAGE_PIXELS,
        max_value_bytes: int = MAX_VALUE_BYTES,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = None,
        store_options: Mapping[str, str] | None = None,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name != "self" and name not in KEYWORDS}
        if on_bad_sample not in ("raise", "replace"):
            raise ConfigError(f"on_bad_sample of a TorchDataset must be 'raise' or 'replace', got {on_bad_sample!r}")
        self.dataset = readable(dataset, cache=cache, cache_size=cache_size, store_options=store_options)
        if self.dataset.orders_itself:
            raise ConfigError(
                "TorchDataset takes no mixture and no weighted view, nor rows that are cut, which have an order of "
                "their own: use shardio.Loader, or a single dataset"
            )
        options = BatchOptions(
            fields=fields,
            transforms=transforms,
            decode=decode,
            orient=orient,
            untagged_matrix=untagged_matrix,
            geometry=geometry,
            on_bad_sample=on_bad_sample,
            verify=verify,
            limits=Limits(max_image_pixels, max_value_bytes),
        )
        self._spec = batch_spec(self.dataset, options, DeviceOptions())
        if self._spec.dataset is not self.dataset:  # whose order leaves samples out, and here a sampler has the order
            short = self._spec.dataset.numbers - len(self._spec.dataset)
            raise ConfigError(
                f"{short} samples of {self.dataset.path} are too short for their clips, and a sampler would ask for "
                "them: take short='pad', or leave them out with dataset.clips()"
            )
        for name, rule in self._spec.collations.items():
            if self._spec.arrays[name].row_shape is None:
                raise ConfigError(
                    f"transforms for {name!r}: a TorchDataset delivers samples, of which {rule} makes no batch: give "
                    "PadTo a length, or DataLoader a collate_fn"
                )
        for name in (name for name, image in self._spec.images.items() if image.padder is not None):
            raise ConfigError(f"transforms for {name!r}: a TorchDataset delivers samples: give PadImages a size")
        self._plan = Plan(max(1, len(self.dataset)), as_integer(seed, "seed"))
        self._epoch = _SharedEpoch()
        self._repeats = _Repeats()
        self._shared: Shared | None = None
        _alive.add(self)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        # In a worker it is DataLoader that asks, for itself or for a dataset around this one.
        return self._samples([index], repeats=torch.utils.data.get_worker_info() is not None)[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return many samples at once, in the order asked for, as DataLoader asks for them: repeats are counted.

        Raises IndexError outside of [-N, N).
        """
        return self._samples(indices, repeats=True)

    def _samples(self, indices: Sequence[int], *, repeats: bool) -> list[dict[str, Any]]:
        asked = np.array([as_integer(index, "a sample's number") for index in indices], np.int64)
        outside = asked[(asked < -len(self)) | (asked >= len(self))]
        if len(outside):
            raise IndexError(f"index must be in [0, {len(self)}), got {outside[0]}")
        asked %= max(1, len(self))
        if self._spec.drawn_alike and len(asked) and self._epoch.is_first_batch():
            warn_of_equal_views(self._spec, asked, stacklevel=4)
        if self._plan.epoch != self._epoch.number:
            self._plan = self._plan.at_epoch(self._epoch.number)
        keys = self._repeats.keys(asked, self._plan.n, self._epoch.calls) if repeats else asked
        layout = self._spec.array_layout(len(asked))
        rows = Rows(
            self._spec,
            self._plan,
            PlanSlice(asked, keys, np.ones(len(asked), np.bool_), np.zeros(len(asked), np.int64)),
            {name: allocation.empty(shape, dtype) for name, (shape, dtype) in layout.items()},
            pads=False,
            clock=StageClock(),
        )
        fill(rows, slice(0, len(asked)))
        # A NumPy number keeps its type when DataLoader collates it; a Python number would become 64 bits wide.
        numbers = {name: array for name, array in rows.arrays.items() if array.ndim == 1}
        return [
            {name: numbers[name][row] if name in numbers else rows.value(name, row) for name in self._spec.fields}
            | rows.added_columns(row)
            | {"index": int(rows.indices[row])}
            for row in range(len(asked))
        ]

    def set_epoch(self, epoch: int) -> None:
        """Draw random choices for another epoch, also in a DataLoader's workers, and count repeats from here on.

        Call it between two loops: after one that you leave early, persistent workers may still be asked for samples of
        it, and these count. A process that was forked or started with the dataset, such as another rank, has an epoch
        of its own once it calls this.
        """
        number = self._plan.at_epoch(as_integer(epoch, "epoch")).epoch
        self._own_epoch()
        self._epoch.set(number)

    def _own_epoch(self) -> None:
        """Leave the epoch of the process that this one was forked or started by, for one of this process."""
        if not self._epoch.is_own:
            number, self._epoch, self._repeats = self._epoch.number, _SharedEpoch(), _Repeats()
            self._epoch.set(number)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self._arguments | {"dataset": self.dataset}
        if get_spawning_popen() is None:  # a copy, with an epoch of its own: memory goes only to a new process
            return _rebuild, (arguments, self._epoch.number)
        _own_epochs()
        self._shared = self._shared or Shared(self.dataset)  # open until the process has started
        return _rebuild, (arguments | {"dataset": self._shared}, self._epoch)


_alive: weakref.WeakSet[TorchDataset] = weakref.WeakSet()


def _own_epochs() -> None:
    """Before this process starts workers: they must share an epoch that it can set, and not that of its parent."""
    if torch.utils.data.get_worker_info() is None:
        for dataset in list(_alive):
            dataset._own_epoch()


os.register_at_fork(before=_own_epochs)


@final
class _SharedEpoch:
    """The epoch of a dataset, in memory that the process which made it shares with a DataLoader's workers."""

    def __init__(self, buffer: SharedBuffer | None = None, owner: int | None = None) -> None:
        self._buffer = buffer or new_shared_buffer("shardio epoch")
        self._owner = owner or os.getpid()
        self._numbers = self._buffer.reach(24)[:24].view(np.int64)  # the epoch, calls of `set`, batches

    def __reduce__(self) -> tuple[Any, ...]:
        return _SharedEpoch, (self._buffer, self._owner)

    @property
    def is_own(self) -> bool:
        """Whether this process made it."""
        return self._owner == os.getpid()

    @property
    def number(self) -> int:
        return int(self._numbers[0])

    @property
    def calls(self) -> int:
        """The number of times that the epoch was set."""
        return int(self._numbers[1])

    def is_first_batch(self) -> bool:
        """Return True once, in one of the processes."""
        self._numbers[2] += 1
        return bool(self._numbers[2] == 1)

    def set(self, number: int) -> None:
        """Set the epoch, below 2^63."""
        self._numbers[:2] = number, self.calls + 1


@final
class _Repeats:
    """The number of times that this process was asked for each sample since the epoch was set."""

    def __init__(self) -> None:
        self._since: tuple[int, int] | None = None
        self._times = np.zeros(0, np.uint32)

    def keys(self, asked: NDArray[np.int64], samples: int, calls: int) -> NDArray[np.int64]:
        """Count samples, int64 [n], and return their random keys, int64 [n].

        The key is the sample's number the first time, and then one that it has in no other worker of this DataLoader.
        """
        if self._since != (os.getpid(), calls):  # a forked worker has counted nothing yet
            self._since, self._times = (os.getpid(), calls), np.zeros(samples, np.uint32)
        order = np.argsort(asked, kind="stable")
        in_order = asked[order]
        times = self._times[asked].astype(np.int64)
        times[order] += np.arange(len(asked)) - np.searchsorted(in_order, in_order)  # before it in this call
        np.add.at(self._times, asked, 1)
        worker = torch.utils.data.get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return np.where(times, asked + samples * (1 + (times - 1) * workers + number), asked)


def _rebuild(arguments: dict[str, Any], epoch: int | _SharedEpoch) -> TorchDataset:
    if isinstance(epoch, int):
        rebuilt = TorchDataset(**arguments)
        rebuilt.set_epoch(epoch)
    else:
        rebuilt = TorchDataset(**arguments | {"dataset": arguments["dataset"].load()})
        rebuilt._epoch = epoch
    return rebuilt
