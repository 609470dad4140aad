"""Filters undone by compiled code of h5py and hdf5plugin, which is called directly: without the GIL and libhdf5's lock.

This module does not call the filters' entry points. They report failures to libhdf5, which does not support that from
outside its lock; that of blosc holds a lock of its own while it decompresses, and those of bitshuffle and lz4 trust the
sizes in the data. It calls the functions behind them, which take no lock and keep no state, and checks all sizes.

h5py is left to undo zfp, sz, sz3, sperr, fcidecomp and htj2k, whose data need more than one call, and scaleoffset, nbit
and szip.
"""

import ctypes
import importlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

from ._hdf5_blosc2 import blosc2
from ._hdf5_filters import Bytes, Call, Damaged, Filter, function

_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_UNSIGNED, _LONG, _INT64 = ctypes.c_uint, ctypes.c_ulong, ctypes.c_int64
_LARGEST = 0x7FFFFFFF
"""The largest size in C's int."""

_BLOCK = struct.Struct(">I")


@final
@dataclass(frozen=True, slots=True)
class Inflate:
    """gzip by the zlib that comes with h5py, straight into the buffer."""

    call: Call
    name: str = "deflate"

    def undo(self, data: Bytes, buffer: Bytes) -> Bytes:
        size = _LONG(len(buffer))
        status = self.call(buffer.ctypes.data, ctypes.addressof(size), data.ctypes.data, len(data))
        if status:
            raise Damaged(f"zlib's error {status}: its stream is wrong or does not end within {len(buffer)} bytes")
        return buffer[: size.value]


@final
@dataclass(frozen=True, slots=True)
class Lzf:
    """LZF by h5py's own code."""

    call: Call
    name: str = "lzf"

    def undo(self, data: Bytes, buffer: Bytes) -> Bytes:
        size = self.call(data.ctypes.data, len(data), buffer.ctypes.data, min(len(buffer), _LARGEST))
        if not 0 < size <= len(buffer):
            raise Damaged(f"it is wrong or does not end within {len(buffer)} bytes")
        return buffer[:size]


@final
@dataclass(frozen=True, slots=True)
class Zstd:
    """One or more frames of Zstandard."""

    call: Call
    failed: Call
    name: str = "zstd"

    def undo(self, data: Bytes, buffer: Bytes) -> Bytes:
        size = self.call(buffer.ctypes.data, len(buffer), data.ctypes.data, len(data))
        if self.failed(size):
            raise Damaged(f"its frame is wrong or holds more than {len(buffer)} bytes")
        return buffer[:size]


@final
@dataclass(frozen=True, slots=True)
class Lz4:
    """LZ4 in blocks.

    The data are the size (8 bytes) and the block size (4 bytes), then the blocks, each after its size (4 bytes) and
    uncompressed if it did not become smaller. All numbers are big-endian.
    """

    call: Call
    name: str = "lz4"

    def undo(self, data: Bytes, buffer: Bytes) -> Bytes:
        size, block = _header(data, buffer)
        view, source, target = data.data, data.ctypes.data, buffer.ctypes.data
        position, done = 12, 0
        while done < size:
            part = min(block, size - done)
            stored = _block_size(view, position)
            if stored == part:
                buffer[done : done + part] = data[position + 4 : position + 4 + part]
            elif self.call(source + position + 4, target + done, stored, part) != part:
                raise Damaged(f"its block at byte {position} is wrong")
            position, done = position + 4 + stored, done + part
        return buffer[:size]


@final
@dataclass(frozen=True, slots=True)
class Blosc:
    """Blosc 1 of any codec, by the function with a context of its own: the other one serves one thread at a time."""

    validate: Call
    call: Call
    name: str = "blosc"

    def undo(self, data: Bytes, buffer: Bytes) -> Bytes:
        size = _SIZE()
        stored = int.from_bytes(data[12:16].tobytes(), "little")
        if not 16 <= stored <= len(data) or self.validate(data.ctypes.data, stored, ctypes.addressof(size)):
            raise Damaged("its header is wrong")
        if size.value > len(buffer):
            raise Damaged(f"it says {size.value} bytes, more than the chunk's {len(buffer)}")
        written = self.call(data.ctypes.data, buffer.ctypes.data, size.value, 1)
        if written != size.value:
            raise Damaged(f"it gives {written} of {size.value} bytes")
        return buffer[:written]


@final
@dataclass(frozen=True, slots=True)
class Bitshuffle:
    """Bitshuffle with LZ4 or Zstandard: the bits of a block's elements are transposed, blocks are stored as in `Lz4`.

    Attributes:
        width: bytes of an element.
    """

    call: Call
    width: int
    name: str = "bitshuffle"

    def undo(self, data: Bytes, buffer: Bytes) -> Bytes:
        size, block_bytes = _header(data, buffer)
        count, block = size // self.width, block_bytes // self.width
        if size % self.width or block < 8 or block % 8:
            raise Damaged(f"{size} bytes in blocks of {block_bytes} are not elements of {self.width} bytes")
        # The compiled code trusts the blocks' sizes, so add them up first. Up to 7 elements follow the last block.
        blocks = count // block + (count % block >= 8)
        view, position = data.data, 12
        try:
            for _ in range(blocks):
                position += 4 + _BLOCK.unpack_from(view, position)[0]
        except struct.error as error:
            raise Damaged(f"it has fewer than {blocks} blocks") from error
        if position + count % 8 * self.width > len(data):
            raise Damaged(f"its {blocks} blocks end after its {len(data)} bytes")
        if size and self.call(data.ctypes.data + 12, buffer.ctypes.data, count, self.width, block) < 0:
            raise Damaged("one of its blocks is wrong")
        return buffer[:size]


@final
@dataclass(frozen=True, slots=True)
class BitshuffleAlone:
    """Bitshuffle without compression.

    Attributes:
        width: bytes of an element.
        block: elements per block; 0 for the default.
    """

    call: Call
    width: int
    block: int
    name: str = "bitshuffle"

    def undo(self, data: Bytes, buffer: Bytes) -> Bytes:
        if len(data) > len(buffer) or len(data) % self.width:
            raise Damaged(f"{len(data)} bytes are not a chunk of elements of {self.width} bytes")
        if self.call(data.ctypes.data, buffer.ctypes.data, len(data) // self.width, self.width, self.block) < 0:
            raise Damaged("it cannot be undone")
        return buffer[: len(data)]


def compiled(code: int, values: tuple[int, ...]) -> Filter | None:
    """Return the filter with HDF5's number `code` and these settings; None if there is no compiled code for it."""
    make = _MAKERS.get(code)
    try:
        return None if make is None else make(values)
    except (ImportError, OSError, AttributeError):
        return None  # not installed, built for another machine, or without the functions; libhdf5 may have it


def _inflate(values: tuple[int, ...]) -> Filter:
    return Inflate(function(_h5py(), "uncompress", _INT, _POINTER, _POINTER, _POINTER, _LONG))


def _lzf(values: tuple[int, ...]) -> Filter:
    return Lzf(function(_h5py(), "lzf_decompress", _UNSIGNED, _POINTER, _UNSIGNED, _POINTER, _UNSIGNED))


def _zstd(values: tuple[int, ...]) -> Filter:
    library = _plugin("zstd")
    call = function(library, "ZSTD_decompress", _SIZE, _POINTER, _SIZE, _POINTER, _SIZE)
    return Zstd(call, function(library, "ZSTD_isError", _UNSIGNED, _SIZE))


def _lz4(values: tuple[int, ...]) -> Filter:
    return Lz4(function(_plugin("lz4"), "LZ4_decompress_safe", _INT, _POINTER, _POINTER, _INT, _INT))


def _blosc(values: tuple[int, ...]) -> Filter:
    library = _plugin("blosc")
    validate = function(library, "blosc_cbuffer_validate", _INT, _POINTER, _SIZE, _POINTER)
    return Blosc(validate, function(library, "blosc_decompress_ctx", _INT, _POINTER, _POINTER, _SIZE, _INT))


def _blosc2(values: tuple[int, ...]) -> Filter | None:
    return blosc2(_plugin("blosc2"), values)


def _bitshuffle(values: tuple[int, ...]) -> Filter | None:
    width, block, codec = (*values, 0, 0, 0, 0, 0)[2:5]
    functions = {0: "bshuf_bitunshuffle", 2: "bshuf_decompress_lz4", 3: "bshuf_decompress_zstd"}
    if width < 1 or block % 8 or codec not in functions:
        return None
    call = function(_plugin("bshuf"), functions[codec], _INT64, _POINTER, _POINTER, _SIZE, _SIZE, _SIZE)
    return Bitshuffle(call, width) if codec else BitshuffleAlone(call, width, block)


_MAKERS: dict[int, Callable[[tuple[int, ...]], Filter | None]] = {
    1: _inflate,
    32000: _lzf,
    32001: _blosc,
    32004: _lz4,
    32008: _bitshuffle,
    32015: _zstd,
    32026: _blosc2,
}


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


def _block_size(view: memoryview, position: int) -> int:
    """Read the size of the block at byte `position`, which must end within `view`."""
    size = int.from_bytes(view[position : position + 4], "big")
    if position + 4 + size > len(view):
        raise Damaged(f"its block at byte {position} ends after its {len(view)} bytes")
    return size
