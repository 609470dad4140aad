"""CIFAR-10 and CIFAR-100 in their binary version: files of records, each of which is labels and an image's planes.

The format is described at https://www.cs.toronto.edu/~kriz/cifar.html: 32x32 pixels as 1024 bytes of red, 1024 of green
and 1024 of blue, row by row, after the label (CIFAR-10), or the coarse and the fine label (CIFAR-100).
"""

import os
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import ConfigError, SourceError
from shardio.foreign.files import check_regular, open_regular
from shardio.foreign.names import printable
from shardio.source import Field, Sample, check_index, encode_png, local_path

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


@final
@dataclass(frozen=True, slots=True)
class _Kind:
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
    superclass. Class names come from the text files beside the images, if they exist. The Python version is refused:
    its files are pickles, which can run any code when they are read.

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
    width = len(kind.labels) + _PIXELS
    files = tuple((folder / name, _count(folder / name, width)) for name in names)
    source = Cifar(files, classes)
    source.check()
    return source


@final
@dataclass(frozen=True, eq=False)
class Cifar:
    """The records of one subset. It pickles as paths; each worker maps the files itself.

    Attributes:
        files: the files, and the number of records in each.
        names: the class names of each label, by field in the order of a record; () where they are unknown.
    """

    files: tuple[tuple[Path, int], ...]
    names: dict[str, tuple[str, ...]]
    threads = True

    def __reduce__(self) -> tuple[type["Cifar"], tuple[Any, ...]]:
        return Cifar, (self.files, self.names)

    def check(self) -> None:
        """Raise SourceError if a label has no class name although there are class names."""
        for field, names in self.names.items():
            labels = self._labels[field]
            if names and labels.max() >= len(names):
                index = int((labels >= len(names)).argmax())
                file, row = self._place(index)
                raise SourceError(
                    f"{printable(self.files[file][0])}, record {row}: {field} must be in [0, {len(names)}), "
                    f"got {labels[index]}"
                )

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate((count for _, count in self.files), initial=0))

    @cached_property
    def _records(self) -> list[NDArray[np.uint8]]:
        return [_mapped(path, count, len(self.names) + _PIXELS) for path, count in self.files]

    @cached_property
    def _labels(self) -> dict[str, NDArray[np.int64]]:
        columns = enumerate(self.names)
        return {field: np.concatenate([part[:, n] for part in self._records]).astype(np.int64) for n, field in columns}

    def _place(self, index: int) -> tuple[int, int]:
        file = bisect_right(self._starts, index) - 1
        return file, index - self._starts[file]

    @property
    def fields(self) -> Mapping[str, Field]:
        """`image`, 32x32 and RGB, `label`, and for CIFAR-100 `coarse_label`."""
        image = Field("image", shape=(_SIDE, _SIDE), channels=3)
        return {"image": image, **{field: Field("scalar", dtype="int64") for field in reversed(self.names)}}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The converter's name, and the known class names as `classes` and `coarse_classes`."""
        keys = {"label": "classes", "coarse_label": "coarse_classes"}
        return {"source": "cifar", **{keys[field]: list(names) for field, names in self.names.items() if names}}

    def sizes(self) -> NDArray[np.int64]:
        """The bytes of the raw pixels, `[n]`: more than their PNG takes, unless they are noise."""
        return np.full(self._starts[-1], _PIXELS, np.int64)

    def __getitem__(self, index: int) -> Sample:
        check_index(index, self._starts[-1])
        file, row = self._place(index)
        record = self._records[file][row]
        labels = [(field, int(record[column])) for column, field in enumerate(self.names)]
        planes = record[len(labels) :].reshape(3, _SIDE, _SIDE)
        image = encode_png(planes.transpose(1, 2, 0), f"{printable(self.files[file][0])}, record {row}")
        return {"image": image, **dict(reversed(labels))}

    def column(self, name: str) -> NDArray[Any] | None:
        """See `shardio.source.HasColumns`: the labels."""
        return self._labels.get(name)


def _find(root: Path) -> tuple[Path, _Kind]:
    """The directory that holds the files, and the data set that they belong to."""
    if root.is_file():
        raise SourceError(f"cifar takes a directory, {printable(root)} is a file; unpack an archive with tar -xzf")
    below = [root / kind.folder for kind in _KINDS if (root / kind.folder).is_dir()]
    found = [(folder, kind) for folder in (root, *below) for kind in _KINDS if _holds(folder, kind)]
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


def _holds(folder: Path, kind: _Kind) -> bool:
    patterns = kind.files.values()
    return any(re.fullmatch(pattern, name) for name in _names(folder) for pattern in patterns)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise SourceError(f"cifar takes a directory, {printable(folder)} cannot be read: {error.strerror}") from error


def _lines(path: Path) -> tuple[str, ...]:
    """The names in a text file, one per line; none if the file does not exist."""
    try:
        with open(path, encoding="utf-8", errors="backslashreplace", opener=open_regular) as file:
            text = file.read()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise SourceError(f"{printable(path)} cannot be read: {error.strerror}") from error
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _count(path: Path, width: int) -> int:
    try:
        check_regular(path)
        size = path.stat().st_size
    except OSError as error:
        raise SourceError(f"{printable(path)} cannot be read: {error.strerror}") from error
    if not size or size % width:
        raise SourceError(f"{printable(path)} must hold records of {width} bytes, it holds {size} bytes")
    return size // width


def _mapped(path: Path, count: int, width: int) -> NDArray[np.uint8]:
    """The records, `[count, width]`, memory-mapped."""
    try:
        if _count(path, width) != count:
            raise SourceError(f"{printable(path)} held {count} records before, now {_count(path, width)}")
        return np.memmap(path, np.uint8, "r", shape=(count, width))
    except OSError as error:
        raise SourceError(f"{printable(path)} cannot be read: {error.strerror}") from error
