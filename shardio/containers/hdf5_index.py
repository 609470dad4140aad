"""The description of an adopted HDF5 file in the index next to it: see `array_index`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from ..format.fields import Field
from ..format.file_table import Table
from ..system.directory import Directory
from . import array_index

_CONTAINER = "hdf5"


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of an adopted file's fields.

    Attributes:
        names: the path of each field's dataset; of a stack those of its variables, `x/0`, `x/1` and so on.
        packing: by field, the attributes of netCDF that say how to decode stored numbers, see `format.cf.to_json`.
        files: the number, from 1, of the merged file that has the field; 0, of the file itself, if it is not named.
    """

    names: Mapping[str, str]
    packing: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)

    def in_file(self, fields: Mapping[str, Field]) -> dict[str, Field]:
        """Return the fields that are in the adopted file; the index next to it holds the others."""
        known = {name.partition("/")[0] for name in self.names}
        return {name: one for name, one in fields.items() if name in known}


def write(directory: Directory, shard: str, layout: Layout, columns: Mapping[str, Table]) -> None:
    """Write the index of an HDF5 file, as `array_index.write` does.

    Args:
        directory, shard: as those of `array_index.write`.
        layout: where the file's fields are.
        columns: scalars and hidden columns by name, [samples, ...]; `array_index.ROWS` among them if rows are left out.
    """
    array_index.write(directory, shard, _CONTAINER, asdict(layout), columns)


def read(shard: Path) -> tuple[Layout, dict[str, Table]]:
    """Read the index of the HDF5 file at `shard`: where its fields are, and the columns that the index holds.

    Raises ShardCorrupt, as `array_index.read` does.
    """
    return array_index.read(shard, _CONTAINER, Layout, mapped=True)
