"""A dataset opened for reading: any samples, in any order, from any thread or process."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final
from uuid import uuid4

import numpy as np
import xxhash
from numpy.typing import NDArray

from .. import containers, native
from ..cache.fetcher import FetchCounts, Fetcher
from ..cache.location import open_cache
from ..containers import located_rows, memory
from ..errors import ConfigError, DatasetError, ManifestError, ShardCorrupt
from ..format import checksums, manifest
from ..format.fields import (
    CHECKSUM,
    Field,
    FieldLike,
    as_fields,
    content_columns,
    infer_fields,
)
from ..format.limits import MAX_VALUE_BYTES
from ..native.rows import MappedFileLost
from ..output.remote_manifest import load_remote
from ..output.shard_writer import ShardWriter, WrittenShard, describe
from ..stores import open_folder, open_store
from ..stores.url import Url, as_url
from ..system.types import Indices, Sample
from ..system.units import counted
from ..views import saved
from ..views.readable import Location, Stored
from ..views.view import BaseDataset
from .remote_shards import RemoteShards
from .selection import Selection
from .shards import LocalShards, Shards
from .store_access import DEFAULTS, StoreAccess, folder_of


@final
class Dataset(BaseDataset):
    """A dataset opened for reading. Threads may share it, and you may fork or pickle it.

    `shardio.open` and `shardio.from_samples` return datasets.

    Attributes:
        manifest: the fields, shards and checksums.
        path: the dataset's directory, or its URL.
        shards: the shards, which are opened as they are read.
    """

    def __init__(
        self, described: manifest.Manifest, path: Path | Url | None = None, shards: Shards | None = None
    ) -> None:
        if not isinstance(described, manifest.Manifest) or path is None:
            given = repr(described) if isinstance(described, str | os.PathLike) else type(described).__name__
            raise ConfigError(f"shardio.open(path) opens a dataset; Dataset takes a manifest and a path, got {given}")
        self.manifest = described
        self.path = path.absolute() if isinstance(path, Path) else path  # the working directory may change
        self._all_fields = described.stored_fields
        self.shards = shards or LocalShards(described, Path(f"{self.path}"), self._all_fields)
        self._renumbered: Mapping[str, NDArray[np.int64]] = {}

    @property
    def digest(self) -> str:
        """A hash of the content: two datasets with one digest hold the same samples in the same order."""
        return self.manifest.digest

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every sample, by name."""
        return self.manifest.fields

    @property
    def metadata(self) -> Mapping[str, Any]:
        """JSON values that the manifest keeps, such as the names of classes."""
        return self.manifest.metadata

    @property
    def earlier(self) -> Mapping[str, int]:
        """The digests of the datasets that this one grew from, with their numbers of samples, the newest last.

        Its first samples are theirs. Empty if labels are renumbered, as digests are those of the labels in the shards.
        """
        return {} if self.renumbers else self.manifest.grew_from

    @property
    def renumbers(self) -> bool:
        """Whether labels are renumbered as they are read, so that they are not what the shards' checksums are of."""
        return bool(self._renumbered)

    @property
    def derived_from(self) -> str | None:  # type: ignore[override]  # a property for a declared attribute
        """The digest of the dataset whose samples these are computed from, by position; None if there is none."""
        derived = self.manifest.conversion.get("derived")
        if not isinstance(derived, dict) or not isinstance(digest := derived.get("digest"), str):
            return None
        is_whole = derived.get("rows", self.digest) == self.digest  # or a copy of some rows, or in another order
        return digest if is_whole else f"{digest}, of which rows were chosen or added"

    def __len__(self) -> int:
        return self.manifest.samples

    def __repr__(self) -> str:
        kind = counted(len(self.manifest.shards), f"{self.manifest.container} shard")
        return f"<Dataset {self.path}: {len(self)} samples in {kind}, fields {', '.join(self.fields)}>"

    def renumbered(self, labels: Mapping[str, NDArray[np.int64]], metadata: Mapping[str, Any]) -> Dataset:
        """Return the dataset with other labels: by field, the new number of each class, and what names them."""
        dataset, digest, before = copy.copy(self), self.digest, self._renumbered
        for field, numbers in labels.items():
            content = json.dumps([digest, field, numbers.tolist()])
            digest = f"renumbered:{xxhash.xxh3_128_hexdigest(content.encode())}"
        # These are new numbers of the classes here, whose labels are renumbered already in a mixture of mixtures.
        both = {field: numbers[before[field]] if field in before else numbers for field, numbers in labels.items()}
        dataset.manifest = replace(self.manifest, metadata=metadata, digest=digest)
        dataset._renumbered = {**before, **both}
        return dataset

    @property
    def adopted(self) -> bool:
        """Whether the shards are source files that `shardio index` adopted."""
        return self.manifest.adopted

    def description(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        if self.renumbers:
            raise saved.renumbered(self)
        return {"dataset": f"{self.path}", "digest": self.digest, "samples": len(self)}

    def selection(self, indices: Indices, max_value_bytes: int = MAX_VALUE_BYTES) -> Selection:
        """Locate samples, int64 [n] in [0, N), repeats allowed, to read any of their fields; IndexError outside.

        Reading raises BadSample for a value of more bytes than `max_value_bytes`, and for a label without a name if
        labels are renumbered by name.
        """
        return self._selection(indices, max_value_bytes, self._renumbered)

    def _selection(self, indices: Indices, max_value_bytes: int, labels: Mapping[str, NDArray[np.int64]]) -> Selection:
        rows = self.manifest.shards.locate(self._checked(indices))
        return Selection(self.shards, self.field, *rows, max_value_bytes, labels)

    def read_ahead(self, run: range, fields: Iterable[str]) -> None:
        """Ask the system to read a run of neighbouring samples ahead, and do not wait for them."""
        if native.library() is None:
            return
        (low, high), rows = self.manifest.shards.locate(np.array([run[0], run[-1]]))
        for shard in range(int(low), int(high) + 1):
            start = int(rows[0]) if shard == low else 0
            stop = int(rows[1]) + 1 if shard == high else int(self.manifest.shards.samples[shard])
            for name in fields:
                if stop <= start:
                    continue
                # A shard that can't be opened is reported where its samples are read.
                with contextlib.suppress(ShardCorrupt, OSError, MappedFileLost):
                    if (locator := self.shards[shard].locator(name)) is not None:
                        located_rows.read_ahead(locator, start, stop)

    @property
    def fetched(self) -> FetchCounts:
        """The bytes that this process has fetched into the node's cache until now; none for a local dataset."""
        return self.shards.fetched

    @property
    def in_store(self) -> bool:
        """Whether the shards are read by way of the node's cache, from a store or a slow file system."""
        return self.shards.in_store

    def warn_of_small_cache(self, window: int) -> None:
        """Warn if the cache of the node has no room for the `window` samples that a shuffle mixes at a time."""
        self.shards.warn_of_small_cache(min(window, len(self)))

    def refetch(self, index: int) -> bool:
        """Fetch a damaged sample from the store again, unless its bytes are known to be the store's.

        Returns:
            Whether the node's cache had other bytes than the store, so that reading it again is worth while.
        """
        shards, rows = self.manifest.shards.locate(np.array([index]))
        return self.shards.refetch(int(shards[0]), int(rows[0]))

    def field(self, name: str) -> Field:
        """Return the field or hidden column called `name`; raise ConfigError if there is none."""
        field = self._all_fields.get(name)
        if field is None and name == CHECKSUM:
            raise ConfigError(
                "{}: its samples have no checksums to compare: `shardio index` reads them with {checksums:True} only",
                self.path,
            )
        if field is None:
            raise ConfigError(f"{self.path}: no field {name!r}; there are {', '.join(self.fields)}{self._meant(name)}")
        return field

    def _meant(self, name: str) -> str:
        """Return which field holds what the adopted files call `name`, as the end of a message; "" if none does."""
        names = self.manifest.conversion.get("names")
        own = names.items() if isinstance(names, dict) else ()
        return "".join(f"; {name} is the field {field!r} here" for field, given in own if given == name)

    def check(self, indices: Indices, stored: Stored, max_value_bytes: int = MAX_VALUE_BYTES) -> None:
        """Compare the checksums of some samples with the checksums that were stored with them.

        Args:
            indices: the numbers of the samples.
            stored: the fields that the caller has read already; this method reads the others.
            max_value_bytes: see `selection`.

        Raises ShardCorrupt for the first sample whose checksum differs.
        """
        names = content_columns(self.fields)
        selection = self._selection(indices, max_value_bytes, {})  # as they are stored
        known = stored.keys() - self._renumbered.keys()
        columns = {n: stored[n] if n in known else selection.stored(n) for n in names}
        actual, expected = checksums.of_samples(columns, names), selection.column(CHECKSUM)
        for row in np.flatnonzero(actual != expected)[:1].tolist():
            place = self.path / f"{self.locate(int(indices[row]))}"
            raise ShardCorrupt(f"{place}: checksum {int(actual[row]):016x} is not {int(expected[row]):016x}")

    @property
    def shard_means(self) -> NDArray[np.float64]:
        """The mean of the stored bytes of a sample, of each shard, float64 [shards]."""
        means: NDArray[np.float64] = self.manifest.shards.bytes / np.maximum(self.manifest.shards.samples, 1)
        return means

    def shard_numbers(self, indices: Indices) -> NDArray[np.int64]:
        """Return the number of each sample's shard, int64 [n], without reading a file."""
        return self.manifest.shards.locate(indices)[0]

    def shard_of(self, index: int) -> str:
        """Return the name of a sample's shard, without reading a file."""
        return str(self.manifest.shards.names[int(self.shard_numbers(np.array([index]))[0])])

    def locate(self, index: int) -> Location:
        """Return the place of a sample; as text, `shard-000003.tar, row 118 (sample 24118, key cats/7.jpg)`.

        Its key is None without a text field `key`, or if that cannot be read.
        """
        numbers = np.array([index])
        shard, row = (int(column[0]) for column in self.manifest.shards.locate(numbers))
        key = None
        if self.fields.get("key", Field("json")).kind == "text":
            with contextlib.suppress(DatasetError, OSError, MemoryError):  # damaged shards are located as well
                key = bytes(self.selection(numbers).values("key")[0]).decode(errors="backslashreplace")
        return Location(self.manifest.shards.names[shard], row, index, key)

    def close(self) -> None:
        """Close all files. The dataset stays usable: files are opened again on demand."""
        self.shards.close()


def open(path: str | os.PathLike[str], access: StoreAccess = DEFAULTS) -> Dataset:
    """Open a dataset, but no view, as `shardio.open` does (`dataset/opening.py`). A path takes no store's options."""
    place: Path | Url
    fetcher: Fetcher | None = None
    if (url := as_url(path)) is not None:
        place, store, in_store = folder_of(url), open_store(folder_of(url), access.store_options or {}), folder_of(url)
        fetcher = Fetcher(open_cache(access.cache, access.cache_size))
        described = load_remote(store, place, fetcher.cache.place)
    else:
        described = manifest.load(path)
        place = Path(path).absolute() if os.path.isdir(path) else Path(path).absolute().parent
        if access.cache is not None:
            store, in_store = open_folder(place), Url(f"{place}", "")
            fetcher = Fetcher(open_cache(access.cache, access.cache_size))
    if not (container := containers.CONTAINERS.get(described.container)) or not container.on_disk:
        raise ManifestError(f"{place / manifest.FILE_NAME}: no container on disk is called {described.container!r}")
    if fetcher is None:
        return Dataset(described, place)
    return Dataset(described, place, RemoteShards(described, in_store, described.stored_fields, store, fetcher))


def from_samples(
    samples: Iterable[Sample],
    fields: Mapping[str, FieldLike] | None = None,
    *,
    shard_samples: int = 1000,
    metadata: Mapping[str, Any] | None = None,
) -> Dataset:
    """Make a dataset in memory, for tests and for small data. It behaves like a dataset on disk.

    Args:
        samples: mappings of field names to values.
        fields: the fields, in the forms that `shardio.create` takes; None infers them from the first sample.
        shard_samples: samples per shard.
        metadata: JSON values that the manifest keeps.
    """
    rows = list(samples)
    if fields is None and not rows:
        raise ConfigError("from_samples needs fields= if there is no sample to infer them from")
    checked = infer_fields(rows[0]) if fields is None else as_fields(fields)
    directory = Path(f"/memory/{uuid4().hex}")  # only a name: nothing is written
    written: list[WrittenShard] = []
    for number, first in enumerate(range(0, len(rows), shard_samples)):
        writer = ShardWriter(directory, memory.MemoryContainer.name, checked, number, first, {})
        for sample in rows[first : first + shard_samples]:
            writer.append(sample)
        written.append(writer.finish())
    described = describe(memory.MemoryContainer.name, checked, written, metadata or {})
    dataset = Dataset(described, directory)
    for name in described.shards.names:
        weakref.finalize(dataset.shards, memory.forget, directory / name)  # which copies of the dataset share
    return dataset
