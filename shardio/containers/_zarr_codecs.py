"""Codecs of Zarr, each undone without the GIL where it takes long, mostly by the functions that undo HDF5's filters.

Codecs of format 3 have names of their own; those of format 2, and what `zarr` adds of them to format 3, begin with
`numcodecs.`. None runs code from data: those for objects, pickles among them, are not here.
"""

import ctypes
import importlib
import lzma
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..errors import MissingDependency
from ..native.chunks import Kind, Step
from . import chunk_codecs as codecs
from .chunk_codecs import Bytes, Damaged, Undo, WithStep
from .chunk_filters import FilterPipeline
from .zarr_metadata import Codec, NotUnderstood

_NUMBERS = ("delta", "fixedscaleoffset", "astype", "quantize", "bitround", "packbits", "jenkins_lookup3")
"""Codecs that numcodecs itself undoes: what they give is at most 16 times as large as what they get."""


def pipeline(given: Sequence[Codec], size: int) -> FilterPipeline:
    """Return what undoes the codecs of an array with chunks of `size` bytes.

    Raises NotUnderstood for a codec that is not known, MissingDependency if its library is not installed.
    """
    return FilterPipeline(
        tuple((name.removeprefix("numcodecs."), _undo(name, settings)) for name, settings in given), size
    )


def _undo(name: str, settings: Mapping[str, Any]) -> Undo:
    short = name.removeprefix("numcodecs.")
    try:
        if short in _NUMBERS and name != short:
            return _of_numcodecs(short, settings)
        make = (_CODECS_3 if name == short else _CODECS).get(short)
        if make is None:
            raise NotUnderstood(f"has the codec {short!r}, which shardio does not read")
        return make(settings)
    except (ImportError, OSError, AttributeError) as error:
        raise MissingDependency(
            f"the codec {short!r} of Zarr needs a library: pip install 'shardio-data[zarr]' ({error})"
        ) from error


def _undo_gzip(_: Mapping[str, Any]) -> Undo:
    """Undo gzip: one or more members, up to the buffer's size."""

    def undo(data: Bytes, buffer: Bytes) -> Bytes:
        done, left = 0, data.data
        try:
            while True:
                stream = zlib.decompressobj(31)
                content = stream.decompress(left, len(buffer) - done + 1)
                if done + len(content) > len(buffer) or not stream.eof:
                    raise Damaged(f"its stream does not end within {len(buffer)} bytes")
                buffer[done : done + len(content)] = np.frombuffer(content, np.uint8)
                done += len(content)
                if not (left := memoryview(stream.unused_data.lstrip(b"\0"))):
                    return buffer[:done]
        except zlib.error as error:
            raise Damaged(str(error)) from error

    return WithStep(undo, Step(Kind.GZIP, calls=codecs.inflating()))


def _undo_lzma(settings: Mapping[str, Any]) -> Undo:
    """Undo XZ, or another format of liblzma that the settings name, up to the buffer's size."""
    form, filters = settings.get("format", lzma.FORMAT_XZ), settings.get("filters")
    if form not in (lzma.FORMAT_XZ, lzma.FORMAT_ALONE, lzma.FORMAT_RAW):
        raise NotUnderstood(f"has the codec lzma of format {form!r}")

    def undo(data: Bytes, buffer: Bytes) -> Bytes:
        try:
            raw = {"filters": filters} if form == lzma.FORMAT_RAW else {"memlimit": max(1 << 28, 4 * len(buffer))}
            stream = lzma.LZMADecompressor(form, **raw)
            content = stream.decompress(data.data, len(buffer) + 1)
        except (lzma.LZMAError, EOFError, ValueError, TypeError, MemoryError) as error:
            raise Damaged(str(error)) from error
        if len(content) > len(buffer) or not (stream.eof or form == lzma.FORMAT_RAW):
            raise Damaged(f"its stream does not end within {len(buffer)} bytes")
        return np.frombuffer(content, np.uint8)

    return undo


def _undo_lz4(_: Mapping[str, Any]) -> Undo:
    """Undo a block of LZ4 after its size, 4 bytes, little-endian."""
    call = codecs.lz4_block()

    def undo(data: Bytes, buffer: Bytes) -> Bytes:
        size = int.from_bytes(data[:4].tobytes(), "little")
        if len(data) < 4 or size > len(buffer):
            raise Damaged(f"it says {size} bytes, more than the chunk's {len(buffer)}")
        if call(codecs.address(data) + 4, codecs.address(buffer), len(data) - 4, size) != size:
            raise Damaged(f"its block does not give {size} bytes")
        return buffer[:size]

    return WithStep(undo, Step(Kind.LZ4, calls=(call,)))


def _undo_checksum(compute: Callable[[Any], int], usual: str, settings: Mapping[str, Any]) -> Undo:
    return codecs.undo_checksum(compute, at_start=settings.get("location", usual) == "start")


def crc32c(data: Bytes) -> int:
    """Return the CRC-32C of bytes."""
    return int(importlib.import_module("google_crc32c").value(data.tobytes()))


def _undo_crc32c(settings: Mapping[str, Any]) -> Undo:
    undo = _undo_checksum(crc32c, "end", settings)
    try:
        library = ctypes.CDLL(importlib.import_module("google_crc32c._crc32c").__file__ or "")
        call = codecs.function(library, "crc32c_value", ctypes.c_uint32)
    except (ImportError, OSError, AttributeError):
        return undo  # google_crc32c is the one in Python, or has no library beside it
    return WithStep(undo, Step(Kind.CRC32C, int(settings.get("location", "end") == "start"), (call,)))


def _of_numcodecs(name: str, settings: Mapping[str, Any]) -> Undo:
    try:
        codec = importlib.import_module("numcodecs").get_codec({**settings, "id": name})
    except (ValueError, TypeError, KeyError) as error:
        raise NotUnderstood(f"has the codec {name!r} with settings that it cannot have: {error}") from error

    def undo(data: Bytes, buffer: Bytes) -> Bytes:
        try:
            content = np.ascontiguousarray(codec.decode(np.array(data))).reshape(-1).view(np.uint8)
        except (ValueError, TypeError, RuntimeError, IndexError, ArithmeticError, MemoryError) as error:
            raise Damaged(str(error)) from error
        if len(content) > len(buffer):
            raise Damaged(f"it gives {len(content)} bytes, more than {len(buffer)}")
        return content

    return undo


def _width(settings: Mapping[str, Any]) -> int:
    width = settings.get("elementsize", 4)
    if type(width) is not int or width < 0:
        raise NotUnderstood(f"has the codec shuffle of elements of {width!r} bytes")
    return width


_CODECS: dict[str, Callable[[Mapping[str, Any]], Undo]] = {
    "gzip": _undo_gzip,
    "zlib": lambda _: codecs.undo_gzip(()),
    "bz2": lambda _: codecs.undo_bzip2,
    "lzma": _undo_lzma,
    "lz4": _undo_lz4,
    "zstd": lambda _: codecs.undo_zstd(()),
    "blosc": lambda _: codecs.undo_blosc(()),
    "shuffle": lambda settings: codecs.undo_shuffle(_width(settings)),
    "crc32": partial(_undo_checksum, zlib.crc32, "start"),
    "adler32": partial(_undo_checksum, zlib.adler32, "start"),
    "crc32c": _undo_crc32c,
    "fletcher32": lambda _: codecs.undo_fletcher32(),
}
"""By the name of numcodecs."""

_CODECS_3 = {name: _CODECS[name] for name in ("gzip", "zstd", "blosc", "crc32c")}
"""By the name in the specification of format 3."""
