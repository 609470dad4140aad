"""Filters undone by the compiled code in h5py and hdf5plugin, called directly: without the GIL, libhdf5 and its lock.

The filters' own entry points are not used. They report failures to libhdf5, which is not made for that from outside
its lock; blosc's holds a lock of its own while it decompresses, bitshuffle's and lz4's believe the sizes that they find
in the data. What they call is called here instead, with all sizes checked: it takes no lock and keeps no state.

Left to h5py: zfp, sz, sz3, sperr, fcidecomp and htj2k, whose data need more than one call, and scaleoffset, nbit, szip.
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
"""Sizes in C's int."""

_BLOCK = struct.Struct(">I")


@final
@dataclass(frozen=True, slots=True)
class Inflate:
    """gzip by the zlib that h5py came with, straight to where the bytes belong."""

    call: Call
    name: str = "deflate"

    def undo(self, data: Bytes, room: Bytes) -> Bytes:
        """See `Filter`."""
        size = _LONG(len(room))
        status = self.call(room.ctypes.data, ctypes.addressof(size), data.ctypes.data, len(data))
        if status:
            raise Damaged(f"zlib's error {status}: its stream is wrong or does not end within {len(room)} bytes")
        return room[: size.value]


@final
@dataclass(frozen=True, slots=True)
class Lzf:
    """LZF by h5py."""

    call: Call
    name: str = "lzf"

    def undo(self, data: Bytes, room: Bytes) -> Bytes:
        """See `Filter`."""
        size = self.call(data.ctypes.data, len(data), room.ctypes.data, min(len(room), _LARGEST))
        if not 0 < size <= len(room):
            raise Damaged(f"it is wrong or does not end within {len(room)} bytes")
        return room[:size]


@final
@dataclass(frozen=True, slots=True)
class Zstd:
    """One or more frames of Zstandard."""

    call: Call
    failed: Call
    name: str = "zstd"

    def undo(self, data: Bytes, room: Bytes) -> Bytes:
        """See `Filter`."""
        size = self.call(room.ctypes.data, len(room), data.ctypes.data, len(data))
        if self.failed(size):
            raise Damaged(f"its frame is wrong or holds more than {len(room)} bytes")
        return room[:size]


@final
@dataclass(frozen=True, slots=True)
class Lz4:
    """Size (8 bytes) and block size (4), big-endian; then blocks, each after its size (4), as it is if not smaller."""

    call: Call
    name: str = "lz4"

    def undo(self, data: Bytes, room: Bytes) -> Bytes:
        """See `Filter`."""
        size, block = _header(data, room)
        view, source, target = data.data, data.ctypes.data, room.ctypes.data
        at, done = 12, 0
        while done < size:
            part = min(block, size - done)
            stored = _block_size(view, at)
            if stored == part:
                room[done : done + part] = data[at + 4 : at + 4 + part]
            elif self.call(source + at + 4, target + done, stored, part) != part:
                raise Damaged(f"its block at byte {at} is wrong")
            at, done = at + 4 + stored, done + part
        return room[:size]


@final
@dataclass(frozen=True, slots=True)
class Blosc:
    """Blosc 1 of any codec. The call that takes its own context: blosc's other one serves one thread at a time."""

    validate: Call
    call: Call
    name: str = "blosc"

    def undo(self, data: Bytes, room: Bytes) -> Bytes:
        """See `Filter`."""
        size = _SIZE()
        stored = int.from_bytes(data[12:16].tobytes(), "little")
        if not 16 <= stored <= len(data) or self.validate(data.ctypes.data, stored, ctypes.addressof(size)):
            raise Damaged("its header is wrong")
        if size.value > len(room):
            raise Damaged(f"it says {size.value} bytes, more than the chunk's {len(room)}")
        found = self.call(data.ctypes.data, room.ctypes.data, size.value, 1)
        if found != size.value:
            raise Damaged(f"it gives {found} of {size.value} bytes")
        return room[:found]


@final
@dataclass(frozen=True, slots=True)
class Bitshuffle:
    """Bits of the elements of a block put together; the blocks then stored as `Lz4`'s are, in LZ4 or Zstandard.

    Attributes:
        width: an element's bytes.
    """

    call: Call
    width: int
    name: str = "bitshuffle"

    def undo(self, data: Bytes, room: Bytes) -> Bytes:
        """See `Filter`."""
        size, block_bytes = _header(data, room)
        count, block = size // self.width, block_bytes // self.width
        if size % self.width or block < 8 or block % 8:
            raise Damaged(f"{size} bytes in blocks of {block_bytes} are not of elements of {self.width}")
        # The compiled code believes the blocks' sizes, so they are added up first. Fewer than 8 elements end the data.
        blocks = count // block + (count % block >= 8)
        view, at = data.data, 12
        try:
            for _ in range(blocks):
                at += 4 + _BLOCK.unpack_from(view, at)[0]
        except struct.error as error:
            raise Damaged(f"it has fewer than {blocks} blocks") from error
        if at + count % 8 * self.width > len(data):
            raise Damaged(f"its {blocks} blocks end after its {len(data)} bytes")
        if size and self.call(data.ctypes.data + 12, room.ctypes.data, count, self.width, block) < 0:
            raise Damaged("one of its blocks is wrong")
        return room[:size]


@final
@dataclass(frozen=True, slots=True)
class BitshuffleAlone:
    """`Bitshuffle` without compression."""

    call: Call
    width: int
    block: int
    name: str = "bitshuffle"

    def undo(self, data: Bytes, room: Bytes) -> Bytes:
        """See `Filter`."""
        if len(data) > len(room) or len(data) % self.width:
            raise Damaged(f"{len(data)} bytes are not the chunk's, of elements of {self.width}")
        if self.call(data.ctypes.data, room.ctypes.data, len(data) // self.width, self.width, self.block) < 0:
            raise Damaged("it cannot be undone")
        return room[: len(data)]


def compiled(code: int, values: tuple[int, ...]) -> Filter | None:
    """The filter with HDF5's number `code` and these settings; None where no compiled code for it is found."""
    make = _MAKERS.get(code)
    try:
        return None if make is None else make(values)
    except (ImportError, OSError, AttributeError):
        return None  # not installed, built for another machine, or without the functions: libhdf5 may still have it


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
    """h5py's module of filters; a name is looked for in it, in libhdf5 and in what that was linked with."""
    return ctypes.CDLL(importlib.import_module("h5py").h5z.__file__)


@cache
def _plugin(name: str) -> ctypes.CDLL:
    hdf5plugin = importlib.import_module("hdf5plugin")
    suffix = hdf5plugin.get_config().build_config.filter_file_extension
    return ctypes.CDLL(str(Path(hdf5plugin.PLUGIN_PATH) / f"libh5{name}{suffix}"))


def _header(data: Bytes, room: Bytes) -> tuple[int, int]:
    """Bytes in all and in a block, at the beginning of `data`, big-endian."""
    if len(data) < 12:
        raise Damaged(f"{len(data)} bytes are less than its header's 12")
    if len(data) > _LARGEST:
        raise Damaged(f"{len(data)} bytes are more than it can be")
    size, block = struct.unpack_from(">QI", data.data)
    if size > len(room):
        raise Damaged(f"it says {size} bytes, more than the chunk's {len(room)}")
    if not 0 < block <= _LARGEST:
        raise Damaged(f"its blocks cannot have {block} bytes")
    return size, block


def _block_size(view: memoryview, at: int) -> int:
    """The size of the block at byte `at`, which ends within `view`."""
    size = int.from_bytes(view[at : at + 4], "big")
    if at + 4 + size > len(view):
        raise Damaged(f"its block at byte {at} ends after its {len(view)} bytes")
    return size
