"""The contract of a container: writing and reading a shard of any kind."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, TypeAlias, final

from ..cache.combined import CombinedObjects
from ..errors import ConfigError, Option
from ..format.fields import Field
from ..stores.base import Store
from ..stores.url import Url
from ._writing import Writer
from .files import BaseReader

Reader: TypeAlias = BaseReader[Any]
"""A reader of one shard, of any kind."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class OpenedShard:
    """A shard in a store, as it is opened in a cache.

    Attributes:
        file: the shard; what is read of it comes from the store.
        fetch: has pieces of it fetched, all at once, by their numbers.
        path: the cache's file for it, which has what was read; its companions are whole.
        fields: its fields, with hidden columns.
        adopted: whether another program wrote it.
    """

    file: BinaryIO
    fetch: Callable[[Sequence[int]], None]
    path: Path
    fields: Mapping[str, Field]
    adopted: bool


class Container:
    """A kind of shard, such as `"tar"`; `containers.CONTAINERS` lists all of them.

    What it says here suits files that only other programs write; each kind overrides what differs.

    Attributes:
        name: what users call it.
        suffix: the suffix of the shards that its writer makes; "" if it has none.
        on_disk: whether its shards are files.
        read_where_it_lies: whether its shards are more files than `files` names, or one that it does not name: a cache
            combines them to one file.
        options: the writer's options: for each a line of help, with the values that it takes.
        writer_type, reader_type: what `writer` and `reader` make.
    """

    name = ""
    suffix = ""
    on_disk = True
    read_where_it_lies = False
    options: Mapping[str, str] = MappingProxyType({})
    writer_type: type[Writer] | None = None
    reader_type: type[Reader]

    def writer(
        self, path: Path, fields: Mapping[str, Field], first: int, rows: int | None = None, /, **options: Any
    ) -> Writer:
        """Begin the shard at `path`.

        Args:
            path: the shard's path.
            fields: the shard's fields, with hidden columns.
            first: the index of its first sample in the dataset.
            rows: the number of samples that it is going to have, if that is known; ValueError for any other.
            options: the writer's options.

        Raises:
            ConfigError: an option or a field is not possible in this container, or it has no writer.
        """
        if self.writer_type is None:
            raise ConfigError(f"container {self.name!r} only reads files that other programs wrote: see shardio index")
        if unknown := sorted(set(options) - set(self.options)):
            has = f"the options {', '.join(self.options)}" if self.options else "no options"
            raise ConfigError("container {!r} has {}, got {}", self.name, has, Option(unknown[0]))
        return self.writer_type(path, fields, first, rows, **options)

    def reader(self, path: Path, fields: Mapping[str, Field]) -> Reader:
        """Open the shard at `path`; ShardCorrupt if it is missing, cut short, damaged or lacks a field."""
        return self.reader_type(path, fields)

    def cached_reader(self, path: Path, fields: Mapping[str, Field]) -> Reader:
        """Open a shard whose file is that of a cache, as `reader` does."""
        return self.reader(path, fields)

    def combined(self, path: Path, url: Url) -> CombinedObjects:
        """Return the objects of a shard that are one file in a cache, by the index next to `path`.

        Only of containers with `read_where_it_lies`, which override this.

        Args:
            path: the file in the cache, where only the index next to it needs to be.
            url: the shard.

        Raises ShardCorrupt for an index that names no such objects.
        """
        raise NotImplementedError(f"container {self.name!r} has shards of one object, which need no combining")

    def files(self, path: Path) -> tuple[Path, ...]:
        """Return the paths of all files of the shard at `path`, the shard itself first."""
        return (path,)

    def links(self, path: Path) -> tuple[Path, ...]:
        """Return the paths of links that belong to the shard at `path`, and lead to what `check` compares."""
        return ()

    def check(self, path: Path) -> None:
        """Raise DatasetError unless what belongs to the shard at `path`, other than `files`, is as it was."""
        return

    def check_in_store(self, path: Path, url: Url, store: Store) -> None:
        """Raise DatasetError unless the objects of a shard in a store are those that were indexed, as `check` does.

        Args:
            path: a path that the index is next to.
            url: the shard.
            store: its store.
        """
        return

    def companions(self, name: str, *, adopted: bool) -> tuple[str, ...]:
        """Return the names of the other files that a shard has, of a dataset whose files are `adopted` or not."""
        return ()

    def touch(self, shard: OpenedShard) -> bool:
        """Read, from a shard in a store, what opening the shard reads, so that a cache has it.

        Returns:
            Whether rows of the shard are then read by their spans alone; False if reading them needs the whole file.
        """
        return False

    def read_fields(self, path: Path) -> Mapping[str, Field] | None:
        """Return the fields that the shard at `path` states itself, so that a lost manifest can be rebuilt.

        Returns:
            None if it states none, because its kind never does or another program wrote it.

        Raises:
            ShardCorrupt: the shard is missing, cut short or damaged.
        """
        return None
