"""The index beside an HDF5 file that others wrote: `NAME.idx.h5`.

Its attributes map field names to the paths of datasets in the file; of a field whose numbers are decoded or in a file
that was joined, to JSON in bytes: the path, the attributes of netCDF, the number of the file. Of a stack there is one
for each variable, `x/0`, `x/1` and so on. Its datasets are scalars and hidden columns. Where rows of the file are left
out, the dataset `_rows` names those that are the samples.
"""

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..system import strict_json
from ..system.directory import Directory
from . import files

SUFFIX = ".idx.h5"
ROWS = "_rows"
"""The rows of the file that are samples, int64 [samples]; an index without it takes all rows."""


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """The places of an adopted file's fields.

    Attributes:
        names: the path of each field's dataset; of a stack those of its variables, `x/0`, `x/1` and so on.
        packing: by field, the attributes of netCDF by which stored numbers are decoded, see `format.cf.to_json`.
        files: the number, from 1, of the joined file that has the field; 0, of the file itself, if it is not named.
    """

    names: Mapping[str, str]
    packing: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)


def path_of(shard: Path) -> Path:
    """The path of a file's index: `train.h5` has `train.idx.h5`."""
    return shard.with_name(shard.name.removesuffix(".h5") + SUFFIX)


def write(directory: Directory, shard: str, layout: Layout, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write the index of an HDF5 file, or replace it, atomically.

    Args:
        directory: the directory of the file, or of a link to it.
        shard: the file's name there.
        layout: where its fields are.
        columns: arrays [samples, ...] that the index itself holds, `ROWS` among them if rows are left out.
    """
    name = path_of(Path(shard)).name
    # In memory: the library would open a path, and follow a link there.
    with importlib.import_module("h5py").File(name, "w", driver="core", backing_store=False) as file:
        for name_there, dataset_name in layout.names.items():
            more = {"attributes": layout.packing.get(name_there), "file": layout.files.get(name_there)}
            described = {"dataset": dataset_name} | {key: value for key, value in more.items() if value is not None}
            file.attrs[name_there] = np.bytes_(json.dumps(described)) if len(described) > 1 else dataset_name
        for column_name, column in columns.items():
            file.create_dataset(column_name, data=column)
        file.flush()
        directory.write(name, file.id.get_file_image())


def read(shard: Path) -> Layout:
    """Return where the fields of the HDF5 file at `shard` are, from the file's index.

    Raises ShardCorrupt if that is cut short or damaged.
    """
    path = path_of(shard)
    try:
        with files.open_hdf5(path) as file:
            found = dict(file.attrs.items())
        described: dict[str, Any] = {
            name: strict_json.parse(bytes(value)) if isinstance(value, bytes) else {"dataset": value}
            for name, value in found.items()
            if isinstance(value, bytes | str)
        }
        return Layout(
            {name: str(place["dataset"]) for name, place in described.items()},
            {name: dict(place["attributes"]) for name, place in described.items() if "attributes" in place},
            {name: int(place["file"]) for name, place in described.items() if "file" in place},
        )
    except (OSError, RuntimeError, LookupError, ValueError, TypeError) as error:
        raise ShardCorrupt(f"{path}: the index is cut short or damaged: {error}") from error
