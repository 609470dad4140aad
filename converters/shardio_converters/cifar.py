"""CIFAR-10 and CIFAR-100 in their binary version: files of records; a record is labels and an image's planes.

The format is described at https://www.cs.toronto.edu/~kriz/cifar.html: 32x32 pixels as 1024 bytes of red, 1024 of green
and 1024 of blue, row by row, after the label (CIFAR-10), or the coarse and the fine label (CIFAR-100).
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import ConfigError, SourceError
from shardio.foreign.files import open_file, order_hints
from shardio.foreign.locations import ValueLocations
from shardio.foreign.names import bad_samples_at, printable, source_errors
from shardio.format.file_table import TableFile, parts
from shardio.source import Field, Sample, check_index, encode_png, local_path
from shardio.system.regular_files import open_regular

from ._source_base import LocatedSource

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


class _Kind(NamedTuple):
    """One of the two data sets.

    Attributes:
        folder: the directory that its archive unpacks to.
        files: by subset, a pattern for the names of its files.
        labels: the field of each label in a record, in order, and the file with its class names.
    """

    folder: str
    files: Mapping[str, str]
    labels: Mapping[str, str]


_KINDS = (
    _Kind(
        "cifar-10-batches-bin",
        {"train": r"data_batch_[0-9]+\.bin", "test": r"test_batch\.bin"},
        {"label": "batches.meta.txt"},
    ),
    _Kind(
        "cifar-100-binary",
        {"train": r"train\.bin", "test": r"test\.bin"},
        {"coarse_label": "coarse_label_names.txt", "label": "fine_label_names.txt"},
    ),
)


def cifar(src: str | os.PathLike[str], *, subset: Literal["train", "test"] = "train") -> "Cifar":
    """CIFAR-10 or CIFAR-100 in the binary version: the directory of its *.bin files, or the one above it.

    Images are stored as PNG, which is lossless. `label` is the class; CIFAR-100 also has `coarse_label`, the
    superclass. Class names come from the text files next to the images, if they exist. The Python version is not read:
    its files are pickles, which can run any code.

    Args:
        src: the directory with the *.bin files, or the one above it.
        subset: the part to convert, `train` or `test`.

    Example:
        shardio convert cifar cifar-10-batches-bin data/train
        shardio convert cifar cifar-100-binary data/test --subset test
        shardio convert cifar cifar-10-batches-bin data/pixels --store-pixels --to hdf5

    Raises:
        SourceError: `src` holds neither data set or both, or a file is truncated or has a label without a class name.
        ConfigError: `subset` is neither `train` nor `test`.
    """
    if subset not in ("train", "test"):
        raise ConfigError("{subset} must be 'train' or 'test', got {!r}", subset)
    folder, kind = _find(local_path(src).absolute())
    names = [name for name in _names(folder) if re.fullmatch(kind.files[subset], name)]
    if not names:
        raise SourceError(f"{printable(folder)} holds no files of {subset}")
    names.sort(key=lambda name: (len(name), name))  # data_batch_10 after data_batch_9
    classes = {field: _lines(folder / name) for field, name in kind.labels.items()}
    paths, width = [folder / name for name in names], len(kind.labels) + _PIXELS
    labels_of = [_labels(path, width, len(kind.labels)) for path in paths]
    spans = [(np.arange(len(rows)) * width, np.full(len(rows), width)) for rows in labels_of]
    places = ValueLocations(paths, spans, partial(open_file, compressions=()))
    labels = np.concatenate(labels_of)
    for column, (field, known) in enumerate(classes.items()):
        outside = np.flatnonzero(labels[:, column] >= (len(known) or 256))  # a label is one byte
        if len(outside):
            file, row, _, _ = places.locate(int(outside[0]))
            told = f"must be in [0, {len(known)}), got {labels[outside[0], column]}"
            raise SourceError(f"{printable(file.path)}, record {row}: {field} {told}")
    keys = {"label": "classes", "coarse_label": "coarse_classes"}
    named = {keys[field]: list(known) for field, known in classes.items() if known}
    return Cifar(places, labels, tuple(kind.labels), named, order_hints(paths))


@final
@dataclass(frozen=True, eq=False)
class Cifar(LocatedSource):
    """The records of one subset.

    Attributes:
        labels: the labels of each record, in its order, uint8 `[n, labels]`.
        names: the field of each label.
        classes: the class names, as metadata has them.
    """

    labels: NDArray[np.uint8]
    names: tuple[str, ...]
    classes: Mapping[str, list[str]]
    hints: tuple[str, ...] = ()
    source = "cifar"

    @property
    def fields(self) -> Mapping[str, Field]:
        labels = {name: Field("scalar", dtype="int64") for name in reversed(self.names)}
        return {"image": Field("image", shape=(_SIDE, _SIDE), channels=3), **labels}

    def sizes(self) -> NDArray[np.int64]:
        """Return the bytes of the raw pixels, `[n]`: more than their PNG takes, unless they are noise."""
        return np.full(len(self.places), _PIXELS, np.int64)

    def __getitem__(self, index: int) -> Sample:
        check_index(index, len(self.places))
        file, row, offset, size = self.places.locate(index)
        with bad_samples_at(place := f"{printable(file.path)}, record {row}"):
            record = np.frombuffer(file.read_exactly(offset, size), np.uint8)
        planes = record[len(self.names) :].reshape(3, _SIDE, _SIDE)
        labels = dict(zip(self.names, self.labels[index].tolist(), strict=True))
        return {"image": encode_png(planes.transpose(1, 2, 0), place), **dict(reversed(labels.items()))}

    def column(self, name: str) -> NDArray[Any] | None:
        if name not in self.names:
            return None
        return self.labels[:, self.names.index(name)].astype(np.int64)


def _find(root: Path) -> tuple[Path, _Kind]:
    """Return the directory that holds the files, and the data set that they belong to."""
    if root.is_file():
        raise SourceError(f"cifar takes a directory, {printable(root)} is a file; unpack an archive with tar -xzf")
    below = [root / kind.folder for kind in _KINDS if (root / kind.folder).is_dir()]
    found = [
        (folder, kind)
        for folder in (root, *below)
        for kind in _KINDS
        if any(re.fullmatch("|".join(kind.files.values()), name) for name in _names(folder))
    ]
    if len(found) > 1:
        listed = ", ".join(f"{kind.folder} in {printable(folder)}" for folder, kind in found)
        raise SourceError(f"{printable(root)} holds more than one data set: {listed}; point at one of them")
    if found:
        return found[0]
    names, hint = _names(root), ""
    if archives := [name for name in names if name.endswith(".tar.gz")]:
        hint = f"; unpack {archives[0]} first, with tar -xzf"
    elif {"data_batch_1", "train", "cifar-10-batches-py", "cifar-100-python"} & set(names):
        hint = "; the Python version is pickles, which are not read: download the binary version"
    raise SourceError(
        f"{printable(root)} holds no data_batch_1.bin or test_batch.bin, and no train.bin or test.bin{hint}"
    )


def _names(folder: Path) -> list[str]:
    with source_errors(f"cifar takes a directory, {printable(folder)}"):
        return sorted(os.listdir(folder))


def _lines(path: Path) -> tuple[str, ...]:
    """Return the names in a text file, one per line; none if the file does not exist."""
    if not path.exists():
        return ()
    with source_errors(path), open(path, encoding="utf-8", errors="backslashreplace", opener=open_regular) as file:
        return tuple(name for line in file if (name := line.strip()))


def _labels(path: Path, width: int, count: int) -> NDArray[np.uint8]:
    """Return the labels at the beginning of each record of a file, uint8 [n, count]."""
    with source_errors(path):
        file = TableFile(open_regular(path, os.O_RDONLY), path, SourceError)
        if not file.size or file.size % width:
            raise SourceError(f"{printable(path)} must hold records of {width} bytes, it holds {file.size} bytes")
        records = file.table(np.dtype((np.uint8, (width,))), file.size // width)
        return np.concatenate([part[:, :count] for part in parts(records)])
