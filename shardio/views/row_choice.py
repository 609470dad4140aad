"""The choices of how documents make rows of one length, and the fields of these rows."""

from __future__ import annotations

from numbers import Real
from typing import Annotated, ClassVar, TypeAlias, final

import msgspec
import numpy as np

from ..errors import ConfigError
from ..format.fields import Field, describe, describe_fields
from ..system.rules import Range, check_fields
from .choice import Choice, Number
from .documents import Ring, ring
from .packed_table import PackedTable, packed_table
from .readable import ReadableDataset

_Length: TypeAlias = Annotated[int, Range(1, 1 << 31)]
RowLayout: TypeAlias = Ring | PackedTable
"""Rows of one length, made of pieces of documents: which pieces, as a pure function of a row's number."""


@final
class Cut(Choice, frozen=True, rename={"field": "cut"}):
    """Rows cut from the ring of all documents: see `BaseDataset.cut`.

    Attributes:
        field: the ragged field that holds documents.
        length: the entries of a row.
        positions, documents, cu_seqlens: which further fields rows have.
    """

    field: str
    length: _Length
    positions: bool
    documents: bool
    cu_seqlens: bool
    value: ClassVar[float] = 0  # of padding, which no row has

    def __post_init__(self) -> None:
        check_fields(self)

    def made(self, base: ReadableDataset) -> Ring:
        return ring(base, self.field, self.length)


@final
class Packed(Choice, frozen=True, rename={"field": "packed"}):
    """Rows of whole documents: see `BaseDataset.packed`.

    Attributes:
        value: what fills up rows.
        field, length, positions, documents, cu_seqlens: see `Cut`.
    """

    field: str
    value: Number
    length: _Length
    positions: bool
    documents: bool
    cu_seqlens: bool

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.value, Real) or not abs(self.value) < 1 << 63:
            raise ConfigError(f"value must be a number below 2^63, got {self.value!r}")
        whole = int(self.value)
        # Equal numbers of several types have one description, and so one digest.
        msgspec.structs.force_setattr(self, "value", whole if whole == self.value else float(self.value))

    def made(self, base: ReadableDataset) -> PackedTable:
        return packed_table(base, self.field, self.length)


RowChoice: TypeAlias = Cut | Packed


def row_fields(choice: RowChoice, base: ReadableDataset) -> dict[str, Field]:
    """Return the fields of rows; ConfigError unless the documents are values of a ragged field.

    Also for a padding that the rows' dtype does not hold.
    """
    stored, name = base.field(choice.field), choice.field
    if stored.window or not stored.ragged:
        hint = {
            "text": ": shardio convert text --tokenizer makes tokens of texts",
            "json": f": to store lists as arrays, write them with fields={{{name!r}: ('uint16', (None,))}}",
            "array": f": shardio reshard --ragged {name} lets the first axis have any length",
        }.get("" if stored.window else stored.kind, "")
        raise ConfigError(
            f"{base.path}: rows are made of documents, values whose first axis has any length, such as "
            f"('uint16', (None,)); {name!r} is {describe(stored)}{hint}; there are {describe_fields(base.fields)}"
        )
    small = stored.row_dtype.kind in "iu" and stored.row_dtype.itemsize <= 4
    dtype = np.dtype(np.int64) if small else stored.row_dtype
    shape = (choice.length, *stored.entry_shape)
    fields = {name: Field("array", dtype.name, shape, attributes=stored.attributes, window=True)}
    if isinstance(choice, Packed):
        with np.errstate(all="ignore"):
            held = np.asarray(choice.value).astype(dtype)
        if (held != choice.value) if dtype.kind in "iub" else not np.isfinite(held):
            raise ConfigError(f"value must be one that {dtype} holds, got {choice.value!r}")
        fields[f"{name}_length"] = Field("scalar", "int64")
    if choice.positions:
        fields[f"{name}_position"] = Field("array", "int64", (choice.length,))
    if choice.documents:
        fields[f"{name}_document"] = Field("array", "int64", (choice.length,))
    if choice.cu_seqlens:
        fields[f"{name}_cu_seqlens"] = Field(
            "array", "int32", (None,), role="segments", attributes={"row_length": choice.length}
        )
    return fields
