"""The index beside an HDF5 file that others wrote: `NAME.idx.h5`.

Its attributes map field names to the paths of datasets in the file; of a field whose numbers are decoded, to JSON in
bytes: the path, and the attributes of netCDF by which they are. Its datasets are scalars and hidden columns. Where rows
of the file are left out, the dataset `_rows` names those that are the samples.
"""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import ShardCorrupt
from ..system import strict_json
from ..system.directory import Directory
from . import files

SUFFIX = ".idx.h5"
ROWS = "_rows"
"""The rows of the file that are samples, int64 [samples]; an index without it takes all rows."""


Packing: TypeAlias = Mapping[str, Mapping[str, Any]]
"""By field, the attributes of netCDF by which its stored numbers are decoded, as `format.cf.to_json` gives them."""

NOT_PACKED: Packing = {}


def path_of(shard: Path) -> Path:
    """The path of a file's index: `train.h5` has `train.idx.h5`."""
    return shard.with_name(shard.name.removesuffix(".h5") + SUFFIX)


def write(
    directory: Directory,
    shard: str,
    dataset_names: Mapping[str, str],
    columns: Mapping[str, NDArray[Any]],
    packing: Packing = NOT_PACKED,
) -> None:
    """Write the index of an HDF5 file, or replace it, atomically.

    Args:
        directory: the directory of the file, or of a link to it.
        shard: the file's name there.
        dataset_names: for each field, the path of its dataset within the file.
        columns: arrays [samples, ...] that the index itself holds, `ROWS` among them if rows are left out.
        packing: the attributes of the fields that are decoded.
    """
    name = path_of(Path(shard)).name
    # In memory: the library would open a path, and follow a link there.
    with importlib.import_module("h5py").File(name, "w", driver="core", backing_store=False) as file:
        for field, dataset_name in dataset_names.items():
            attributes = packing.get(field)
            packed = {"dataset": dataset_name, "attributes": attributes}
            file.attrs[field] = dataset_name if attributes is None else np.bytes_(json.dumps(packed))
        for column_name, column in columns.items():
            file.create_dataset(column_name, data=column)
        file.flush()
        directory.write(name, file.id.get_file_image())


def read(shard: Path) -> tuple[dict[str, str], Packing]:
    """Read, for each field of the HDF5 file at `shard`, the path of its dataset from the file's index.

    Returns:
        The paths by field, and the attributes of those fields that are decoded.

    Raises:
        ShardCorrupt: the index is cut short or damaged.
    """
    path = path_of(shard)
    try:
        with files.open_hdf5(path) as file:
            found = dict(file.attrs.items())
        names = {name: value for name, value in found.items() if isinstance(value, str)}
        packed = {name: strict_json.parse(bytes(value)) for name, value in found.items() if isinstance(value, bytes)}
        names |= {name: str(described["dataset"]) for name, described in packed.items()}
        return names, {name: dict(described["attributes"]) for name, described in packed.items()}
    except (OSError, RuntimeError, LookupError, ValueError, TypeError) as error:
        raise ShardCorrupt(f"{path}: the index is cut short or damaged: {error}") from error
