"""Adoption: make a dataset of files that other programs wrote, in place, by writing an index and copying nothing."""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from .. import containers
from ..containers import array_index, hdf5, hdf5_index, piece_sums, side_index, zarr_index
from ..containers.base import Reader
from ..containers.merged import merged_name
from ..containers.zarr import ZarrReader
from ..errors import BadSample, ConfigError, Message, Option, ShardCorrupt, ShardioError, SourceError
from ..foreign.names import printable
from ..format import checksums, manifest
from ..format.fields import CHECKSUM, Field, Missing, is_missing, length_column, shape_column, with_hidden
from ..output import Output
from ..output.folder import FolderOutput
from ..output.records import Record, Skipped
from ..output.shard_writer import Encoded, WrittenShard, common_shape, described
from ..system.directory import Directory
from ..system.local_path import local_path
from ..system.regular_files import open_regular
from ..system.types import Buffer
from . import image_counts, video_notes
from .masks import masked
from .notes import remarks_of
from .pack import PackOptions, WrittenDataset, pack
from .runners import Advance
from .shard_tasks import BLOCK_SAMPLES, NO_SHARD, ShardTask, TaskContext, find_odd_shape, fingerprint
from .source import Hdf5Names, Places, Source, ZarrIndexes, adoption_of, merged_with, state_of

_BLOCK_BYTES = 32 << 20
_SUFFIX = re.compile(r"\.[a-z0-9]+")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class AdoptTask:
    """A file to adopt.

    Attributes:
        number: the shard's number.
        samples: its samples' numbers in the source.
        path: the file.
        name: the file's name in the dataset.
        merged: the files that are merged with it, see `source.Source`.
        states: the sizes and modification times of all these files when the work began.
    """

    number: int
    samples: range
    path: Path
    name: str
    merged: tuple[Path, ...]
    states: tuple[tuple[int, int], ...]

    @staticmethod
    def of(source: Source, starts: NDArray[np.int64], number: int, name: str) -> "AdoptTask":
        """Return the task of file `number` of a source, with the `starts` of its `adoption`."""
        samples = range(*starts[number : number + 2].tolist())
        path, merged = source.files[number], tuple(merged_with(source, number))
        return AdoptTask(number, samples, path, name, merged, tuple(map(state_of, (path, *merged))))

    @property
    def count(self) -> int:
        return len(self.samples)

    def check(self) -> None:
        """Raise SourceError for a file that has changed since the work began."""
        for path, state in zip((self.path, *self.merged), self.states, strict=True):
            if (now := state_of(path)) != state:
                raise SourceError(f"{printable(path)} changed while it was indexed: from {state} to {now}")


def adopt(
    source: Source,
    out: str | Path,
    *,
    strict: bool = False,
    masks: Collection[str] = (),
    checksums: bool = False,
    **options: Any,
) -> WrittenDataset:
    """Make a dataset at `out` of the files of `source`, which are neither moved nor changed.

    Reads all samples once, for their checksums. If `out` is the files' own directory, the index is written there;
    otherwise `out` holds symbolic links to the files. The files must not be changed afterwards.

    Args:
        source: a source with an `adoption`: `webdataset`, `tfrecord`, `lmdb`, `hdf5` and `zarr` give one for
            uncompressed files.
        out: the dataset's directory.
        strict: see `convert`.
        masks: the fields that are masks.
        checksums: whether to read the samples of Zarr stores, for their checksums; those of other files are always
            read.
        options: those of `PackOptions`.

    Raises SourceError for files that cannot be read in place, BadSample, TooManyBad, ConfigError, OSError.
    """
    adoption = adoption_of(source)
    remarks_of(source, strict=strict)
    manifest.check_metadata(source.metadata)
    final = local_path(out).absolute()
    beside, merged = _is_beside(source.files, final), merged_with(source, 0)
    if beside and merged:
        raise ConfigError(Message("{}: {merge} makes links to the files that are merged: take another OUT", final))
    files = []
    for number, path in enumerate(source.files):
        suffix = path.suffix.lower() if _SUFFIX.fullmatch(path.suffix.lower()) else ""
        name = path.name if beside else f"shard-{number:06d}{suffix}"
        file = AdoptTask.of(source, adoption.starts, number, name)
        if file.samples:
            files.append(file)
    if not files:
        raise SourceError("the files hold no samples")
    if beside:
        _check_indexes(adoption.container, files)
    return pack_adopted(
        FolderOutput(final),
        masked(source, masks),
        files,
        [[file.name, *chain.from_iterable(file.states), file.count] for file in files],
        PackOptions(strict=strict, **options),
        make_shard=partial(adopt_file, None if beside else final),
        beside=beside,
        unchecked=isinstance(adoption, ZarrIndexes) and not checksums,
    )


def pack_adopted(
    out: Output,
    source: Source,
    tasks: Sequence[ShardTask],
    states: Sequence[Any],
    options: PackOptions,
    *,
    check: Callable[[], None] = lambda: None,
    **shared: Any,
) -> WrittenDataset:
    """Make a dataset of files or objects that other programs wrote: write their indexes, and then the manifest.

    Args:
        out, tasks, options, check: see `pack`.
        source: a source with an `adoption`.
        states: what identifies the state of each file or object: after a change the work is not resumed.
        shared: other attributes of `TaskContext`.
    """
    adoption = adoption_of(source)
    skip = options.on_error == "skip"
    context = TaskContext(source, adoption.container, skip=skip, adopted=True, **shared)
    what, known_by, some = "objects", "ETags", dict[str, Any]()
    if isinstance(out, FolderOutput):
        what, known_by = "files", "times"
        some = {} if context.unchecked else {"some samples": fingerprint(source, range(int(adoption.starts[-1])))}
    # The digest of the fields names content, and that of masks is that of images.
    masks = [name for name, field in source.fields.items() if field.role == "mask"]
    plan = {
        "adopted": True,
        "container": adoption.container,
        "names": dict(adoption.names),
        **source.changes,
        **some,
        "fields": checksums.Digest(source.fields).text(),
        what: len(states),
        f"their sizes and {known_by}": xxhash.xxh3_128_hexdigest(repr(states).encode()),
        **({"mask": masks} if masks else {}),
    }
    return pack(out, context, tasks, plan, options, check=check)


def check_plain(place: object, names: Iterable[str], advice: str = "") -> None:
    """Raise ConfigError naming `place` for files or objects that cannot be shards under their names."""
    for name in names:
        if not _PLAIN.fullmatch(name):
            rule = "a shard's name is letters, digits, '_', '-' and '.'"
            raise ConfigError(f"{place}: {rule}, got {name!r}{advice}")


def _is_beside(files: Sequence[Path], out: Path) -> bool:
    """Return whether the files are in the dataset's own directory.

    Raises ConfigError if only some are, and for a file name that no shard can have.
    """
    inside = [path for path in files if path.parent.resolve() == out.resolve()]
    if not inside:
        return False
    if len(inside) < len(files):
        raise ConfigError(f"{out} holds {len(inside)} of {len(files)} files: name all files in it, or another OUT")
    check_plain(out, (path.name for path in files), ": take another OUT")
    return True


def _check_indexes(container: str, files: Sequence[AdoptTask]) -> None:
    """Raise ConfigError for a file of another program under the name of an index or table, which would replace it."""
    kind = containers.get(container)
    for file in files:
        (name,) = kind.companions(file.path.name, adopted=True)
        path = file.path.with_name(name)
        if os.path.lexists(path) and not is_index(path):
            raise ConfigError(f"{path}: not an index that shardio wrote, and it would be replaced: take another OUT")
        table = piece_sums.path_of(file.path)
        if os.path.lexists(table) and not piece_sums.looks_like_one(file.path):
            raise ConfigError(f"{table}: not a table that shardio wrote, and it would be replaced: take another OUT")


def is_index(path: Path) -> bool:
    """Return whether a file called as an index is one."""
    shard = path.with_name(path.name.removesuffix(side_index.SUFFIX))
    with contextlib.suppress(ShardCorrupt):
        if CHECKSUM in (side_index.load(shard).dtype.names or ()):
            return True
    return array_index.is_index(shard)


def write_index(
    source: Source, file: AdoptTask, folder: Directory, *, skip: bool, advance: Advance, unchecked: bool = False
) -> Record:
    """Write the index of a file to a folder: `containers.side_index`, or `array_index` for HDF5 files and Zarr stores.
    With `unchecked`, no sample of a store is read.

    Returns:
        The file's record, without the size and checksum of the shard (`summed` adds them); a file without samples gets
        no index.

    Raises SourceError or BadSample if the file cannot be read in place, or has changed since the work began.
    """
    columns: Any
    adoption = adoption_of(source)
    if isinstance(adoption, Places):
        columns, second, skipped, counts = _index_of_places(source, adoption, file, skip, advance)
        write = partial(side_index.write, folder, file.name, columns, second)
    elif isinstance(adoption, ZarrIndexes):
        index, skipped = _index_of_zarr(source, adoption, file, unchecked, skip, advance)
        columns, counts, write = index.columns, Counter(), partial(zarr_index.write, folder, file.name, index)
    else:
        layout, columns, skipped = _index_of_hdf5(source, adoption, file, skip, advance)
        counts, write = Counter(), partial(hdf5_index.write, folder, file.name, layout, columns)
    file.check()
    sums = np.empty(0, np.uint64) if unchecked else columns[CHECKSUM]
    samples = file.count if unchecked else len(sums)
    if not samples:
        return Record(NO_SHARD, tuple(skipped))
    write()
    images = (name for name, field in source.fields.items() if field.kind == "image")
    shapes = {name: common_shape(columns[shape_column(name)]) for name in images}
    return Record(WrittenShard(file.name, samples, 0, "", sums, shapes), tuple(skipped), counts)


def rebuild_index(source: Any, number: int, name: str, folder: Directory) -> None:
    """Write the index of one adopted file anew, without its bad samples.

    Args:
        source: a source with an `adoption` and the dataset's fields.
        number: the number of the file in it.
        name: the file's name in the dataset.
        folder: the dataset's directory.

    Raises SourceError or BadSample if the file cannot be read in place, ShardCorrupt if no sample is left.
    """
    file = AdoptTask.of(source, adoption_of(source).starts, number, name)
    if not write_index(source, file, folder, skip=True, advance=lambda count: None).shard.samples:
        raise ShardCorrupt(f"{file.path}: no complete sample is left")


def adopt_file(
    links_from: Path | None, context: TaskContext, file: AdoptTask, folder: Directory, advance: Advance
) -> Record:
    """Write the index of a file and, unless `links_from` is None, a link to the file; return the record."""
    unchecked = context.unchecked
    record = write_index(context.source, file, folder, skip=context.skip, advance=advance, unchecked=unchecked)
    if not record.shard.samples:
        return record
    if links_from is not None:
        out = Path(os.path.realpath(links_from))  # a relative link is resolved from the directory's real path
        names = (file.name, *(merged_name(file.name, n) for n in range(1, len(file.merged) + 1)))
        for name, path in zip(names, (file.path, *file.merged), strict=True):
            near = out.parent in path.absolute().parents  # both are likely to be moved together
            folder.unlink(name)
            # Relative to the link's final directory, not to the one in which it is created.
            folder.link(name, os.path.relpath(path, out) if near else path.absolute())
    return summed(record, context.container, file, folder)


def summed(record: Record, container: str, file: AdoptTask, folder: Directory) -> Record:
    """Write the checksums of the pieces of a file and its index to `folder`; return the whole record."""
    files = containers.get(container).files(folder.path / file.name)
    data = (file.path, *file.merged) if len(files) > 1 else ()  # a Zarr store has many more, which its index names
    index = files[len(data) :]  # links lead somewhere only from where they will be
    size, checksum, table = piece_sums.of_files([*data, *index])
    folder.write(piece_sums.path_of(Path(file.name)).name, table)
    return replace(record, shard=replace(record.shard, bytes=size, checksum=checksum))


def _index_of_places(
    source: Source, adoption: Places, file: AdoptTask, skip: bool, advance: Advance
) -> tuple[NDArray[Any], bytearray, list[Skipped], Counter[str]]:
    """Return the side index of a file and its second array, the samples left out, and counts of its images."""
    index, second = np.zeros(len(file.samples), side_index.dtype_of(with_hidden(source.fields))), bytearray()
    skipped: list[Skipped] = []
    counts: Counter[str] = Counter()
    row = 0
    with open(file.path, "rb", buffering=0, opener=open_regular) as data:
        for number in file.samples:
            try:
                described = _describe(source, adoption, number, data.fileno(), index[row : row + 1], second)
                image_counts.count(described, source.fields, counts)
                video_notes.count(described, source.fields, counts)
                row += 1
            except BadSample as error:
                if not skip:
                    raise
                skipped.append(Skipped(number, str(error)))
            advance(1)
    return index[:row], second, skipped, counts


def _describe(
    source: Source, adoption: Places, number: int, descriptor: int, row: NDArray[Any], second: bytearray
) -> Encoded:
    """Fill one row of the index and add to its second array; return the sample.

    Raises BadSample if a value is not in the file as shardio would store it.
    """
    sample, places = source[number], adoption.at(number)
    row[...] = np.zeros((), row.dtype)  # a bad sample before may have left its places
    values: dict[str, Buffer | None] = {}
    for name, field in source.fields.items():
        value = sample[name]
        if field.optional and is_missing(value):
            values[name] = None
        elif isinstance(value, Missing):
            raise BadSample("{}; {} lets samples lack it", value.reason, Option("optional", [name]))
        elif field.kind == "scalar":
            values[name] = field.encode(value)
        else:
            offset, size = places[name]
            values[name] = raw = os.pread(descriptor, size, offset)
            _check(field, name, number, raw, value)
            row[f"{name}.offset"], row[f"{name}.size"] = offset, size
    try:
        encoded = described(values, source.fields)
    except BadSample as error:
        raise BadSample("sample {}, {}", number, error) from error
    side_index.fill(row, encoded.stored, second)
    return encoded


def _check(field: Field, name: str, number: int, raw: bytes, value: Any) -> None:
    """Raise BadSample unless the bytes `raw` in the file are `value` as shardio would store it."""
    if odd_fields := find_odd_shape({name: value}, {name: field}):
        odd = BadSample(
            "sample {}, field {!r}: expected shape {}, got {}; shapes may differ if you convert the file with {}",
            number,
            name,
            field.shape,
            value.shape,
            Option("ragged", ",".join(odd_fields)),
        )
        odd.storable = True
        raise odd
    if not _stores(field, raw, value):
        raise BadSample(
            f"sample {number}, field {name!r}: the file does not hold it as shardio stores it: convert the file"
        )


def _stores(field: Field, raw: Any, value: Any) -> bool:
    """Return whether the bytes `raw` decode to `value`."""
    if field.encode(value) == raw:
        return True
    try:
        decoded = field.decode(raw)
    except (ShardioError, ValueError):
        return False
    if field.kind == "array":  # by bytes: NaN is not equal to itself
        same_form = decoded.dtype == value.dtype and decoded.shape == value.shape
        return bool(same_form and decoded.tobytes() == value.tobytes())
    return bool(decoded == value)


def _index_of_hdf5(
    source: Source, adoption: Hdf5Names, file: AdoptTask, skip: bool, advance: Advance
) -> tuple[hdf5_index.Layout, dict[str, NDArray[Any]], list[Skipped]]:
    """Read an HDF5 file for its index; with `skip`, rows that cannot be read are left out and named.

    Returns:
        Where the fields are, the scalars and hidden columns, and the samples that were left out.
    """
    scalars = {name: _scalars(source, file, name) for name, field in source.fields.items() if field.kind == "scalar"}
    names = {name: path for name, path in adoption.names.items() if name not in scalars}
    fields = {name: field for name, field in source.fields.items() if name not in scalars}
    packing = {name: value for name, value in adoption.packing(file.number).items() if name in names}
    in_file = {name: value for name, value in adoption.in_file.items() if name in names}
    layout = hdf5_index.Layout(names, packing, in_file)
    try:
        reader = hdf5.Hdf5Reader(file.path, fields, layout, file.merged)
    except ShardCorrupt as error:
        raise SourceError(f"{file.path} cannot be read in place: {error}; convert it") from error
    with contextlib.closing(reader):
        if names and len(reader) != file.count:
            raise SourceError(f"{file.path}: {len(reader)} samples, the converter found {file.count}")
        rows, columns, skipped = _read_all(file, reader, scalars, fields, skip, advance)
        if len(rows):
            _check_row(source, file, reader, fields, rows[:1])
    return layout, columns, skipped


def _index_of_zarr(
    source: Source, adoption: ZarrIndexes, file: AdoptTask, unchecked: bool, skip: bool, advance: Advance
) -> tuple[zarr_index.ZarrIndex, list[Skipped]]:
    """Return the index of a Zarr store; reads its samples, as those of HDF5 files, unless `unchecked`."""
    index: zarr_index.ZarrIndex = adoption.index(file.number)
    if unchecked:
        advance(file.count)
        return index, []
    with contextlib.closing(ZarrReader(file.path, source.fields, index, file.merged)) as reader:
        _, columns, skipped = _read_all(file, reader, {}, source.fields, skip, advance)
    return replace(index, columns=columns), skipped


def _read_all(
    file: AdoptTask,
    reader: Reader,
    scalars: Mapping[str, NDArray[Any]],
    fields: Mapping[str, Field],
    skip: bool,
    advance: Advance,
) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]], list[Skipped]]:
    """Read all rows of a file; with `skip`, row by row where some cannot be read together.

    Returns:
        The samples' rows; scalars, hidden columns, and these rows if others are left out; the samples that are.
    """
    row_bytes = sum(field.row_bytes for field in fields.values() if field.fixed)
    step = max(1, min(BLOCK_SAMPLES, _BLOCK_BYTES // max(1, row_bytes)))
    taken, found, skipped = [np.empty(0, np.int64)], list[dict[str, NDArray[Any]]](), list[Skipped]()
    for start in range(0, file.count, step):
        waiting = [np.arange(start, min(start + step, file.count))]
        while waiting:
            rows = waiting.pop(0)
            try:
                found.append(_hidden(file, reader, scalars, fields, rows))
                taken.append(rows)
            except (BadSample, ShardCorrupt) as error:
                if not skip:
                    raise BadSample(str(error)) from error
                if len(rows) > 1:
                    waiting = [*rows[:, None]]
                else:
                    skipped.append(Skipped(file.samples.start + int(rows[0]), str(error)))
        advance(min(step, file.count - start))
    rows = np.concatenate(taken)
    columns = {name: column[rows] for name, column in scalars.items()}
    columns |= {name: np.concatenate([one[name] for one in found]) for name in (found[0] if found else ())}
    columns.setdefault(CHECKSUM, np.empty(0, np.uint64))
    return rows, columns | ({array_index.ROWS: rows} if skipped else {}), skipped


def _check_row(
    source: Source, file: AdoptTask, reader: hdf5.Hdf5Reader, fields: Mapping[str, Field], row: NDArray[np.int64]
) -> None:
    """Raise SourceError unless shardio reads a row as the converter does."""
    sample = source[file.samples.start + int(row[0])]
    for name, field in fields.items():
        column = reader.read(row, name)
        raw = column[0].tobytes() if isinstance(column, np.ndarray) else column[0]
        if not _stores(field, raw, sample[name]):
            raise SourceError(
                f"{file.path}: the file does not hold field {name!r} as shardio stores it: convert the file"
            )


def _hidden(
    file: AdoptTask,
    reader: Reader,
    scalars: Mapping[str, NDArray[Any]],
    fields: Mapping[str, Field],
    rows: NDArray[np.int64],
) -> dict[str, NDArray[Any]]:
    """Return the hidden columns of some rows: checksums, the lengths of ragged values and the sizes of images."""
    columns: dict[str, Any] = {name: reader.read(rows, name) for name in fields}
    columns |= {name: column[rows] for name, column in scalars.items()}
    hidden: dict[str, NDArray[Any]] = {CHECKSUM: checksums.of_samples(columns, sorted(columns))}
    for name, field in fields.items():
        if field.ragged:
            hidden[length_column(name)] = np.array([len(value) for value in columns[name]]) // field.entry_bytes
    for name in (name for name, field in fields.items() if field.kind == "image"):
        shapes = []
        for row, value in zip(rows.tolist(), columns[name], strict=True):
            try:
                info = fields[name].probe(value)
            except BadSample as error:
                raise BadSample("{}, row {}, field {!r}: {}", file.path, row, name, error) from error
            shapes.append((info.height, info.width))
        hidden[shape_column(name)] = np.array(shapes, np.int32)
    return hidden


def _scalars(source: Source, file: AdoptTask, name: str) -> NDArray[Any]:
    """Return a file's part of the column of a scalar field."""
    column: Any = source.column(name)
    if column is None:
        raise SourceError(f"{file.path}: the field {name!r} cannot be read")
    part: NDArray[Any] = column[file.samples.start : file.samples.stop]
    return part
