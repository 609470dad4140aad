"""IDX files, the format of MNIST and its family: one file of images and one of labels, gzipped or not.

The format is described at http://yann.lecun.com/exdb/mnist: two zero bytes, a type, the number of dimensions, each
dimension as a big-endian int32, and the numbers.
"""

import gzip
import math
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import ConfigError, SourceError
from shardio.foreign.files import compression_of, open_file
from shardio.foreign.names import printable, source_errors
from shardio.format.file_table import Table, TableFile
from shardio.source import Field, Sample, check_index, encode_png, listed_names, local_path
from shardio.system.regular_files import open_regular

from ._source_base import DataclassSource

_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def idx(src: str | os.PathLike[str], *, subset: str | None = None, classes: str | Iterable[str] | None = None) -> "Idx":
    """IDX files, the format of MNIST: a file of images and a file of labels in one directory.

    Images are uint8 [n, h, w] or [n, h, w, 3], labels integers [n]. Files are recognized by their content, not
    their names; other files are ignored. Images are stored as PNG, which is lossless. Without a file of labels, samples
    have no label. Each process that reads gzipped files unpacks them to unnamed temporary files in TMPDIR.

    Args:
        src: the directory.
        subset: take only files whose names begin with this and a dash: `train` takes `train-images-idx3-ubyte.gz`.
        classes: the class names in the order of their labels, a list or text such as "cat,dog".

    Example:
        shardio convert idx fashion-mnist data/train --subset train
        shardio convert idx digits data/digits --classes zero,one,two
        shardio convert idx fashion-mnist data/pixels --subset train --store-pixels --to hdf5

    Raises:
        SourceError: `src` cannot be read, holds no such pair of files or several, or a file contradicts its header.
        ConfigError: `classes` are given, but there are no labels.
    """
    root = local_path(src).absolute()
    place, prefix = printable(root), "" if subset is None else f"{subset}-"
    with source_errors(f"idx takes a directory, {place}"), os.scandir(root) as entries:
        paths = sorted(Path(entry) for entry in entries if entry.name.startswith(prefix) and not entry.is_dir())
    found = [file for path in paths if (file := _header(path))]
    pictures = [file for file in found if file.holds_images]
    labels = [file for file in found if file.holds_labels]
    if others := [file for file in found if not file.holds_images and not file.holds_labels]:
        raise SourceError(
            f"{others[0]} is neither images, uint8 [n, h, w] or [n, h, w, 3], nor labels, integers [n]:"
            f" it holds {others[0].dtype} {list(others[0].shape)}"
        )
    if not pictures:
        named = f" whose name begins with {prefix!r}" if subset else ""
        raise SourceError(f"{place} holds no IDX file of images{named}")
    if len(pictures) > 1 or len(labels) > 1:
        listed = ", ".join(printable(file.path.name) for file in found)
        raise SourceError(
            f"{place} holds more than one pair of IDX files: {listed};"
            ' point at a directory with one pair, or take one by its prefix, such as subset="train"'
        )
    source = Idx(pictures[0], labels[0] if labels else None, tuple(listed_names(classes)))
    source.check()
    return source


@final
@dataclass(frozen=True)
class _File:
    """An IDX file, by its header."""

    path: Path
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return printable(self.path)

    @property
    def holds_images(self) -> bool:
        return self.dtype == "u1" and (len(self.shape) == 3 or (len(self.shape) == 4 and self.shape[3] == 3))

    @property
    def holds_labels(self) -> bool:
        return len(self.shape) == 1 and "f" not in self.dtype

    def load(self) -> Table:
        """Return all numbers, [n]; SourceError unless the file is as long as its header says."""
        file = open_file(self.path, ("gzip",))
        start, expected = 4 + 4 * len(self.shape), math.prod(self.shape) * np.dtype(self.dtype).itemsize
        if (size := file.size - start) != expected:
            raise SourceError(f"{self} must hold {expected} bytes of numbers {list(self.shape)}, it holds {size}")
        if not expected:
            return np.empty(self.shape, self.dtype)
        count, *inner = self.shape
        opened = TableFile(os.dup(file.fileno()), self.path, SourceError)
        return opened.table(np.dtype((self.dtype, tuple(inner))), count, start)


@final
@dataclass(frozen=True)
class Idx(DataclassSource):
    """The images of one IDX file and the labels of another. It pickles as paths; each worker reads the files itself."""

    _images: _File
    _labels: _File | None
    classes: tuple[str, ...]
    source = "idx"
    threads = True

    def check(self) -> None:
        """Raise SourceError or ConfigError unless the files are whole and fit each other and the class names."""
        count, height, width = self._images.shape[:3]
        if not count * height * width:
            raise SourceError(f"{self._images} holds no images: {list(self._images.shape)}")
        if self._labels is None:
            if self.classes:
                raise ConfigError(
                    "{classes} need labels, {} holds no IDX file of labels", printable(self._images.path.parent)
                )
        elif self._labels.shape[0] != count:
            raise SourceError(
                f"every image must have a label: {self._images} holds {count} images,"
                f" {self._labels} {self._labels.shape[0]} labels"
            )
        elif self.classes and not 0 <= self._numbers.min() <= self._numbers.max() < len(self.classes):
            raise SourceError(
                f"{self._labels}: with {len(self.classes)} classes labels must be in [0, {len(self.classes)}),"
                f" got {self._numbers.min()} to {self._numbers.max()}"
            )
        _ = self._pixels, self._numbers

    @cached_property
    def _pixels(self) -> Table:
        return self._images.load()

    @cached_property
    def _numbers(self) -> NDArray[Any]:
        return np.asarray(self._labels.load()) if self._labels else np.empty(0, np.uint8)

    @property
    def fields(self) -> Mapping[str, Field]:
        """`image`, grey or RGB and of one size, and `label` if there are labels."""
        _, height, width, *colors = self._images.shape
        image = Field("image", shape=(height, width), channels=3 if colors else 1)
        return {"image": image, "label": Field("scalar", dtype="int64")} if self._labels else {"image": image}

    def sizes(self) -> NDArray[np.int64]:
        """Return the bytes of the raw pixels, `[n]`: more than their PNG takes, unless they are tiny or noise."""
        count, *shape = self._images.shape
        return np.full(count, np.prod(shape), np.int64)

    def __getitem__(self, index: int) -> Sample:
        check_index(index, self._images.shape[0])
        label = {"label": int(self._numbers[index])} if self._labels else {}
        return {"image": encode_png(self._pixels[index], f"{self._images}, image {index}"), **label}

    def column(self, name: str) -> NDArray[Any] | None:
        return self._numbers.astype(np.int64) if name == "label" and self._labels else None


def _header(path: Path) -> _File | None:
    """Read a file's header; None if it is not an IDX file."""
    with source_errors(path, EOFError, zlib.error), open(path, "rb", opener=open_regular) as raw:
        zipped = compression_of(raw.peek(2), ("gzip",)) is not None
        with gzip.GzipFile(fileobj=raw) if zipped else raw as file:
            magic = file.read(4)
            if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _DTYPES or not magic[3]:
                return None
            sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        place = printable(path)
        raise SourceError(f"{place} must hold {4 * magic[3]} bytes of sizes after its mark, it holds {len(sizes)}")
    return _File(path, _DTYPES[magic[2]], struct.unpack(f">{magic[3]}I", sizes))
