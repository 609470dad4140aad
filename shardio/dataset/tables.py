"""Tables as datasets in memory: CSV, TSV, JSON lines, Parquet and NumPy files, and arrays by name."""

import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..foreign.names import field_name, source_errors
from ..foreign.text_tables import DELIMITERS, TextTable
from ..format.fields import Field, as_fields, infer_fields
from ..stores.url import as_url
from ..system.local_path import local_path
from ..system.optional import load
from ..system.regular_files import open_regular
from .dataset import Dataset, from_samples

_SUFFIXES = (*DELIMITERS, ".parquet", ".npy", ".npz")
_DAMAGE = (ValueError, EOFError, zipfile.BadZipFile, zlib.error)  # of NumPy files


def is_table(place: Any) -> bool:
    """Return whether a place is the path of a table, by the end of its name."""
    if not isinstance(place, str | os.PathLike) or as_url(place) is not None:
        return False
    return os.fspath(place).lower().endswith(_SUFFIXES) and not os.path.isdir(place)


def table(given: str | os.PathLike[str] | Mapping[str, Any]) -> Dataset:
    """Read a table into memory: a dataset with a field for each column.

    Numbers become scalars or arrays of one shape, text stays text, and other values become JSON. Columns with empty
    cells or nulls become optional fields.

    Args:
        given: the path of a file, or arrays and lists by name.

    Raises SourceError for a file that cannot be read, ConfigError for columns that make no fields.
    """
    # Of arrays this is only a name, as of samples in memory: no folder is there.
    place = Path("/memory/table") if isinstance(given, Mapping) else local_path(given).absolute()
    read = given if isinstance(given, Mapping) else _read(place)
    columns = given if read is given else {field_name(name): column for name, column in read.items()}
    if len(columns) < len(read):
        raise ConfigError(f"{place}: two columns would be one field, as {', '.join(columns)} are all: rename one")
    made = {name: _column(name, each) for name, each in columns.items()}
    counts = {len(values) for _, values in made.values()}
    if len(counts) != 1 or not all(counts):
        raise ConfigError(f"a table needs columns of one length, which have values: those of {place} have {[*counts]}")
    fields = as_fields({name: field for name, (field, _) in made.items()})
    rows = zip(*(values for _, values in made.values()), strict=True)
    found = from_samples([dict(zip(fields, row, strict=True)) for row in rows], fields, shard_samples=max(counts))
    found.path = place
    return found


def _read(path: Path) -> Mapping[str, Any]:
    """Return the columns of a file."""
    suffix = path.suffix.lower()
    if suffix in DELIMITERS:
        text = TextTable(path, DELIMITERS[suffix])
        columns = text.read((), names := text.names(), names, all_columns=True)[1]
        return {name: [each[row] for row in range(len(each.values))] for name, each in columns.items()}
    if suffix == ".parquet":
        arrow = load("pyarrow.parquet", purpose="a Parquet file", extra="parquet")
        with source_errors(path, load("pyarrow", purpose="", extra="parquet").ArrowException, MemoryError):
            rows = arrow.ParquetFile(path).read()
        return {name: rows.column(name).to_pylist() for name in rows.column_names}
    with source_errors(path, *_DAMAGE), open(path, "rb", opener=open_regular) as file:
        arrays = np.load(file, allow_pickle=False)
        return {path.stem: arrays} if suffix == ".npy" else dict(arrays)


def _column(name: str, given: Any) -> tuple[Field, Sequence[Any] | NDArray[Any]]:
    """Return the field of values, where None stands for a missing one, and the values."""
    if isinstance(given, np.ma.MaskedArray) or (isinstance(given, np.ndarray) and not given.ndim):
        given = given.tolist()  # None where it is masked; no list without an axis
    if not isinstance(given, Sequence | np.ndarray) or isinstance(given, str | bytes):
        raise ConfigError(f"column {name!r} must be an array or a list, got {type(given).__name__}")
    array = given if isinstance(given, np.ndarray) else None
    values = given if array is not None and array.dtype.kind in "biufc" else list(given)
    known = values if isinstance(values, np.ndarray) else [value for value in values if value is not None]
    if not len(known):
        raise ConfigError(f"column {name!r} has no values")
    with suppress(ValueError):  # lists of different lengths
        array = None if isinstance(known[0], str | bytes | Mapping) else np.asarray(known)
    if array is None or array.dtype.kind not in "biufc":
        field = infer_fields({name: known[0]})[name]
    elif array.ndim == 1:
        field = Field("scalar", array.dtype.name)
    else:
        field = Field("array", array.dtype.name, array.shape[1:])
    return replace(field, optional=len(known) < len(values)), values
