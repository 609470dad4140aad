"""The writer of a dataset: it writes samples into shards that roll by size, and the manifest last.

Shards are built in a hidden folder, fsynced, and renamed into place once all of them are complete; `shardio.json`
follows. Whatever interrupts this, an incomplete directory never passes for a dataset.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from .. import containers
from ..containers import piece_sums
from ..errors import BadSample, ConfigError, ShardioError
from ..format import checksums, manifest
from ..format.fields import Field, FieldLike, as_fields, infer_fields
from ..format.pieces import PIECE
from ..format.shard_table import ShardTable, TextColumn
from ..stores import open_store
from ..stores.url import as_url
from ..system.types import Sample
from ..system.units import parse_size
from .output_directory import OutputDirectory, prepare
from .shard_writer import ShardWriter, WrittenShard
from .store_output import StoreOutput, StorePlace

DEFAULT_SHARD_SIZE = "64MB"


class DatasetWriter:
    """Writes samples, one after the other, into shards that roll by size. `create` returns it for a `with` block.

    Leaving the `with` block normally completes the dataset; leaving it by an exception writes no manifest.
    """

    def __init__(
        self,
        place: OutputDirectory | StorePlace,
        container: str,
        *,
        fields: Mapping[str, Field] | None,
        shard_size: int,
        metadata: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        self._place = place
        self._container = container
        self._fields = fields
        self._shard_size = shard_size
        self._metadata = dict(metadata)
        self._options = dict(options)
        self._builder: ShardWriter | None = None
        self._written: list[WrittenShard] = []
        self._closed = self._failed = False

    def append(self, sample: Sample) -> None:
        """Append one sample: a mapping of field names to values.

        Raises BadSample if a value does not fit its field (you may continue without the sample), OSError if the disk
        is full.
        """
        if self._closed:
            raise ConfigError(f"{self._place.path}: this writer is closed")
        if self._fields is None:
            self._fields = infer_fields(sample)
        builder = self._builder
        if builder is not None and builder.payload >= self._shard_size:
            try:
                self._end_shard(builder)
            except BaseException:  # its samples are lost, so no later call may complete the dataset
                self._abandon()
                raise
            builder = None
        if builder is None:
            first = sum(shard.samples for shard in self._written)
            builder = ShardWriter(
                self._place.directory, self._container, self._fields, len(self._written), first, self._options
            )
            self._builder = builder
        try:
            builder.append(sample)
        except BadSample:
            raise
        except BaseException:  # such as a full disk or an interrupt: the shard may be incomplete
            self._abandon()
            raise

    def _abandon(self) -> None:
        self._failed = self._closed = True
        if self._builder is not None:
            self._builder.discard()
        self._place.discard()

    def close(self) -> manifest.Manifest | None:
        """Complete the last shard, write the manifest and return it; None if the writer is closed already."""
        if self._failed:
            raise ShardioError(f"{self._place.path}: an earlier write failed; there is no dataset to complete")
        if self._closed:
            return None
        self._closed = True
        try:
            return self._finish()
        except BaseException:
            self._abandon()
            raise

    def _finish(self) -> manifest.Manifest:
        if self._builder is not None:
            self._end_shard(self._builder)
        if self._fields is None:
            raise ConfigError(f"{self._place.path}: no sample was written, so fields= must be given")
        completed = describe(self._container, self._fields, self._written, self._metadata, has_sums=True)
        if isinstance(self._place, StorePlace):
            self._place.finish(completed)
        else:
            finish_dataset(self._place, completed)
        self._place.discard()
        return completed

    def _end_shard(self, builder: ShardWriter) -> None:
        self._builder = None
        try:
            if builder.samples:
                self._written.append(self._place.keep(builder.finish()))
        finally:
            builder.discard()  # removes files only if finish failed or the shard is empty

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif not self._closed:
            self._abandon()


def create(
    path: str | os.PathLike[str],
    *,
    container: str = "tar",
    fields: Mapping[str, FieldLike] | None = None,
    shard_size: int | str = DEFAULT_SHARD_SIZE,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    store_options: Mapping[str, str] | None = None,
    **options: Any,
) -> DatasetWriter:
    """Create a dataset and return its writer, with `append(sample)` and `close()`; use it in a `with` block.

    Args:
        path: the dataset's directory; created if it does not exist. Or its URL, such as `s3://bucket/photos`, to which
            each shard is uploaded once it is finished.
        container: `"tar"`, `"hdf5"` or `"lmdb"`.
        fields: by name a Field, or a short form of one: a kind (`"image"`), a dtype (`"int64"`, `np.float32`), or
            (dtype, shape) such as `("float32", (4, 64, 64, 64))`. None infers the fields from the first sample.
        shard_size: the size at which a shard ends, in bytes or as text such as `"64MB"`.
        metadata: JSON values that the manifest keeps.
        overwrite: replace the dataset, or the remains of one, at `path`; it stays until the new one is complete.
        store_options: for a URL: options of its store, see `shardio.open`.
        options: options of the container; `hdf5` has `compression="gzip"`, `"lzf"` or `"zstd"`.

    Raises ConfigError for an argument that breaks a rule, or if `path` is not empty or, if it is a URL, has a dataset.
    Closing the writer raises ObjectChanged if another one has made a dataset at the same URL meanwhile.
    """
    size = parse_size(shard_size, "shard_size")
    checked = None if fields is None else as_fields(fields)
    on_disk(container)
    manifest.check_metadata(metadata or {})
    return DatasetWriter(
        _prepare(path, store_options, overwrite=overwrite),
        container,
        fields=checked,
        shard_size=size,
        metadata=metadata or {},
        options=options,
    )


def _prepare(
    path: str | os.PathLike[str], store_options: Mapping[str, str] | None, *, overwrite: bool
) -> OutputDirectory | StorePlace:
    if (url := as_url(path)) is not None:
        return StorePlace(StoreOutput(url, open_store(url, store_options or {})), overwrite=overwrite)
    if store_options is not None:
        raise ConfigError("{store_options} are for URLs, and {!r} is a local path", os.fspath(path))
    return prepare(path, overwrite=overwrite)


def on_disk(container: str) -> None:
    """Raise ConfigError unless `container` writes files."""
    kind = containers.get(container)
    if container not in containers.names():
        what = "only reads files that other programs wrote: see shardio index"
        what = what if kind.on_disk else "writes no files: see shardio.from_samples"
        raise ConfigError("{container} must be one of {}; {!r} {}", ", ".join(containers.names()), container, what)


_NONE = np.empty(0, np.uint64)


def finish_dataset(place: OutputDirectory, completed: manifest.Manifest) -> None:
    """Write the manifest of the finished shards in `place.directory`, and publish both."""
    kind, names = containers.get(completed.container), completed.shards.names
    place.directory.sync()
    manifest.save(completed, place.directory)
    # Not every adopted shard has an index, so the names of the files are looked up in both directories.
    folders = (place.directory.place(), place.final.place()) if completed.adopted else (Path(),)
    files = {file.name for name in names for folder in folders for file in kind.files(folder / name)}
    if completed.piece_bytes is not None:
        files |= {piece_sums.path_of(Path(name)).name for name in names}
    place.publish(files)


def describe(
    container: str,
    fields: Mapping[str, Field],
    written: Iterable[WrittenShard],
    metadata: Mapping[str, Any],
    *,
    adopted: bool = False,
    conversion: Mapping[str, Any] | None = None,
    has_sums: bool = False,
) -> manifest.Manifest:
    """Return the manifest of some shards: compute their digest, and the shapes that their images have in common.

    Args:
        container: the container of the shards.
        fields: the fields of the samples.
        written: the shards, in order.
        metadata: JSON values that the manifest keeps.
        adopted: whether the shards are files of other programs.
        conversion: JSON values on how a conversion made the dataset.
        has_sums: whether the checksums of its pieces are beside each shard.
    """
    shards: list[WrittenShard] = []
    digest = checksums.Digest(fields)
    for shard in written:
        digest.update(shard.sample_checksums)
        shards.append(replace(shard, sample_checksums=_NONE))  # to save memory: a dataset may have very many samples
    described = dict(fields)
    for name, field in fields.items():
        if field.kind == "image":
            sizes = {shard.image_shapes[name] for shard in shards if shard.samples}
            described[name] = replace(field, shape=sizes.pop() if len(sizes) == 1 else None)
    return manifest.Manifest(
        container=container,
        fields=described,
        shards=ShardTable(
            names=TextColumn([shard.name for shard in shards]),
            samples=np.array([shard.samples for shard in shards], np.int64),
            bytes=np.array([shard.bytes for shard in shards], np.int64),
            checksums=TextColumn([shard.checksum for shard in shards]),
        ),
        digest=digest.text(),
        metadata=metadata,
        adopted=adopted,
        conversion=conversion or {},
        piece_bytes=PIECE if has_sums else None,
    )
