"""Repair: what can be saved of a dataset whose manifest, indexes or ends are lost.

A lost index is written anew from its tar, a lost manifest from the shards. A tar that was cut short loses its last,
incomplete sample; HDF5 and LMDB files that were cut short cannot be opened any more, and are set aside.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import containers
from ..containers import _hdf5_foreign, indexed
from ..containers import _tar_layout as layout
from ..dataset.output_directory import OutputDirectory
from ..dataset.shard_writer import WrittenShard, encode
from ..dataset.writer import assemble
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
from ..format import checksums, manifest
from ..format.fields import CHECKSUM, Field, shape_column, with_hidden
from ..system import durable, npy
from ..system.types import Sample

ASIDE = ".damaged"
"""What is added to the name of a file that cannot be saved."""

_END = bytes(2 * layout.BLOCK)


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done.

    Attributes:
        manifest: of the dataset as it is now.
        done: a line for each thing that was mended, lost or set aside; empty if all was well.
        same: whether the digest is that of the old manifest; None if there was none.
    """

    manifest: manifest.Manifest
    done: tuple[str, ...]
    same: bool | None


def repair(
    directory: str | os.PathLike[str],
    *,
    like: Mapping[str, Field] | None = None,
    metadata: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Repair:
    """Makes a whole dataset of what is in `directory`.

    Args:
        directory: of a dataset that shardio wrote.
        like: the fields, if neither manifest nor shards say what they are.
        metadata: what a lost manifest said of the origin, such as the classes' names.
        progress: called with shards done and shards in all.

    Raises NotADataset where there are no shards, ConfigError if the fields cannot be told, OSError.
    """
    folder = Path(directory)
    old = _manifest(folder)
    if old is not None and old.adopted:
        raise ConfigError(f"{folder}: it was adopted; what others wrote is not changed: index it anew with overwrite")
    container, names = _shards(folder, old)
    if old is None:
        _check_own(folder, container, names)
    done: list[str] = [] if old is not None else [f"{manifest.FILE_NAME} is lost or damaged: it is written anew"]
    fields = dict(like) if like else _fields(folder, container, names, old, done)
    written = list(_mended(folder, container, names, fields, done, progress))
    if not written:
        raise NotADataset(f"{folder}: nothing can be saved: {'; '.join(done)}")
    if old is not None and not done and len(written) == len(old.shards):
        return Repair(old, (), True)
    if old is None and metadata is None:
        done.append("what it said of the origin, such as the classes' names, is lost")
    kept = (metadata or {}) if old is None else old.metadata
    made = assemble(OutputDirectory(folder, folder), container, fields, written, kept)
    same = None if old is None else made.digest == old.digest
    return Repair(made, tuple(done), same)


def _manifest(folder: Path) -> manifest.Manifest | None:
    try:
        return manifest.load(folder)
    except (NotADataset, ManifestError):
        return None


def _shards(folder: Path, old: manifest.Manifest | None) -> tuple[str, list[str]]:
    """The container, and the names of the shards."""
    if old is not None:
        return old.container, list(old.shards.names)
    found: dict[str, list[str]] = {}
    for name in ("tar", "hdf5", "lmdb"):
        ours = re.compile(rf"shard-\d{{6,}}{re.escape(containers.get(name).suffix)}")
        if inside := sorted(path.name for path in folder.glob("shard-*") if ours.fullmatch(path.name)):
            found[name] = inside
    if len(found) != 1:
        kinds = f"shards of {' and '.join(found)}" if found else "no shards"
        raise NotADataset(f"{folder}: {kinds} are there")
    return next(iter(found.items()))


def _check_own(folder: Path, container: str, names: list[str]) -> None:
    """ConfigError unless the shards are shardio's own: of others nothing is cut off, nor renamed.

    They may be links, adopted, or just called alike. shardio's keys are running numbers, and its HDF5 and LMDB files
    say what their fields are. What cannot be read says nothing.
    """
    known = False
    for path in (folder / name for name in names):
        own = None
        if path.is_symlink() or _hdf5_foreign.index_path(path).exists():
            own = False
        elif container == "tar":
            keys = [run.key for run in itertools.islice(_runs(path), 2)]
            own = all(len(key) == layout.KEY_DIGITS and key.isdecimal() for key in keys) if keys else None
        else:
            with contextlib.suppress(DatasetError):
                own = containers.get(container).described(path) is not None
        if own is False:
            raise ConfigError(f"{path}: it was not written by shardio, or cannot be told to be; it is left as it is")
        known = known or own is True
    if not known:
        raise ConfigError(
            f"{folder}: nothing tells that these shards were written by shardio; they are left as they are"
        )


def _runs(path: Path) -> Iterator[tar.TarSample]:
    with contextlib.suppress(SourceError):
        yield from tar.scan(tar.open_tar(path))


def _fields(
    folder: Path, container: str, names: list[str], old: manifest.Manifest | None, done: list[str]
) -> dict[str, Field]:
    if old is not None:
        return dict(old.fields)
    for name in names:
        try:
            found = containers.get(container).described(folder / name)
            if found is None and container == "tar":
                found = _tar_fields(folder / name, done)
        except (DatasetError, SourceError):
            continue  # another shard may still say
        if found is not None:
            return dict(found)
    raise ConfigError(f"{folder}: nothing says what the fields are; name a dataset that has the same")


def _mended(
    folder: Path,
    container: str,
    names: list[str],
    fields: Mapping[str, Field],
    done: list[str],
    progress: Callable[[int, int], None] | None,
) -> Iterator[WrittenShard]:
    """What stands of each shard in the end."""
    for number, name in enumerate(names):
        path = folder / name
        try:
            if container == "tar":
                _mend_tar(path, fields, done)
            if (shard := _stands(path, container, fields)).samples:
                yield shard
            else:
                done.append(f"{name}: no whole sample is left")
        except (DatasetError, SourceError) as error:
            done.append(f"{name}: lost and set aside: {error}")
            for file in containers.get(container).files(path):
                if file.exists():
                    os.replace(file, file.with_name(file.name + ASIDE))
        if progress is not None:
            progress(number + 1, len(names))


def _stands(path: Path, container: str, fields: Mapping[str, Field]) -> WrittenShard:
    """A shard as the manifest has it; ShardCorrupt if it cannot be opened."""
    kind = containers.get(container)
    reader = kind.reader(path, with_hidden(fields))
    rows = np.arange(len(reader))
    sums = np.asarray(reader.read(rows, CHECKSUM))
    shapes: dict[str, tuple[int, int] | None] = {}
    for name, field in fields.items():
        if field.kind == "image":
            found = np.unique(np.asarray(reader.read(rows, shape_column(name))), axis=0)
            shapes[name] = (int(found[0][0]), int(found[0][1])) if len(found) == 1 else None
    reader.close()
    size, checksum = checksums.of_files(kind.files(path))
    return WrittenShard(path.name, len(rows), size, checksum, sums, shapes)


def _mend_tar(path: Path, fields: Mapping[str, Field], done: list[str]) -> None:
    """Sees to it that the tar at `path` ends with a whole sample, and that its index tells of those and no others."""
    index = _index(path, fields)
    whole, runs = _whole(path)
    size = path.stat().st_size
    end = runs[-1].offset + runs[-1].size if runs else 0
    whole = whole and size == end + len(_END)
    if index is not None and whole and len(index) == len(runs):
        return
    if not whole:
        kept = _keep_end(path, end)
        os.truncate(path, end)
        with open(path, "ab") as file:
            file.write(_END)
        durable.sync_file(path)
        lost = "" if index is None or len(index) == len(runs) else f", {len(index) - len(runs)} samples are lost"
        done.append(f"{path.name}: cut short or damaged after {len(runs)} whole samples{lost}; it ends there now{kept}")
    if index is None:
        done.append(f"{indexed.index_path(path).name} is lost or damaged: it is written anew")
        index = _index_of(path, runs, fields)
    durable.write(indexed.index_path(path), _npy(index[: len(runs)]))


def _keep_end(path: Path, start: int) -> str:
    """Copies what is to be cut off a file to another one; says so."""
    if path.stat().st_size <= start:
        return ""
    aside = path.with_name(f"{path.name}.end{ASIDE}")
    with open(path, "rb") as file, open(aside, "wb") as target:
        file.seek(start)
        shutil.copyfileobj(file, target)
    return f", what was behind stands in {aside.name}"


def _index(path: Path, fields: Mapping[str, Field]) -> NDArray[Any] | None:
    """The index, if it can be read and is of these fields."""
    try:
        found = npy.guarded(lambda: np.load(indexed.index_path(path), allow_pickle=False))
    except (OSError, ValueError, EOFError):
        return None
    wanted = indexed.index_dtype(with_hidden(fields))
    return found if isinstance(found, np.ndarray) and found.ndim == 1 and found.dtype == wanted else None


def _whole(path: Path) -> tuple[bool, list[tar.TarSample]]:
    """Whether the tar is whole, and its samples that are."""
    runs: list[tar.TarSample] = []
    try:
        for run in tar.scan(tar.open_tar(path)):
            runs.append(run)
    except SourceError:
        return False, runs
    return True, runs


def _index_of(path: Path, runs: list[tar.TarSample], fields: Mapping[str, Field]) -> NDArray[Any]:
    """The index as it was when the tar was written."""
    index = np.zeros(len(runs), indexed.index_dtype(with_hidden(fields)))
    opened = tar.open_tar(path)
    for row, run in enumerate(runs):
        places = {name: _place(opened, run, name, field) for name, field in fields.items()}
        sample: Sample = {name: _value(opened, places[name], field) for name, field in fields.items()}
        try:
            encoded = encode(sample, fields)
        except BadSample as error:
            raise ShardCorrupt(f"{path}, key {run.key}: {error}") from error
        for name, (offset, size) in places.items():
            index[f"{name}.offset"][row], index[f"{name}.size"][row] = offset, size
        for name in indexed.packed(with_hidden(fields)):
            field = with_hidden(fields)[name]
            index[name][row] = np.frombuffer(encoded.stored[name], field.row_dtype).reshape(field.row_shape)
    return index


def _npy(index: NDArray[Any]) -> bytes:
    """As the writer of tars writes it."""
    descr = np.lib.format.dtype_to_descr(index.dtype)
    head = layout.npy_header({"descr": descr, "fortran_order": False, "shape": (len(index),)})
    return head + index.tobytes()


def _place(opened: Any, run: tar.TarSample, name: str, field: Field) -> tuple[int, int]:
    """Where the stored bytes of a field are; of an array of one shape they begin behind its header."""
    extensions = run.places()
    found = next((each for each in layout.extensions(name, field) if each.lower() in extensions), None)
    if found is None:
        raise ShardCorrupt(f"{opened.path}, key {run.key}: there is no field {name!r}")
    offset, size = extensions[found.lower()]
    if field.kind != "array" or not field.fixed:
        return offset, size
    return offset + size - field.row_bytes, field.row_bytes


def _value(opened: Any, place: tuple[int, int], field: Field) -> Any:
    data = opened.read(*place)
    try:
        if field.kind != "scalar":
            return field.decode(data)
        value = json.loads(data)
        return complex(*value) if isinstance(value, list) else value
    except (ValueError, TypeError) as error:
        raise ShardCorrupt(f"{opened.path}, byte {place[0]}: not {field.kind}: {error}") from error


def _tar_fields(path: Path, done: list[str]) -> dict[str, Field] | None:
    """The fields of a tar without a manifest: as its index has them, else as its files' names have them."""
    _, runs = _whole(path)
    if not runs:
        return None
    try:
        index = npy.guarded(lambda: np.load(indexed.index_path(path), allow_pickle=False))
        columns = {name: index.dtype[name] for name in index.dtype.names or ()}
    except (OSError, ValueError, EOFError, AttributeError):
        columns = {}
    opened, extensions = tar.open_tar(path), runs[0].places()
    if not columns:
        done.append("the fields are told by the names of files in the tars: numbers may be wider than they were")
        named = members.field_names(extensions)
        values = {name: opened.read(*extensions[own]) for name, own in named.items()}
        return {name: members.field_of(own, [values[name]]) for name, own in named.items()}
    fields: dict[str, Field] = {}
    for name in [column.removesuffix(".offset") for column in columns if column.endswith(".offset")]:
        if name in columns:
            fields[name] = Field("scalar", dtype=columns[name].name)
        elif shape_column(name) in columns:
            fields[name] = Field("image")
        else:
            place = int(index[f"{name}.offset"][0]), int(index[f"{name}.size"][0])
            fields[name] = _by_extension(opened, name, place, extensions)
    return fields


def _by_extension(opened: Any, name: str, place: tuple[int, int], extensions: Mapping[str, tuple[int, int]]) -> Field:
    """The field that is stored at `place`, in one of a sample's files."""
    own, (start, size) = next(
        (own, span) for own, span in extensions.items() if span[0] <= place[0] and sum(place) <= sum(span)
    )
    kinds = {"txt": "text", "json": "json", "bin": "bytes"}
    kind: Any = kinds.get(own.rpartition(".")[2])
    if kind is not None:
        return Field(kind)
    found = members.field_of("npy", [opened.read(start, size)])
    return found if place[1] < size else Field("array", dtype=found.dtype)
