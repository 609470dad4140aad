"""Functions that read HDF5 files for the converter. The helper process runs them: damage may hold or crash it."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from shardio.containers.hdf5_service import open_file  # with the module, so that no time limit includes h5py's import

from ._hdf5_columns import Contents
from ._hdf5_reader import along, encode_rows, read_rows, reader_in_process, reading, take, unwritten


def walk(path: str, inode: Sequence[int], external_links: bool) -> Iterator[bytes]:
    """Take in the contents of a file, to see that it comes to an end; yield nothing."""
    Contents(open_file(path, inode), Path(path), external_links)
    yield from ()


def open_datasets(path: str, inode: Sequence[int], names: Sequence[str], external_links: bool) -> Iterator[bytes]:
    """Open datasets of a file, to see that it comes to an end; yield as JSON how much of each was never written."""
    found = {}
    for name in names:
        dataset = take(open_file(path, inode), name, Path(path), external_links)
        reader_in_process(dataset, name)
        found[name] = dataclasses.asdict(unwritten(dataset, name))
    yield json.dumps(found).encode()


def block(
    path: str,
    inode: Sequence[int],
    name: str,
    heads: Sequence[str],
    start: int,
    stop: int,
    axis: int,
    external_links: bool,
) -> Iterator[bytes | memoryview]:
    """Yield rows along an axis of the dataset at `name`, as `encode_rows` does; of a compound one the members `heads`.

    Raises BadSample if they cannot be read.
    """
    with reading():
        dataset = along(take(open_file(path, inode), name, Path(path), external_links), axis)
        rows = read_rows(dataset, heads, start, stop)
    yield from encode_rows(rows)
