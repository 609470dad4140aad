"""Adoption: make a dataset of files that other programs wrote, in place, by writing an index and copying nothing."""

import contextlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from .. import containers
from ..containers import hdf5, hdf5_index, piece_sums, side_index
from ..errors import BadSample, ConfigError, Option, ShardCorrupt, ShardioError, SourceError
from ..foreign.names import printable
from ..format import checksums, images, manifest
from ..format.fields import CHECKSUM, Field, Missing, is_missing, present_column, shape_column, with_hidden
from ..output.folder import FolderOutput
from ..output.records import Record, Skipped
from ..output.shard_writer import WrittenShard
from ..system.directory import Directory
from ..system.local_path import local_path
from ..system.regular_files import open_regular
from .masks import masked, plan_of
from .notes import remarks_of
from .pack import PackOptions, WrittenDataset, pack
from .planning import fingerprint
from .source import Adoptable, HasNames, HasPacking, HasPlaces, state_of
from .tasks import BLOCK_SAMPLES, NO_SHARD, Advance, TaskContext, of_odd_shape

_BLOCK_BYTES = 32 << 20
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class AdoptTask:
    """A file to adopt.

    Attributes:
        number: the shard's number.
        samples: its samples' numbers in the source.
        path: the file.
        name: the file's name in the dataset.
        state: its size and modification time when the work began.
    """

    number: int
    samples: range
    path: Path
    name: str
    state: tuple[int, int]

    @property
    def count(self) -> int:
        return len(self.samples)

    def check_unchanged(self) -> None:
        """Raise SourceError if the file has changed since the work began."""
        if (now := state_of(self.path)) != self.state:
            raise SourceError(f"{printable(self.path)} changed while it was indexed: from {self.state} to {now}")


def adopt(
    source: Any, out: str | Path, *, strict: bool = False, masks: Collection[str] = (), **options: Any
) -> WrittenDataset:
    """Make a dataset at `out` of the files of `source`, which are neither moved nor changed.

    All samples are read once, for their checksums. If `out` is the files' own directory, the index is written beside
    them; otherwise `out` holds symbolic links to them. The files must not be changed afterwards.

    Args:
        source: an `Adoptable` source: `webdataset`, `tfrecord`, `lmdb` and `hdf5` give one for uncompressed files.
        out: the dataset's directory.
        strict: see `convert`.
        masks: the fields that are masks.
        options: those of `PackOptions`.

    Raises SourceError for files that cannot be read in place, BadSample, TooManyBad, ConfigError, OSError.
    """
    work = PackOptions(**options)
    if not isinstance(source, (HasPlaces, HasNames)):
        raise SourceError(f"{type(source).__name__} has no files that can be read in place: convert it")
    remarks_of(source, strict=strict)
    manifest.check_metadata(source.metadata)
    final = local_path(out).absolute()
    beside = _is_beside(source.files, final)
    make_shard = _index_places if isinstance(source, HasPlaces) else _index_hdf5
    context = TaskContext(
        masked(source, masks),
        source.container,
        skip=work.on_error == "skip",
        make_shard=partial(make_shard, None if beside else final),
        adopted=True,
        beside=beside,
    )
    files = []
    for number, (path, start) in enumerate(zip(source.files, source.starts[:-1].tolist(), strict=True)):
        samples = range(start, int(source.starts[number + 1]))
        name = path.name if beside else f"shard-{number:06d}{_suffix(path)}"
        if samples:
            files.append(AdoptTask(number, samples, path, name, state_of(path)))
    if not files:
        raise SourceError("the files hold no samples")
    if beside:
        _check_indexes(source.container, files)
    return pack(FolderOutput(final), context, files, _plan(source, files) | plan_of(context.source.fields), work)


def _plan(source: Adoptable, files: Sequence[AdoptTask]) -> dict[str, Any]:
    # Includes the files' sizes and times, so that a job is not resumed with files that have changed.
    states = [[file.name, *file.state, file.count] for file in files]
    return {
        "adopted": True,
        "container": source.container,
        "names": dict(source.names) if isinstance(source, HasNames) else {},
        **({"decode_cf": True} if isinstance(source, HasPacking) and source.decode_cf else {}),
        "some samples": fingerprint(source, range(int(source.starts[-1]))),
        "fields": checksums.Digest(source.fields).text(),
        "files": len(files),
        "their sizes and times": xxhash.xxh3_128_hexdigest(repr(states).encode()),
    }


def _is_beside(files: Sequence[Path], out: Path) -> bool:
    """Return whether the files are in the dataset's own directory.

    Raises ConfigError if only some are, and for a file name that no shard can have.
    """
    inside = [path for path in files if path.parent.resolve() == out.resolve()]
    if not inside:
        return False
    if len(inside) < len(files):
        raise ConfigError(f"{out} holds {len(inside)} of {len(files)} files: name all files in it, or another OUT")
    for path in files:
        if not PLAIN.fullmatch(path.name):
            rule = "a shard's name is letters, digits, '_', '-' and '.'"
            raise ConfigError(f"{out}: {rule}, got {path.name!r}: take another OUT")
    return True


def _check_indexes(container: str, files: Sequence[AdoptTask]) -> None:
    """Raise ConfigError if an array that is no side index lies where one belongs: it would be replaced."""
    for path in (path for file in files for path in containers.get(container).files(file.path)[1:]):
        if path.name.endswith(side_index.SUFFIX) and os.path.lexists(path) and not is_index(path):
            raise ConfigError(f"{path}: not an index that shardio wrote, and it would be replaced: take another OUT")
    for file in files:
        table = piece_sums.path_of(file.path)
        if os.path.lexists(table) and not piece_sums.looks_like_one(file.path):
            raise ConfigError(f"{table}: not a table that shardio wrote, and it would be replaced: take another OUT")


def is_index(path: Path) -> bool:
    """Return whether a file called as a side index is one."""
    try:
        index = side_index.load(path.with_name(path.name.removesuffix(side_index.SUFFIX)))
    except ShardCorrupt:
        return False
    return CHECKSUM in (index.dtype.names or ())


def _suffix(path: Path) -> str:
    """Return the file's suffix in lower case, "" if it is not made of letters and digits."""
    return path.suffix.lower() if re.fullmatch(r"\.[a-z0-9]+", path.suffix.lower()) else ""


def rebuild_index(source: Any, number: int, name: str, folder: Directory) -> None:
    """Write the index of one adopted file anew, without its bad samples.

    Args:
        source: an `Adoptable` source with the dataset's fields.
        number: the number of the file in it.
        name: the file's name in the dataset.
        folder: the dataset's directory.

    Raises SourceError or BadSample if the file cannot be read in place, ShardCorrupt if no sample is left.
    """
    path, (start, stop) = source.files[number], source.starts[number : number + 2].tolist()
    file = AdoptTask(number, range(start, stop), path, name, state_of(path))
    if not isinstance(source, HasPlaces):
        found = _hdf5_columns(source, file, True, lambda count: None)
        if not len(found.columns[CHECKSUM]):
            raise ShardCorrupt(f"{path}: no complete sample is left")
        hdf5_index.write(folder, name, found.names, found.columns, found.packing)
        return
    index, _, _ = index_of_places(source, file, True, lambda count: None)
    if not len(index):
        raise ShardCorrupt(f"{path}: no complete sample is left")
    side_index.write(folder, name, index)


def _index_places(
    links_from: Path | None, context: TaskContext, file: AdoptTask, folder: Directory, advance: Advance
) -> Record:
    """Write the index of a file whose values are contiguous in it, see `containers.side_index`; return the record."""
    source: Any = context.source
    index, skipped, rotated = index_of_places(source, file, context.skip, advance)
    if not len(index):
        return Record(NO_SHARD, skipped)
    _link(links_from, file, folder)
    side_index.write(folder, file.name, index)
    shapes = {name: index[shape_column(name)] for name, field in source.fields.items() if field.kind == "image"}
    return Record(write_sums(context.container, file, folder, index[CHECKSUM], shapes), skipped, rotated)


def index_of_places(
    source: Any, file: AdoptTask, skip: bool, advance: Advance
) -> tuple[NDArray[Any], tuple[Skipped, ...], int]:
    """Return the side index of a file, the samples that were left out, and the number of images that a tag rotates."""
    index = np.zeros(len(file.samples), side_index.dtype_of(with_hidden(source.fields)))
    skipped: list[Skipped] = []
    row = rotated = 0
    with open(file.path, "rb", buffering=0, opener=open_regular) as data:
        for number in file.samples:
            try:
                rotated += _describe(source, number, data.fileno(), index[row : row + 1])
                row += 1
            except BadSample as error:
                if not skip:
                    raise
                skipped.append(Skipped(number, str(error)))
            advance(1)
    file.check_unchanged()
    return index[:row], tuple(skipped), rotated


def _describe(source: Any, number: int, descriptor: int, row: NDArray[Any]) -> int:
    """Fill one row of the index; return the number of images that an EXIF tag rotates or mirrors.

    Raises BadSample if a value is not in the file as shardio would store it.
    """
    sample, places = source[number], source.places(number)
    rotated = 0
    stored: dict[str, Any] = {}
    for name, field in source.fields.items():
        value = sample[name]
        if lacks := field.optional and is_missing(value):
            stored[name] = field.blank
        if field.optional:
            row[present_column(name)] = not lacks
            stored[present_column(name)] = b"\0" if lacks else b"\1"
        if lacks:
            continue
        if isinstance(value, Missing):
            raise BadSample("{}; {} lets samples lack it", value.reason, Option("optional", [name]))
        if field.kind == "scalar":
            stored[name] = field.encode(value)
            row[name] = np.frombuffer(stored[name], field.row_dtype)[0]
            continue
        offset, size = places[name]
        stored[name] = os.pread(descriptor, size, offset)
        _check(field, name, number, stored[name], value)
        row[f"{name}.offset"], row[f"{name}.size"] = offset, size
        if field.kind == "image":
            try:
                info = field.probe(stored[name])
            except BadSample as error:
                raise BadSample("sample {}, field {!r}: {}", number, name, error) from error
            row[shape_column(name)] = info.height, info.width
            rotated += images.orientation(stored[name]) != 1
    row[CHECKSUM] = checksums.of_sample(stored, sorted(stored))
    return rotated


def _check(field: Field, name: str, number: int, raw: bytes, value: Any) -> None:
    """Raise BadSample unless the bytes `raw` in the file are `value` as shardio would store it."""
    if of_odd_shape({name: value}, {name: field}):
        odd = BadSample(
            "sample {}, field {!r}: expected shape {}, got {}; shapes may differ if you convert the file with {}",
            number,
            name,
            field.shape,
            value.shape,
            Option("ragged", name),
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


@dataclass(frozen=True, slots=True)
class _Hdf5Index:
    """What the index of an HDF5 file says.

    Attributes:
        names: the paths of the datasets of its fields.
        packing: the attributes by which those of them are decoded that are.
        columns: scalars and hidden columns.
        sizes: the sizes of its images, int32 [samples, 2] by field.
        skipped: the samples that were left out.
    """

    names: Mapping[str, str]
    packing: hdf5_index.Packing
    columns: Mapping[str, NDArray[Any]]
    sizes: Mapping[str, NDArray[np.int32]]
    skipped: tuple[Skipped, ...]


def _index_hdf5(
    links_from: Path | None, context: TaskContext, file: AdoptTask, folder: Directory, advance: Advance
) -> Record:
    """Write the index of an HDF5 file (its datasets' names as fields, scalars, hidden columns); return the record."""
    found = _hdf5_columns(context.source, file, context.skip, advance)
    if not len(found.columns[CHECKSUM]):
        return Record(NO_SHARD, found.skipped)
    _link(links_from, file, folder)
    hdf5_index.write(folder, file.name, found.names, found.columns, found.packing)
    return Record(write_sums(context.container, file, folder, found.columns[CHECKSUM], found.sizes), found.skipped)


def _hdf5_columns(source: Any, file: AdoptTask, skip: bool, advance: Advance) -> _Hdf5Index:
    """Read an HDF5 file for its index; with `skip`, rows that cannot be read are left out and named."""
    scalars = {name: _scalars(source, file, name) for name, field in source.fields.items() if field.kind == "scalar"}
    names = {name: path for name, path in source.names.items() if name not in scalars}
    fields = {name: source.fields[name] for name in names}
    packing = source.packing(file.number) if isinstance(source, HasPacking) else hdf5_index.NOT_PACKED
    packing = {name: attributes for name, attributes in packing.items() if name in names}
    try:
        reader = hdf5.Hdf5Reader(file.path, fields, names, packing)
    except ShardCorrupt as error:
        raise SourceError(f"{file.path} cannot be read in place: {error}; convert it") from error
    with contextlib.closing(reader):
        if names and len(reader) != file.count:
            raise SourceError(f"{file.path}: {len(reader)} samples, the converter found {file.count}")
        table = _Hdf5Rows(source, file, reader, scalars, fields)
        row_bytes = sum(field.row_bytes for field in fields.values() if field.fixed)
        step = max(1, min(BLOCK_SAMPLES, _BLOCK_BYTES // max(1, row_bytes)))
        for start in range(0, file.count, step):
            rows, first = np.arange(start, min(start + step, file.count)), not table.described
            table.describe(rows, skip)
            if first and table.described:
                table.check(table.described[0][0][:1])
            advance(len(rows))
    file.check_unchanged()
    return table.index(names, packing)


@final
class _Hdf5Rows:
    """The rows of an HDF5 file while its index is made.

    Args:
        source: the source that the file belongs to.
        file: the file.
        reader: reads `fields` in it.
        scalars: the columns of the other fields.
        fields: the fields that stay in the file.

    Attributes:
        described: blocks of rows that are whole, each with its hidden columns.
        skipped: the samples that are not.
    """

    def __init__(
        self,
        source: Any,
        file: AdoptTask,
        reader: hdf5.Hdf5Reader,
        scalars: Mapping[str, NDArray[Any]],
        fields: Mapping[str, Field],
    ) -> None:
        self._source, self._file, self._reader, self._scalars, self._fields = source, file, reader, scalars, fields
        self.described: list[tuple[NDArray[np.int64], dict[str, NDArray[Any]]]] = []
        self.skipped: list[Skipped] = []

    def describe(self, rows: NDArray[np.int64], skip: bool) -> None:
        """Find the hidden columns of some rows; with `skip`, row by row if they cannot be read together."""
        try:
            self.described.append((rows, self._hidden(rows)))
        except (BadSample, ShardCorrupt) as error:
            if not skip:
                raise BadSample(str(error)) from error
            if len(rows) == 1:
                self.skipped.append(Skipped(self._file.samples.start + int(rows[0]), str(error)))
                return
            for row in rows[:, None]:
                self.describe(row, skip)

    def check(self, row: NDArray[np.int64]) -> None:
        """Raise SourceError unless shardio reads the row as the converter does."""
        sample = self._source[self._file.samples.start + int(row[0])]
        for name in self._fields:
            column = self._reader.read(row, name)
            raw = column[0].tobytes() if isinstance(column, np.ndarray) else column[0]
            if not _stores(self._source.fields[name], raw, sample[name]):
                raise SourceError(
                    f"{self._file.path}: the file does not hold field {name!r} as shardio stores it: convert the file"
                )

    def index(self, names: Mapping[str, str], packing: hdf5_index.Packing) -> _Hdf5Index:
        """Return the index of the rows that were described; `names` are the paths of the fields."""
        if not self.described:
            return _Hdf5Index(names, packing, {CHECKSUM: np.empty(0, np.uint64)}, {}, tuple(self.skipped))
        taken = np.concatenate([rows for rows, _ in self.described])
        hidden = {
            name: np.concatenate([columns[name] for _, columns in self.described]) for name in self.described[0][1]
        }
        sizes = {name: hidden[shape_column(name)] for name, field in self._fields.items() if field.kind == "image"}
        left_out = {hdf5_index.ROWS: taken} if self.skipped else {}
        columns = {name: column[taken] for name, column in self._scalars.items()} | hidden | left_out
        return _Hdf5Index(names, packing, columns, sizes, tuple(self.skipped))

    def _hidden(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the hidden columns of some rows: checksums and the sizes of images."""
        columns: dict[str, Any] = {name: self._reader.read(rows, name) for name in self._fields}
        columns |= {name: column[rows] for name, column in self._scalars.items()}
        hidden: dict[str, NDArray[Any]] = {CHECKSUM: checksums.of_samples(columns, sorted(columns))}
        for name in (name for name, field in self._fields.items() if field.kind == "image"):
            field, numbered = self._fields[name], zip(rows.tolist(), columns[name], strict=True)
            shapes = [_image_shape(self._file, name, field, *pair) for pair in numbered]
            hidden[shape_column(name)] = np.array(shapes, np.int32)
        return hidden


def _scalars(source: Any, file: AdoptTask, name: str) -> NDArray[Any]:
    """Return a file's part of the column of a scalar field."""
    column: NDArray[Any] | None = source.column(name)
    if column is None:
        raise SourceError(f"{file.path}: the field {name!r} cannot be read")
    return column[file.samples.start : file.samples.stop]


def _image_shape(file: AdoptTask, name: str, field: Field, row: int, value: bytes) -> tuple[int, int]:
    try:
        info = field.probe(value)
    except BadSample as error:
        raise BadSample("{}, row {}, field {!r}: {}", file.path, row, name, error) from error
    return info.height, info.width


def _link(links_from: Path | None, file: AdoptTask, folder: Directory) -> None:
    """Create a link to the file among the shards, with a relative path if both are likely to be moved together.

    Args:
        links_from: the dataset's directory; None if the file is in it.
        file: the file.
        folder: the folder of the shards until all are finished.
    """
    if links_from is None:
        return
    out = Path(os.path.realpath(links_from))  # a relative link is resolved from the directory's real path
    near = out.parent in file.path.absolute().parents
    folder.unlink(file.name)
    # Relative to the link's final directory, not to the one in which it is created.
    folder.link(file.name, os.path.relpath(file.path, out) if near else file.path.absolute())


def write_sums(
    container: str,
    file: AdoptTask,
    folder: Directory,
    sample_checksums: NDArray[np.uint64],
    shapes: Mapping[str, NDArray[np.int32]],
) -> WrittenShard:
    """Write the checksums of the pieces of a file and its index to `folder`; return their entry in the manifest.

    Args:
        container: the container of the file.
        file: the file.
        folder: the folder that its index is in.
        sample_checksums: the checksum of each sample, uint64 [samples].
        shapes: for each image field the height and width of each image, int32 [samples, 2].
    """
    _, *index = containers.get(container).files(folder.path / file.name)
    size, checksum, table = piece_sums.of_files([file.path, *index])
    folder.write(piece_sums.path_of(Path(file.name)).name, table)
    # A sample that lacks an image has (0, 0), which says nothing about the others.
    distinct = {name: np.unique(column[column.any(axis=1)], axis=0) for name, column in shapes.items()}
    common = {name: (int(rows[0][0]), int(rows[0][1])) if len(rows) == 1 else None for name, rows in distinct.items()}
    return WrittenShard(file.name, len(sample_checksums), size, checksum, sample_checksums, common)
