"""The table of a dataset's shards: one array per column; the texts of a large one stay in their file.

A million shards take four arrays, not a million objects.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ManifestError
from ..system.types import Indices
from .file_table import FileTable, Table, parts

_NAME_LETTERS = np.zeros(256, np.bool_)
_NAME_LETTERS[[ord(letter) for letter in map(chr, range(128)) if re.fullmatch(r"[A-Za-z0-9_.-]", letter)]] = True
_MOST_SAMPLES = 1 << 62
_LONGEST_TEXT = 255  # of the names of files; one long text would widen the whole column


@final
class TextColumn(Sequence[str]):
    """A sequence of ASCII strings in one table of fixed width, without a Python object per string.

    Args:
        texts: strings, or a table of NumPy's kind S.

    Raises ManifestError if a string is not ASCII.
    """

    def __init__(self, texts: Sequence[str] | Table) -> None:
        if isinstance(texts, np.ndarray | FileTable):
            self.table: Table = texts
            return
        if (longest := max(map(len, texts), default=0)) > _LONGEST_TEXT:
            raise ManifestError(f"shards: a name must have at most {_LONGEST_TEXT} characters, got {longest}")
        try:
            self.table = np.array(list(texts) or [""], "S")[: len(texts)]
        except UnicodeEncodeError as error:
            raise ManifestError(f"shards: not ASCII: {error.object!r}") from error

    @property
    def array(self) -> NDArray[np.bytes_]:
        """All strings, of NumPy's kind S."""
        return np.asarray(self.table)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: Any) -> Any:
        item = self.table[number]
        return TextColumn(item) if isinstance(item, np.ndarray) else item.decode("ascii")

    def __iter__(self) -> Iterator[str]:
        return (text.decode("ascii") for part in parts(self.table) for text in part)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextColumn) and np.array_equal(self.array, other.array)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class ShardTable:
    """A dataset's shards, as columns with a row per shard.

    Attributes:
        names: the file names, all in the dataset's directory.
        samples: the number of samples in each shard, int64 [shards].
        bytes: the total size of each shard's files, int64 [shards].
        checksums: XXH3-128 over each shard's files, as 32 hexadecimal digits.
        starts: the index of each shard's first sample, then the dataset's size, int64 [shards + 1]; computed.

    Raises ManifestError if the columns differ in length, a number is out of range, or a name is unsafe or not unique.
    """

    names: TextColumn
    samples: NDArray[np.int64]
    bytes: NDArray[np.int64]
    checksums: TextColumn
    starts: NDArray[np.int64] = field(init=False)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ShardTable)
            and (self.names, self.checksums) == (other.names, other.checksums)
            and np.array_equal(self.samples, other.samples)
            and np.array_equal(self.bytes, other.bytes)
        )

    __hash__ = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.samples) == len(self.bytes) == len(self.checksums):
            raise ManifestError("shards: names, samples, bytes and checksums must have the same length")
        for name in ("samples", "bytes"):
            column = getattr(self, name)
            if len(column) and (column.min() < 0 or column.sum(dtype=np.float64) > _MOST_SAMPLES):
                raise ManifestError(f"shards: {name} must be in [0, 2^62], all together")
        _check_names(self.names)
        object.__setattr__(self, "starts", np.concatenate(([0], np.cumsum(self.samples))).astype(np.int64))

    def __len__(self) -> int:
        return len(self.names)

    def locate(self, indices: Indices) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the shard number and the row within that shard of each of n samples, int64 [n] each."""
        shard = np.searchsorted(self.starts, indices, side="right") - 1
        return shard, indices - self.starts[shard]

    def followed_by(self, other: "ShardTable") -> "ShardTable":
        """Return a table of these shards and then those of another one; ManifestError if a name occurs in both."""
        return ShardTable(
            TextColumn(np.concatenate((self.names.array, other.names.array))),
            np.concatenate((self.samples, other.samples)),
            np.concatenate((self.bytes, other.bytes)),
            TextColumn(np.concatenate((self.checksums.array, other.checksums.array))),
        )

    def to_array(self) -> NDArray[np.void]:
        """Return all columns but `starts` as one structured array."""
        columns = {
            "names": self.names.array,
            "samples": self.samples,
            "bytes": self.bytes,
            "checksums": self.checksums.array,
        }
        table = np.empty(len(self), [(name, column.dtype.newbyteorder("<")) for name, column in columns.items()])
        for name, column in columns.items():
            table[name] = column
        return table

    @classmethod
    def from_array(cls, table: Table) -> "ShardTable":
        """Read what `to_array` returned; the texts stay in `table`.

        Raises ManifestError if it is anything else.
        """
        kinds = {"names": "S", "samples": "i", "bytes": "i", "checksums": "S"}
        dtypes = {name: table.dtype[name] for name in table.dtype.names or ()}
        right = {name: dtype.kind for name, dtype in dtypes.items()} == kinds
        if len(table.shape) != 1 or not right or any(dtypes[name] != np.dtype("<i8") for name in ("samples", "bytes")):
            raise ManifestError(f"shards: not a table of names, samples, bytes and checksums: {table.dtype}")
        samples, sizes = (np.asarray(table[name]) for name in ("samples", "bytes"))
        return cls(TextColumn(table["names"]), samples, sizes, TextColumn(table["checksums"]))


def _check_names(names: TextColumn) -> None:
    """Check that each name is a plain file name, and unique: names come from a file and become parts of paths."""
    last, ascending = b"", True
    for part in parts(names.table):
        letters = np.ascontiguousarray(part).view(np.uint8).reshape(len(part), -1)
        used = letters != 0
        plain = (_NAME_LETTERS[letters] | ~used).all(axis=1) & used[:, 0] & (used[:, 1:] <= used[:, :-1]).all(axis=1)
        plain &= ~np.isin(letters[:, 0], np.frombuffer(b"_.-", np.uint8))
        if not plain.all():
            wrong = part[np.flatnonzero(~plain)[0]]
            raise ManifestError(
                f"shards: not the name of a file in the dataset's directory: {wrong.decode('ascii', 'replace')!r}"
            )
        ascending = ascending and bool(part[0] > last) and bool((part[1:] > part[:-1]).all())
        last = part[-1]
    if not ascending and len(np.unique(names.array)) != len(names):
        raise ManifestError("shards: a name occurs twice")
