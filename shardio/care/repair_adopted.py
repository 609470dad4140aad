"""Repair of datasets that `shardio index` made: of their indexes, never of the files, which other programs wrote.

Of a file that was cut short the samples before the cut are kept: its index then names no others. A lost index is
written anew from its file, by the converter that read it before. Files that are gone or cannot be opened leave the
manifest.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import containers
from ..containers import hdf5, hdf5_index, piece_sums, side_index, store
from ..containers.base import Reader
from ..conversion import source as sources
from ..conversion.adopt import rebuild_index
from ..errors import ConfigError, DatasetError, ShardCorrupt, ShardioError
from ..format import manifest
from ..format.fields import Field, with_hidden
from ..output.shard_writer import WrittenShard
from ..system.directory import Directory
from .repaired import SUMS_REWRITTEN, ShardRepair, free_name, has_sums, restore_sums, summarize, unlike_manifest
from .whole_samples import dropped, whole_rows

_CONVERTERS = ("webdataset", "tfrecord", "lmdb", "hdf5")
_NONE_LEFT = "no complete sample is left in"


def kept_conversion(old: manifest.Manifest) -> dict[str, Any]:
    """Return what of `conversion` still holds: names and decoding, but not the plan that resuming would go by."""
    names = _names(old)
    decoded = {"decode_cf": True} if _decodes(old) else {}
    return ({"names": names} if names else {}) | decoded


def repaired_shards(folder: Directory, old: manifest.Manifest) -> Iterator[tuple[WrittenShard | None, ShardRepair]]:
    """Repair the index of each shard; yield the shard, or None if it holds no samples any more, and what was done."""
    written = {
        manifest.FILE_NAME,
        manifest.TABLE_NAME,
        *(_index_name(old.container, name) for name in old.shards.names),
        *(_sums_name(name) for name in old.shards.names),
    }
    for name in folder.names():
        temporary = re.fullmatch(r"\.(.+)\.[0-9a-f]+\.tmp", name)  # of a repair that was killed
        if temporary and temporary[1] in written and folder.kind(name) == "file":
            folder.unlink(name)
    for number, name in enumerate(old.shards.names):
        reasons: list[str] = []
        shard: WrittenShard | None = None
        try:
            shard = _repaired(folder, old, number, reasons)
        except DatasetError as error:
            path = folder.path / name
            reasons.append(f"lost: {str(error).removeprefix(f'{path}: ').removeprefix(f'{path.absolute()}: ')}")
        kept = 0 if shard is None else shard.samples
        yield shard, ShardRepair(name, kept, max(0, int(old.shards.samples[number]) - kept), tuple(reasons))


def remove_dropped(folder: Directory, old: manifest.Manifest, repaired: manifest.Manifest) -> None:
    """Remove the links to files that have left the manifest, and their indexes; never the files themselves.

    An index beside a file itself stays, as nothing proves that shardio wrote it.
    """
    for name in set(old.shards.names) - set(repaired.shards.names):
        if folder.kind(name) == "link":
            folder.unlink(name)
            for beside in (_index_name(old.container, name), _sums_name(name)):
                if folder.kind(beside) == "file":
                    folder.unlink(beside)


def _repaired(folder: Directory, old: manifest.Manifest, number: int, reasons: list[str]) -> WrittenShard:
    """Repair the index of a file if that is needed; raise DatasetError if no sample is left."""
    name, fields = old.shards.names[number], with_hidden(old.fields)
    samples, size = int(old.shards.samples[number]), int(old.shards.bytes[number])
    path, index = folder.path / name, folder.path / _index_name(old.container, name)
    store.status(path)
    kind = containers.get(old.container)
    if old.container == "hdf5" and index.exists() and _size(kind.files(path)) != size:
        _drop_lost_hdf5_rows(folder, path, old.fields, reasons)
    try:
        if not index.exists():  # without one, a file would count as shardio's own
            raise ShardCorrupt(f"{index} is missing")
        reader = kind.reader(path, fields)
    except ShardCorrupt as error:
        _rebuild(folder, old, name, error)
        reasons.append(f"its index {index.name} was lost or damaged; rebuilt")
        reader = kind.reader(path, fields)
    changed = _size(kind.files(path)) != size
    if changed and not reasons and old.container != "hdf5":
        _drop_lost_rows(folder, path, reader, old.fields, reasons)
    reader.close()
    known = None if changed or reasons else (size, old.shards.checksums[number])
    shard, table = summarize(path, old.container, old.fields, known)
    if not reasons:
        reasons += filter(None, [unlike_manifest(shard, samples, size)])
    if has_sums(old) and restore_sums(folder, shard, table, kind.files(path)) and not reasons:
        reasons.append(SUMS_REWRITTEN)
    return shard


def _size(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _drop_lost_rows(
    folder: Directory, path: Path, reader: Reader, fields: Mapping[str, Field], reasons: list[str]
) -> None:
    """Leave those samples out of a file's side index that are not whole any more."""
    whole = whole_rows(reader.read, np.arange(len(reader)), fields)
    if not whole.any():
        raise ShardCorrupt(f"{path}: {_NONE_LEFT} its {path.stat().st_size} bytes")
    if not whole.all():
        reasons.append(dropped(path, np.flatnonzero(~whole)))
        side_index.write(folder, path.name, np.asarray(side_index.load(path))[whole])


def _drop_lost_hdf5_rows(folder: Directory, path: Path, fields: Mapping[str, Field], reasons: list[str]) -> None:
    """Leave those rows out of an HDF5 file's index that are not whole any more, and those that it never named.

    A file that cannot be opened, or whose index is damaged, is left to the caller.
    """
    in_index = {name: with_hidden(fields)[name] for name in side_index.held(with_hidden(fields))}
    try:
        held = hdf5.Hdf5Reader(hdf5_index.path_of(path), {**in_index, hdf5_index.ROWS: hdf5.ROW_NUMBERS}, {})
        names, packing = hdf5_index.read(path)
        values = hdf5.Hdf5Reader(path, {name: fields[name] for name in names}, names, packing)
    except (ShardCorrupt, KeyError):
        return
    with contextlib.closing(held), contextlib.closing(values):
        rows: NDArray[np.int64] = np.arange(len(held))
        columns: dict[str, NDArray[Any]] = {name: np.asarray(held.read(rows, name)) for name in in_index}
        taken = np.asarray(held.read(rows, hdf5_index.ROWS)) if held.has(hdf5_index.ROWS) else rows
        in_file = len(values) if names else len(held)

        def read(some: NDArray[np.int64], name: str) -> Any:
            return values.read(taken[some], name) if name in names else columns[name][some]

        there = rows[taken < in_file]
        kept = there[whole_rows(read, there, fields)]
    if not len(kept):
        raise ShardCorrupt(f"{path}: {_NONE_LEFT} its {path.stat().st_size} bytes")
    if len(kept) < len(rows) or (len(rows) < in_file and taken is rows):
        reasons.append(dropped(path, np.setdiff1d(rows, kept)))
        left = {name: column[kept] for name, column in columns.items()}
        hdf5_index.write(folder, path.name, names, left | {hdf5_index.ROWS: taken[kept]}, packing)


def _index_name(container: str, name: str) -> str:
    path_of = hdf5_index.path_of if container == "hdf5" else side_index.path_of
    return path_of(Path(name)).name


def _sums_name(name: str) -> str:
    return piece_sums.path_of(Path(name)).name


def _rebuild(folder: Directory, old: manifest.Manifest, name: str, reason: ShardCorrupt) -> None:
    """Write the index of a file anew; raise ShardCorrupt, with the first error too, if that is not possible."""
    try:
        source = _source(folder, old, name)
        if _plain(source.fields) != _plain(old.fields):
            raise ConfigError(f"its fields are now {', '.join(source.fields)}, and not as they were")
        number = next(number for number, path in enumerate(source.files) if path.name == name)
        index = _index_name(old.container, name)
        if folder.kind(name) == "file" and folder.kind(index) is not None:
            # Beside the files of others, where nothing proves that shardio wrote it.
            folder.rename(index, folder, free_name(folder, index))
        rebuild_index(source, number, name, folder)
    except ShardioError as error:
        cause = str(reason).split(": ", 2)[-1]
        why = "" if cause in str(error) else f": {error}"
        advice = "`shardio index` may make the dataset anew"
        raise ShardCorrupt(f"{reason}; its index cannot be rebuilt{why}; {advice}") from error


def _source(folder: Directory, old: manifest.Manifest, name: str) -> Any:
    """Return the source that the dataset's files were, as far as they are still there; ShardioError if there is none.

    All of them matter: a field's shape is fixed if the first and the last sample agree.
    """
    converter = old.metadata.get("source")
    if converter not in _CONVERTERS:
        raise ConfigError(f"the manifest names no converter of {', '.join(_CONVERTERS)}")
    there = [folder.path / shard for shard in old.shards.names if (folder.path / shard).is_file()]
    paths = [path.absolute() for path in (there if converter in ("webdataset", "tfrecord") else [folder.path / name])]
    names = _names(old)
    options: dict[str, Any] = {} if converter == "lmdb" else {"fields": names}
    if converter in ("webdataset", "tfrecord"):
        options["on_error"] = "skip"
    if converter == "webdataset":
        options["key"] = "key" in old.fields and "key" not in (names or {})
    if converter == "hdf5":
        options["decode_cf"] = _decodes(old)
    return sources.find(converter)(paths[0] if len(paths) == 1 else paths, **options)


def _names(old: manifest.Manifest) -> dict[str, str] | None:
    """Return the names in the files of the fields but the keys of tars, if the manifest tells them."""
    names = old.conversion.get("names")
    if not isinstance(names, dict) or names.keys() not in (old.fields.keys(), old.fields.keys() - {"key"}):
        return None
    return dict(names) if all(isinstance(name, str) for name in names.values()) else None


def _decodes(old: manifest.Manifest) -> bool:
    """Return whether the values of the files are decoded by attributes of netCDF."""
    return old.conversion.get("decode_cf") is True


def _plain(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return fields without what a dataset adds: the size of all images, which are masks, what sources state."""
    bare = {name: replace(field, attributes=None) for name, field in fields.items()}
    plain = {name: replace(field, shape=None, role=None) for name, field in bare.items() if field.kind == "image"}
    return {name: replace(plain[name], channels=None) if name in plain else field for name, field in bare.items()}
