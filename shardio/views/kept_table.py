"""Tables made of a dataset's content, once per node, and kept in files: of packed rows, of keys.

```text
shardio.<kind>-<hash>.bin    JSON and arrays, as `containers/array_index.py` writes them
```

The file is in the dataset's folder, if that is writable, or in the folder `kept` of the cache. The hash is that of what
the table belongs to. A file that is damaged, or belongs to something else, is written anew.
"""

import contextlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar, final

from ..cache.location import given_folder
from ..cache.private_folder import lasting_path, private_folder, private_place
from ..containers.array_index import read_json, read_tables, write_tables
from ..errors import CacheError, ConfigError, ManifestError
from ..format import manifest
from ..format.file_table import Table, TableFile
from ..output.own_files import kept_name
from ..system.directory import Directory
from ..system.file_locks import try_lock
from ..system.replacement import remove_abandoned, replacing
from .readable import ReadableDataset

T = TypeVar("T")

FEW = 1 << 16
"""The samples from which on tables are kept: of fewer, one is made faster than a file is written durably."""
_MANY = 1 << 21  # samples, whose table takes long enough to say so
_MOST_WAIT, _LOOK = 3600.0, 0.1  # seconds

Stored: TypeAlias = tuple[Mapping[str, Any], Sequence[Table]]
"""A table as a file holds it: JSON values by name, and arrays."""


@final
@dataclass(frozen=True, slots=True)
class KeptTable(Generic[T]):
    """A table of one kind that belongs to some content, and its form in a file.

    Attributes:
        kind: the word for tables of this kind in the names of files, lower-case letters.
        of: JSON values that identify what the table belongs to, such as the digest of a dataset and a field.
        arrays: the names of the arrays in the file.
        stored: returns what a file of a table holds.
        restored: returns the table of JSON values, which contain `of`, and arrays by name; ValueError, KeyError or
            TypeError unless they are those of such a table. A checksum is no proof that shardio wrote the file, so it
            checks all numbers that become addresses.
    """

    kind: str
    of: Mapping[str, Any]
    arrays: Sequence[str]
    stored: Callable[[T], Stored]
    restored: Callable[[Mapping[str, Any], Mapping[str, Table]], T]

    @property
    def name(self) -> str:
        """The name of the table's file."""
        return kept_name(self.kind, self.of)

    @property
    def _head(self) -> dict[str, Any]:
        return {"format": f"shardio {self.kind}", "version": 1, **self.of}

    def get(self, base: ReadableDataset, make: Callable[[], T], doing: str, *, always: bool = False) -> T:
        """Return the table of a dataset, from its file if there is one. One process of a node makes it.

        Args:
            base: the dataset.
            make: makes the table; its errors are raised.
            doing: words for that on stderr, as it may take long: "packing 3,000,000 documents".
            always: whether a table of fewer than `FEW` samples is kept, too.
        """
        if (found := self.beside(base)) is not None:
            return found
        if base.numbers < FEW and not always:
            return make()
        folder, _open = _folder(base)
        if folder is None:
            return self._noticed(base, make, doing, "")
        path = folder / self.name
        if (table := self.read(path)) is not None:
            return table
        with _alone(folder):
            if (table := self.read(path)) is None:
                table = self._noticed(base, make, doing, f"; the table stays in {path}")
                with contextlib.suppress(OSError, ConfigError):  # a full disk: the table is in memory all the same
                    remove_abandoned(folder, {path.name})
                    self.write(path, table)
                    written = self.read(path)
                    table = table if written is None else written
        return table

    def beside(self, base: ReadableDataset) -> T | None:
        """Return the table in the folder of the dataset at the bottom; None if it has none."""
        folder = _own_folder(base)
        return None if folder is None else self.read(folder / self.name)

    def _noticed(self, base: ReadableDataset, make: Callable[[], T], doing: str, kept: str) -> T:
        if base.numbers >= _MANY:
            print(f"shardio: {doing}{kept}", file=sys.stderr)
        return make()

    def write(self, path: Path, table: T) -> None:
        """Write the table to a file, in one step."""
        values, arrays = self.stored(table)
        with replacing(path) as file:
            write_tables(file, json.dumps({**self._head, **values}).encode(), arrays)

    def read(self, path: Path) -> T | None:
        """Return the table in a file; None if there is none, or it is damaged or belongs to something else.

        Also None for a file of a user who may not change the dataset: if its folder has the sticky bit, others may add
        files, but replace only their own.
        """
        try:
            folder = Directory(path.parent)
            descriptor = folder.open(path.name, os.O_RDONLY)
        except (OSError, ConfigError):
            return None
        try:
            above, file = folder.status(), TableFile(descriptor, path, ManifestError)
            if above.st_mode & stat.S_ISVTX and file.owner not in (0, os.geteuid(), above.st_uid):
                return None
            head = read_json(file)
            return self.restored(head, read_tables(file, self.arrays)) if head == head | self._head else None
        except (ValueError, KeyError, TypeError, AttributeError, OSError, ManifestError):
            return None


def _own_folder(base: ReadableDataset) -> Path | None:
    """Return the folder of the dataset at the bottom; None if it has none, or there are several."""
    place = base.path
    return place if isinstance(place, Path) and (place / manifest.FILE_NAME).is_file() else None


def _folder(base: ReadableDataset) -> tuple[Path | None, Directory | None]:
    """Return the folder for tables: the dataset's, if it has one that may be written, else one of this user's cache.

    None if there is none; then the directory that has to stay open meanwhile.
    """
    place = _own_folder(base)
    if place is not None and os.access(place, os.W_OK | os.X_OK):
        return place, None
    with contextlib.suppress(OSError, CacheError, ConfigError):
        folder = private_folder(private_place(given_folder(None))).make("kept", exist_ok=True)
        if os.access(folder.place(), os.W_OK | os.X_OK):
            return lasting_path(folder), folder
    return None, None


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process makes a table in a folder; without locks, or if it takes too long, go on at once."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # NFS locks no folder
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            held.callback(os.close, descriptor)
            until = time.monotonic() + _MOST_WAIT
            while try_lock(descriptor) is False and time.monotonic() < until:
                time.sleep(_LOOK)
        yield
