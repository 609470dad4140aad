"""Formats of files that hold an array: TIFF, PNG, NIfTI, DICOM, FITS, MATLAB and .npy, told by their first bytes.

Each is read by the library of its field, from a stream without a path.
"""

import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, SourceError
from shardio.foreign.files import File, compression_of, open_file, peek
from shardio.format.images import probe, sniff
from shardio.source import load_optional
from shardio.system.npy import read_header
from shardio.system.optional import cv2

from ._opened_array import OpenedArray, ReadOptions, Stream, check_room, damage_is_bad

_HEAD = 400  # bytes that tell the format of a file
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_PNG_CHANNELS = {0: 0, 2: 3, 6: 4}  # by the colour type: grey, RGB, RGB and alpha

_Open: TypeAlias = Callable[[Stream, ReadOptions], OpenedArray]


def format_of(path: Path) -> str | None:
    """Return the format of a file, which gzip may have compressed: a name in `OPENERS` or `ELSEWHERE`; None for others.

    It is also None if the file cannot be read.
    """
    try:
        head = File(path).read(0, _HEAD)
    except (OSError, ValueError):
        return None
    return _format_of(peek(path, "gzip", _HEAD) if compression_of(head, ("gzip",)) else head)


def _format_of(head: bytes) -> str | None:
    if head.startswith(_TIFF):
        return "tiff"
    if (kind := sniff(head)) is not None:
        return kind if kind != "png" or head[24:25] != b"\x10" else "png16"
    return next((name for name, (at, magic) in _MAGIC.items() if head.startswith(magic, at)), None)


def open_array(path: Path, options: ReadOptions) -> OpenedArray:
    """Read the header of the array in a file.

    Raises BadSample, without the path, if the file cannot be read or holds no array, MissingDependency if the library
    that reads it is not installed.
    """
    try:
        file = open_file(path, ("gzip",))
    except (SourceError, ValueError) as error:
        raise BadSample(str(error)) from error
    name = _format_of(file.read(0, _HEAD)) or ""
    if name in ELSEWHERE:
        raise BadSample(ELSEWHERE[name])
    if name not in OPENERS:
        raise BadSample(f"holds no array of a known format: it begins with {file.read(0, 8)!r}")
    found = OPENERS[name](Stream(file), options)
    check_room(found.shape, found.dtype, file.size)
    return found


def _npy(stream: Stream, options: ReadOptions) -> OpenedArray:
    with damage_is_bad("numpy"):
        header = read_header(cast(IO[bytes], stream))
    if header.dtype.hasobject:
        raise BadSample("holds Python objects, which are pickles and never loaded")

    def read() -> NDArray[Any]:
        data = stream.file.read_exactly(header.start, header.stop - header.start)
        return np.frombuffer(data, header.dtype).reshape(header.shape, order="F" if header.fortran else "C")

    return OpenedArray(header.shape, header.dtype.newbyteorder("="), "numpy", read)


def _png(stream: Stream, options: ReadOptions) -> OpenedArray:
    data = stream.read()
    info = probe(data)
    bits, colours = data[24], data[25]
    if bits not in (8, 16) or colours not in _PNG_CHANNELS:
        raise BadSample("a PNG read as an array must have 8 or 16 bits of grey, RGB or RGB and alpha, and no palette")
    channels = _PNG_CHANNELS[colours]
    shape = (info.height, info.width, channels) if channels else (info.height, info.width)

    def read() -> NDArray[Any]:
        _check_png(data)
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        if pixels is None:
            raise BadSample("the png image cannot be decoded")
        order = [2, 1, 0, 3][:channels]  # from OpenCV's blue, green, red
        return np.ascontiguousarray(pixels[..., order]) if channels else pixels

    return OpenedArray(shape, np.dtype(np.uint16 if bits == 16 else np.uint8), "cv2", read)


def _check_png(data: bytes) -> None:
    """Raise BadSample unless the checksums of a PNG fit, which OpenCV does not compare."""
    position = 8
    while position < len(data):
        (length,) = struct.unpack_from(">I", data, position)
        stop = position + 8 + length
        if stop + 4 > len(data) or zlib.crc32(data[position + 4 : stop]) != int.from_bytes(data[stop : stop + 4]):
            raise BadSample(f"the png image is damaged: the checksum of its chunk at byte {position} differs")
        if data[position + 4 : position + 8] == b"IEND":
            return
        position = stop + 4


def _tiff(stream: Stream, options: ReadOptions) -> OpenedArray:
    tifffile = load_optional("tifffile", purpose="reading a TIFF file", extra="imaging")
    with damage_is_bad("tifffile"):
        _check_directories(stream)
        stream.seek(0)
        # Without files that the metadata of OME name: these are samples of their own.
        series = tifffile.TiffFile(stream, name="TIFF", _multifile=False).series
        if not series or series[0].dtype is None:
            raise BadSample("the TIFF file holds no image")
        first = series[0]
        photometric = getattr(first.keyframe.photometric, "name", "")
        notes = [f"the first of {len(series)} series of images is taken"] if len(series) > 1 else []
        if photometric == "MINISWHITE":
            notes.append("MINISWHITE: larger numbers are darker, and stay as they are")
        if photometric == "PALETTE":
            notes.append("pixels are numbers of a palette, and stay as they are")

    def read() -> NDArray[Any]:
        if any(page is None for page in first.pages):
            raise BadSample("pages of its series are missing")
        values: NDArray[Any] = first.asarray(maxworkers=1)
        return values

    dtype = np.dtype(first.dtype).newbyteorder("=")
    return OpenedArray(tuple(map(int, first.shape)), dtype, "tifffile", read, notes=tuple(notes))


def _check_directories(stream: Stream) -> None:
    """Raise BadSample if a TIFF's directories, each of which names the next, lead out of it or in a circle."""
    head = stream.file.read_exactly(0, 16)
    order, big = ("<" if head[:2] == b"II" else ">"), head[2:4] in (b"+\0", b"\0+")
    wide, entry = ("Q", 20) if big else ("I", 12)
    number, pointer = struct.Struct(order + ("Q" if big else "H")), struct.Struct(order + wide)
    (offset,) = pointer.unpack_from(head, 8 if big else 4)
    seen: set[int] = set()
    while offset:
        if offset in seen:
            raise BadSample(f"the TIFF file's directories lead in a circle, back to byte {offset}")
        if not 0 < offset < stream.size:
            raise BadSample(f"the TIFF file has {stream.size} bytes, a page is to stand at byte {offset}")
        seen.add(offset)
        (count,) = number.unpack(stream.file.read_exactly(offset, number.size))
        (offset,) = pointer.unpack(stream.file.read_exactly(offset + number.size + count * entry, pointer.size))


OPENERS: Mapping[str, _Open] = MappingProxyType({"tiff": _tiff, "png16": _png, "png": _png, "npy": _npy})
"""By format, what opens an array in a file."""

_MAGIC = {
    "npy": (0, b"\x93NUMPY"),
    "hdf5": (0, b"\x89HDF\r\n\x1a\n"),
}
"""By format, the bytes that a file has at an offset."""

IMAGE = "is an image of 8 bits: `shardio convert imagefolder` and `filelist` take such images"
ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "jpeg": IMAGE,
        "webp": IMAGE,
        "bmp": IMAGE,
        "hdf5": "is an HDF5 file, which `shardio convert hdf5` takes",
    }
)
"""By format, what to say of files that another converter takes."""
