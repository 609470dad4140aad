"""Formats of files that hold an array: TIFF, PNG, NIfTI, DICOM, FITS, MATLAB and .npy, recognized by their first bytes.

Each is read by the library of its field, from a stream without a path.
"""

import contextlib
import math
import re
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from shardio.errors import BadSample, Message, SourceError
from shardio.foreign.files import File, compression_of, open_file, peek
from shardio.format.images import probe, sniff
from shardio.source import load_optional
from shardio.system.npy import read_header

from ._dicom import open_dicom, series_of
from ._opened_array import (
    OF_ZSTD,
    PER_BYTE,
    OpenedArray,
    ReadOptions,
    Stream,
    check_room,
    damage_is_bad,
    rescaled_dtype,
)
from ._volume_axes import canonical, space_of

_HEAD = 400  # bytes that tell the format of a file
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_NODATA, _METADATA = 42113, 42112  # tags of GDAL
_ITEM = re.compile(r"<Item ([^>]*)>([^<]*)</Item>")
_PNG_CHANNELS = {0: 0, 2: 3, 6: 4}  # by the colour type: grey, RGB, RGB and alpha

_Open: TypeAlias = Callable[[Stream, ReadOptions], OpenedArray]


def format_of(path: Path) -> str | None:
    """Return the format of a file, which gzip may have compressed: a name in `OPENERS` or `ELSEWHERE`; None for others.

    Returns None also if the file cannot be read.
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
    return next((name for name, at, magic in _MAGIC if head.startswith(magic, at)), None)


def open_arrays(paths: Sequence[Path], options: ReadOptions) -> OpenedArray:
    """Read the header of the array in a file; several files, or those in a folder, are the slices of a DICOM series.

    Raises BadSample, without the path, if a file cannot be read or holds no array, MissingDependency if the library
    that reads it is not installed.
    """
    if len(paths) == 1 and paths[0].is_dir():
        files = sorted(path for path in paths[0].iterdir() if path.is_file() and format_of(path) == "dicom")
        series = {path: uid for path in files if (uid := series_of(path)) is not None}
        paths = list(series)
        if len(set(series.values())) != 1:
            raise BadSample("a folder must hold the DICOM files of one series to be a sample")
    opened = _open_array(paths[0], options) if len(paths) == 1 else open_dicom(paths, options)
    return canonical(opened) if options.orientation == "RAS" else opened


def _opened(path: Path) -> File:
    try:
        return open_file(path, ("gzip",))
    except (SourceError, ValueError) as error:
        raise BadSample(str(error)) from error


def _open_array(path: Path, options: ReadOptions) -> OpenedArray:
    file = _opened(path)
    name = _format_of(file.read(0, _HEAD)) or ""
    if name in ELSEWHERE:
        raise BadSample(ELSEWHERE[name])
    if name not in OPENERS:
        raise BadSample(f"holds no array of a known format: it begins with {file.read(0, 8)!r}")
    return OPENERS[name](Stream(file), options)


def _npy(stream: Stream, options: ReadOptions) -> OpenedArray:
    with damage_is_bad("numpy"):
        header = read_header(cast(IO[bytes], stream))
    if header.dtype.hasobject:
        raise BadSample("holds Python objects, which are pickles and never loaded")

    def read() -> NDArray[Any]:
        data = stream.file.read_exactly(header.start, header.stop - header.start)
        return np.frombuffer(data, header.dtype).reshape(header.shape, order="F" if header.fortran else "C")

    return OpenedArray(header.shape, header.dtype.newbyteorder("="), "numpy", stream.size, read)


def _png(stream: Stream, options: ReadOptions) -> OpenedArray:
    data = stream.read()
    info = probe(data)
    bits, colours = data[24], data[25]
    if bits not in (8, 16) or colours not in _PNG_CHANNELS:
        raise BadSample("a PNG read as an array must have 8 or 16 bits of grey, RGB or RGB and alpha, and no palette")
    channels, cv2 = _PNG_CHANNELS[colours], load_optional("cv2", purpose="reading a PNG as an array", extra="opencv")
    shape = (info.height, info.width, channels) if channels else (info.height, info.width)

    def read() -> NDArray[Any]:
        _check_png(data)
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        if pixels is None:
            raise BadSample("the png image cannot be decoded")
        order = [2, 1, 0, 3][:channels]  # from OpenCV's blue, green, red
        return np.ascontiguousarray(pixels[..., order]) if channels else pixels

    return OpenedArray(shape, np.dtype(np.uint16 if bits == 16 else np.uint8), "cv2", stream.size, read)


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
        stored = np.dtype(first.dtype).newbyteorder("=")
        meaning = _geotiff(first, stored)
    applies = bool(options.rescale and meaning)
    dtype = rescaled_dtype(stored) if applies else stored

    def read() -> NDArray[Any]:
        if any(page is None for page in first.pages):
            raise BadSample("pages of its series are missing")
        values: NDArray[Any] = first.asarray(maxworkers=1)
        if not applies:
            return values
        scaled = np.asarray(values * meaning.get("scale", 1.0) + meaning.get("offset", 0.0)).astype(dtype)
        if "nodata" in meaning:
            scaled[values == stored.type(meaning["nodata"])] = np.nan
        return scaled

    room = OF_ZSTD if "ZSTD" in getattr(first.keyframe.compression, "name", "") else PER_BYTE
    return OpenedArray(
        tuple(map(int, first.shape)), dtype, "tifffile", stream.size, read,
        notes=tuple(notes), unapplied={} if applies else meaning, per_byte=room,
    )  # fmt: skip


def _geotiff(series: Any, stored: np.dtype[Any]) -> dict[str, Any]:
    """The number that stands for no data, and the scale and offset of all bands or, in an array, of each: GDAL's tags.

    Leaves out what changes no value, and what is no number.
    """
    tags = {code: str(tag.value) for code in (_NODATA, _METADATA) if (tag := series.keyframe.tags.get(code))}
    found: dict[str, Any] = {}
    with contextlib.suppress(ValueError, OverflowError):
        nodata = float(tags.get(_NODATA, "nan").strip("\0 "))
        if stored.type(nodata) == nodata or (stored.kind == "f" and not math.isnan(nodata)):
            found["nodata"] = nodata
    bands, axis = int(series.keyframe.samplesperpixel), series.axes.find("S")
    for name, idle in (("scale", 1.0), ("offset", 0.0)):
        each = np.full(bands, idle)
        for attributes, text in _ITEM.findall(tags.get(_METADATA, "")):
            sample = re.search(r'sample="(\d+)"', attributes)
            if f'role="{name}"' in attributes:
                with contextlib.suppress(ValueError, IndexError):
                    each[int(sample[1]) if sample else 0] = float(text)
        if (each != idle).any():
            shape = [-1 if at == axis else 1 for at in range(len(series.shape))]
            found[name] = float(each[0]) if (each == each[0]).all() or axis < 0 else each.reshape(shape)
    return found


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


def _nifti(stream: Stream, options: ReadOptions) -> OpenedArray:
    nibabel = load_optional("nibabel", purpose="reading a NIfTI file", extra="imaging")
    head = stream.file.read_exactly(0, 348)
    two, pair = head[4:7] in (b"n+2", b"ni2"), b"ni" in (head[4:6], head[344:346])
    image = Stream(_image_of_pair(stream.file.path)) if pair else stream
    kind = getattr(nibabel, f"Nifti{2 if two else 1}{'Pair' if pair else 'Image'}")
    with damage_is_bad("nibabel"), nibabel.imageglobals.LoggingOutputSuppressor():
        holders = {"header": stream, "image": image}
        files = {name: nibabel.FileHolder(fileobj=of) for name, of in holders.items()}
        found = kind.from_file_map(files, mmap=False)
        proxy, shape = found.dataobj, tuple(map(int, found.shape))
        stored = proxy.dtype.newbyteorder("=")
        colours = len(stored.names or ())
        scaled = not colours and (proxy.slope, proxy.inter) != (1, 0)
        # nibabel's own default is float64 for all.
        dtype = stored if not scaled or stored.kind == "c" else rescaled_dtype(stored)
        affine = np.asarray(found.affine, np.float64)
        stated = found.header["qform_code"] > 0 or found.header["sform_code"] > 0
        space = space_of(affine, shape) if stated else None

    def read() -> NDArray[Any]:
        if scaled:
            return np.asanyarray(proxy, dtype=dtype)
        values: NDArray[Any] = np.asarray(proxy.get_unscaled())
        return np.ascontiguousarray(values)[..., None].view(np.uint8) if colours else values

    if colours:
        shape, dtype = (*shape, colours), np.dtype(np.uint8)
    size = stream.size + (image.size if pair else 0)
    whole = scaled and stored.kind in "iu"
    return OpenedArray(shape, dtype, "nibabel", size, read, affine, space, scaled=whole)


def _image_of_pair(header: Path) -> File:
    """The file of values next to a NIfTI header, named like it but for the suffix; BadSample if there is none."""
    name = header.name.removesuffix(".gz")
    stem = name[:-4] if name.lower().endswith(".hdr") else name
    for suffix in (".img", ".img.gz", ".IMG"):
        if (path := header.with_name(stem + suffix)).is_file():
            return _opened(path)
    raise BadSample(f"a NIfTI header needs its values beside it, there is no {stem}.img")


def _fits(stream: Stream, options: ReadOptions) -> OpenedArray:
    fits = load_optional("astropy.io.fits", purpose="reading a FITS file", extra="astronomy")
    with damage_is_bad("astropy"):
        units = fits.open(stream, mode="readonly", memmap=False)
        images = [
            number
            for number, unit in enumerate(units)
            if hasattr(unit, "section") and not isinstance(unit, fits.GroupsHDU) and unit.shape
        ]
        number = options.hdu if options.hdu is not None else next(iter(images), None)
        if number not in images:
            named = "no HDU with an array" if number is None else f"no array in HDU {number}"
            raise BadSample(f"holds {named}; those with arrays are {', '.join(map(str, images)) or 'none'}")
        unit = units[number]
        shape = tuple(map(int, unit.shape))
        if not math.prod(shape):
            raise BadSample(f"HDU {number} holds no values: {list(shape)}")
        check_room(shape, np.dtype(f"u{abs(unit.header['BITPIX']) // 8}"), stream.size)
        dtype = unit.section[tuple(slice(0, 1) for _ in shape)].dtype.newbyteorder("=")
    notes: tuple[str, ...] = ()
    if options.hdu is None and len(images) > 1:
        notes = (Message("the first of {} HDUs with an array is taken, {}; {hdu} chooses", len(images), number),)
    return OpenedArray(shape, dtype, "astropy", stream.size, lambda: unit.data, notes=notes)


def _matlab(stream: Stream, options: ReadOptions) -> OpenedArray:
    io = load_optional("scipy.io", purpose="reading a MATLAB file", extra="matlab")
    with damage_is_bad("scipy"):
        variables = {name: (tuple(map(int, shape)), kind) for name, shape, kind in io.whosmat(stream)}
    arrays = [name for name, (_, kind) in variables.items() if kind in _MATLAB_DTYPES]
    listed = ", ".join(f"{name!r} ({kind})" for name, (_, kind) in variables.items()) or "none"
    name = options.variable if options.variable is not None else arrays[0] if len(arrays) == 1 else None
    if name is None:
        raise BadSample("holds {} arrays, {variable} must choose one; its variables are {}", len(arrays), listed)
    if name not in arrays:
        raise BadSample(f"holds no array {name!r}; its variables are {listed}")
    shape, kind = variables[name]
    dtype = np.dtype(_MATLAB_DTYPES[kind])
    check_room(shape, dtype, stream.size)
    with damage_is_bad("scipy"):
        stream.seek(0)
        values = io.loadmat(stream, variable_names=[name])[name]
        if values.dtype.kind not in "biufc":
            raise BadSample(f"{name!r} is {values.dtype}")
        # A file may store a double as fewer bytes, and with mat_dtype scipy would drop imaginary parts.
        values = values.astype(np.result_type(dtype, np.complex64) if values.dtype.kind == "c" else dtype)
    return OpenedArray(shape, values.dtype, "scipy", stream.size, lambda: values)


_MATLAB_DTYPES = {"double": "f8", "single": "f4", "logical": "?"} | {
    f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}

OPENERS: Mapping[str, _Open] = MappingProxyType(
    {
        "tiff": _tiff,
        "png16": _png,
        "png": _png,
        "npy": _npy,
        "nifti": _nifti,
        "dicom": lambda stream, options: open_dicom([stream], options),
        "fits": _fits,
        "matlab": _matlab,
    }
)
"""By format, what opens an array in a file."""

_MAGIC = (
    ("npy", 0, b"\x93NUMPY"),
    ("nifti", 344, b"n+1\0"),
    ("nifti", 344, b"ni1\0"),
    ("nifti", 4, b"n+2\0\r\n\x1a\n"),
    ("nifti", 4, b"ni2\0\r\n\x1a\n"),
    ("dicom", 128, b"DICM"),
    ("fits", 0, b"SIMPLE  ="),
    ("matlab", 0, b"MATLAB 5.0 MAT-file"),
    ("matlab7.3", 0, b"MATLAB 7.3 MAT-file"),
    ("hdf5", 0, b"\x89HDF\r\n\x1a\n"),
    ("netcdf", 0, b"CDF"),
)
"""The bytes that files of a format have at an offset."""

IMAGE = "is an image of 8 bits: `shardio convert imagefolder` and `filelist` take such images"
ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "jpeg": IMAGE,
        "webp": IMAGE,
        "bmp": IMAGE,
        "hdf5": "is an HDF5 file, which `shardio convert hdf5` takes",
        "netcdf": "is a NetCDF file, whose rows `shardio convert hdf5` takes",
        "matlab7.3": "is a MATLAB file of version 7.3, an HDF5 file, which `shardio convert hdf5` takes",
    }
)
"""By format, what to say of files that another converter takes."""
