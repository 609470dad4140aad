"""Writing a dataset: samples in, shards that roll by size, the manifest last.

A shard is built in a hidden folder beside its place, fsynced and renamed; `shardio.json` follows when all shards stand.
Whatever happens before that, no directory passes for a dataset that is not whole.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import checksums, containers, durable, images, manifest
from .errors import BadSample, ConfigError
from .fields import CHECKSUM, Field, FieldLike, as_fields, infer_fields, shape_column, with_hidden
from .types import Buffer, Sample
from .units import parse_size

DEFAULT_SHARD_SIZE = "64MB"
WORKPLACE = ".writing-"


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard that stands in its place.

    Attributes:
        name, samples, bytes, checksum: as the manifest has them.
        sample_checksums: uint64 [samples].
        image_shapes: for each image field the (height, width) that all its images have, or None.
    """

    name: str
    samples: int
    bytes: int
    checksum: str
    sample_checksums: NDArray[np.uint64]
    image_shapes: Mapping[str, tuple[int, int] | None]


class ShardBuilder:
    """One shard in the making: encodes and checks samples, and puts the finished files in their place.

    Args:
        directory: the dataset's directory, which exists.
        container: `tar`, `hdf5`, `lmdb` or `memory`.
        fields: the samples' fields, without hidden columns.
        number: the shard's number, which names it.
        first: the index of its first sample.
        options: the container's own options.
    """

    def __init__(
        self,
        directory: Path,
        container: str,
        fields: Mapping[str, Field],
        number: int,
        first: int,
        options: Mapping[str, Any],
    ) -> None:
        self.samples = 0
        self.payload = 0
        self._container = containers.get(container)
        self._fields = fields
        self._directory = directory
        self._first = first
        self._name = f"shard-{number:06d}{self._container.suffix}"
        self._workplace = directory / f"{WORKPLACE}{os.getpid()}-{number:06d}"
        self._on_disk = bool(self._container.files(directory / self._name))
        if self._on_disk:
            self._workplace.mkdir()
        path = (self._workplace if self._on_disk else directory) / self._name
        self._writer = self._container.writer(path, with_hidden(fields), first, **options)
        self._checksums: list[int] = []
        self._shapes: dict[str, set[tuple[int, int]]] = {n: set() for n, f in fields.items() if f.kind == "image"}

    def append(self, sample: Sample) -> None:
        """Encodes and adds one sample; BadSample names it and its field. After a BadSample the shard is as before."""
        try:
            encoded = encode(sample, self._fields)
        except BadSample as error:
            key = sample.get("key")
            name = f"sample {self._first + self.samples}" + (f" (key {key})" if isinstance(key, str) else "")
            raise BadSample(f"{name}: {error}") from error
        self._writer.append(encoded.stored)
        self.samples += 1
        self.payload += sum(map(len, encoded.stored.values()))
        self._checksums.append(encoded.checksum)
        for field, shape in encoded.image_shapes.items():
            self._shapes[field].add(shape)

    def finish(self) -> WrittenShard:
        """Closes the shard and renames its files into place."""
        self._writer.close()
        files = self._container.files(self._workplace / self._name) if self._on_disk else ()
        size, checksum = checksums.of_files(files)
        for file in files:
            os.replace(file, self._directory / file.name)
        if self._on_disk:
            self._workplace.rmdir()
        shapes = {name: next(iter(found)) if len(found) == 1 else None for name, found in self._shapes.items()}
        return WrittenShard(self._name, self.samples, size, checksum, np.array(self._checksums, np.uint64), shapes)

    def discard(self) -> None:
        """Removes what was built so far; for after an error."""
        shutil.rmtree(self._workplace, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A sample as it is stored, hidden columns too, its checksum, and the (height, width) of its images."""

    stored: Mapping[str, Buffer]
    checksum: int
    image_shapes: Mapping[str, tuple[int, int]]


def encode(sample: Sample, fields: Mapping[str, Field]) -> Encoded:
    """Checks a sample against `fields` and makes its stored bytes; BadSample names the field and says what is wrong."""
    if sample.keys() != fields.keys():
        raise BadSample(_difference(sample, fields))
    stored: dict[str, Buffer] = {}
    shapes: dict[str, tuple[int, int]] = {}
    for name, field in fields.items():
        try:
            stored[name] = field.encode(sample[name])
            if field.kind == "image":
                info = images.probe(stored[name])
                shapes[name] = (info.height, info.width)
                if field.shape not in (None, shapes[name]):
                    raise BadSample(f"expected an image of {field.shape} (height, width), got {shapes[name]}")
        except BadSample as error:
            raise BadSample(f"field {name!r}: {error}") from error
    checksum = checksums.of_sample(stored, sorted(fields))
    hidden = {shape_column(name): np.array(shape, "<i4").tobytes() for name, shape in shapes.items()}
    return Encoded({**stored, **hidden, CHECKSUM: checksum.to_bytes(8, "little")}, checksum, shapes)


def _difference(sample: Sample, fields: Mapping[str, Field]) -> str:
    missing, extra = sorted(fields.keys() - sample.keys()), sorted(sample.keys() - fields.keys())
    return "; ".join(
        f"{word} {', '.join(names)}" for word, names in (("missing", missing), ("not a field:", extra)) if names
    )


class DatasetWriter:
    """Writes samples one after the other into shards that roll by size. Made by `create`; a context manager.

    Leaving the `with` block normally ends the dataset; leaving it by an exception writes no manifest.
    """

    def __init__(
        self,
        directory: Path,
        container: str,
        fields: Mapping[str, Field] | None,
        shard_size: int,
        metadata: Mapping[str, Any],
        options: Mapping[str, Any],
        shard_samples: int | None = None,
    ) -> None:
        self._directory = directory
        self._container = container
        self._fields = fields
        self._shard_size = shard_size
        self._shard_samples = shard_samples
        self._metadata = dict(metadata)
        self._options = dict(options)
        self._builder: ShardBuilder | None = None
        self._written: list[WrittenShard] = []
        self._closed = False

    def append(self, sample: Sample) -> None:
        """Adds one sample: a mapping of field names to values.

        Raises BadSample if a value does not fit its field (the dataset goes on without it), OSError on a full disk.
        """
        if self._closed:
            raise ConfigError(f"{self._directory}: this writer is closed")
        if self._fields is None:
            self._fields = infer_fields(sample)
        builder = self._builder
        if builder is not None and (builder.payload >= self._shard_size or builder.samples == self._shard_samples):
            self._end_shard(builder)
            builder = None
        if builder is None:
            first = sum(shard.samples for shard in self._written)
            builder = ShardBuilder(
                self._directory, self._container, self._fields, len(self._written), first, self._options
            )
            self._builder = builder
        builder.append(sample)

    def close(self) -> manifest.Manifest | None:
        """Ends the last shard and writes the manifest, which it returns; None if it was closed before."""
        if self._closed:
            return None
        self._closed = True
        if self._builder is not None:
            self._end_shard(self._builder)
        if self._fields is None:
            raise ConfigError(
                f"{self._directory}: no sample was written and no fields= were given: nothing to describe"
            )
        return assemble(self._directory, self._container, self._fields, self._written, self._metadata)

    def _end_shard(self, builder: ShardBuilder) -> None:
        self._builder = None
        try:
            if builder.samples:
                self._written.append(builder.finish())
        finally:
            builder.discard()  # nothing is left to remove unless finish failed or no sample came

    def __enter__(self) -> "DatasetWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        self._closed = True
        if self._builder is not None:
            self._builder.discard()


def create(
    path: str | os.PathLike[str],
    *,
    container: str = "tar",
    fields: Mapping[str, FieldLike] | None = None,
    shard_size: int | str = DEFAULT_SHARD_SIZE,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    **options: Any,
) -> DatasetWriter:
    """Begins a dataset: a writer with `append(sample)` and `close()`, to be used in a `with` block.

    Args:
        path: the dataset's directory; made if it does not exist.
        container: `"tar"`, `"hdf5"` or `"lmdb"`.
        fields: name to Field, or to one of its short forms: a kind (`"image"`), a dtype (`"int64"`), (dtype, shape).
            Without it they are those of the first sample.
        shard_size: a shard ends once it holds this much, in bytes or as `"64MB"`.
        metadata: goes into the manifest; JSON.
        overwrite: replace the dataset, or what was left of one, at `path`.
        options: the container's own; `hdf5` has `compression="gzip"` or `"lzf"`.

    Raises ConfigError for an argument that breaks a rule, and if `path` holds anything already.
    """
    size = parse_size(shard_size, "shard_size")
    checked = None if fields is None else as_fields(fields)
    containers.get(container)
    directory = prepare_directory(path, overwrite=overwrite)
    return DatasetWriter(directory, container, checked, size, metadata or {}, options)


def prepare_directory(path: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """An empty directory at `path`. With `overwrite` a dataset there is removed; files of another kind never are."""
    directory = Path(path)
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory}: not a directory")
    directory.mkdir(parents=True, exist_ok=True)
    found = sorted(directory.iterdir())
    ours = [
        p
        for p in found
        if p.name.startswith(("shard-", WORKPLACE, f".{manifest.FILE_NAME}")) or p.name == manifest.FILE_NAME
    ]
    if found and (not overwrite or len(ours) != len(found)):
        hint = "overwrite replaces it" if len(ours) == len(found) else f"it holds {(set(found) - set(ours)).pop().name}"
        raise ConfigError(f"{directory}: the output directory must be empty; {hint}")
    # The manifest goes first, so that what is half removed passes for nothing.
    for place in sorted(ours, key=lambda p: p.name != manifest.FILE_NAME):
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    return directory


def assemble(
    directory: Path,
    container: str,
    fields: Mapping[str, Field],
    written: Iterable[WrittenShard],
    metadata: Mapping[str, Any],
) -> manifest.Manifest:
    """Makes one dataset of shards that stand in `directory`: the digest, the images' common shapes, the manifest."""
    shards = list(written)
    digest = checksums.Digest(fields)
    for shard in shards:
        digest.update(shard.sample_checksums)
    described = dict(fields)
    for name, field in fields.items():
        if field.kind == "image":
            found = {shard.image_shapes[name] for shard in shards if shard.samples}
            described[name] = replace(field, shape=found.pop() if len(found) == 1 else None)
    made = manifest.Manifest(
        container,
        described,
        manifest.Shards(
            tuple(shard.name for shard in shards),
            np.array([shard.samples for shard in shards], np.int64),
            np.array([shard.bytes for shard in shards], np.int64),
            tuple(shard.checksum for shard in shards),
        ),
        digest.text(),
        metadata,
    )
    if containers.get(container).files(directory / "shard"):
        durable.sync_directory(directory)
        manifest.save(made, directory)
    return made
