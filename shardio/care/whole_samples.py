"""Which samples of a shard still have the checksums that its index or the shard itself holds."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import containers
from ..errors import DatasetError
from ..format import checksums
from ..format.fields import CHECKSUM, Field, content_columns, with_hidden

_BLOCK = 256  # samples
_MOST_NAMED = 10  # rows in a message

Read: TypeAlias = Callable[[NDArray[np.int64], str], Any]
"""Reads a field of some samples, as a container's reader does."""


def whole_rows(read: Read, rows: NDArray[np.int64], fields: Mapping[str, Field]) -> NDArray[np.bool_]:
    """Return for each of `rows` whether it can be read and has its checksum."""
    names = content_columns(fields)
    whole = np.zeros(len(rows), np.bool_)
    for start in range(0, len(rows), _BLOCK):
        places = np.arange(start, min(start + _BLOCK, len(rows)))
        for some in [places] if _good(read, rows[places], names).all() else places[:, None]:
            whole[some] = _good(read, rows[some], names)
    return whole


def lost_rows(path: Path, container: str, fields: Mapping[str, Field]) -> NDArray[np.int64]:
    """Return the rows of a shard of shardio's own that do not have their checksums any more."""
    reader = containers.get(container).reader(path, with_hidden(fields))
    with contextlib.closing(reader):
        return np.flatnonzero(~whole_rows(reader.read, np.arange(len(reader)), fields))


def dropped(path: Path, lost: NDArray[np.int64]) -> str:
    """Return the reason to give for samples that the index of a file no longer names, by their rows."""
    what = f"cut short or changed; its index now names the complete samples in its {path.stat().st_size} bytes"
    return f"{what}, and not {listed(lost)}" if len(lost) else what


def listed(rows: NDArray[np.int64]) -> str:
    """Return rows for a message, of many the first ones."""
    more = f", ... ({len(rows)} in all)" if len(rows) > _MOST_NAMED else ""
    return f"row{'' if len(rows) == 1 else 's'} {', '.join(map(str, rows[:_MOST_NAMED].tolist()))}{more}"


def _good(read: Read, rows: NDArray[np.int64], names: list[str]) -> NDArray[np.bool_]:
    try:
        found = checksums.of_samples({name: read(rows, name) for name in names}, names) == read(rows, CHECKSUM)
    except DatasetError:
        return np.zeros(len(rows), np.bool_)
    return np.asarray(found)
