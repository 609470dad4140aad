"""The choice of a container for the samples of a source, and the size of a tar of them, estimated from a few."""

import math

import numpy as np

from .. import containers
from ..containers import tar as tar_layout
from ..errors import Message, Option
from ..format.fields import Field
from ..output.shard_writer import Encoded
from ..system.units import format_size
from .dataset_source import DatasetSource
from .runners import portable_errors
from .shard_tasks import read_encoded, throughout
from .source import Source

DEFAULT = "tar"
_SAMPLES = 8
_CHECKSUM = 8  # bytes
_LARGE = 16 << 10
"""Bytes of a field's value at which what a tar adds to it no longer matters."""
_MUCH_MORE = 4
_MOST_ADDED = 2 * tar_layout.BLOCK + 256
"""Bytes that a tar and its index add to a value, about."""
_WORTH_A_NOTE = 10_000_000
"""Bytes that a tar must add before that is worth a note."""


def estimate_tar_cost(source: Source) -> tuple[int, int] | None:
    """Estimate the bytes of all samples, and of tars of them with their indexes, from at most eight samples.

    Returns None if they are large, or bad.
    """
    fields = source.fields
    count = len(source.sizes())
    row = _CHECKSUM + sum(_index_bytes(field) for field in fields.values())
    data = tar = read = 0
    for place in throughout(count, _SAMPLES):
        with portable_errors():
            ((_, sample),) = read_encoded(source, np.array([place]))
        if not isinstance(sample, Encoded):
            continue
        sizes = {name: memoryview(sample.stored[name]).nbytes for name in fields}
        if sum(sizes.values()) > _LARGE * len(sizes):
            return None
        read += 1
        data += sum(sizes.values())
        tar += row + sum(tar_layout.member_bytes(field, sample.stored[name]) for name, field in fields.items())
    return (math.ceil(data / read * count), math.ceil(tar / read * count)) if read else None


def _index_bytes(field: Field) -> int:
    """The bytes of a row of a tar's index for a field: offset and size, and a number, an image's shape or a length."""
    return 16 + (field.row_bytes if field.kind == "scalar" else 8 if field.kind == "image" or field.has_lengths else 0)


def kept_container(source: Source) -> str | None:
    """Return the container of the datasets that a source is made of, if all have the same one and it can be written."""
    kept = source.containers if isinstance(source, DatasetSource) else set()
    return next(iter(kept)) if len(kept) == 1 and kept <= set(containers.names()) else None


def choose_container(source: Source, wanted: str | None, *, follows: bool) -> tuple[str, str | None]:
    """Return the container to write, and a note on it if there is something to say.

    The container is the one that the user has `wanted`, else a tar, or with `follows` the one that fits the stored
    samples.
    """
    if wanted not in (None, DEFAULT):
        return wanted, None
    follows = follows and wanted is None
    if not follows and len(source.sizes()) * len(source.fields) * _MOST_ADDED < _WORTH_A_NOTE:
        return DEFAULT, None  # without reading samples
    data, tar = estimate_tar_cost(source) or (0, 0)
    high = tar >= _MUCH_MORE * max(1, data)
    cost = f"about {format_size(tar)} for {format_size(data)} of data, {tar / max(1, data):.0f} times as much"
    others = [field for name, field in source.fields.items() if name != "key"]  # which is short, and HDF5 holds texts
    if others and all(field.fixed or field.ragged for field in others):
        one_shape = " of one shape" if all(field.fixed for field in others) else ""
        fitting, why = "hdf5", f"numbers and arrays{one_shape}"
    else:
        fitting, why = ("lmdb", "small values") if high else (DEFAULT, "large values")
    if follows and fitting != DEFAULT:
        instead = f" (a tar would take {cost})" if high else ""
        return fitting, Message("{} is taken, as it fits {}{}", Option("container", fitting), why, instead)
    if high and tar - data >= _WORTH_A_NOTE:
        return DEFAULT, Message(
            "a tar takes {}: each value begins a block of its own; {} fits {}", cost, Option("container", fitting), why
        )
    return DEFAULT, None
