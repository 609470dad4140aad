"""Views kept in files: a description in JSON, and files of the arrays that were given, such as those of `select`.

```text
views/rare.json                      format, version, digest, samples, view; requires, where it needs what is new
views/rare.<checksum>.npy            one array, named by the XXH3-128 of its numbers
```

A description nests from the last choice down to the datasets: `{"where": "label == 3", "of": {"dataset": "photos",
"digest": ..., "samples": ...}}`. The path of a dataset is relative to the folder of the file and stays below it, or it
is null: a file chooses no path. `views/restored.py` makes views from descriptions.
"""

import dataclasses
import errno
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, ManifestError, Message
from ..format.file_table import Table, TableFile, checksum_of
from ..format.manifest import FILE_NAME
from ..format.requires import check_requires
from ..system import npy, strict_json
from ..system.directory import Directory
from ..system.local_path import local_path
from ..system.regular_files import open_regular
from .readable import ReadableDataset

VERSION = 1
_BEGINNING = re.compile(rb'\s*\{\s*"format"\s*:\s*"shardio view"')
_MOST_BYTES = 1 << 20
_LONGEST_NAME = 200  # bytes; the names of its arrays and of unfinished files are longer, and have at most 255
_DEEPEST = 64  # nodes from the last choice down to a dataset
_CHECKSUM = r"[0-9a-f]{32}"


def renumbered(view: object) -> ConfigError:
    """Return the error for a description of renumbered labels."""
    return ConfigError(
        f"{view!r} has labels that a mixture or concatenation of several datasets renumbers, so it cannot be saved "
        "alone: save that, or the same view of the dataset as it was"
    )


def save(view: ReadableDataset, path: str | os.PathLike[str]) -> None:
    """Write a view to a file durably and in one step; see `BaseDataset.save`."""
    place = local_path(path)
    if place.suffix != ".json" or place.name == FILE_NAME:
        raise ConfigError(f"a view is kept in a file such as rare.json, got {os.fspath(path)!r}")
    if (size := len(os.fsencode(place.name))) > _LONGEST_NAME:
        raise ConfigError(f"a view's file must have a name of at most {_LONGEST_NAME} bytes, got {size}: {place.name}")
    arrays: dict[str, NDArray[Any]] = {}
    node = view.description(arrays)
    if "dataset" in node:
        raise ConfigError(
            Message("{} is a whole dataset, which is stored already: choose from it, as with {where}", view.path)
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.exists() and not holds_view(place):
        raise ConfigError(f"{place}: this file is no view, and would be lost; remove it, or give another name")
    real = Path(os.path.realpath(place.parent))
    for _, dataset in _datasets(node):
        dataset["dataset"] = _path_below(real, Path(dataset["dataset"]))
    content = {"format": "shardio view", "version": VERSION, "digest": view.digest, "samples": len(view), "view": node}
    data = json.dumps(content, indent=1).encode() + b"\n"
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"a view's description must have at most {_MOST_BYTES} bytes, it has {len(data)}")
    folder = Directory(place.parent)
    names = {_array_name(place, checksum): array for checksum, array in arrays.items()}
    for name, array in names.items():
        with folder.replacing(name) as file:
            file.write(npy.header_of(array.dtype, array.shape))
            file.write(array.data)
    folder.write(place.name, data)
    own = re.compile(_array_name(place, _CHECKSUM, re.escape))
    for name in folder.names():
        if own.fullmatch(name) and name not in names:
            folder.unlink(name)


def _array_name(place: Path, checksum: str, quote: Any = str) -> str:
    return f"{quote(place.stem)}{quote('.')}{checksum}{quote('.npy')}"


def _path_below(folder: Path, path: Path) -> str | None:
    """Return the path of a dataset relative to `folder`, through no links; None unless it is a directory below it."""
    real = Path(os.path.realpath(path))
    return f"{real.relative_to(folder)}" if folder in real.parents and real.is_dir() else None


def _datasets(node: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and descriptions of the datasets that a view is of."""
    if depth == _DEEPEST:
        raise ConfigError(f"a view must have at most {_DEEPEST} choices, one on the other")
    if not isinstance(node, dict):
        raise ManifestError(f"a description must be an object, got {node!r}")
    if "dataset" in node:
        yield name, node
    elif "of" in node:
        yield from _datasets(node["of"], name, depth + 1)
        if "join" in node:
            if not isinstance(fields := node["join"], dict) or not fields:
                raise ManifestError(f"join must be an object of fields, got {fields!r}")
            field = next(iter(fields))
            yield from _datasets(node.get("with"), f"{name}/{field}" if name else field, depth + 1)
    else:
        sources = node.get("concat", node.get("mix"))
        if not isinstance(sources, dict):
            raise ManifestError(f"a description must have of, concat, mix or dataset, got {', '.join(node)}")
        for source, inner in sources.items():
            yield from _datasets(inner, f"{name}/{source}" if name else source, depth + 1)


def holds_view(path: str | os.PathLike[str]) -> bool:
    """Return whether a local file begins as a saved view does."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb", opener=open_regular) as file:
        return _BEGINNING.match(file.read(100)) is not None


class DatasetNode(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A dataset that a view is of.

    Attributes:
        dataset: its path below the folder of the view; None if it must be given.
        digest, samples: its digest and number of samples.
    """

    dataset: str | None
    digest: str
    samples: int


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["shardio view"]
    version: int
    digest: str
    samples: int
    view: dict[str, Any]
    requires: list[str] = []


class _Head(msgspec.Struct):
    """The entries to check first: another release may have changed all others."""

    version: int
    requires: Any = msgspec.field(default_factory=list)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class SavedView:
    """A view as its file describes it.

    Attributes:
        path: the file.
        digest, samples: those of the view.
        node: the description.
        datasets: the datasets that it is of, by name, in the order of the description: `a/b` is the source `b` of the
            source `a`, or what the field `b` was joined from; what is neither is "", or "base" beside others.
    """

    path: Path
    digest: str
    samples: int
    node: dict[str, Any]
    datasets: dict[str, DatasetNode]

    def place_of(self, name: str) -> Path:
        """Return where a dataset is, below the folder of the file.

        Raises ConfigError if the file doesn't say, or leads out of that folder.
        """
        given = self.datasets[name].dataset
        which = f"source {name!r} of this view" if name else "this view"
        if given is None:
            raise ConfigError("{}: the dataset of {} is not below its folder: give it with {of:...}", self.path, which)
        folder, names = Directory(self._folder), given.split("/")
        for entry in names:
            if entry in ("", ".", "..") or "\0" in entry:
                raise ConfigError(
                    "{}: {!r} is no path below the folder of the view; give the dataset with {of:...}", self.path, given
                )
            try:
                kind = folder.kind(entry)
            except ValueError:  # half of a surrogate pair, which no file has in its name
                kind = None
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                kind = None
            if kind != "directory":
                raise ConfigError(
                    "{}: no directory {!r} in the folder of the view, or a link leads to it; give the dataset of {} "
                    "with {of:...}", self.path, given, which,
                )  # fmt: skip
            folder = folder.directory(entry)
        return self._folder.joinpath(*names)

    @property
    def _folder(self) -> Path:
        return self.path.parent

    def array(self, checksum: str, dtype: str, count: int) -> Table:
        """Return numbers that are saved with the view, [count]; ManifestError if they are damaged."""
        if not re.fullmatch(_CHECKSUM, checksum) or not re.fullmatch(r"<[iuf][248]|\|[biu]1", dtype):
            raise ManifestError(f"{checksum!r} of {dtype!r} names no array")
        name = _array_name(self.path, checksum)
        try:
            descriptor = Directory(self._folder).open(name, os.O_RDONLY)
        except FileNotFoundError as error:
            raise ManifestError(f"{name} is missing") from error
        file = TableFile(descriptor, self._folder / name, ManifestError)
        try:
            place = file.npy()
        except ValueError as error:
            raise ManifestError(f"{name}: {error}") from error
        if (place.dtype, place.rows, place.stop) != (np.dtype(dtype), count, file.size):
            raise ManifestError(f"{name}: has {place.rows} of {place.dtype} in {file.size} bytes, not {count}")
        numbers = file.table(*place[:3])
        if checksum_of(numbers) != checksum:
            raise ManifestError(f"{name}: has another checksum")
        return numbers


def load(path: str | os.PathLike[str]) -> SavedView:
    """Read the file of a view; ManifestError if it cannot be trusted, ConfigError if it is too large."""
    place = Path(os.path.realpath(path))
    data = Directory(place.parent).read(place.name, _MOST_BYTES)
    try:
        content = strict_json.parse(data)
        head = msgspec.convert(content, _Head)
        if head.version != VERSION:
            raise ManifestError(f"version {head.version} was written by another release; this one reads {VERSION}")
        check_requires(head.requires, "this view", ManifestError)
        file = msgspec.convert(content, _File)
        datasets = dict[str, DatasetNode]()
        nodes = list(_datasets(file.view))
        for name, node in nodes:
            name = name or ("base" if len(nodes) > 1 else "")
            while name in datasets:  # a field that was joined twice, or is called like a source
                name += "'"
            datasets[name] = msgspec.convert(node, DatasetNode)
    except (ValueError, msgspec.ValidationError, ManifestError) as error:
        raise ManifestError(f"{place}: {error}") from error
    return SavedView(place, file.digest, file.samples, file.view, datasets)
