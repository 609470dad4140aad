"""What a loader reads: samples by number, from one dataset or several."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..containers.row_locator import Scratch
from ..format.fields import Field
from ..order.plan import Order, Shuffle
from ..system.types import Buffer, Column, Indices
from .location import Location

FileSpans: TypeAlias = tuple[list[str], NDArray[np.int64], NDArray[np.int64]]
"""Files, for each row the number of its file among them, and the offset of its first byte there, int64 [n]."""


class SelectedSamples(Protocol):
    """Some samples of a dataset, located in their shards once, whatever fields of them are then read."""

    def column(self, name: str, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """A field whose values all have one size, `[n, *shape]`, in `out` if given."""

    def values(self, name: str, scratch: Scratch | None = None) -> Sequence[Buffer]:
        """The stored bytes of any other field; with `scratch` they may stand in it."""

    def stored(self, name: str, out: NDArray[Any] | None = None, scratch: Scratch | None = None) -> Any:
        """Any field as it is stored: `column` where its size is fixed, else `values`."""

    def spans(self, name: str) -> FileSpans | None:
        """Where the rows of a fixed field stand in files; None unless all stand there as they are delivered."""


class ReadableDataset(Protocol):
    """What `Loader` needs of a `Dataset`, a `Mixture`, or whatever comes later.

    Attributes:
        path: the name of the whole in messages.
        fields: the fields of every sample.
        digest: names the content.
        id_columns: the columns of numbers that identify a sample: their names, each with the names that its numbers
            stand for, () where they are plain numbers.
    """

    path: Path

    @property
    def fields(self) -> Mapping[str, Field]: ...

    @property
    def digest(self) -> str: ...

    @property
    def id_columns(self) -> Mapping[str, tuple[str, ...]]: ...

    def __len__(self) -> int: ...

    def plan(self, seed: int, shuffle: Shuffle, block: int, window: int) -> Order:
        """The order of the first epoch."""

    def sample_ids(self, indices: Indices) -> Mapping[str, NDArray[np.int64]]:
        """The columns of `id_columns` for some samples, int64 [n] each."""

    def select(self, indices: Indices) -> SelectedSamples:
        """Some samples, int64 [n] in [0, N), repeats allowed, to read any of their fields; IndexError outside."""

    def check(self, indices: Indices, stored: Mapping[str, Column | Sequence[Buffer]]) -> None:
        """Compare the checksums of samples with those that were stored with them; ShardCorrupt for the first that
        differs. `stored` holds the fields that were read already."""

    def decode(self, name: str, stored: Sequence[Buffer], indices: Indices) -> list[Any]:
        """The values of some samples' stored bytes; ShardCorrupt names the sample whose bytes are no such value."""

    def read_ahead(self, first: int, count: int, fields: Iterable[str]) -> None:
        """Ask storage for samples first..first+count-1, and do not wait for it."""

    def shard_of(self, index: int) -> str:
        """The name of a sample's shard; no file is read for it."""

    def locate(self, index: int) -> Location:
        """Where a sample is stored."""

    def where(self, index: int) -> str:
        """Where a sample is stored, for messages."""
