"""Writing a dataset: samples in, shards that roll by size, the manifest last.

A shard is built in a hidden folder beside its place, fsynced and renamed; `shardio.json` follows when all shards stand.
Whatever happens before that, no directory passes for a dataset that is not whole.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from . import checksums, containers, durable, manifest
from .errors import ConfigError
from .fields import Field, FieldLike, as_fields, infer_fields
from .shard import WORKPLACE, ShardBuilder, WrittenShard
from .types import Sample
from .units import parse_size

DEFAULT_SHARD_SIZE = "64MB"


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
