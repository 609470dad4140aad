"""Compressed chunks read, decompressed and cut in one call without the GIL. In C they are in `chunks.c`."""

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .rows import function

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64

FILE, OFFSET, SIZE, MASK, TIME, DATA, END = range(7)
"""The columns of a table of chunks: see `fill`."""

ITEMS = (1, 2, 4, 8)
"""The bytes that an element may have."""


class Kind(IntEnum):
    """The filter that a step undoes."""

    ZLIB = 1
    GZIP = 2
    ZSTD = 3
    BLOSC = 4
    LZF = 5
    LZ4_BLOCKS = 6
    LZ4 = 7
    SHUFFLE = 8
    FLETCHER32 = 9
    CRC32C = 10


class Step(NamedTuple):
    """A filter that compiled code undoes.

    Attributes:
        kind: what it does.
        width: bytes of an element of SHUFFLE; 1 if the checksum of CRC32C is at the start.
        calls: the functions that it calls, of ctypes; `chunks.c` says which.
    """

    kind: Kind
    width: int = 0
    calls: tuple[Any, ...] = ()


class Cut(NamedTuple):
    """Parts of chunks.

    Attributes:
        strides: in a chunk and in the result, along each axis, in bytes: int64 [2, axes].
        item: the bytes of an element, of `ITEMS`.
        swapped: whether elements are stored in the other byte order.
        parts: int64 [m, 2 + axes], of each part: where it begins in its chunk and in the result, in bytes, and its
            elements along each axis.
    """

    strides: NDArray[np.int64]
    item: int
    swapped: bool
    parts: NDArray[np.int64]


_MOST_CALLS = 3


def table(steps: Sequence[Step]) -> NDArray[np.int64]:
    """Return steps, in the order of a writer's filters, as `fill` takes them."""
    addresses = [[ctypes.cast(call, _POINTER).value or 0 for call in step.calls] for step in steps]
    return np.array(
        [
            [step.kind, min(step.width, 1 << 62), *calls, *[0] * (_MOST_CALLS - len(calls))]
            for step, calls in zip(steps, addresses, strict=True)
        ],
        np.int64,
    ).reshape(len(steps), 2 + _MOST_CALLS)


_ARGUMENTS = (
    *(_LONG, _POINTER, ctypes.POINTER(ctypes.c_char_p), _INT, _LONG, _POINTER, _LONG, _LONG, _POINTER, _POINTER),
    *(_LONG, _POINTER, _LONG, _INT, _POINTER, _POINTER, _POINTER),
)


def fill(
    chunks: NDArray[np.int64],
    names: Sequence[bytes] | None,
    folder: int,
    steps: NDArray[np.int64],
    bytes_: tuple[int, int],
    scratch: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    cut: Cut,
    out: NDArray[Any],
) -> NDArray[np.bool_]:
    """Read n chunks, decompress them and copy parts of them to `out`.

    Args:
        chunks: int64 [n, 7], of each chunk: the descriptor of its file, or -1 for a file of a name; its offset and its
            bytes there, or -1 for a chunk that is in memory; a bit for each step that was skipped; when a file of a
            name was last written, in ns; the address where the chunk goes, or is, or 0 if nobody needs it later, or it
            is nowhere yet; and the number of its parts and of those of the chunks before it.
        names: the path of each chunk below `folder`, where descriptors are -1; through no link.
        folder: the descriptor of a folder.
        steps: from `table`.
        bytes_: of a chunk once it is decompressed, and how many there may be between two steps.
        scratch: each of at least as many bytes as there may be between two steps, and as a chunk has in its file.
        cut: the parts.
        out: C-contiguous.

    Returns which chunks failed, bool [n]: they are nowhere yet, could not be read, are not those of the table, or are
    damaged. Nothing is copied from these.
    """
    failed = np.zeros(len(chunks), np.bool_)
    listed = None if names is None else (ctypes.c_char_p * len(names))(*names)
    places = chunks, steps, *scratch, cut.strides, cut.parts, out, failed
    table, undone, first, second, along, cuts, target, told = (array.ctypes.data for array in places)
    function("shardio_chunks", *_ARGUMENTS)(
        *(len(chunks), table, listed, folder, len(steps), undone, *bytes_, first, second),
        *(cut.strides.shape[1], along, cut.item, cut.swapped, cuts, target, told),
    )
    return failed
