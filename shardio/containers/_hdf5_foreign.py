"""HDF5 files that others wrote: the index beside one, and datasets found by their names within it."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..system import durable

_MOST_LINKS = 16


def index_path(path: Path) -> Path:
    """The index of a file that others wrote: scalars, hidden columns, and the other fields' names as attributes."""
    return path.with_name(path.name.removesuffix(".h5") + ".idx.h5")


def write_index(path: Path, names: Mapping[str, str], columns: Mapping[str, NDArray[Any]]) -> None:
    """Writes an index: what the datasets of fields are called, and the columns `[n, ...]` that it holds itself."""
    h5py = importlib.import_module("h5py")
    with h5py.File(path, "w") as file:
        for name, own in names.items():
            file.attrs[name] = own
        for name, column in columns.items():
            file.create_dataset(name, data=column)
    durable.sync_file(path)


def index_names(index: Path) -> dict[str, str]:
    """What an index says that datasets are called, by field."""
    try:
        with importlib.import_module("h5py").File(index, "r") as file:
            return {name: value for name, value in file.attrs.items() if isinstance(value, str)}
    except (OSError, RuntimeError, ValueError) as error:
        raise ShardCorrupt(f"{index}: the index is cut short or damaged: {error}") from error


def found(group: Any, name: str, path: Path) -> Any:
    """The dataset or group called `name`, a path within the file; None if there is none.

    A shard may come from anywhere, so it may not say which other files are read: links out of it are refused.
    """
    h5py = importlib.import_module("h5py")
    for _ in range(_MOST_LINKS):
        place, rest = group, [part for part in name.split("/") if part]
        while rest:
            link = place.get(rest[0], getlink=True) if hasattr(place, "keys") and rest[0] in place else None
            if isinstance(link, h5py.ExternalLink):
                raise ShardCorrupt(
                    f"{path}, field {name!r}: a link to another file, {link.filename!r}, is not followed"
                )
            if isinstance(link, h5py.SoftLink):
                within = link.path if link.path.startswith("/") else f"{place.name}/{link.path}"
                name = "/".join([within, *rest[1:]])
                break
            if link is None:
                return None
            place = place[rest.pop(0)]
        else:
            if hasattr(place, "shape") and (place.is_virtual or place.external):
                raise ShardCorrupt(f"{path}, field {name!r}: its data are in other files, which are not read")
            return place
    raise ShardCorrupt(f"{path}, field {name!r}: links lead to links more than {_MOST_LINKS} times")
