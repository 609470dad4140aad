"""Repair: write what describes a dataset's shards anew (indexes, tables of checksums, the manifest), never the shards.

Samples that are not whole any more leave the index of their shard, shards that cannot be opened leave the manifest. The
files stay as they are, whoever wrote them: `shardio reshard --on-error skip` writes shards without what is damaged.
"""

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import containers
from ..containers import piece_sums, side_index
from ..containers import tar as layout
from ..containers.base import Reader
from ..containers.files import status
from ..errors import ConfigError, DatasetError, ManifestError, NotADataset, ShardCorrupt, SourceError
from ..foreign import tar
from ..format import checksums, manifest
from ..format.fields import CHECKSUM, Field, content_columns, shape_column, with_hidden
from ..format.pieces import PIECE
from ..format.shard_table import ShardTable, TextColumn
from ..output.own_files import SHARD
from ..output.shard_writer import WrittenShard, common_shape, describe
from ..stores.url import as_url
from ..system import did_you_mean
from ..system.directory import Directory
from ..system.local_path import local_path
from ..system.units import counted
from .rebuilt_index import free_name, index_name, is_readable, kept_conversion, rebuild

_NOT_OURS = "shardio did not write this file, or nothing proves that it did; it is left as it is"
_BLOCK = 256  # samples
_MOST_NAMED = 10  # rows in a message


@dataclass(frozen=True, slots=True)
class ShardRepair:
    """The result of a repair for one shard.

    Attributes:
        shard: the shard's name.
        kept: the number of its samples that the repaired dataset holds.
        lost: the number of those that it held before and holds no more; None if the manifest was lost.
        reasons: what was wrong, and what was done about it.
    """

    shard: str
    kept: int
    lost: int | None
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        lost = "an unknown number" if self.lost is None else self.lost
        return f"{self.shard}: {'; '.join(self.reasons)}: {counted(self.kept, 'sample')} kept, {lost} lost"


@dataclass(frozen=True, slots=True)
class Repair:
    """The result of `shardio.repair`.

    Attributes:
        manifest: the manifest of the repaired dataset.
        shards: each shard in which something was repaired or lost; the others are as they were.
        notes: what was repaired or lost of the dataset as a whole.
        same: whether the digest equals that of the old manifest; None if there was none.
    """

    manifest: manifest.Manifest
    shards: tuple[ShardRepair, ...]
    notes: tuple[str, ...]
    same: bool | None

    @property
    def done(self) -> tuple[str, ...]:
        """One line for each thing that was repaired or lost; empty if nothing was wrong."""
        return (*self.notes, *map(str, self.shards))

    @property
    def lost(self) -> int | None:
        """The number of samples that were lost in all; None if that is not known."""
        counts = [shard.lost for shard in self.shards if shard.lost is not None]
        return sum(counts) if len(counts) == len(self.shards) else None

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {
            "samples": self.manifest.samples,
            "lost": self.lost,
            "digest": self.manifest.digest,
            "same": self.same,
            "notes": list(self.notes),
            "shards": [asdict(shard) for shard in self.shards],
        }


def repair(
    directory: str | os.PathLike[str],
    *,
    like: Mapping[str, Field] | None = None,
    metadata: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Repair:
    """Write lost or damaged indexes, tables of checksums and the manifest of a dataset anew; no shard changes.

    Args:
        directory: the directory of a dataset, such as `Dataset.path`.
        like: the fields, for a dataset of tars whose manifest is lost.
        metadata: the metadata of a lost manifest, such as the names of the classes; also for a manifest that has none,
            as an earlier repair leaves it.
        progress: called with the number of shards done and the total.

    Returns:
        The new manifest and what was repaired, kept and lost of each shard.

    Raises NotADataset if the directory holds no shards or none can be opened, ConfigError if the manifest is lost and
    shardio did not write the shards or nothing states the fields, or for Zarr stores, which are indexed anew, OSError
    if a file cannot be read or written.
    """
    if (url := as_url(directory)) is not None:
        raise ConfigError(
            f"repair works on local files, got the URL {url}: copy the dataset to a local disk, repair it there, and "
            "write the result to the store under a new name"
        )
    path = local_path(directory)
    try:
        old = manifest.load(path)
    except (NotADataset, ManifestError):
        if not path.is_dir():
            raise
        old = None
    folder = Directory(path)
    described = _described_by_shards(folder, like) if old is None else old
    if containers.get(described.container).read_where_it_lies:
        raise ConfigError(
            "{}: repair makes no index of {} stores: only that of the time when they were indexed tells which chunks "
            "have changed; `shardio index STORES -o OUT` makes the dataset anew, and copies nothing",
            path,
            described.container,
        )
    _check_names(path, described)
    _remove_temporary(folder, described)
    notes = _notes(path, old, metadata)
    shards: list[WrittenShard] = []
    repairs: list[ShardRepair] = []
    for number, name in enumerate(described.shards.names):
        kept, reasons = 0, list[str]()
        try:
            shards.append(_described(folder, described, number, reasons))
            kept = shards[-1].samples
        except DatasetError as error:
            text = str(error).removeprefix(f"{path / name}: ").removeprefix(f"{(path / name).absolute()}: ")
            reasons.append(f"left out of the dataset: {text}")
        if reasons:
            lost = None if old is None else max(0, int(old.shards.samples[number]) - kept)
            repairs.append(ShardRepair(name, kept, lost, tuple(reasons)))
        if progress is not None:
            progress(number + 1, len(described.shards))
    if not shards:
        raise NotADataset(f"{path}: nothing can be saved: {'; '.join([*notes, *map(str, repairs)])}")
    if old is not None and not repairs and not notes:
        return Repair(old, (), (), True)
    repaired = describe(
        described.container, described.fields, shards, described.metadata or metadata or {},
        adopted=described.adopted, conversion=kept_conversion(described), has_sums=described.piece_bytes == PIECE,
    )  # fmt: skip
    same = None if old is None else repaired.digest == old.digest
    if old is not None:
        changed = set() if same else {one.shard for one in repairs}
        starts = zip(old.shards.names, old.shards.starts[:-1].tolist(), strict=True)
        intact = next((start for name, start in starts if name in changed), old.samples)
        grew_from = {digest: samples for digest, samples in old.grew_from.items() if samples <= intact}
        repaired = replace(repaired, grew_from=grew_from)
    folder.sync()
    manifest.save(repaired, folder)
    return Repair(repaired, tuple(repairs), tuple(notes), same)


def _notes(path: Path, old: manifest.Manifest | None, metadata: Mapping[str, Any] | None) -> list[str]:
    """Return what to say of the dataset as a whole."""
    if old is not None:
        if old.metadata or not metadata:
            return []
        return [f"the manifest had no metadata, such as the names of the classes; added: {', '.join(metadata)}"]
    notes = [f"{manifest.FILE_NAME} was lost or damaged; rebuilt"]
    if metadata is None:
        notes.append(
            "the metadata of the lost manifest, such as the names of the classes, is lost: "
            f"`shardio repair {shlex.quote(str(path))} --like DATASET` takes it from a dataset made in the same way"
        )
    return notes


def _described_by_shards(folder: Directory, like: Mapping[str, Field] | None) -> manifest.Manifest:
    """Return a manifest with the container, names and fields of the shards in a directory, and without a digest.

    Raises NotADataset unless it holds shards of one container, ConfigError unless shardio wrote them (other programs'
    files may merely have such names) or if nothing states the fields.
    """
    found = {
        container: names
        for container in containers.names()
        if (names := [name for name in folder.names() if _shard_name(container).fullmatch(name)])
    }
    if len(found) != 1:
        kinds = " and ".join(found) or f"none; {did_you_mean.for_folder(folder.path, manifest.FILE_NAME)}"
        raise NotADataset(f"{folder.path}: expected shards of one container, found {kinds}")
    ((container, names),) = found.items()
    fields, proven = like, False
    for name in names:
        if folder.kind(name) != "file":
            advice = f"; {did_you_mean.for_links(folder.path, name)}" if folder.kind(name) == "link" else ""
            raise ConfigError(f"{folder.path / name}: {_NOT_OURS}{advice}")
        ours, stated = _stated(container, folder.path / name)
        if ours is False:
            raise ConfigError(f"{folder.path / name}: {_NOT_OURS}")
        fields, proven = fields or stated, proven or ours is True
    if not proven:
        raise ConfigError(f"{folder.path}: nothing proves that shardio wrote these shards; they are left as they are")
    if fields is None:
        quoted = shlex.quote(str(folder.path))
        raise ConfigError(
            f"{folder.path}: {manifest.FILE_NAME} is lost, and tars state no fields: `shardio repair {quoted} --like "
            "DATASET` takes them from a dataset made in the same way; without one, `shardio index "
            f"{quoted}/*.tar -o OUT` finds fields in the tars, and makes a dataset of them where they are"
        )
    unknown = np.zeros(len(names), np.int64)
    table = ShardTable(TextColumn(names), unknown, unknown, TextColumn([""] * len(names)))
    return manifest.Manifest(container, dict(fields), table, digest="", piece_bytes=PIECE)


def _stated(container: str, path: Path) -> tuple[bool | None, Mapping[str, Field] | None]:
    """Return whether shardio wrote a shard, None if damage leaves that unknown, and the fields that the shard states.

    The keys of shardio's tars are running numbers; its other files state their fields.
    """
    if container == "tar":
        first: tar.TarSample | None = None
        with contextlib.suppress(SourceError):
            first = next(tar.scan(tar.open_tar(path)), None)
        return (None if first is None else len(first.key) == layout.KEY_DIGITS and first.key.isdecimal()), None
    with contextlib.suppress(DatasetError):
        stated = containers.get(container).read_fields(path)
        return stated is not None, stated
    return None, None


def _shard_name(container: str) -> re.Pattern[str]:
    return re.compile(rf"{SHARD}{re.escape(containers.get(container).suffix)}")


def _check_names(path: Path, described: manifest.Manifest) -> None:
    """Raise ConfigError unless the shards have the names that shardio gives: files are written next to each of them."""
    pattern = _shard_name(described.container)
    for name in () if described.adopted else described.shards.names:
        if not pattern.fullmatch(name):
            raise ConfigError(f"{path / name}: shardio gives no shard this name; it is left as it is")


def _remove_temporary(folder: Directory, described: manifest.Manifest) -> None:
    """Remove the temporary files of a repair that was killed."""
    written = {manifest.FILE_NAME, manifest.TABLE_NAME}
    for name in described.shards.names:
        written |= {piece_sums.path_of(Path(name)).name, index_name(described, name) or ""}
    for name in folder.names():
        temporary = re.fullmatch(r"\.(.+)\.[0-9a-f]+\.tmp", name)
        if temporary and temporary[1] in written and folder.kind(name) == "file":
            folder.unlink(name)


def _described(folder: Directory, described: manifest.Manifest, number: int, reasons: list[str]) -> WrittenShard:
    """Return a shard's entry in the manifest, once its index and its table are right; add to `reasons` what was not.

    Raises DatasetError if the shard cannot be opened, or holds no whole sample.
    """
    table = described.shards
    name, samples, size = table.names[number], int(table.samples[number]), int(table.bytes[number])
    path, kind = folder.path / name, containers.get(described.container)
    status(path)
    rebuilt = not is_readable(path, described)
    if rebuilt:
        rebuild(folder, described, name)
        reasons.append(f"its index {index_name(described, name)} was lost or damaged; rebuilt")
    told = bool(described.digest)
    changed = not told or size != sum(file.stat().st_size for file in kind.files(path))
    lost = _lost_rows(path, described) if changed and not rebuilt else np.empty(0, np.int64)
    stay = len(lost) > 0 and described.container not in side_index.CONTAINERS
    if stay:
        advice = "`shardio reshard IN OUT --on-error skip` leaves that out"
        reasons.append(f"changed in {_listed(lost)}, as checksums tell, and stays as it is; {advice}")
    elif len(lost):
        reasons.append(f"cut short or changed; its index now names its whole samples, and not {_listed(lost)}")
        second = side_index.second_array(path, with_hidden(described.fields))
        kept = np.delete(np.asarray(side_index.load(path)), lost)
        side_index.write(folder, name, kept, b"" if second is None else second.read())
    # Where changed samples stay, so does what the manifest says: `verify` goes on to find the shard.
    known = told and (stay or not changed) and not rebuilt
    entry, sums = _summary(path, described, (size, table.checksums[number]) if known else None)
    if told and not reasons and (entry.samples, entry.bytes) != (samples, size):  # by a repair that was killed
        held = f"holds {entry.samples} samples in {entry.bytes} bytes"
        reasons.append(f"{held}, the manifest said {samples} in {size}")
    written = described.piece_bytes == PIECE and _restore_sums(folder, entry, sums, kind.files(path))
    if written and told and not reasons:
        reasons.append("its table of checksums was lost or damaged; written anew")
    return entry


def _lost_rows(path: Path, described: manifest.Manifest) -> NDArray[np.int64]:
    """Return the rows of a shard that cannot be read or lack their checksums; ShardCorrupt if there are no others."""
    fields = described.fields
    with contextlib.closing(containers.get(described.container).reader(path, with_hidden(described.fields))) as reader:
        whole = np.zeros(len(reader), np.bool_)
        for start in range(0, len(whole), _BLOCK):
            rows = np.arange(start, min(start + _BLOCK, len(whole)))
            whole[rows] = _are_whole(reader, rows, fields)
            for row in [] if whole[rows].all() else rows[:, None]:  # one that cannot be read hides its neighbours
                whole[row] = _are_whole(reader, row, fields)
    if len(whole) and not whole.any():
        raise ShardCorrupt(f"{path}: no sample has its checksum any more")
    return np.flatnonzero(~whole)


def _are_whole(reader: Reader, rows: NDArray[np.int64], fields: Mapping[str, Field]) -> NDArray[np.bool_]:
    names = content_columns(fields)
    try:
        columns = {name: reader.read(rows, name) for name in {*names, *fields}}
        whole = checksums.whole_videos(columns, fields, len(rows))
        return np.asarray(whole & (checksums.of_samples(columns, names) == reader.read(rows, CHECKSUM)))
    except DatasetError:
        return np.zeros(len(rows), np.bool_)


def _listed(rows: NDArray[np.int64]) -> str:
    """Return rows for a message, of many the first ones."""
    more = f", ... ({len(rows)} in all)" if len(rows) > _MOST_NAMED else ""
    return f"row{'' if len(rows) == 1 else 's'} {', '.join(map(str, rows[:_MOST_NAMED].tolist()))}{more}"


def _summary(
    path: Path, described: manifest.Manifest, known: tuple[int, str] | None
) -> tuple[WrittenShard, bytes | None]:
    """Return a shard's entry in the manifest, and its table of checksums; raise ShardCorrupt if it cannot be opened.

    Args:
        path: the shard.
        described: the manifest.
        known: the size and checksum of its files, and no table is returned; None reads the files and computes all
            three.
    """
    kind = containers.get(described.container)
    with contextlib.closing(kind.reader(path, with_hidden(described.fields))) as reader:
        rows = np.arange(len(reader))
        sample_checksums = np.asarray(reader.read(rows, CHECKSUM))
        shapes = {
            name: common_shape(np.asarray(reader.read(rows, shape_column(name))))
            for name, field in described.fields.items()
            if field.kind == "image"
        }
    size, checksum, table = piece_sums.of_files(kind.files(path)) if known is None else (*known, None)
    return WrittenShard(path.name, len(rows), size, checksum, sample_checksums, shapes), table


def _restore_sums(folder: Directory, shard: WrittenShard, table: bytes | None, files: Sequence[Path]) -> bool:
    """Write a shard's table of checksums unless it is right; return whether that was needed.

    Args:
        folder: the dataset's directory.
        shard: the shard's entry in the manifest.
        table: the table; None if the files have not been read, which is done only if the table cannot be right.
        files: the shard's files.
    """
    path = folder.path / shard.name
    if table is None:
        size = piece_sums.size_of([file.stat().st_size for file in files])
        found = piece_sums.load(path, size + 1)
        if found is not None and len(found) == size and piece_sums.is_whole(shard.checksum, found):
            return False
        *now, table = piece_sums.of_files(files)
        if now != [shard.bytes, shard.checksum]:  # the files have changed: checksums of what they are prove nothing
            return False
    elif piece_sums.matches(path, table):
        return False
    name = piece_sums.path_of(path).name
    if folder.kind(name) is not None and not piece_sums.looks_like_one(path):  # damaged, or another program wrote it
        folder.rename(name, folder, free_name(folder, name))
    folder.write(name, table)
    return True
