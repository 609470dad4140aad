"""Indexes of shards, rebuilt: of shardio's own tars from their members, of adopted files by the converter."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import containers
from ..containers import hdf5_index, side_index
from ..containers import tar as layout
from ..containers.merged import merged_files
from ..conversion import source as sources
from ..conversion.adopt import rebuild_index
from ..conversion.stacks import stacked, stacks_of, with_variables
from ..errors import BadSample, ConfigError, ShardCorrupt, ShardioError
from ..foreign import tar
from ..foreign.files import File
from ..format import manifest
from ..format.fields import Field, describe, with_hidden
from ..output.shard_writer import described as described_sample
from ..system import strict_json
from ..system.directory import Directory
from ..system.types import Buffer

_CONVERTERS = ("webdataset", "tfrecord", "lmdb", "hdf5")


def index_name(described: manifest.Manifest, shard: str) -> str | None:
    """Return the name of the index next to a shard; None if it has none."""
    if described.container == "zarr":
        return None  # the store has no other file, and opening it says what is wrong with this one
    names = containers.get(described.container).companions(shard, adopted=described.adopted)
    return names[0] if names else None


def is_readable(path: Path, described: manifest.Manifest) -> bool:
    """Return whether a shard has the index that it needs."""
    if index_name(described, path.name) is None:
        return True
    try:
        if described.container == "hdf5":
            hdf5_index.read(path)
        else:
            side_index.read(path, with_hidden(described.fields))
            side_index.second_array(path, with_hidden(described.fields))
    except ShardCorrupt:
        return False
    return True


def rebuild(folder: Directory, described: manifest.Manifest, name: str) -> None:
    """Write the index of a shard; raise ShardCorrupt with the reason if that is not possible."""
    try:
        if described.adopted:
            _rebuild_of_others(folder, described, name)
        else:
            side_index.write(folder, name, *_index_of(folder.path / name, described.fields))
    except ShardioError as error:
        advice = "; `shardio index` may make the dataset anew" if described.adopted else ""
        raise ShardCorrupt(
            f"its index {index_name(described, name)} is lost or damaged, and cannot be rebuilt: {error}{advice}"
        ) from error


def _index_of(path: Path, fields: Mapping[str, Field]) -> tuple[NDArray[Any], bytearray]:
    """Return the index of a tar's complete samples, as the writer of the tar wrote it, and its second array."""
    opened = tar.open_tar(path)
    damage: list[str] = []
    runs = list(tar.scan(opened, damage))
    index, second = np.zeros(len(runs), side_index.dtype_of(with_hidden(fields))), bytearray()
    for row, run in enumerate(runs):
        places = {name: _place(opened, run, name, field) for name, field in fields.items()}
        stored = {
            name: None if place is None else _stored(opened, place, fields[name]) for name, place in places.items()
        }
        try:
            encoded = described_sample(stored, fields)
        except BadSample as error:
            raise ShardCorrupt(f"{path}, key {run.key}: {error}") from error
        for name, place in places.items():
            index[f"{name}.offset"][row], index[f"{name}.size"][row] = place or (0, 0)
        side_index.fill(index[row : row + 1], encoded.stored, second)
    if not len(index):
        raise ShardCorrupt(f"{path}: no complete sample is left{''.join(f': {text}' for text in damage)}")
    return index, second


def _place(opened: File, run: tar.TarSample, name: str, field: Field) -> tuple[int, int] | None:
    """Return the offset and size of a field's stored bytes; fixed and ragged arrays begin after their .npy headers.

    None if the sample lacks an optional field.
    """
    members = run.places()
    extension = next((e.lower() for e in layout.extensions(name, field) if e.lower() in members), None)
    if extension is None and field.optional:
        return None
    if extension is None:
        raise ShardCorrupt(f"{opened.path}, key {run.key}: there is no field {name!r}")
    offset, size = members[extension]
    if field.ragged:
        start = len(layout.array_header(field, 0))
        if opened.read(offset, start) != layout.array_header(field, max(size - start, 0)):
            raise ShardCorrupt(f"{opened.path}, key {run.key}, field {name!r}: no .npy of {describe(field)}")
        return offset + start, size - start
    if field.kind == "scalar" or not field.fixed:
        return offset, size
    return offset + size - field.row_bytes, field.row_bytes


def _stored(opened: File, place: tuple[int, int], field: Field) -> Buffer:
    """Return the stored bytes of a value: those in the tar, whose JSON and .npy files others may have written."""
    data: bytes = opened.read(*place)
    try:
        if field.kind != "scalar":
            field.decode(data)  # raises if they are no value of the field
            return data
        value = strict_json.parse(data, foreign=True, nan=True)  # NaN is among the scalars
    except (ValueError, TypeError, RecursionError) as error:
        raise ShardCorrupt(f"{opened.path}, byte {place[0]}: not {field.kind}: {error}") from error
    return field.encode(complex(*value) if isinstance(value, list) else value)


def _rebuild_of_others(folder: Directory, described: manifest.Manifest, name: str) -> None:
    source = _source(folder, described, name)
    if _plain(source.fields) != _plain(described.fields):
        raise ConfigError(f"its fields are now {', '.join(source.fields)}, and not as they were")
    number = next(number for number, path in enumerate(source.files) if path.name == name)
    index = index_name(described, name)
    if index is not None and folder.kind(name) == "file" and folder.kind(index) is not None:
        # Beside the files of others, where nothing proves that shardio wrote it.
        folder.rename(index, folder, free_name(folder, index))
    rebuild_index(source, number, name, folder)


def _source(folder: Directory, described: manifest.Manifest, name: str) -> Any:
    """Return the source that the dataset's files were, as far as they are still there; ShardioError if there is none.

    All of them matter: a field's shape is fixed if the first and the last sample agree.
    """
    converter = described.metadata.get("source")
    if converter not in _CONVERTERS:
        raise ConfigError(f"the manifest names no converter of {', '.join(_CONVERTERS)}")
    there = [folder.path / shard for shard in described.shards.names if (folder.path / shard).is_file()]
    paths = [path.absolute() for path in (there if converter in ("webdataset", "tfrecord") else [folder.path / name])]
    names, stacks = stacks_of(_names(described) or {})
    fields = with_variables(names, stacks) or None
    options: dict[str, Any] = {} if converter == "lmdb" else {"fields": fields}
    if converter in ("webdataset", "tfrecord"):
        options["on_error"] = "skip"
    if converter == "webdataset":
        options["key"] = "key" in described.fields and "key" not in names
    if converter == "hdf5":
        options["decode_cf"] = _decodes(described)
        options["sample"] = described.conversion.get("sample", "row")
        if merged := [path.absolute() for path in merged_files(folder.path / name)]:
            paths, options["merge"] = [*paths, *merged], True
    return stacked(sources.find(converter)(paths[0] if len(paths) == 1 else paths, **options), stacks)


def kept_conversion(described: manifest.Manifest) -> dict[str, Any]:
    """Return what of `conversion` still holds: names and decoding, but not the plan that resuming would go by."""
    names = _names(described) if described.adopted else None
    merged = {"join": True} if described.adopted and described.conversion.get("join") is True else {}
    sample = {"sample": kept} if described.adopted and (kept := described.conversion.get("sample")) else {}
    return ({"names": names} if names else {}) | ({"decode_cf": True} if _decodes(described) else {}) | merged | sample


def _names(described: manifest.Manifest) -> dict[str, str] | None:
    """Return the fields' names in the files, without the keys of tars, if the manifest states them; see `Places`."""
    names, fields = described.conversion.get("names"), described.fields.keys()
    if not isinstance(names, dict) or {n.partition("/")[0] for n in names} not in (fields, fields - {"key"}):
        return None
    return dict(names) if all(isinstance(name, str) for name in names.values()) else None


def _decodes(described: manifest.Manifest) -> bool:
    """Return whether the values of adopted files are decoded by attributes of netCDF."""
    return described.adopted and described.conversion.get("decode_cf") is True


def _plain(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return fields without what a dataset adds: the size of all images, which are masks, what sources state."""
    of_image: dict[str, Any] = {"shape": None, "role": None, "channels": None}
    return {
        name: replace(field, attributes=None, **(of_image if field.kind == "image" else {}))
        for name, field in fields.items()
    }


def free_name(folder: Directory, name: str) -> str:
    """Return the first of `NAME.damaged`, `NAME.2.damaged` and so on that is not there yet."""
    names = (f"{name}{'' if number == 1 else f'.{number}'}.damaged" for number in itertools.count(1))
    return next(free for free in names if folder.kind(free) is None)
