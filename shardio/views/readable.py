"""A dataset that a loader reads, as protocols: samples by number, from one dataset or several."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ..cache.fetcher import FetchCounts
from ..cache.node_cache import Hold
from ..containers.extents import NO_BLOCKS, Blocks, Extent
from ..containers.packed_values import PackedValues, Scratch
from ..errors import ShardCorrupt
from ..format.fields import Field
from ..format.limits import MAX_VALUE_BYTES
from ..order.plan import Order, Shuffle
from ..stores.url import Url
from ..system import npy
from ..system.types import Buffer, Column, Indices


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a sample: its shard, and its row in the shard.

    Attributes:
        shard: the name of the shard.
        row: the row in the shard.
        index: the number of the sample in the dataset.
        key: the value of the sample's field `key`; None if there is no such field, or it cannot be read.
    """

    shard: str
    row: int
    index: int
    key: str | None

    def __str__(self) -> str:
        key = "" if self.key is None else f", key {self.key}"
        return f"{self.shard}, row {self.row} (sample {self.index}{key})"


class SelectedSamples(Protocol):
    """Some samples of a dataset. They are located in their shards once, for all fields that you read."""

    def locate(self, names: Iterable[str]) -> None:
        """Find the values of some fields, once for all parts of this selection that are taken from then on.

        Raises what reading them raises; of a dataset in a store, only within `fetch`.
        """

    def __getitem__(self, part: slice) -> Self:
        """Return a selection of neighbours among these samples."""

    def fetch(self, names: Iterable[str], blocks: Mapping[str, Extent] = NO_BLOCKS) -> AbstractContextManager[None]:
        """Return a `with` block in which some fields are local; it waits for those that come from a store.

        Of a field in `blocks` only what reading these blocks, or entries of a ragged field, takes is sure to be.
        Waiting counts as the stage `fetch` of the clock whose stage the thread is in.
        """

    def column(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read a field whose values all have one size, as an array `[n, *shape]`: `out` if given, else a new one."""

    def values(self, name: str, scratch: Scratch | None = None) -> Sequence[Buffer]:
        """Read the stored bytes of any other field; they may be views of `scratch` if that is given."""

    def parts(
        self,
        name: str,
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        out: NDArray[Any] | None = None,
        scratch: Scratch | None = None,
    ) -> NDArray[Any]:
        """Read entries `begins[i]` to `ends[i]`, not included, of each sample's value of a ragged field.

        Args:
            name: the field; how many entries its values have is the hidden column `length_column(name)`.
            begins, ends: int64 [n], with 0 <= begins <= ends.
            out: an array to fill, C-contiguous, of the field's dtype, `[sum(ends - begins), *entry_shape]`.
            scratch: the memory for the result if there is no `out`; the next read reuses it.

        Returns:
            `out`, or an array like it: the entries of all samples end to end.

        Raises ShardCorrupt, which names the sample, for a value that has fewer entries than that, or not as many as
        the hidden column says.
        """

    def blocks(self, name: str, blocks: Blocks, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read a block of each sample's value of a field whose values all have one size: `column(name)`, cut.

        Args:
            name: the field.
            blocks: the blocks, one for each sample, along the last axes of the values.
            out: an array to fill, C-contiguous, of the field's dtype, `[n, *blocks.shape(shape)]`.

        Returns `out`, or an array like it. Raises ValueError for blocks that are not within the values.
        """

    def stored(self, name: str, out: NDArray[Any] | None = None, scratch: Scratch | None = None) -> Any:
        """Read any field in stored form: by `column` if all its values have one size, else by `values`."""

    def sizes(self, name: str) -> NDArray[np.int64]:
        """Return the size in bytes of each stored value, int64 [n]."""

    def prefetch(self, names: Iterable[str], blocks: Mapping[str, Extent] = NO_BLOCKS) -> list[Hold] | None:
        """Have what reading some fields needs fetched into the node's cache, without waiting for it.

        Of a field in `blocks` that is what reading these takes. Returns what keeps it in the cache until it is
        released; None if there is no room.
        """


class ReadableDataset(Protocol):
    """The interface that `Loader` needs of a dataset. A `Dataset` has it, and so does every view.

    A dataset's order (`plan`) names the samples of an epoch by their numbers, and the other methods take these. Where
    the order draws samples anew in each epoch, as that of a weighted view does, they are numbers in what it draws from.

    Attributes:
        path: the name of the dataset in messages.
        fields: the fields of every sample, by name.
        metadata: JSON values that tell of the samples, such as the names of classes.
        digest: a hash of the content.
        earlier: the digests of the datasets of which this one is an extension, with their numbers of samples, which
            come first here and are the same.
        numbers: the number of samples that have numbers, which are in [0, numbers).
        id_columns: the columns of numbers that identify a sample in a batch, by name. Each comes with the names that
            its numbers stand for (the sources of a mixture), or with () if its numbers have no names.
    """

    path: Path | Url

    @property
    def fields(self) -> Mapping[str, Field]: ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    @property
    def digest(self) -> str: ...

    @property
    def earlier(self) -> Mapping[str, int]: ...

    @property
    def numbers(self) -> int: ...

    def renumbered(self, labels: Mapping[str, NDArray[np.int64]], metadata: Mapping[str, Any]) -> Self:
        """Return the dataset with other labels: by field, the new number of each class, and what names them."""

    def description(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        """Return what this is, down to stored datasets, as JSON values; see `views/saved.py`.

        Arrays that were given are named by their checksums, under which they are added to `arrays`. Raises ConfigError
        for renumbered labels, which belong to the whole that renumbers them.
        """

    def field(self, name: str) -> Field:
        """Return the field or hidden column called `name`; raise ConfigError, which says why, if there is none."""

    @property
    def orders_itself(self) -> bool:
        """Whether `plan` draws samples in a way of its own, as that of a weighted view does."""

    @property
    def id_columns(self) -> Mapping[str, tuple[str, ...]]: ...

    def __len__(self) -> int:
        """Return the number of samples in an epoch."""

    def plan(self, seed: int, shuffle: Shuffle, block: int, window: int) -> Order:
        """Return the order of the samples in epoch 0."""

    def sample_ids(self, indices: Indices) -> Mapping[str, NDArray[np.int64]]:
        """Return the columns of `id_columns` for some samples, int64 [n] each."""

    def origin(self, indices: Sequence[int] | Indices) -> Indices:
        """Return the numbers that samples have in the dataset at the bottom of a stack of views, int64 [n]."""

    @property
    def adopted(self) -> bool:
        """Whether all shards are source files that `shardio index` adopted, so that `shard_numbers` tells the files."""

    def selection(self, indices: Indices, max_value_bytes: int = MAX_VALUE_BYTES) -> SelectedSamples:
        """Locate samples, int64 [n] in [0, numbers), repeats allowed, to read any of their fields; IndexError outside.

        Reading raises BadSample for a value of more bytes than `max_value_bytes`, see `Limits`.
        """

    def check(
        self,
        indices: Indices,
        stored: Mapping[str, Column | Sequence[Buffer]],
        max_value_bytes: int = MAX_VALUE_BYTES,
    ) -> None:
        """Compare the checksums of samples with the stored ones; raise ShardCorrupt for the first that differs.

        `stored` holds the fields that the caller has read already.
        """

    def read_ahead(self, run: range, fields: Iterable[str]) -> None:
        """Ask storage for a run of neighbouring samples, at least one, and do not wait for them."""

    @property
    def fetched(self) -> FetchCounts:
        """The bytes that this process has fetched from stores until now, and in how many requests."""

    @property
    def in_store(self) -> bool:
        """Whether any shards are in a store, where nothing but shardio reads them."""

    def refetch(self, index: int) -> bool:
        """Fetch a damaged sample from its store again; return whether reading it again is worth while."""

    def warn_of_small_cache(self, window: int) -> None:
        """Warn if the cache of the node has no room for `window` samples of each dataset in a store."""

    @property
    def below(self) -> Sequence[ReadableDataset]:
        """The datasets that this one reads; none of a `Dataset`, which is at the bottom."""

    @property
    def shard_means(self) -> NDArray[np.float64]:
        """The mean of the stored bytes of a sample, of each shard of all datasets at the bottom, float64 [shards]."""

    def shard_numbers(self, indices: Indices) -> NDArray[np.int64]:
        """Return the place of each sample's shard in `shard_means`, int64 [n], without reading a file."""

    def shard_of(self, index: int) -> str:
        """Return the name of a sample's shard, without reading a file."""

    def locate(self, index: int) -> Location:
        """Return the place of a sample: its shard, row and key, which are also its text for messages."""


def decoded(
    dataset: ReadableDataset,
    name: str,
    stored: Sequence[Buffer],
    indices: Indices,
    present: NDArray[np.bool_] | None = None,
) -> list[Any]:
    """Decode the stored bytes of some samples; ShardCorrupt names the sample whose bytes do not decode.

    With `present`, bool [n], the value is None where that is False. Arrays of other shapes are views of PackedValues,
    whose memory must be used for nothing else from then on.
    """
    field, values = dataset.field(name), list[Any]()
    if field.kind == "text" and present is None and isinstance(stored, PackedValues):
        whole = stored.data.tobytes()
        if whole.isascii():  # as keys mostly are: one call for all, which are slices of it
            text, ends = whole.decode("ascii"), (stored.offsets + stored.sizes).tolist()
            return [text[begin:end] for begin, end in zip(stored.offsets.tolist(), ends, strict=True)]
    has = itertools.repeat(True) if present is None or present.all() else present.tolist()
    found: Iterable[Any] = (field.decode(v) if there else None for v, there in zip(stored, has, strict=False))
    if field.kind == "array" and isinstance(stored, PackedValues) and not isinstance(has, list):
        arrays = npy.read_arrays(stored.data, stored.offsets, stored.sizes, field.row_dtype)
        found = map(field.entries, stored) if field.ragged else map(field.checked, arrays)
    try:
        values.extend(found)
    except ValueError as error:  # raised alike for malformed UTF-8, JSON and .npy
        place = dataset.path / f"{dataset.locate(int(indices[len(values)]))}"
        raise ShardCorrupt(f"{place}, field {name!r}: not {field.kind}: {error}") from error
    return values
