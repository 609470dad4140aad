"""The writer of a dataset: it writes samples into shards that roll by size, and the manifest last.

Shards are built in a hidden folder, fsynced, and renamed into place once all of them are complete; `shardio.json`
follows. Whatever interrupts this, an incomplete directory never passes for a dataset.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from .. import containers
from ..errors import BadSample, ConfigError, ShardioError
from ..format import manifest
from ..format.fields import Field, FieldLike, as_fields, infer_fields
from ..output import Writing, open_output
from ..output.shard_writer import ShardWriter, WrittenShard, describe
from ..system.types import Sample
from ..system.units import parse_size
from ..views.key_table import write_index

DEFAULT_SHARD_SIZE = "64MB"


@dataclass(eq=False, repr=False)
class DatasetWriter:
    """Writes samples, one after the other, into shards that roll by size. `create` returns it for a `with` block.

    Leaving the `with` block normally completes the dataset; leaving it by an exception writes no manifest.
    """

    _place: Writing
    _container: str
    _fields: Mapping[str, Field] | None
    _shard_size: int
    _metadata: Mapping[str, Any]
    _options: Mapping[str, Any]
    _builder: ShardWriter | None = None
    _written: list[WrittenShard] = field(default_factory=list)
    _closed: bool = False
    _failed: bool = False

    def append(self, sample: Sample) -> None:
        """Append one sample: a mapping of field names to values.

        Raises BadSample if a value does not fit its field (you may continue without the sample), OSError if the disk
        is full.
        """
        if self._closed:
            raise ConfigError(f"{self._place.path}: this writer is closed")
        if self._fields is None:
            self._fields = infer_fields(sample)
        with self._abandoning():
            if self._builder is not None and self._builder.payload >= self._shard_size:
                self._end_shard(self._builder)
            if self._builder is None:
                number, first = len(self._written), sum(shard.samples for shard in self._written)
                self._builder = ShardWriter(
                    self._place.folder, self._container, self._fields, number, first, self._options
                )
            self._builder.append(sample)

    @contextmanager
    def _abandoning(self) -> Iterator[None]:
        """Give up the dataset if the block fails, such as for a full disk or an interrupt: samples may be lost."""
        try:
            yield
        except BadSample:
            raise
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        self._failed = self._closed = True
        if self._builder is not None:
            self._builder.discard()
        self._place.close()

    def close(self) -> manifest.Manifest | None:
        """Complete the last shard, write the manifest and return it; None if the writer is closed already."""
        if self._failed:
            raise ShardioError(f"{self._place.path}: an earlier write failed; there is no dataset to complete")
        if self._closed:
            return None
        self._closed = True
        with self._abandoning():
            if self._builder is not None:
                self._end_shard(self._builder)
            if self._fields is None:
                raise ConfigError(f"{self._place.path}: no sample was written, so fields= must be given")
            completed = describe(self._container, self._fields, self._written, self._metadata, has_sums=True)
            self._place.publish(completed)
            write_index(self._place.path, completed, [shard.keys for shard in self._written])
            self._place.close()
        return completed

    def _end_shard(self, builder: ShardWriter) -> None:
        self._builder = None
        try:
            if builder.samples:
                self._written.append(self._place.put(builder.finish()))
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
        path: the dataset's directory; created if it does not exist. Or its URL, such as `s3://bucket/photos`; each
            shard is uploaded once it is finished.
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
    place = open_output(path, store_options).create(overwrite=overwrite)
    return DatasetWriter(place, container, checked, size, dict(metadata or {}), options)


def on_disk(container: str) -> None:
    """Raise ConfigError unless `container` writes files."""
    kind = containers.get(container)
    if container not in containers.names():
        what = "only reads files that other programs wrote: see shardio index"
        what = what if kind.on_disk else "writes no files: see shardio.from_samples"
        raise ConfigError("{container} must be one of {}; {!r} {}", ", ".join(containers.names()), container, what)
