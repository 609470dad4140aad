"""One array in a file that a library reads: what its header states, read without its values, and then the values."""

import contextlib
import logging
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, ShardioError
from shardio.foreign.files import File
from shardio.system.seekable import Seekable

Orientation: TypeAlias = Literal["stored", "RAS"]

_ANY = 64 << 20  # bytes of an array of any file
_NEAR = 1e-3  # of an integer
PER_BYTE = 1 << 12  # bytes of an array per byte of its file: deflate makes a byte of a thousand, others of a few more
OF_ZSTD = 1 << 15  # the same of zstd, which makes four bytes of 128 KiB of zeros


@final
@dataclass(frozen=True, slots=True)
class OpenedArray:
    """An array whose header was read. BadSample if no file of its size can hold so large an array.

    Attributes:
        shape: its shape.
        dtype: the dtype of its values, in native byte order.
        library: the module that reads it.
        file_bytes: the size of the file, or of all files.
        read: reads the values; BadSample or an error of the library if they are damaged.
        affine: float64 [4, 4], which takes indices to places in space; None where the format states none.
        space: the affine of the first three axes, in mm to the right, anterior and superior, if that is stated.
        notes: what its user should know of the values.
        unapplied: by name, what its header states of the values that `ReadOptions.rescale` would apply.
        scaled: whether the values are integers that the file scales.
        per_byte: the most bytes of values that a byte of the file holds.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    library: str
    file_bytes: int
    read: Callable[[], NDArray[Any]]
    affine: NDArray[np.float64] | None = None
    space: NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()
    unapplied: Mapping[str, Any] = field(default_factory=dict)
    scaled: bool = False
    per_byte: int = PER_BYTE

    def __post_init__(self) -> None:
        check_room(self.shape, self.dtype, self.file_bytes, self.per_byte)

    def values(self) -> NDArray[Any]:
        """Read the values, in native byte order; BadSample if they are not what the header states."""
        with damage_is_bad(self.library):
            values = np.asarray(self.read())
        if values.shape != self.shape or values.dtype.newbyteorder("=") != self.dtype:
            found = f"{list(values.shape)} of {values.dtype}"
            raise BadSample(f"its header states {list(self.shape)} of {self.dtype}, it holds {found}")
        return values.astype(self.dtype, copy=False)


@final
@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options that choose among the arrays of a file, and how to take them and apply its header.

    Attributes:
        variable: the variable of a MATLAB file; None for the only array.
        hdu: the number of the HDU of a FITS file; None for the first with an array.
        orientation: whether volumes stay as stored, or get the axes of RAS; None leaves them, if all are alike.
        rescale: whether what the library of the format leaves to its user is applied; None if that is not decided.
        round: whether labels are rounded, see `off_whole`; None if that is not decided.
    """

    variable: str | None = None
    hdu: int | None = None
    orientation: Orientation | None = None
    rescale: bool | None = None
    round: bool | None = None

    def given(self) -> dict[str, Any]:
        """Return the options that change the values, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None and value is not False}


@final
class Stream(Seekable):
    """A file as libraries read it. It has no path and no descriptor, so that none of them looks for other files."""

    def __init__(self, file: File) -> None:
        super().__init__()
        self.file, self.mode = file, "rb"

    @property
    def size(self) -> int:
        return self.file.size

    def read_at(self, offset: int, view: memoryview) -> int:
        done = 0
        while done < len(view) and (count := os.preadv(self.file.fileno(), [view[done:]], offset + done)):
            done += count
        return done

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self.size - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        data = self.file.read(self._position, wanted)
        self._position += len(data)
        return data


@contextlib.contextmanager
def damage_is_bad(library: str) -> Iterator[None]:
    """Raise whatever a library raises for damage as BadSample, and what it logs as an error; its warnings are dropped.

    Args:
        library: the name of the module, and of its logger.
    """
    logger = logging.getLogger(library)
    handler = _Errors()
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ShardioError:
        raise
    except Exception as error:  # each library has kinds of its own, and damage leads to any other
        raise BadSample(f"cannot be read, {library} says: {str(error) or repr(error)}") from error
    finally:
        logger.removeHandler(handler)
    if handler.found:
        raise BadSample(f"cannot be read, {library} says: {handler.found[0]}")


class _Errors(logging.Handler):
    """Keeps the errors that this thread logs."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR and record.thread == self._thread:
            self.found.append(record.getMessage())


def rescaled_dtype(stored: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of stored numbers once they are scaled: what float32 holds stays in it."""
    wide = stored.itemsize > 2 and stored != np.float32
    return np.dtype(np.float64 if wide else np.float32)


def off_whole(values: NDArray[Any]) -> float:
    """Return how far values are from integers at most; infinity if that is not near, as labels are."""
    off = 0.0
    for some in (values.flat[: 1 << 12], values):  # what holds no labels mostly ends with the first
        off = float(np.abs(some - np.rint(some)).max(initial=0.0))
        if not off < _NEAR:  # also NaN
            return math.inf
    return off


def check_room(shape: tuple[int, ...], dtype: np.dtype[Any], file_bytes: int, per_byte: int = PER_BYTE) -> None:
    """Raise BadSample if a header states so large an array that no file of this size can hold it.

    Memory for an array is taken by what a header states, which may be damage, or a trap.
    """
    stated = math.prod(shape) * dtype.itemsize
    if any(side < 0 for side in shape) or stated > max(_ANY, per_byte * file_bytes):
        raise BadSample(f"its header states {list(shape)} of {dtype}, {stated} bytes, in a file of {file_bytes}")
