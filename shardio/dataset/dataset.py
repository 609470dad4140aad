"""A dataset opened for reading: any samples, in any order, from any thread or process."""

import contextlib
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from .. import containers, native
from ..containers import memory, row_locator
from ..containers.base import Reader
from ..errors import ConfigError, ShardCorrupt
from ..format import checksums, manifest
from ..format.fields import CHECKSUM, Field, FieldLike, as_fields, infer_fields, with_hidden
from ..native.rows import MappedFileLost
from ..order.plan import Plan, Shuffle
from ..system.types import Buffer, Column, Indices, Sample
from .location import Location
from .output_directory import OutputDirectory
from .readable import ReadableDataset
from .reader_cache import ReaderCache
from .selection import Selection
from .writer import DatasetWriter


@final
class Dataset:
    """The samples of a dataset's shards. Threads may share it; it survives fork and pickling.

    `shardio.open` and `shardio.from_samples` make it.

    Attributes:
        manifest: its fields, shards and checksums.
        path: its directory.
    """

    def __init__(self, described: manifest.Manifest, path: Path) -> None:
        self.manifest = described
        self.path = path.absolute()  # the working directory may change
        self._all_fields = with_hidden(described.fields)
        self._readers = ReaderCache(described, self.path, self._all_fields)

    @property
    def digest(self) -> str:
        """A hash of the content: two datasets with one digest hold the same samples in the same order."""
        return self.manifest.digest

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every sample, by name."""
        return self.manifest.fields

    def __len__(self) -> int:
        return self.manifest.samples

    def __repr__(self) -> str:
        kind = f"{len(self.manifest.shards)} {self.manifest.container} shards"
        return f"<Dataset {self.path}: {len(self)} samples in {kind}, fields {', '.join(self.fields)}>"

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one sample: field names to values. An image is its encoded bytes, a scalar a Python number."""
        if not isinstance(index, (int, np.integer)):
            raise TypeError(f"a sample's number must be a whole number, got {index!r}; read() takes many")
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be in [0, {len(self)}), got {index}")
        columns = self.read([index % len(self)])
        return {n: c[0].item() if self.fields[n].kind == "scalar" else c[0] for n, c in columns.items()}

    def read(self, indices: Sequence[int] | Indices, fields: Iterable[str] | None = None) -> dict[str, Any]:
        """Read many samples, in the order asked for.

        Args:
            indices: sample numbers in [0, N); repeats are allowed.
            fields: the fields to read; None reads all.

        Returns:
            For each field an array `[n, *shape]` of scalars or arrays of one shape, else a list of n values.

        Raises IndexError, ConfigError for an unknown field, ShardCorrupt.
        """
        asked = np.asarray(indices)
        if asked.size and asked.dtype.kind not in "iu":
            raise ConfigError(f"indices must be whole numbers, got {asked.dtype}")
        rows = asked.astype(np.int64).reshape(-1)
        selection = self.select(rows)
        result: dict[str, Any] = {}
        for name in self.fields if fields is None else fields:
            field = self.field(name)
            if field.fixed:
                result[name] = selection.column(name)
            else:
                result[name] = self.decode(name, selection.values(name), rows)
        return result

    def plan(self, seed: int, shuffle: Shuffle, block: int, window: int) -> Plan:
        """The order of the first epoch."""
        return Plan(len(self), seed, 0, shuffle, block, window)

    @property
    def id_columns(self) -> Mapping[str, tuple[str, ...]]:
        """The columns of numbers that identify a sample in a batch: its `index`."""
        return {"index": ()}

    def sample_ids(self, indices: Indices) -> Mapping[str, NDArray[np.int64]]:
        """The columns of `id_columns` for some samples."""
        return {"index": indices}

    def select(self, indices: Indices) -> Selection:
        """Locate samples, int64 [n] in [0, N), repeats allowed, to read any of their fields; IndexError outside."""
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self)):
            wrong = indices[(indices < 0) | (indices >= len(self))][0]
            raise IndexError(f"{self.path}: index must be in [0, {len(self)}), got {wrong}")
        shards, rows = self.manifest.shards.locate(indices)
        return Selection(self.field, self.reader, self._shard_path, self._readers.limit // 4, shards, rows)

    def read_ahead(self, first: int, count: int, fields: Iterable[str]) -> None:
        """Ask the system to bring samples first..first+count-1 into memory, and do not wait for it."""
        if native.library() is None:
            return
        (low, high), rows = self.manifest.shards.locate(np.array([first, first + count - 1]))
        for shard in range(int(low), int(high) + 1):
            start = int(rows[0]) if shard == low else 0
            stop = int(rows[1]) + 1 if shard == high else int(self.manifest.shards.samples[shard])
            for name in fields:
                if stop <= start:
                    continue
                # A shard that can't be opened is reported where its samples are read.
                with contextlib.suppress(ShardCorrupt, OSError, MappedFileLost):
                    if (found := self.reader(shard).locator(name)) is not None:
                        row_locator.read_ahead(found, start, stop)

    def decode(self, name: str, stored: Sequence[Buffer], indices: Indices) -> list[Any]:
        """Decode the stored bytes of some samples; ShardCorrupt names the sample whose bytes are no such value."""
        field, values = self.field(name), []
        for value, index in zip(stored, indices.tolist(), strict=True):
            try:
                values.append(field.decode(value))
            except ValueError as error:  # what UTF-8, JSON and .npy raise alike
                raise ShardCorrupt(
                    f"{self.path / self.where(index)}, field {name!r}: not {field.kind}: {error}"
                ) from error
        return values

    def field(self, name: str) -> Field:
        """The field or hidden column of that name; ConfigError if there is none."""
        field = self._all_fields.get(name)
        if field is None:
            raise ConfigError(f"{self.path}: no field {name!r}; there are {', '.join(self.fields)}")
        return field

    def _shard_path(self, shard: int) -> str:
        return str(self.path / self.manifest.shards.names[shard])

    def reader(self, shard: int) -> Reader:
        """The open reader of shard number `shard`."""
        return self._readers[shard]

    def check(self, indices: Indices, stored: Mapping[str, Column | Sequence[Buffer]]) -> None:
        """Compare the checksums of some samples with those that were stored with them.

        Args:
            indices: the numbers of the samples.
            stored: the fields that were read already; the others are read here.

        Raises ShardCorrupt for the first that differs.
        """
        selection, names = self.select(indices), sorted(self.fields)
        columns = {n: stored[n] if n in stored else selection.stored(n) for n in names}
        actual, expected = checksums.of_samples(columns, names), selection.column(CHECKSUM)
        for row in np.flatnonzero(actual != expected)[:1].tolist():
            raise ShardCorrupt(
                f"{self.path / self.where(int(indices[row]))}: checksum {int(actual[row]):016x} is not "
                f"{int(expected[row]):016x}"
            )

    def shard_of(self, index: int) -> str:
        """The name of a sample's shard; no file is read for it."""
        shard = int(self.manifest.shards.locate(np.array([index]))[0][0])
        return str(self.manifest.shards.names[shard])

    def locate(self, index: int) -> Location:
        """Where a sample is stored. Its key is None if there is no text field `key`, or if that can't be read."""
        numbers = np.array([index])
        shard, row = (int(found[0]) for found in self.manifest.shards.locate(numbers))
        key = None
        if self.fields.get("key", Field("json")).kind == "text":
            with contextlib.suppress(ShardCorrupt, OSError):  # locations are asked for in messages about damage
                key = bytes(self.select(numbers).values("key")[0]).decode(errors="backslashreplace")
        return Location(self.manifest.shards.names[shard], row, index, key)

    def where(self, index: int) -> str:
        """Where a sample is stored, for messages: `shard-000003.tar, row 118 (sample 24118, key cats/7.jpg)`."""
        return f"{self.locate(index)}"

    def close(self) -> None:
        """Close all files. The dataset stays usable: files are opened again on demand."""
        self._readers.close()


def open(path: str | os.PathLike[str]) -> Dataset:
    """Open the dataset at `path`: its directory or its `shardio.json`.

    Raises NotADataset where there is no manifest, ManifestError if it cannot be trusted.
    """
    place = Path(path)
    described = manifest.load(place)
    containers.get(described.container)
    return Dataset(described, place if place.is_dir() else place.parent)


def readable(dataset: ReadableDataset | str | os.PathLike[str]) -> ReadableDataset:
    """Open a path; return a dataset or a mixture as it is. ConfigError for anything else."""
    if isinstance(dataset, (str, os.PathLike)):
        return open(dataset)
    if not hasattr(dataset, "sample_ids"):
        raise ConfigError(f"dataset must be a path, a Dataset or a Mixture, got {dataset!r}")
    return dataset


def from_samples(
    samples: Iterable[Sample],
    fields: Mapping[str, FieldLike] | None = None,
    *,
    shard_samples: int = 1000,
    metadata: Mapping[str, Any] | None = None,
) -> Dataset:
    """Make a dataset in memory, for tests and for small data. It behaves as one on disk does.

    Args:
        samples: mappings of field names to values.
        fields: as `shardio.create` takes them; None infers them from the first sample.
        shard_samples: samples per shard.
        metadata: JSON values that the manifest keeps.
    """
    rows = list(samples)
    if fields is None and not rows:
        raise ConfigError("from_samples needs fields= where there is no sample to infer them from")
    checked = infer_fields(rows[0]) if fields is None else as_fields(fields)
    directory = Path(f"/memory/{uuid4().hex}")  # only a name: nothing is written
    writer = DatasetWriter(
        OutputDirectory(directory, directory),
        memory.MemoryContainer.name,
        fields=checked,
        shard_size=1 << 62,
        metadata=metadata or {},
        options={},
        shard_samples=shard_samples,
    )
    for sample in rows:
        writer.append(sample)
    described = writer.close()
    if described is None:
        raise RuntimeError("a writer that nobody else holds was closed twice")
    dataset = Dataset(described, directory)
    for name in described.shards.names:
        weakref.finalize(dataset, memory.forget, directory / name)
    return dataset
