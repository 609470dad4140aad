"""Which objects in a store `index` adopts: found by URLs and patterns, and whether a dataset may stand beside them."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from .. import containers
from ..containers import piece_sums, side_index
from ..errors import ConfigError, ManifestError, SourceError
from ..foreign.files import Sort, expanded, order_key
from ..foreign.formats import named_kind
from ..format import manifest
from ..output.own_objects import stem_of
from ..output.store import StoreOutput
from ..stores.base import Condition, ObjectInfo, Store
from ..stores.url import Url
from ..system.units import counted
from .adopt import PLAIN

KINDS = ("webdataset", "tfrecord")
"""The formats, by the names of their converters, that can be adopted in a store."""

_LISTED = 5


@final
@dataclass(frozen=True, slots=True)
class FoundObjects:
    """Objects to adopt.

    Attributes:
        store: the store that they are in.
        folder: the URL that they are directly in, which becomes that of the dataset.
        objects: the objects, in the order of their samples.
        kind: the name of the converter that reads them; None before it is known.
        remarks: a clause for what was left out.
        replaces: the state of the manifest of adopted objects that is there already; "new" if there is none.
        indexes: the names of the indexes that are there already.
    """

    store: Store
    folder: Url
    objects: tuple[ObjectInfo, ...]
    kind: str | None
    remarks: tuple[str, ...]
    replaces: Condition
    indexes: frozenset[str]

    def name(self, number: int) -> str:
        """Return the name of an object in the folder."""
        return self.objects[number].name.rpartition("/")[2]


def find_objects(
    store: Store, given: Sequence[Url], folder: Url, kind: str | None, *, overwrite: bool, sort: Sort = "name"
) -> FoundObjects:
    """List the objects that `given` names, with one request for a thousand of them.

    Args:
        store: the store that all of them are in.
        given: objects, patterns of their names, or the folder itself, for what names tell to be tars or TFRecords.
        folder: the dataset's URL.
        kind: the format; None lets the names in the folder and the content decide.
        overwrite: whether a dataset of adopted objects may be there, to be replaced or, if a command goes on where an
            earlier one ended, as that one's result.
        sort: see `shardio.index`.

    Raises ConfigError for objects elsewhere and for a dataset that is there, SourceError if there are no objects.
    """
    if kind not in (None, *KINDS):
        raise ConfigError(f"format must be webdataset or tfrecord for objects in a store, got {kind!r}")
    if folder.root.startswith("http"):
        raise ConfigError(f"{folder}: a file server neither lists nor stores objects: index them on a local disk")
    for one in given:
        if one != folder and one.parent != folder:
            raise ConfigError(
                f"out must be the URL that the objects are directly in, {one.parent}, because their indexes and their "
                f"manifest lie beside them; got {folder}"
            )
    prefix = f"{folder.path}/" if folder.path else ""
    there = {info.name.removeprefix(prefix): info for info in store.list(folder.path)}
    there = {name: info for name, info in there.items() if "/" not in name}
    indexes = frozenset(name for name in there if name.endswith(containers.index_suffixes()))
    own = {*indexes, manifest.FILE_NAME, manifest.TABLE_NAME}
    candidates = [name for name in there if name not in own]
    taken: list[str] = []
    remarks: list[str] = []
    for one in given:
        if one == folder:
            names = [name for name in candidates if named_kind(name) in ((kind,) if kind else KINDS)]
            others = [name for name in candidates if name not in names]
            if names and others:
                listed = ", ".join(others[:_LISTED]) + (", ..." if len(others) > _LISTED else "")
                remarks.append(f"left out {counted(len(others), 'object')} beside those in {folder}: {listed}")
        else:
            names = [name for text in expanded(one.name) for name in _fitting(text, candidates)]
        if not names:
            what = "no object is called as a tar or a TFRecord" if one == folder else "no such object"
            raise SourceError(f"{one}: {what}")
        taken += names
    if len(set(taken)) < len(taken):
        raise SourceError(f"{folder / next(name for name in taken if taken.count(name) > 1)} is given twice")
    key = order_key(sort)
    taken = taken if sort == "name" else sorted(taken, key=key)
    _check_names(folder, taken)
    replaces = _state_of_manifest(StoreOutput(folder, store), overwrite=overwrite)
    return FoundObjects(store, folder, tuple(there[name] for name in taken), kind, tuple(remarks), replaces, indexes)


def _fitting(text: str, names: Sequence[str]) -> list[str]:
    return [text] if text in names else fnmatch.filter(names, text)


def _check_names(folder: Url, names: Sequence[str]) -> None:
    """Raise ConfigError for objects that cannot be shards under their names."""
    beside: dict[str, str] = {}
    for name in names:
        if not PLAIN.fullmatch(name):
            raise ConfigError(f"{folder}: a shard's name is letters, digits, '_', '-' and '.', got {name!r}")
        if stem_of(name) is not None:
            raise ConfigError(
                f"{folder / name}: shardio calls the shards so that it writes to a store itself, and shardio clean "
                "removes those that no manifest names: copy it to another name"
            )
        for path in (side_index.path_of(Path(name)), piece_sums.path_of(Path(name))):
            other = beside.setdefault(path.name, name)
            if other != name:
                raise ConfigError(f"{folder}: {other} and {name} would have the same index, {path.name}: rename one")


def _state_of_manifest(out: StoreOutput, *, overwrite: bool) -> Condition:
    """Return the state of the manifest that is there; ConfigError unless its dataset may be replaced."""
    if (state := out.condition(overwrite=overwrite)) == "new":
        return state
    try:
        found = out.manifest()
    except ManifestError as error:
        raise ConfigError(f"{error}: index replaces only a dataset of adopted objects: remove it first") from error
    if found is not None and not found.adopted:
        raise ConfigError(f"{out.url}: index replaces only a dataset of adopted objects, and these are shardio's own")
    return state
