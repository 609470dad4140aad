"""The protocol of a container: how a shard of any kind is written and read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..format.fields import Field
from ..system.types import Column, Rows, Stored
from .row_locator import RowLocator


class Writer(Protocol):
    """One shard being written, to a temporary path that the caller renames."""

    def append(self, sample: Stored) -> None:
        """Adds one sample: the stored bytes of every field, hidden columns too."""

    def close(self) -> None:
        """Ends the shard. When this returns its files are complete and on stable storage (fsync)."""


class Reader(Protocol):
    """One open shard. Any number of threads may call `read` at once; it survives fork and pickling by reopening."""

    def __len__(self) -> int:
        """Samples in the shard."""

    def read(self, rows: Rows, field: str, out: NDArray[Any] | None = None) -> Column:
        """One field of many samples, in the order of `rows`.

        A fixed field gives an array `[len(rows), *shape]`, written into `out` where it is given (C-contiguous, of
        exactly that shape and dtype). Any other field gives a list with the bytes of each sample.

        Raises IndexError for a row outside the shard, KeyError for an unknown field, ShardCorrupt if the file ends
        early or is damaged.
        """

    def direct(self, field: str) -> RowLocator | None:
        """Where the field's rows are, for reading those of many shards at once; None where only `read` finds them."""

    def close(self) -> None:
        """Lets go of files; may be called twice."""


class Container(Protocol):
    """A kind of container: what a name such as `"tar"` stands for."""

    name: str
    suffix: str

    def writer(self, path: Path, fields: Mapping[str, Field], first: int, **options: Any) -> Writer:
        """A shard to be written at `path`: `fields` with the hidden columns, `first` the index of its first sample."""

    def reader(self, path: Path, fields: Mapping[str, Field]) -> Reader:
        """A shard opened for reading."""

    def files(self, path: Path) -> tuple[Path, ...]:
        """All files of the shard at `path`, the shard itself first."""

    def described(self, path: Path) -> Mapping[str, Field] | None:
        """What the shard at `path` says of its fields; None if it says nothing. ShardCorrupt if it cannot be read."""


def check_rows(rows: Rows, count: int, path: object) -> None:
    """Raises IndexError unless every row is in [0, count)."""
    if len(rows) and (rows.min() < 0 or rows.max() >= count):
        wrong = rows[(rows < 0) | (rows >= count)][0]
        raise IndexError(f"{path}: row must be in [0, {count}), got {wrong}")


def check_out(out: NDArray[Any] | None, count: int, field: Field) -> NDArray[Any]:
    """`out` if it fits `count` rows of a fixed field, or a new array; ValueError if it does not fit."""
    shape = (count, *field.row_shape)
    if out is None:
        return np.empty(shape, field.row_dtype)
    if out.shape != shape or out.dtype != field.row_dtype or not out.flags.c_contiguous:
        raise ValueError(f"out must be C-contiguous, {shape} of {field.row_dtype}, got {out.shape} of {out.dtype}")
    return out
