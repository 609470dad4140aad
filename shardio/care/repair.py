"""Repair: rebuild a dataset whose manifest, indexes, shards or ends of shards are lost.

A lost index is rebuilt from its tar, a lost manifest from the shards. A tar that was cut short keeps the samples before
the cut. HDF5 and LMDB files that were cut short can no longer be opened, and are set aside. Lost shards leave the
manifest.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import containers
from ..containers import piece_sums, side_index
from ..containers import tar_layout as layout
from ..errors import (
    BadSample,
    ConfigError,
    DatasetError,
    ManifestError,
    NotADataset,
    ShardCorrupt,
    SourceError,
)
from ..foreign import members, tar
from ..format import found_instead, manifest
from ..format.fields import Field, shape_column, with_hidden
from ..output.describe import describe
from ..output.own_files import SHARD, remove_temporary
from ..output.shard_writer import WrittenShard, described
from ..stores.url import as_url
from ..system import strict_json
from ..system.directory import Directory
from ..system.local_path import local_path
from ..system.types import Buffer
from ..system.units import counted
from . import repair_adopted as adopted
from .repaired import (
    SUMS_REWRITTEN,
    Repair,
    ShardRepair,
    free_name,
    has_sums,
    restore_sums,
    summarize,
    unlike_manifest,
)
from .whole_samples import dropped, listed, lost_rows

_NOT_OURS = "shardio did not write this file, or nothing proves that it did; it is left as it is"
_END_OF_TAR = bytes(2 * layout.BLOCK)


def repair(
    directory: str | os.PathLike[str],
    *,
    like: Mapping[str, Field] | None = None,
    metadata: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Repair:
    """Repair a damaged dataset in place.

    Args:
        directory: the directory of a dataset that shardio wrote, such as `Dataset.path`. Of a dataset that
            `shardio index` made, only indexes and the manifest are repaired: the files themselves stay as they are.
        like: the fields, for a dataset whose manifest and shards no longer state them.
        metadata: the metadata of a lost manifest, such as the names of the classes; also for a manifest that has none,
            as an earlier repair leaves it.
        progress: called with the number of shards done and the total.

    Returns:
        The new manifest and what was repaired, kept and lost of each shard.

    Raises NotADataset if the directory holds no shards or none can be saved, ConfigError if shardio did not write them
    or nothing states the fields, OSError if a file cannot be read or written.
    """
    if (url := as_url(directory)) is not None:
        raise ConfigError(
            f"repair works on local files, got the URL {url}: copy the dataset to a local disk, repair it there, and "
            "write the result to the store under a new name"
        )
    path = local_path(directory)
    old = _load_manifest(path)
    folder = Directory(path)
    if old is not None and old.adopted:
        return _repair_adopted(folder, old, progress)
    container, names = _find_shards(folder, old)
    _check_names(folder, container, names, links=old is not None)
    if old is None:
        _check_written_by_shardio(path, container, names)
    remove_temporary(folder)
    notes: list[str] = [] if old is not None else [f"{manifest.FILE_NAME} was lost or damaged; rebuilt"]
    fields = dict(like) if like else _find_fields(path, container, names, old, notes)
    found = list(_repaired_shards(folder, container, names, fields, old, progress))
    shards = _shards_left(path, found, notes)
    repairs = tuple(repaired for _, repaired in found if repaired.reasons)
    kept_metadata = (old.metadata if old is not None else {}) or metadata or {}
    if old is not None and kept_metadata and not old.metadata:
        notes.append(
            f"the manifest had no metadata, such as the names of the classes; added: {', '.join(kept_metadata)}"
        )
    if old is not None and not repairs and not notes:
        return Repair(old, (), (), True)
    if old is None and metadata is None:
        notes.append(
            "the metadata of the lost manifest, such as the names of the classes, is lost: "
            f"`shardio repair {shlex.quote(str(path))} --like DATASET` takes it from a dataset made in the same way"
        )
    repaired = describe(container, fields, shards, kept_metadata, has_sums=has_sums(old))
    folder.sync()
    manifest.save(repaired, folder)
    same = None if old is None else repaired.digest == old.digest
    return Repair(repaired, repairs, tuple(notes), same)


def _repair_adopted(folder: Directory, old: manifest.Manifest, progress: Callable[[int, int], None] | None) -> Repair:
    """Repair a dataset of files of other programs: its indexes and its manifest, never the files."""
    found = []
    for number, shard in enumerate(adopted.repaired_shards(folder, old)):
        found.append(shard)
        if progress is not None:
            progress(number + 1, len(old.shards))
    shards = _shards_left(folder.path, found, [])
    repairs = tuple(repaired for _, repaired in found if repaired.reasons)
    if not repairs:
        return Repair(old, (), (), True)
    repaired = describe(
        old.container, old.fields, shards, old.metadata, adopted=True, conversion=adopted.kept_conversion(old),
        has_sums=has_sums(old),
    )  # fmt: skip
    folder.sync()
    manifest.save(repaired, folder)
    adopted.remove_dropped(folder, old, repaired)
    return Repair(repaired, repairs, (), repaired.digest == old.digest)


def _shards_left(
    path: Path, found: Sequence[tuple[WrittenShard | None, ShardRepair]], notes: Sequence[str]
) -> list[WrittenShard]:
    """Return the shards that hold samples; raise NotADataset if none does."""
    shards = [shard for shard, _ in found if shard is not None]
    if not shards:
        lines = [*notes, *(str(repaired) for _, repaired in found)]
        raise NotADataset(f"{path}: nothing can be saved: {'; '.join(lines)}")
    return shards


def _load_manifest(folder: Path) -> manifest.Manifest | None:
    try:
        return manifest.load(folder)
    except (NotADataset, ManifestError):
        if not folder.is_dir():
            raise
        return None


def _find_shards(folder: Directory, old: manifest.Manifest | None) -> tuple[str, list[str]]:
    """Return the container and the names of the shards."""
    if old is not None:
        return old.container, list(old.shards.names)
    found: dict[str, list[str]] = {}
    for container in containers.names():
        pattern = _shard_name(container)
        if names := [name for name in folder.names() if pattern.fullmatch(name)]:
            found[container] = names
    if len(found) != 1:
        kinds = " and ".join(found) or f"none; {found_instead.in_folder(folder.path, manifest.FILE_NAME)}"
        raise NotADataset(f"{folder.path}: expected shards of one container, found {kinds}")
    return next(iter(found.items()))


def _shard_name(container: str) -> re.Pattern[str]:
    return re.compile(rf"{SHARD}{re.escape(containers.get(container).suffix)}")


def _check_names(folder: Directory, container: str, names: list[str], *, links: bool) -> None:
    """Raise ConfigError unless the shards have the names that shardio gives, and are files, or links where allowed.

    The links of a dataset in a cache lead to its files; one that needs a change is refused where it would be made.
    """
    pattern, kinds = _shard_name(container), ("file", None, *(["link"] if links else []))
    for name in names:
        if not pattern.fullmatch(name):
            raise ConfigError(f"{folder.path / name}: shardio gives no shard this name; it is left as it is")
        if folder.kind(name) not in kinds:
            advice = f"; {found_instead.of_links(folder.path, name)}" if folder.kind(name) == "link" else ""
            raise ConfigError(f"{folder.path / name}: {_NOT_OURS}{advice}")


def _check_written_by_shardio(folder: Path, container: str, names: list[str]) -> None:
    """Raise ConfigError unless shardio wrote the shards: files of others are neither cut off nor renamed.

    They may be files that merely have such names. shardio's keys are running numbers, and its HDF5
    and LMDB files state their fields. A file that cannot be read proves nothing.
    """
    proven = False
    for path in (folder / name for name in names):
        ours = None
        if container == "tar":
            keys = [run.key for run in itertools.islice(_readable_runs(path), 2)]
            ours = all(len(key) == layout.KEY_DIGITS and key.isdecimal() for key in keys) if keys else None
        else:
            with contextlib.suppress(DatasetError):
                ours = containers.get(container).read_fields(path) is not None
        if ours is False:
            raise ConfigError(f"{path}: {_NOT_OURS}")
        proven = proven or ours is True
    if not proven:
        raise ConfigError(f"{folder}: nothing proves that shardio wrote these shards; they are left as they are")


def _readable_runs(path: Path) -> Iterator[tar.TarSample]:
    """Yield the samples of a tar up to the first that cannot be read."""
    with contextlib.suppress(SourceError):
        yield from tar.scan(tar.open_tar(path))


def _find_fields(
    folder: Path, container: str, names: list[str], old: manifest.Manifest | None, notes: list[str]
) -> dict[str, Field]:
    if old is not None:
        return dict(old.fields)
    for name in names:
        try:
            fields = containers.get(container).read_fields(folder / name)
            if fields is None and container == "tar":
                fields = _tar_fields(folder / name, notes)
        except (DatasetError, SourceError):
            continue  # another shard may state them
        if fields is not None:
            return dict(fields)
    raise ConfigError(
        f"{folder}: nothing states the fields: name a dataset that has the same, `shardio repair "
        f"{shlex.quote(str(folder))} --like DATASET`"
    )


def _repaired_shards(
    folder: Directory,
    container: str,
    names: list[str],
    fields: Mapping[str, Field],
    old: manifest.Manifest | None,
    progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[WrittenShard | None, ShardRepair]]:
    """Repair each shard; yield it, or None if it holds no samples, and what was done."""
    for number, name in enumerate(names):
        path = folder.path / name
        reasons: list[str] = []
        shard, table, before = None, None, None if old is None else int(old.shards.samples[number])
        try:
            held = _repair_tar(folder, name, fields, reasons) if container == "tar" else before
            before = held if before is None else before
            shard, table = summarize(path, container, fields)
            if old is not None and held is not None and shard.bytes != old.shards.bytes[number]:
                shard, table = _checked(folder, container, shard, table, old, number, reasons)
        except (DatasetError, SourceError) as error:
            aside = _set_aside(folder, container, name)
            what = f"lost and set aside as {aside[name]}" if name in aside else "lost"
            index = [f"; its index is set aside as {kept}" for file, kept in aside.items() if name not in aside]
            reasons.append(f"{what}: {str(error).removeprefix(f'{path}: ')}{''.join(index)}")
        if shard is not None and old is not None and not reasons:  # else a repair was cut off before it wrote the rest
            reasons += filter(None, [unlike_manifest(shard, old.shards.samples[number], old.shards.bytes[number])])
        kept = shard.samples if shard is not None else 0
        if shard is not None and old is not None and not reasons and shard.checksum != old.shards.checksums[number]:
            # Only `verify --deep` tells what changed: the entry stays, so that neither it nor a table vouches for that.
            shard, table = replace(shard, checksum=old.shards.checksums[number]), None
        if shard is not None and kept and has_sums(old):
            files = containers.get(container).files(path)
            if restore_sums(folder, shard, table, files) and old is not None and not reasons:
                reasons.append(SUMS_REWRITTEN)
        if shard is not None and not kept:
            reasons.append("no complete sample is left")
        lost = None if before is None else max(0, before - kept)
        yield shard if kept else None, ShardRepair(name, kept, lost, tuple(reasons))
        if progress is not None:
            progress(number + 1, len(names))


def _checked(
    folder: Directory,
    container: str,
    shard: WrittenShard,
    table: bytes | None,
    old: manifest.Manifest,
    number: int,
    reasons: list[str],
) -> tuple[WrittenShard, bytes | None]:
    """Compare the samples of a shard of another size with their checksums; return it without those that changed.

    Its table of checksums, in what is returned too, follows; None if the old one stays.

    The index of a tar names them no more. Other containers keep them, and their old entry in the manifest, so that
    `verify` goes on to find what only a copy can mend.
    """
    path = folder.path / shard.name
    lost = lost_rows(path, container, old.fields)
    if not len(lost):
        return shard, table
    if len(lost) == shard.samples:
        raise ShardCorrupt(f"{path}: no sample has its checksum any more")
    if container != "tar":
        reasons.append(
            f"changed: {listed(lost)} cannot be read or lack their checksums, and stay in it; `shardio reshard IN OUT "
            "--on-error skip` leaves them out"
        )
        return summarize(path, container, old.fields, (int(old.shards.bytes[number]), old.shards.checksums[number]))
    reasons.append(dropped(path, lost))
    side_index.write(folder, shard.name, np.delete(np.asarray(side_index.load(path)), lost))
    return summarize(path, container, old.fields)


def _set_aside(folder: Directory, container: str, name: str) -> dict[str, str]:
    """Rename the files of a shard, as far as they are there; return their old names and the new ones.

    The table of checksums goes with them; it is not among those returned.
    """
    aside = {}
    table = piece_sums.path_of(folder.path / name)
    for file in (*containers.get(container).files(folder.path / name), table):
        if folder.kind(file.name) is not None:
            aside[file.name] = free_name(folder, file.name)
            folder.rename(file.name, folder, aside[file.name])
    aside.pop(table.name, None)  # of no use without the shard, and not worth a word
    return aside


def _repair_tar(folder: Directory, name: str, fields: Mapping[str, Field], reasons: list[str]) -> int | None:
    """Make the tar end with a complete sample, and its index list exactly the samples that it holds.

    Returns the number of samples that it held as far as its index or its end tells, else None.
    """
    path = folder.path / name
    if folder.kind(name) is None:
        raise ShardCorrupt(f"{path}: there is no such file")
    index = _load_index(path, fields)
    intact, runs = _scan(path)
    end = runs[-1].offset + runs[-1].size if runs else 0
    intact = intact and path.stat().st_size == end + len(_END_OF_TAR)
    before = len(index) if index is not None else len(runs) if intact else None
    if index is not None and intact and before == len(runs):
        return before
    if not intact:
        kept = _truncate(folder, name, end)
        reasons.append(f"cut short or damaged after {counted(len(runs), 'complete sample')}; truncated there{kept}")
    if index is None:
        reasons.append(f"its index {side_index.path_of(path).name} was lost or damaged; rebuilt")
        index = _index_of(path, runs, fields)
    side_index.write(folder, name, index[: len(runs)])
    return before


def _truncate(folder: Directory, name: str, end: int) -> str:
    """End a tar at byte `end`, and keep what followed in a file beside it; return a note that says so."""
    kept = ""
    with os.fdopen(folder.open(name, os.O_RDWR), "r+b", buffering=0) as file:
        if os.fstat(file.fileno()).st_size > end:
            rest = free_name(folder, f"{name}.end")
            with folder.replacing(rest) as target:
                file.seek(end)
                shutil.copyfileobj(file, target)
            kept = f"; the rest of it is in {rest}"
        # First the end mark: without one, the last sample would no longer count as complete.
        os.pwrite(file.fileno(), _END_OF_TAR, end)
        os.truncate(file.fileno(), end + len(_END_OF_TAR))
        os.fsync(file.fileno())
    return kept


def _load_index(path: Path, fields: Mapping[str, Field]) -> NDArray[Any] | None:
    """Return the index of a tar; None if it cannot be read or describes other fields."""
    try:
        index = side_index.load(path)
    except (OSError, ShardCorrupt):
        return None
    return index if index.ndim == 1 and index.dtype == side_index.dtype_of(with_hidden(fields)) else None


def _scan(path: Path) -> tuple[bool, list[tar.TarSample]]:
    """Return whether the tar can be read to its end, and its complete samples."""
    runs: list[tar.TarSample] = []
    try:
        for run in tar.scan(tar.open_tar(path)):
            runs.append(run)
    except SourceError:
        return False, runs
    return True, runs


def _index_of(path: Path, runs: list[tar.TarSample], fields: Mapping[str, Field]) -> NDArray[Any]:
    """Return the index of a tar's samples, as the writer of the tar wrote it."""
    index = np.zeros(len(runs), side_index.dtype_of(with_hidden(fields)))
    opened = tar.open_tar(path)
    for row, run in enumerate(runs):
        places = {name: _place(opened, run, name, field) for name, field in fields.items()}
        try:
            stored = {
                name: None if place is None else _stored(opened, place, fields[name]) for name, place in places.items()
            }
            encoded = described(stored, fields)
        except BadSample as error:
            raise ShardCorrupt(f"{path}, key {run.key}: {error}") from error
        for name, place in places.items():
            offset, size = place or (0, 0)
            index[f"{name}.offset"][row], index[f"{name}.size"][row] = offset, size
        for name in side_index.held(with_hidden(fields)):
            field = with_hidden(fields)[name]
            index[name][row] = np.frombuffer(encoded.stored[name], field.row_dtype).reshape(field.row_shape)
    return index


def _place(opened: Any, run: tar.TarSample, name: str, field: Field) -> tuple[int, int] | None:
    """Return the offset and size of a field's stored bytes; arrays of one shape begin after their .npy headers.

    None if the sample lacks an optional field.
    """
    members_by_extension = run.places()
    extension = next((e for e in layout.extensions(name, field) if e.lower() in members_by_extension), None)
    if extension is None and field.optional:
        return None
    if extension is None:
        raise ShardCorrupt(f"{opened.path}, key {run.key}: there is no field {name!r}")
    offset, size = members_by_extension[extension.lower()]
    if field.kind == "scalar" or not field.fixed:
        return offset, size
    return offset + size - field.row_bytes, field.row_bytes


def _stored(opened: Any, place: tuple[int, int], field: Field) -> Buffer:
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


def _tar_fields(path: Path, notes: list[str]) -> dict[str, Field] | None:
    """Infer the fields of a tar without a manifest from its index, or else from the names of its members."""
    _, runs = _scan(path)
    if not runs:
        return None
    opened, extensions = tar.open_tar(path), runs[0].places()
    try:
        return _indexed_fields(side_index.load(path), opened, extensions)
    except (OSError, ShardCorrupt):
        notes.append("the fields are inferred from the names of the tars' members: numbers may be wider than they were")
        named = members.field_names(extensions)
        return {
            name: members.field_of(extension, [opened.read(*extensions[extension])])
            for name, extension in named.items()
        }


def _indexed_fields(index: NDArray[Any], opened: Any, extensions: Mapping[str, tuple[int, int]]) -> dict[str, Field]:
    """Infer the fields of a tar from the columns of its index and its first sample; ShardCorrupt if they do not fit."""
    columns = {name: index.dtype[name] for name in index.dtype.names or ()}
    if not columns or not len(index):
        raise ShardCorrupt(f"{opened.path}: its index has no columns or no rows")
    fields: dict[str, Field] = {}
    for name in [column.removesuffix(".offset") for column in columns if column.endswith(".offset")]:
        if name in columns:
            fields[name] = Field("scalar", dtype=columns[name].name)
        elif shape_column(name) in columns:
            fields[name] = Field("image")
        else:
            place = int(index[f"{name}.offset"][0]), int(index[f"{name}.size"][0]) if f"{name}.size" in columns else -1
            fields[name] = _field_at(opened, place, extensions)
    return fields


def _field_at(opened: Any, place: tuple[int, int], extensions: Mapping[str, tuple[int, int]]) -> Field:
    """Infer the field whose stored bytes are at `place`, by the extension of the member that holds them.

    Raises ShardCorrupt if no member holds them.
    """
    held = (
        (extension, span)
        for extension, span in extensions.items()
        if span[0] <= place[0] and place[1] >= 0 and sum(place) <= sum(span)
    )
    extension, (start, size) = next(held, ("", (0, 0)))
    if not extension:
        raise ShardCorrupt(
            f"{opened.path}: no member holds the {place[1]} bytes from byte {place[0]} that the index names"
        )
    kinds = {"txt": "text", "json": "json", "bin": "bytes"}
    kind: Any = kinds.get(extension.rpartition(".")[2])
    if kind is not None:
        return Field(kind)
    field = members.field_of("npy", [opened.read(start, size)])
    if extension.endswith(".pixels.npy") and field.dtype == "uint8" and field.shape and field.shape[2:] in ((1,), (3,)):
        return Field("pixels", shape=field.shape[:2], channels=1 if field.shape[2] == 1 else 3)
    return field if place[1] < size else Field("array", dtype=field.dtype)
