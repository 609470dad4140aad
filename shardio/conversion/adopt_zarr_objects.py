"""Adoption of Zarr stores in a bucket: lists their objects and reads their metadata, but no chunk.

The metadata are copied to a temporary folder, where they make stores without chunks that are read like local stores.
For several stores the coordinates are copied as well, to compare them. The indexes and the manifest are written next to
the stores, as for other objects.
"""

import fnmatch
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, final

from ..containers import array_index, zarr_index
from ..containers.zarr_metadata import ArrayLayout, of_array, of_chunks
from ..errors import SourceError
from ..foreign.files import Sort, expanded, order_key
from ..foreign.formats import FoundFiles
from ..foreign.zarr import DESCRIBING, METADATA, SIGNS, entries_of
from ..format.unwritten import Unwritten
from ..output.store import StoreOutput
from ..stores.base import ObjectInfo, Store
from ..stores.stream import download
from ..stores.url import Url
from ..system import strict_json
from ..system.threads import in_order
from .adopt import AdoptTask, adopt_file, pack_adopted
from .adopt_objects import Listing, check_index, check_names, condition_of, naming
from .pack import PackOptions, WrittenDataset
from .source import Delegated, ZarrIndexes, adoption_of

_REQUESTS = 16  # at once, for metadata
_UNSAFE = frozenset(("", ".", ".."))
_PATTERN = frozenset("*?[")

Objects: TypeAlias = Mapping[str, ObjectInfo]
"""The objects of a store by their names in it."""


def find_stores(given: Sequence[Url], listing: Listing) -> dict[str, Objects]:
    """Return the Zarr stores in a bucket that URLs name, by their names in the folder that they are directly in.

    Each store is listed once, or the folder for a pattern. None, if one of the URLs names something else.
    """
    found: dict[str, Objects] = {}
    in_folder: dict[str, Objects] | None = None
    store, folder = listing.store, listing.folder
    for one in given:
        stores: dict[str, Objects] = {}
        for name in ["*"] if one == folder else expanded(one.name):
            if _PATTERN.isdisjoint(name):
                objects = store.list((folder / name).path)
                stores[name] = {info.name.removeprefix(f"{(folder / name).path}/"): info for info in objects}
                continue
            in_folder = _in_folder(listing) if in_folder is None else in_folder
            stores |= {each: in_folder[each] for each in fnmatch.filter(in_folder, name)}
        stores = {name: objects for name, objects in stores.items() if not objects.keys().isdisjoint(SIGNS)}
        if not stores:
            return {}
        found |= stores
    return found


def _in_folder(listing: Listing) -> dict[str, Objects]:
    found = dict[str, dict[str, ObjectInfo]]()
    for path, info in listing.objects.items():
        name, _, inner = path.partition("/")
        if inner:
            found.setdefault(name, {})[inner] = info
    return dict(found)


@final
class ZarrAdoption:
    """The adoption of Zarr stores in a bucket; see `ObjectAdoption` for the arguments and attributes.

    Raises ConfigError for a dataset that is there and for names that no shard can have, SourceError for metadata that
    cannot be read, and what the store raises.
    """

    remarks: Sequence[str] = ()

    def __init__(
        self,
        store: Store,
        stores: Mapping[str, Objects],
        folder: Url,
        make_source: Callable[[FoundFiles], Any],
        temporary: Path,
        *,
        overwrite: bool,
        sort: Sort,
    ) -> None:
        self._store, self._folder, self._temporary, self._stores = store, folder, temporary, stores
        self.names = sorted(stores) if sort == "name" else sorted(stores, key=order_key(sort))
        rule = "shardio calls its own shards so: copy the store to another name"
        check_names(folder, self.names, array_index.path_of, rule)
        self._replaces = condition_of(store, folder, overwrite=overwrite)
        for name in self.names:
            if self._replaces == "new":
                check_index(store, folder / array_index.path_of(Path(name)).name, temporary)
            self._copy_metadata(name)
        with naming(temporary, folder):
            source = make_source(FoundFiles("zarr", tuple(temporary / name for name in self.names), ()))
            found: Any = adoption_of(source)
            self._starts, self._described = found.starts, found.index
            adoption = ZarrIndexes(found.starts, found.names, self._index)
            self.source = Delegated(source, adoption=adoption, unwritten=self._unwritten)

    def _unwritten(self, *, tables: bool) -> list[Unwritten]:
        """Return what is not there of the chunks of each field, see `Source.unwritten`."""
        found = []
        for number, store in enumerate(self.names):
            rows = int(self._starts[number + 1] - self._starts[number])
            for name, array in self._index(number).arrays.items():
                one = Unwritten(name, store, rows, number)
                found.append(of_chunks(one, of_array(array.metadata), array.axis, array.chunks["number"]))
        return found

    def run(self, options: PackOptions) -> WrittenDataset:
        """Write the indexes, and then the manifest; raises what `pack` raises."""
        states = [[info.name, info.size, info.etag] for name in self.names for info in self._stores[name].values()]
        tasks = [AdoptTask.of(self.source, self._starts, number, name) for number, name in enumerate(self.names)]
        return pack_adopted(
            StoreOutput(self._folder, self._store, expects=self._replaces), self.source, tasks, states, options,
            make_shard=partial(adopt_file, None), unchecked=True, beside=True,
        )  # fmt: skip

    def _copy_metadata(self, store: str) -> None:
        """Copy the metadata of a store, and with several stores the coordinates to compare, to the temporary folder."""
        objects = self._stores[store]
        described = [name for name in objects if name.rpartition("/")[2] in DESCRIBING]
        self._copy(store, described)
        if len(self.names) == 1:
            return
        lone = {name.rpartition("/")[0] for name in described if self._has_one_axis(self._temporary / store / name)}
        size = sum(info.size for name, info in objects.items() if _array_of(name, lone) is not None)
        strict_json.check_size(size)  # as much as metadata may have
        self._copy(store, [name for name in objects.keys() - described if _array_of(name, lone) is not None])

    def _has_one_axis(self, path: Path) -> bool:
        try:
            shape = strict_json.parse(path.read_bytes(), foreign=True, nan=True)["shape"]
            return path.name in METADATA and len(shape) == 1
        except (OSError, ValueError, LookupError, TypeError):
            return False

    def _copy(self, store: str, names: Sequence[str]) -> None:
        objects = self._stores[store]

        def copy(name: str) -> None:
            if not _UNSAFE.isdisjoint(name.split("/")) or "\0" in name:
                return  # no path of an array
            strict_json.check_size(objects[name].size)
            path = self._temporary / store / name
            path.parent.mkdir(parents=True, exist_ok=True)
            download(self._store, objects[name], path)

        try:
            for _ in in_order(copy, names, _REQUESTS):
                pass
        except (ValueError, FileExistsError, NotADirectoryError) as error:
            raise SourceError(f"{self._folder / store}: metadata that cannot be read: {error}") from error

    def _index(self, number: int) -> zarr_index.ZarrIndex:
        """Return the index of a store, with its chunks as the bucket lists them."""
        with naming(self._temporary, self._folder):
            index: zarr_index.ZarrIndex = self._described(number)
        layouts = {array.path: of_array(array.metadata) for array in index.arrays.values()}
        chunks = self._chunks(self.names[number], layouts)
        arrays = {name: replace(array, chunks=chunks[array.path]) for name, array in index.arrays.items()}
        return replace(index, arrays=arrays, objects=True)

    def _chunks(self, store: str, layouts: Mapping[str, ArrayLayout]) -> dict[str, Any]:
        """Return what there is of the chunks of arrays, of `ENTRY` [chunks] each."""
        found: dict[str, list[tuple[int, ...]]] = {path: [] for path in layouts}
        for name, info in self._stores[store].items():
            if (path := _array_of(name, layouts)) is None:
                continue
            if (number := layouts[path].number(name[len(path) + 1 :] if path else name)) is not None:
                if not (state := zarr_index.state_of(info)):
                    raise SourceError(f"{self._folder / store}/{name}: its bucket gives no ETag to know it by")
                found[path].append((number, info.size, state))
        return {path: entries_of(entries) for path, entries in found.items()}


def _array_of(name: str, paths: Container[str]) -> str | None:
    """Return which of some arrays, by their paths, an object below a store is of; None if it is of no such array."""
    while name:
        name = name.rpartition("/")[0]
        if name in paths:
            return name
    return None
