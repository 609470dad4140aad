"""What sources of arrays share: rows read in blocks, and an array's elements as the values of a sample."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample
from shardio.format import images
from shardio.format.fields import Field

from ._common import sniffed, spread, utf8

_LISTED = 20  # arrays that a message names
_SNIFFED = 16  # rows that are looked at for an image
_BLOCK = 1 << 20  # bytes read at once: enough to make a call's own cost small, few enough to throw away
_BAND = 16 << 20  # bytes of chunks side by side that are still read whole for one of their rows


def array_field(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Field | None:
    """The field of numbers whose rows have `shape`; None if no field holds `dtype`."""
    if dtype.kind not in "biufc" or dtype.char in "gG":
        return None
    return Field("array", dtype=dtype.name, shape=shape) if shape else Field("scalar", dtype=dtype.name)


def listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Arrays and their shapes as a message names them, not too many."""
    lines = [f"{name} {list(shape)}" for name, shape in shapes.items()]
    more = [f"and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    return ", ".join(lines[:_LISTED] + more) or "none"


def sample_value(element: Any, field: Field) -> Any:
    """An element of an array as a sample has it: numbers native, text decoded, bytes as they are.

    Raises BadSample for text that is not UTF-8, and for an image that is none.
    """
    match field.kind:
        case "scalar":
            return np.asarray(element).astype(field.row_dtype).item()
        case "array":
            return np.array(element, field.row_dtype)
        case "json":
            return [sample_value(part, field if isinstance(part, np.ndarray) else Field("text")) for part in element]
        case "text":
            return utf8(element) if isinstance(element, bytes) else str(element)
        case _:
            data = element.tobytes() if isinstance(element, (np.ndarray, np.void)) else element
            if not isinstance(data, bytes):
                raise BadSample(f"expected bytes, got {type(data).__name__}")
            if field.kind == "image":
                images.probe(data)
            return data


def measure(field: Field, count: int, read: Callable[[int], Any], most: int = 100) -> tuple[Field, int]:
    """A field as it is, and about how many bytes it takes in a sample, by reading some rows where they vary.

    Args:
        field: what the type says; bytes become images if the first that are not empty begin like one.
        count: the number of rows.
        read: gives the value of a row, or BadSample.
        most: how many rows are read for the average.
    """
    if field.fixed:
        return field, field.row_bytes
    if field.kind == "bytes":
        field = sniffed(islice(_good(range(count), read), _SNIFFED))
    lengths = [len(field.encode(value)) for value in _good(spread(count, most), read)]
    return field, sum(lengths) // max(1, len(lengths))


def _good(rows: Iterable[int], read: Callable[[int], Any]) -> Iterator[Any]:
    for row in rows:
        try:
            value = read(row)
        except BadSample:
            continue
        yield value


def rows_at_once(row_bytes: int, chunks: tuple[int, ...] | None = None, shape: tuple[int, ...] = ()) -> int:
    """How many rows are read at once: about a megabyte, and whole chunks unless a row of them is too much.

    Args:
        row_bytes: the bytes of one row.
        chunks: the shape of the array's chunks, None if it has none.
        shape: the array's shape.
    """
    row_bytes = max(1, row_bytes)
    if not chunks:
        return max(1, _BLOCK // row_bytes)
    beside = math.prod(-(-size // chunk) for size, chunk in zip(shape[1:], chunks[1:], strict=True))
    band = chunks[0] * row_bytes
    if band > _BAND and beside > 1:
        return max(1, _BAND // row_bytes)
    return chunks[0] * max(1, _BLOCK // band)


@final
class Blocks:
    """Rows of arrays, read in blocks; the last block of each array is kept."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, NDArray[Any]]] = {}

    def row(self, name: str, row: int, count: int, step: int, read: Callable[[int, int], NDArray[Any]]) -> Any:
        """Row `row` of the array `name`, which has `count` rows and is read by `read(start, stop)`, `step` at once.

        Raises BadSample if `read` does for the row alone: damage in a block must not spoil its other rows.
        """
        low, block = self._kept.get(name, (0, np.empty(0)))
        if not low <= row < low + len(block):
            self._kept.pop(name, None)  # never two blocks at a time
            low = row // step * step
            try:
                block = read(low, min(low + step, count))
            except BadSample:
                if step == 1:
                    raise
                return read(row, row + 1)[0]
            self._kept[name] = low, block
        return block[row - low]
