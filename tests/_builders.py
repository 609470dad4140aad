"""Builders of test files: encoded images, IDX files, class folders, zips, and damage."""

import gzip
import io
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

DHT, DQT, SOS = b"\xff\xc4", b"\xff\xdb", b"\xff\xda"
"""The markers with which a JPEG's Huffman tables, quantisation tables and scans begin."""


def pixels(
    height: int = 12, width: int = 16, channels: int = 3, *, seed: int = 0, dtype: type = np.uint8
) -> NDArray[Any]:
    """A ramp with a little noise, its colour chosen by `seed`: `[height, width]` or `[height, width, channels]`."""
    random = np.random.default_rng(seed)
    ramp = np.add.outer(np.linspace(0, 100, height), np.linspace(0, 100, width))[..., None]
    image = ramp + random.integers(0, 40, channels) + random.integers(0, 8, (height, width, channels))
    image = (image * (np.iinfo(dtype).max // 255)).astype(dtype)
    return image[..., 0] if channels == 1 else image


def encode(suffix: str, image: NDArray[Any], *options: int) -> bytes:
    """Encode `image` (grey, RGB or RGBA) with OpenCV in the format that `suffix` names."""
    if image.ndim == 3:
        image = image[..., [2, 1, 0, 3][: image.shape[2]]]
    done, data = cv2.imencode(f".{suffix}", image, options)
    assert done
    return data.tobytes()


def jpeg(
    height: int = 12,
    width: int = 16,
    channels: int = 3,
    *,
    seed: int = 0,
    progressive: bool = False,
    quality: int = 80,
    restarts: int = 0,
) -> bytes:
    """A JPEG of `pixels`, with a restart marker after every so many MCUs."""
    options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_PROGRESSIVE, int(progressive)]
    options += [cv2.IMWRITE_JPEG_RST_INTERVAL, restarts]
    return encode("jpg", pixels(height, width, channels, seed=seed), *options)


def of_many_scans(side: int, scans: int) -> bytes:
    """A grey, square, progressive JPEG, whose scans but the first say in a few bytes that all blocks end."""

    def segment(code: int, body: bytes) -> bytes:
        return bytes([0xFF, code]) + struct.pack(">H", len(body) + 2) + body

    blocks = math.ceil(side / 8) ** 2
    one_code = bytes([1] + [0] * 15)  # of one bit
    ends = "".join("0" + "1" * 14 for _ in range(math.ceil(blocks / (2**15 - 1))))  # each of so many blocks
    ends += "1" * (-len(ends) % 8)
    scan = int(ends, 2).to_bytes(len(ends) // 8, "big").replace(b"\xff", b"\xff\0")
    header = segment(0xDB, b"\0" + b"\1" * 64) + segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0")
    tables = segment(0xC4, b"\0" + one_code + b"\0") + segment(0xC4, b"\x10" + one_code + b"\xe0")
    first = segment(0xDA, b"\1\1\0\0\0\0") + bytes(math.ceil(blocks / 8))
    bands = [segment(0xDA, bytes([1, 1, 0, 1 + i % 63, 1 + i % 63, 0])) + scan for i in range(scans - 1)]
    return b"\xff\xd8" + header + tables + first + b"".join(bands) + b"\xff\xd9"


def segments(image: bytes) -> list[bytes]:
    """Cut a JPEG of one scan behind its restart markers."""
    scan = image.index(SOS)
    scan += 2 + int.from_bytes(image[scan + 2 : scan + 4])
    parts = re.split(rb"(?<=\xff[\xd0-\xd7])", image[scan:])
    return [image[:scan] + parts[0], *parts[1:]]


def sampled_jpegs(height: int, width: int) -> Iterator[bytes]:
    """JPEGs of each sampling, some of them with restarts, in several scans, or with Huffman tables of their own."""
    samplings = [int(value) for name, value in vars(cv2).items() if name.startswith("IMWRITE_JPEG_SAMPLING_FACTOR_")]
    for number, sampling in enumerate(samplings):
        options = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling, cv2.IMWRITE_JPEG_RST_INTERVAL, number % 3]
        options += [cv2.IMWRITE_JPEG_PROGRESSIVE, number % 2, cv2.IMWRITE_JPEG_OPTIMIZE, number // 2 % 2]
        yield encode("jpg", pixels(height, width, seed=number), *options)


def decoded(data: bytes) -> NDArray[Any]:
    """The pixels of an image as OpenCV decodes them: RGB `[h, w, 3]` or grey `[h, w]`."""
    found = np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED))
    return found[..., ::-1] if found.ndim == 3 else found


def resized(image: Image.Image, size: tuple[int, int], filter_name: str) -> Image.Image:
    """Resize an image to (height, width) as Pillow 13 does, on any Pillow: older ones begin horizontally."""
    if image.mode == "RGBA":
        return resized(image.convert("RGBa"), size, filter_name).convert("RGBA")
    method = Image.Resampling[filter_name.upper()]
    shorter, narrower = image.height - size[0], image.width - size[1]
    if method != Image.Resampling.NEAREST and shorter > max(0, 2 * narrower):
        image = image.resize((image.width, size[0]), method)
    return image.resize(size[::-1], method)


def spoiled(image: bytes) -> bytes:
    """A JPEG with an invalid Huffman table: its markers say that it is whole, but no decoder accepts it."""
    table = image.index(b"\xff\xc4") + 5
    return image[:table] + b"\xff" * 16 + image[table + 16 :]


def unsent(data: bytes) -> bytes:
    """A progressive JPEG without its last scan: whole, but some bits of its coefficients are unsent."""
    return data[: data.rindex(SOS)] + b"\xff\xd9"


def without(image: bytes, marker: bytes) -> bytes:
    """Return a JPEG without its segments of one kind."""
    while (at := image.find(marker)) >= 0:
        image = image[:at] + image[at + 2 + int.from_bytes(image[at + 2 : at + 4]) :]
    return image


def png(height: int = 12, width: int = 16, channels: int = 3, *, seed: int = 0, dtype: type = np.uint8) -> bytes:
    """A PNG of `pixels`."""
    return encode("png", pixels(height, width, channels, seed=seed, dtype=dtype))


def webp(height: int = 12, width: int = 16, channels: int = 3, *, seed: int = 0, quality: int = 80) -> bytes:
    """A WebP of `pixels`; above a quality of 100 it is lossless."""
    return encode("webp", pixels(height, width, channels, seed=seed), cv2.IMWRITE_WEBP_QUALITY, quality)


def bmp(height: int = 12, width: int = 16, channels: int = 3, *, seed: int = 0) -> bytes:
    """A BMP of `pixels`."""
    return encode("bmp", pixels(height, width, channels, seed=seed))


def with_thumbnail(image: bytes, thumbnail: bytes) -> bytes:
    """Return the JPEG `image` with another JPEG in an EXIF segment, where cameras put their thumbnails."""
    # One empty directory of tags, and a second one with the thumbnail's offset and size.
    tags = struct.pack("<HHHII", 2, 0x0201, 4, 1, 44) + struct.pack("<HHII", 0x0202, 4, 1, len(thumbnail))
    tiff = b"II*\0" + struct.pack("<IHI", 8, 0, 14) + tags + struct.pack("<I", 0)
    body = b"Exif\0\0" + tiff + thumbnail
    return image[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + image[2:]


def tiff(orientation: int, *, order: str = "<", kind: int = 3) -> bytes:
    """An EXIF block: one TIFF directory with an orientation tag of type `kind` (3 short, 4 long) and one other tag."""
    number, mark = (">", b"MM") if order == ">" else ("<", b"II")
    other = struct.pack(number + "HHII", 0x0100, 4, 1, 7)
    value = struct.pack(number + ("HH" if kind == 3 else "I"), *((orientation, 0) if kind == 3 else (orientation,)))
    entries = other + struct.pack(number + "HHI", 0x0112, kind, 1) + value
    return mark + struct.pack(number + "HIH", 42, 8, 2) + entries + b"\0" * 4


def with_exif(image: bytes, exif: bytes) -> bytes:
    """Return the JPEG, PNG or lossy WebP file `image` with the EXIF block `exif`, which begins with a TIFF header."""
    if image[:2] == b"\xff\xd8":
        return image[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 8) + b"Exif\0\0" + exif + image[2:]
    if image[:4] == b"\x89PNG":
        chunk = b"eXIf" + exif
        return image[:33] + struct.pack(">I", len(exif)) + chunk + struct.pack(">I", zlib.crc32(chunk)) + image[33:]
    width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", image, 26))
    head = b"VP8X" + struct.pack("<II", 10, 0x08) + b"".join((n - 1).to_bytes(3, "little") for n in (width, height))
    body = b"WEBP" + head + image[12:] + b"EXIF" + struct.pack("<I", len(exif)) + exif + b"\0" * (len(exif) % 2)
    return b"RIFF" + struct.pack("<I", len(body)) + body


_IDX_TYPES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array: NDArray[Any], *, shape: Sequence[int] | None = None) -> bytes:
    """Return `array` as an IDX file; `shape` overrides the shape in its header."""
    shape = array.shape if shape is None else shape
    header = struct.pack(f">4B{len(shape)}I", 0, 0, _IDX_TYPES[array.dtype.str[1:]], len(shape), *shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_idx(
    path: Path, array: NDArray[Any], *, zipped: bool = False, shape: Sequence[int] | None = None, extra: bytes = b""
) -> Path:
    """Write `array` as an IDX file, with `extra` bytes after its numbers."""
    data = idx_bytes(array, shape=shape) + extra
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, mtime=0) if zipped else data)
    return path


def idx_pair(
    root: Path, count: int = 6, *, height: int = 5, width: int = 4, prefix: str = "", zipped: bool = False
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Write an IDX file of grey images and one of labels (0, 1, 2, 0, ...) to `root`; return both arrays."""
    images = np.stack([pixels(height, width, 1, seed=seed) for seed in range(count)])
    labels = (np.arange(count) % 3).astype(np.uint8)
    end = ".gz" if zipped else ""
    write_idx(root / f"{prefix}images-idx3-ubyte{end}", images, zipped=zipped)
    write_idx(root / f"{prefix}labels-idx1-ubyte{end}", labels, zipped=zipped)
    return images, labels


def class_folders(root: Path, tree: Mapping[str, Sequence[str]] | None = None) -> dict[str, bytes]:
    """Write a different image for every name in every class folder; return the bytes by path relative to `root`."""
    tree = {"cat": ["a.jpg", "b.png"], "dog": ["c.webp", "d.bmp", "old/e.JPEG"]} if tree is None else tree
    written: dict[str, bytes] = {}
    for folder, names in tree.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            suffix = name.rpartition(".")[2].lower()
            data = encode(suffix, pixels(seed=len(written)))
            (root / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (root / folder / name).write_bytes(data)
            written[f"{folder}/{name}" if folder else name] = data
    return written


def write_files(root: Path, files: Mapping[str, bytes | str]) -> Path:
    """Write files by their paths below `root`, and the folders of them; return `root`."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return root


def npy(array: Any) -> bytes:
    """An array as a .npy file, objects as pickles."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def overwrite(path: Path, at: int, data: bytes) -> None:
    """Put bytes in the place of those of a file, from an offset on, or before its end if that is below 0."""
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        file.write(data)


def flip(path: Path, at: int, bits: int = 1) -> None:
    """Change bits of one byte of a file."""
    overwrite(path, at, bytes([path.read_bytes()[at] ^ bits]))


def zipped(folder: Path) -> Path:
    """Pack the files of a folder to a zip file beside it."""
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as file:
        for one in sorted(folder.rglob("*")):
            if one.is_file():
                file.write(one, one.relative_to(folder))
    return path


CMYK_JPEG = bytes.fromhex(
    "ffd8ffee000e41646f626500640000000000ffdb00430006040506050406060506070706080a100a0a09090a140e0f0c101714181817"
    "1416161a1d251f1a1b231c1616202c20232627292a29191f2d302d283025282928ffc000140800020003044311004d11005911004b11"
    "00ffc400160001010100000000000000000000000000080407ffc40014100100000000000000000000000000000000ffda000e044300"
    "4d0059004b00003f004e29205ba3ffd9"
)
"""A JPEG of 2 x 3 CMYK pixels: OpenCV reads such files but writes none."""
