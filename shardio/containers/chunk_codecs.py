"""Codecs of chunks: filters of HDF5, most of which Zarr has as well, each undone without the GIL and libhdf5's lock.

Compiled code of h5py and hdf5plugin is called directly, but not at the filters' entry points. Those report failures to
libhdf5, which does not support that from outside its lock; that of blosc holds a lock of its own while it decompresses,
that of blosc2 destroys state that all threads share when it fails, and those of bitshuffle and lz4 trust the sizes in
the data. The functions behind them, which this module calls, take no lock and keep no state; all sizes are checked.

Most functions here take a filter's settings, and return what undoes it, or None where h5py must. h5py is also left to
undo zfp, sz, sz3, sperr, fcidecomp and htj2k, whose data need more than one call, and scaleoffset, nbit and szip.
Source: HDF5 File Format Specification, "The Filter Pipeline Message"; H5Zshuffle.c and H5checksum.c for the bytes.
"""

import bz2
import ctypes
import importlib
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..native import rows as compiled
from ..native.chunks import Kind, Step

Bytes: TypeAlias = NDArray[np.uint8]
"""uint8 [n], C-contiguous."""

Undo: TypeAlias = Callable[[Bytes, Bytes], Bytes]
"""A function of a filter's output and of memory for the result, which must not be larger than that memory.

It returns the bytes that the filter had as input: the beginning of the memory, a part of the output, or memory of its
own. It raises Damaged if the filter cannot have made this output, or the result does not fit. Any number of
threads may call it at once.
"""


class Damaged(Exception):
    """A chunk's bytes are not what its filter produces; callers catch it and add the file, field and row."""


@final
@dataclass(frozen=True, slots=True)
class WithStep:
    """An `Undo`, and the step of compiled code that gives the same bytes, or fails where this may succeed."""

    undo: Undo
    step: Step

    def __call__(self, data: Bytes, buffer: Bytes) -> Bytes:
        return self.undo(data, buffer)


Settings: TypeAlias = tuple[int, ...]
Call: TypeAlias = Callable[..., Any]
"""A C function."""

_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_UNSIGNED, _LONG, _INT64 = ctypes.c_uint, ctypes.c_ulong, ctypes.c_int64
_LARGEST = 0x7FFFFFFF
"""The largest size in C's int."""

_BLOCK = struct.Struct(">I")
_AXES = 8
"""The most axes of blosc2's filter; `_Shape` has room for twice as many, because its library's arrays have that."""

_CHECKSUM_BYTES = 4
_WIDEST = 16  # bytes of a number
_CHECKSUM_BLOCK = 1 << 15
"""Words per step, so that their running sums stay in the processor's cache and far below 64 bits."""

_NO_METALAYER = -34
"""BLOSC2_ERROR_METALAYER_NOT_FOUND: the frame is not a B2ND array."""

_Shape = _INT64 * (2 * _AXES)


class _Array(ctypes.Structure):
    """The beginning of `b2nd_array_t`; unused axes have size 1."""

    _fields_ = [("frame", _POINTER), ("shape", _INT64 * _AXES)]


def address(data: Bytes) -> int:
    """Return where bytes are in memory, in a fraction of the time that `data.ctypes.data` takes."""
    if data.flags.writeable and len(data):
        return ctypes.addressof(ctypes.c_char.from_buffer(data.data))
    return int(data.ctypes.data)


def undo_bzip2(data: Bytes, buffer: Bytes) -> Bytes:
    """Undo bzip2 by Python's module, which holds the GIL while it joins parts."""
    stream = bz2.BZ2Decompressor()
    try:
        # Without a limit a few damaged bytes could ask for all memory.
        content = stream.decompress(data.data, len(buffer) + 1)
    except (OSError, ValueError) as error:
        raise Damaged(str(error)) from error
    if not stream.eof or len(content) > len(buffer):
        raise Damaged(f"its stream does not end within {len(buffer)} bytes")
    return np.frombuffer(content, np.uint8)


def undo_shuffle(width: int) -> Undo:
    """Return what undoes a shuffle: the first bytes of all elements are stored, then their second bytes, and so on.

    Args:
        width: bytes of an element.
    """

    def undo(data: Bytes, buffer: Bytes) -> Bytes:
        if width < 2:
            return data
        if len(data) > len(buffer):
            raise Damaged(f"{len(data)} bytes are more than the chunk's {len(buffer)}")
        whole = len(data) // width * width
        places = address(data), address(buffer)
        if native.library() is None or not compiled.unshuffle(width, *places, whole):
            _join(data[:whole].reshape(width, -1), buffer[:whole])
        if whole < len(data):
            buffer[whole : len(data)] = data[whole:]
        return buffer[: len(data)]

    return WithStep(undo, Step(Kind.SHUFFLE, width))


def undo_checksum(compute: Callable[[Bytes], int], *, at_start: bool = False) -> Undo:
    """Return what compares a checksum of 32 bits, little-endian, before or after the content, and leaves it out."""

    def undo(data: Bytes, _: Bytes) -> Bytes:
        if len(data) < _CHECKSUM_BYTES:
            raise Damaged(f"{len(data)} bytes hold no checksum")
        place = _CHECKSUM_BYTES if at_start else len(data) - _CHECKSUM_BYTES
        first, last = data[:place], data[place:]
        stored, content = (first, last) if at_start else (last, first)
        expected = int.from_bytes(stored.tobytes(), "little")
        if (actual := compute(content)) != expected:
            raise Damaged(f"{actual:08x} is not {expected:08x}")
        return content

    return undo


def undo_fletcher32(_: Settings = ()) -> Undo:
    """Undo HDF5's Fletcher-32, which the filter has appended."""
    return WithStep(undo_checksum(fletcher32), Step(Kind.FLETCHER32))


def fletcher32(data: bytes | Bytes) -> int:
    """Return HDF5's Fletcher-32 of big-endian 16-bit words (an odd last byte is the high half of one more).

    Sums are modulo 65535 in ones' complement: a sum that is not zero never becomes zero.
    """
    words = np.frombuffer(data, ">u2", len(data) // 2)
    first = second = 0
    for start in range(0, len(words), _CHECKSUM_BLOCK):
        sums = np.cumsum(words[start : start + _CHECKSUM_BLOCK], dtype=np.uint64)
        second += first * len(sums) + int(sums.sum())
        first += int(sums[-1])
    if len(data) % 2:
        first += int(data[-1]) << 8
        second += first
    return _folded(second) << 16 | _folded(first)


def _folded(total: int) -> int:
    return (total - 1) % 65535 + 1 if total else 0


def _join(planes: NDArray[np.uint8], out: Bytes) -> None:
    """Join planes of bytes into elements; of usual widths by doubling them, which unlike a transpose is vectorized."""
    width = len(planes)
    if width not in (2, 4, 8):
        if width <= _WIDEST:
            for i, plane in enumerate(planes):
                out[i::width] = plane
        else:  # no number is as wide, but a damaged file may say 2^31, which is no number of turns for a loop
            out.reshape(-1, width)[:] = planes.T
        return
    parts: list[NDArray[Any]] = list(planes)
    while (size := parts[0].itemsize) < len(planes):
        wide = np.dtype(f"<u{2 * size}")
        last = 2 * size == len(planes)
        joined = []
        for low, high in zip(parts[::2], parts[1::2], strict=True):
            pair = out.view(wide) if last else np.empty(len(low), wide)
            pair[...] = high
            np.left_shift(pair, 8 * size, out=pair)
            np.bitwise_or(pair, low, out=pair)
            joined.append(pair)
        parts = joined


def undo_gzip(_: Settings) -> Undo:
    """Undo gzip by the zlib that comes with h5py, straight into the buffer."""
    call = function(_h5py(), "uncompress", _INT, _POINTER, _POINTER, _POINTER, _LONG)

    def undo(data: Bytes, buffer: Bytes) -> Bytes:
        size = _LONG(len(buffer))
        status = call(address(buffer), ctypes.addressof(size), address(data), len(data))
        if status:
            raise Damaged(f"zlib's error {status}: its stream is wrong or does not end within {len(buffer)} bytes")
        return buffer[: size.value]

    return WithStep(undo, Step(Kind.ZLIB, calls=(call,)))


def inflating() -> tuple[Call, ...]:
    """Return zlib's functions that begin a stream, inflate it and end it, for compiled code."""
    return tuple(function(_h5py(), name, _INT) for name in ("inflateInit2_", "inflate", "inflateEnd"))


def undo_lzf(_: Settings) -> Undo:
    """Undo LZF by h5py's own code."""
    call = function(_h5py(), "lzf_decompress", _UNSIGNED, _POINTER, _UNSIGNED, _POINTER, _UNSIGNED)

    def undo(data: Bytes, buffer: Bytes) -> Bytes:
        size = call(address(data), len(data), address(buffer), min(len(buffer), _LARGEST))
        if not 0 < size <= len(buffer):
            raise Damaged(f"it is wrong or does not end within {len(buffer)} bytes")
        return buffer[:size]

    return WithStep(undo, Step(Kind.LZF, calls=(call,)))


def undo_zstd(_: Settings) -> Undo:
    """Undo one or more frames of Zstandard."""
    call = function(_plugin("zstd"), "ZSTD_decompress", _SIZE, _POINTER, _SIZE, _POINTER, _SIZE)

    def undo(data: Bytes, buffer: Bytes) -> Bytes:
        size = call(address(buffer), len(buffer), address(data), len(data))
        if size > len(buffer):  # errors are the largest numbers
            raise Damaged(f"its frame is wrong or holds more than {len(buffer)} bytes")
        return buffer[:size]

    library = _plugin("zstd")
    contexts = (function(library, name, _POINTER) for name in ("ZSTD_createDCtx", "ZSTD_freeDCtx"))
    return WithStep(undo, Step(Kind.ZSTD, calls=(function(library, "ZSTD_decompressDCtx", _SIZE), *contexts)))


def lz4_block() -> Call:
    """Return the function that undoes a block of LZ4: source, target, bytes of the source, and bytes of the target."""
    return function(_plugin("lz4"), "LZ4_decompress_safe", _INT, _POINTER, _POINTER, _INT, _INT)


def undo_lz4(_: Settings) -> Undo:
    """Undo LZ4 in blocks.

    The data are the size (8 bytes) and the block size (4 bytes), then the blocks, each after its size (4 bytes) and
    uncompressed if it did not become smaller. All numbers are big-endian.
    """
    call = lz4_block()

    def undo(data: Bytes, buffer: Bytes) -> Bytes:
        size, block = _header(data, buffer)
        view, source, target = data.data, address(data), address(buffer)
        position, done = 12, 0
        while done < size:
            part = min(block, size - done)
            stored = int.from_bytes(view[position : position + 4], "big")
            if position + 4 + stored > len(view):
                raise Damaged(f"its block at byte {position} ends after its {len(view)} bytes")
            if stored == part:
                buffer[done : done + part] = data[position + 4 : position + 4 + part]
            elif call(source + position + 4, target + done, stored, part) != part:
                raise Damaged(f"its block at byte {position} is wrong")
            position, done = position + 4 + stored, done + part
        return buffer[:size]

    return WithStep(undo, Step(Kind.LZ4_BLOCKS, calls=(call,)))


def undo_blosc(_: Settings) -> Undo:
    """Undo Blosc 1 of any codec, by the function with a context of its own; the other one serves one thread alone."""
    library = _plugin("blosc")
    validate = function(library, "blosc_cbuffer_validate", _INT, _POINTER, _SIZE, _POINTER)
    call = function(library, "blosc_decompress_ctx", _INT, _POINTER, _POINTER, _SIZE, _INT)

    def undo(data: Bytes, buffer: Bytes) -> Bytes:
        size = _SIZE()
        stored = int.from_bytes(data[12:16].tobytes(), "little")
        if not 16 <= stored <= len(data) or validate(address(data), stored, ctypes.addressof(size)):
            raise Damaged("its header is wrong")
        if size.value > len(buffer):
            raise Damaged(f"it says {size.value} bytes, more than the chunk's {len(buffer)}")
        written = call(address(data), address(buffer), size.value, 1)
        if written != size.value:
            raise Damaged(f"it gives {written} of {size.value} bytes")
        return buffer[:written]

    return WithStep(undo, Step(Kind.BLOSC, calls=(validate, call)))


def undo_bitshuffle(values: Settings) -> Undo | None:
    """Undo Bitshuffle, alone or with LZ4 or Zstandard: the bits of a block's elements are transposed.

    The settings hold the bytes of an element, the elements of a block and the codec. Compressed blocks are stored as
    those of LZ4.
    """
    width, block_elements, codec = (*values, 0, 0, 0, 0, 0)[2:5]
    functions = {0: "bshuf_bitunshuffle", 2: "bshuf_decompress_lz4", 3: "bshuf_decompress_zstd"}
    if width < 1 or block_elements % 8 or codec not in functions:
        return None
    call = function(_plugin("bshuf"), functions[codec], _INT64, _POINTER, _POINTER, _SIZE, _SIZE, _SIZE)

    def undo_compressed(data: Bytes, buffer: Bytes) -> Bytes:
        size, block_bytes = _header(data, buffer)
        count, block = size // width, block_bytes // width
        if size % width or block < 8 or block % 8:
            raise Damaged(f"{size} bytes in blocks of {block_bytes} are not elements of {width} bytes")
        # The compiled code trusts the blocks' sizes, so add them up first. Up to 7 elements follow the last block.
        blocks = count // block + (count % block >= 8)
        view, position = data.data, 12
        try:
            for _ in range(blocks):
                position += 4 + _BLOCK.unpack_from(view, position)[0]
        except struct.error as error:
            raise Damaged(f"it has fewer than {blocks} blocks") from error
        if position + count % 8 * width > len(data):
            raise Damaged(f"its {blocks} blocks end after its {len(data)} bytes")
        if size and call(address(data) + 12, address(buffer), count, width, block) < 0:
            raise Damaged("one of its blocks is wrong")
        return buffer[:size]

    def undo_alone(data: Bytes, buffer: Bytes) -> Bytes:
        if len(data) > len(buffer) or len(data) % width:
            raise Damaged(f"{len(data)} bytes are not a chunk of elements of {width} bytes")
        if call(address(data), address(buffer), len(data) // width, width, block_elements) < 0:
            raise Damaged("it cannot be undone")
        return buffer[: len(data)]

    return undo_compressed if codec else undo_alone


def undo_blosc2(values: Settings) -> Undo | None:
    """Undo Blosc2 of any codec: a chunk is a frame, in the order of B2ND blocks if it has more than one axis.

    The settings hold the bytes of an element, and the shape that a B2ND frame must have.
    """
    width, axes, shape = max(values[2], 1) if len(values) > 2 else 0, values[7] if len(values) > 7 else 0, values[8:]
    if not width or axes != len(shape) or axes > _AXES:
        return None
    expected = (*shape, *(1 for _ in range(_AXES - axes))) if axes else ()
    library = _plugin("blosc2")
    function(library, "blosc2_init", None)()
    open_frame = function(library, "blosc2_schunk_from_buffer", _POINTER, _POINTER, _INT64, ctypes.c_bool)
    close_frame = function(library, "blosc2_schunk_free", _INT, _POINTER)
    chunk = function(library, "blosc2_schunk_decompress_chunk", _INT, _POINTER, _INT64, _POINTER, ctypes.c_int32)
    open_array = function(library, "b2nd_from_schunk", _INT, _POINTER, _POINTER)
    close_array = function(library, "b2nd_free", _INT, _POINTER)
    read_array = function(library, "b2nd_get_slice_cbuffer", _INT, _POINTER, *[_POINTER] * 4, _INT64)

    def undo(data: Bytes, buffer: Bytes) -> Bytes:
        frame = open_frame(address(data), len(data), False)
        if not frame:
            raise Damaged("its frame is wrong")
        array = ctypes.POINTER(_Array)()
        status = open_array(frame, ctypes.byref(array))
        if status >= 0:
            try:
                return undo_array(array, buffer)
            finally:
                close_array(array)
        try:
            if status != _NO_METALAYER:
                raise Damaged(f"its B2ND description is wrong, Blosc2's error {status}")
            size = chunk(frame, 0, address(buffer), min(len(buffer), _LARGEST))
        finally:
            close_frame(frame)
        if not 0 < size <= len(buffer):
            raise Damaged(f"Blosc2's error {size}, or more than {len(buffer)} bytes")
        return buffer[:size]

    def undo_array(array: Any, buffer: Bytes) -> Bytes:
        shape = tuple(array.contents.shape)
        size = math.prod(shape) * width
        if min(shape) < 1 or size > len(buffer) or (expected and shape != expected):
            raise Damaged(f"its shape {shape} is not the chunk's")
        stop = _Shape(*shape, *(1 for _ in range(_AXES)))
        status = read_array(array, _Shape(), stop, address(buffer), stop, size)
        if status < 0:
            raise Damaged(f"Blosc2's error {status}")
        return buffer[:size]

    return undo


def function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Call:
    """Return a function of a compiled library, with its types; it runs without the GIL. AttributeError if missing."""
    symbol: Any = library[name]  # a new object each time, so that the types set here are private to it
    symbol.argtypes, symbol.restype = arguments, result
    call: Call = symbol
    return call


@cache
def _h5py() -> ctypes.CDLL:
    """Load h5py's module of filters: names are looked up in it, in libhdf5 and in the libraries that this links."""
    return ctypes.CDLL(importlib.import_module("h5py").h5z.__file__)


@cache
def _plugin(name: str) -> ctypes.CDLL:
    hdf5plugin = importlib.import_module("hdf5plugin")
    suffix = hdf5plugin.get_config().build_config.filter_file_extension
    return ctypes.CDLL(str(Path(hdf5plugin.PLUGIN_PATH) / f"libh5{name}{suffix}"))


def _header(data: Bytes, buffer: Bytes) -> tuple[int, int]:
    """Read the total size and the size of a block from the header of `data`."""
    if len(data) < 12:
        raise Damaged(f"{len(data)} bytes are less than its header's 12")
    if len(data) > _LARGEST:
        raise Damaged(f"{len(data)} bytes are more than it can be")
    size, block = struct.unpack_from(">QI", data.data)
    if size > len(buffer):
        raise Damaged(f"it says {size} bytes, more than the chunk's {len(buffer)}")
    if not 0 < block <= _LARGEST:
        raise Damaged(f"its blocks cannot have {block} bytes")
    return size, block
