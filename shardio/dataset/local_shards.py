"""The shards of a dataset in a folder or in memory, opened for reading."""

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, final

from .. import containers
from ..cache.fetcher import FetchCounts
from ..cache.node_cache import Hold
from ..containers import piece_sums
from ..containers.base import Reader
from ..errors import DatasetError, ShardCorrupt
from ..format import manifest
from ..format.fields import CHECKSUM_BYTES, Field
from ..format.pieces import PIECE
from ..system import processes
from .shards import MOST_OPEN, Parts, RecentlyUsed, compare_files

_NOTHING = nullcontext()


@final
class LocalShards:
    """Keeps the most recently used shards open: a dataset may have more shards than a process may open files.

    Args:
        described: the dataset.
        folder: its folder.
        fields: its fields, with hidden columns.
    """

    in_store = False

    def __init__(self, described: manifest.Manifest, folder: Path, fields: Mapping[str, Field]) -> None:
        self._described, self._folder, self._fields = described, folder, fields
        self._container, self._table = containers.get(described.container), described.shards
        # A shard takes up to two descriptors, and pending reads keep readers alive that were dropped.
        self.limit = max(16, processes.allow_open_files(4 * min(len(self._table), MOST_OPEN) + 256) // 4)
        self._open: RecentlyUsed[Reader] = RecentlyUsed(self.limit)

    def __getitem__(self, number: int) -> Reader:
        return self._open.get(number, self._open_shard)

    def _open_shard(self, number: int) -> Reader:
        path, samples = self._path(number), self._table.samples[number]
        reader = self._container.reader(path, self._fields)
        if len(reader) != samples:
            raise ShardCorrupt(f"{path}: {len(reader)} samples, but the manifest says {samples}")
        return reader

    def _path(self, number: int) -> Path:
        name: str = self._table.names[number]
        return self._folder / name

    def path(self, number: int) -> str:
        return str(self._path(number))

    def size(self, number: int) -> int | None:
        files = self._container.files(self._path(number))
        if not files:  # in memory, which has room for all samples
            return CHECKSUM_BYTES * int(self._table.samples[number])
        return sum(file.stat().st_size for file in files) if all(file.is_file() for file in files) else None

    def check_files(self, number: int) -> None:
        files = self._container.files(self._path(number))
        if not files:
            return
        for file in files:
            if not file.is_file():
                moved = "; if that has moved, index it again; `shardio repair` goes on without it"
                raise DatasetError(f"{file.name} is missing{_target(file)}{moved if file.is_symlink() else ''}")
        size, checksum, table = piece_sums.of_files(files)
        sizes = [size] if len(files) == 1 else [file.stat().st_size for file in files]
        compare_files(self._table, number, sizes, checksum, next(filter(None, map(_target, files)), ""))
        if self._described.piece_bytes == PIECE and not piece_sums.matches(files[0], table):
            name = piece_sums.path_of(files[0]).name
            wrong = "does not hold the checksums of its pieces" if files[0].with_name(name).exists() else "is missing"
            raise DatasetError(f"{name} {wrong}; `shardio repair` writes it anew")

    def fetch(self, parts: Parts, names: Iterable[str]) -> AbstractContextManager[None]:
        return _NOTHING

    def prefetch(self, parts: Parts, names: Iterable[str], share: float) -> list[Hold] | None:
        return []

    def refetch(self, number: int, row: int) -> bool:
        return False

    def warn_of_small_cache(self, window: int) -> None:
        pass

    @property
    def fetched(self) -> FetchCounts:
        return FetchCounts()

    def close(self) -> None:
        if self._container.on_disk:  # shards in memory stay
            self._open.clear()

    def __getstate__(self) -> tuple[Any, ...]:
        kept = range(0 if self._container.on_disk else len(self._table))  # the samples themselves must be pickled
        return self._described, self._folder, self._fields, {number: self[number] for number in kept}

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        described, folder, fields, kept = state
        LocalShards.__init__(self, described, folder, fields)
        for number in kept:
            self._open.get(number, kept.__getitem__)


def _target(file: Path) -> str:
    """Return which file a link leads to, as the end of a message; "" for a file that is no link."""
    return f"; it is a link to {os.path.realpath(file)}" if file.is_symlink() else ""
