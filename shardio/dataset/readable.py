"""The protocols of a dataset that a loader reads: samples by number, from one dataset or several."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..cache.fetcher import FetchCounts
from ..containers.row_locator import Scratch
from ..format.fields import Field
from ..format.limits import MAX_VALUE_BYTES
from ..order.plan import Order, Schedule, Shuffle
from ..stores.url import Url
from ..system.types import Buffer, Column, Indices
from .fetch_ahead import FetchAhead
from .location import Location


class SelectedSamples(Protocol):
    """Some samples of a dataset. They are located in their shards once, for all fields that you read."""

    def fetch(self, names: Iterable[str]) -> AbstractContextManager[None]:
        """Return a `with` block in which some fields are local; it waits for those that come from a store.

        That counts as the stage `fetch` of the clock whose stage the thread is in.
        """

    def column(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read a field whose values all have one size, as an array `[n, *shape]`: `out` if given, else a new one."""

    def values(self, name: str, scratch: Scratch | None = None) -> Sequence[Buffer]:
        """Read the stored bytes of any other field; they may be views of `scratch` if that is given."""

    def stored(self, name: str, out: NDArray[Any] | None = None, scratch: Scratch | None = None) -> Any:
        """Read any field in stored form: by `column` if all its values have one size, else by `values`."""


class ReadableDataset(Protocol):
    """The interface that `Loader` needs of a dataset; `Dataset` and `Mixture` have it.

    Attributes:
        path: the name of the dataset in messages.
        fields: the fields of every sample, by name.
        digest: a hash of the content.
        id_columns: the columns of numbers that identify a sample in a batch, by name. Each comes with the names that
            its numbers stand for (the sources of a mixture), or with () if its numbers have no names.
    """

    path: Path | Url

    @property
    def fields(self) -> Mapping[str, Field]: ...

    @property
    def digest(self) -> str: ...

    def field(self, name: str) -> Field:
        """Return the field or hidden column called `name`; raise ConfigError, which says why, if there is none."""

    @property
    def id_columns(self) -> Mapping[str, tuple[str, ...]]: ...

    def __len__(self) -> int: ...

    def plan(self, seed: int, shuffle: Shuffle, block: int, window: int) -> Order:
        """Return the order of the samples in epoch 0."""

    def sample_ids(self, indices: Indices) -> Mapping[str, NDArray[np.int64]]:
        """Return the columns of `id_columns` for some samples, int64 [n] each."""

    def select(self, indices: Indices, max_value_bytes: int = MAX_VALUE_BYTES) -> SelectedSamples:
        """Locate samples, int64 [n] in [0, N), repeats allowed, to read any of their fields; IndexError outside.

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

    def decode(
        self, name: str, stored: Sequence[Buffer], indices: Indices, present: NDArray[np.bool_] | None = None
    ) -> list[Any]:
        """Decode the stored bytes of some samples, as `Dataset.decode` does."""

    def read_ahead(self, first: int, count: int, fields: Iterable[str]) -> None:
        """Ask storage for the samples from `first` to `first + count - 1`, and do not wait for them."""

    @property
    def fetched(self) -> FetchCounts:
        """The bytes that this process has fetched from stores until now, and in how many requests."""

    def fetch_ahead(self, fields: Sequence[str], plan: Order, schedule: Schedule) -> FetchAhead | None:
        """Begin to fetch what an epoch reads of some fields from stores; None if all of it is local."""

    def refetch(self, index: int) -> bool:
        """Fetch a damaged sample from its store again; return whether reading it again is worth while."""

    def warn_of_small_cache(self, window: int) -> None:
        """Warn if the cache of the node has no room for `window` samples of each dataset in a store."""

    def shard_of(self, index: int) -> str:
        """Return the name of a sample's shard, without reading a file."""

    def locate(self, index: int) -> Location:
        """Return the place of a sample: its shard, row and key."""

    def where(self, index: int) -> str:
        """Return the place of a sample as text for messages."""
