"""Base classes of sources: pickling, and the members of sources whose samples are rows of columns."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, SourceError
from shardio.source import Field


class PicklesFields:
    """A dataclass that pickles without what it caches, and without `remarks` and `hints`, which workers do not need."""

    def __getstate__(self) -> dict[str, Any]:
        fields: Any = self
        kept = [field.name for field in dataclasses.fields(fields) if field.name not in ("remarks", "hints")]
        return {name: getattr(self, name) for name in kept}


class ColumnSource(PicklesFields, ABC):
    """A dataclass whose samples are rows of columns.

    Attributes:
        columns: the columns to read, by field. Each has a `field`, and the `mean` bytes of a row, 0 until it is known.
    """

    columns: Mapping[str, Any]

    @property
    @abstractmethod
    def _count(self) -> int:
        """The number of samples."""

    def _measured(self, column: Any) -> Any:
        """A column with the kind and the average size of its values, see `measure`; as it is, where none varies."""
        return column

    @abstractmethod
    def _fill(self, name: str, out: NDArray[Any]) -> None:
        """Read all values of the scalar field `name` into `out`; BadSample if one cannot be read."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """A field for each column."""
        return {name: column.field for name, column in self.columns.items()}

    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each sample, `[n]`: exact for numbers, an average over some rows for what varies."""
        try:
            return np.full(self._count, sum(column.mean for column in self.columns.values()), np.int64)
        except (MemoryError, ValueError, OverflowError) as error:
            raise SourceError(f"the source claims {self._count} rows, which are too many") from error

    def column(self, name: str) -> NDArray[Any] | None:
        """See `shardio.source.HasColumns`: any scalar. None for nulls or damage: reading row by row tells where."""
        column = self.columns.get(name)
        if column is None or column.field.kind != "scalar":
            return None
        values = np.empty(self._count, column.field.row_dtype)
        try:
            self._fill(name, values)
        except BadSample:
            return None
        return values

    def measured(self) -> Self:
        """This source with the kinds and average sizes of columns that vary from row to row, from reading some rows."""
        source: Any = self
        found: Self = dataclasses.replace(source, columns={n: self._measured(c) for n, c in self.columns.items()})
        return found
