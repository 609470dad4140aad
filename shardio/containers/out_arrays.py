"""The arrays that readers fill: given ones that fit, or new ones; and limits of what is read into memory."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BadSample
from ..format.fields import Field
from ..system import allocation
from .extents import Blocks
from .packed_values import Scratch


def check_value_bytes(claimed: int, most: int, place: str) -> None:
    """Raise BadSample if a value, at `place`, claims more bytes than `most`."""
    if claimed > most:
        raise BadSample(f"{place}: {claimed} bytes are claimed, max_value_bytes allows {most}")


def check_out(out: NDArray[Any] | None, count: int, field: Field) -> NDArray[Any]:
    """Return `out` if it fits `count` rows of a fixed field, or a new array.

    Raises ValueError if it does not fit, MemoryError if there is not enough for a new one.
    """
    return _fitting(out, (count, *field.row_shape), field)


def check_blocks(blocks: Blocks, out: NDArray[Any] | None, count: int, field: Field) -> NDArray[Any]:
    """Return `out` if it fits blocks of `count` rows of a fixed field, or a new array.

    Raises ValueError if it does not fit, or if blocks are not within the rows; MemoryError if there is not enough.
    """
    axes, begins = len(blocks.size), blocks.begins
    if not 1 <= axes <= len(field.row_shape) or begins.shape != (count, axes) or min(blocks.size) < 1:
        raise ValueError(
            f"blocks must be begins [{count}, k] and k sizes of at least 1, of rows of shape {field.row_shape}, "
            f"got begins {begins.shape} and sizes {blocks.size}"
        )
    room = np.array(field.row_shape[-axes:], np.int64) - blocks.size
    for number in np.flatnonzero(((begins < 0) | (begins > room)).any(axis=1))[:1].tolist():
        raise ValueError(f"a block of {blocks.size} at {begins[number].tolist()} is not in rows of {field.row_shape}")
    return _fitting(out, (count, *blocks.shape(field.row_shape)), field)


def part_memory(out: NDArray[Any] | None, count: int, field: Field, scratch: Scratch | None) -> NDArray[Any]:
    """Return `out` if it fits `count` entries of a ragged field, or memory for them, of `scratch` if there is one.

    Raises ValueError if it does not fit, MemoryError if there is not enough for a new one.
    """
    shape = (count, *field.entry_shape)
    if out is None and scratch is not None:
        return scratch.take(count * field.entry_bytes).view(field.row_dtype).reshape(shape)
    return _fitting(out, shape, field)


def _fitting(out: NDArray[Any] | None, shape: tuple[int, ...], field: Field) -> NDArray[Any]:
    if out is None:
        return allocation.empty(shape, field.row_dtype)
    if out.shape != shape or out.dtype != field.row_dtype or not out.flags.c_contiguous:
        raise ValueError(f"out must be C-contiguous, {shape} of {field.row_dtype}, got {out.shape} of {out.dtype}")
    return out


def as_rows(out: NDArray[Any], field: Field) -> NDArray[np.uint8]:
    """Return a view of `out`, `[n, *shape]` whose rows are contiguous, as uint8 [n, row bytes]."""
    if out.flags.c_contiguous:
        return out.reshape(-1).view(np.uint8).reshape(len(out), field.row_bytes)
    return out.reshape(len(out), -1).view(np.uint8)  # a view: only the rows are apart, as in a stack
