"""`shardio.clean`: what unfinished and replaced conversions left in a store, and no manifest names."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from ..conversion.journal import decode_record
from ..dataset.output_directory import JOURNAL
from ..dataset.store_output import RECORD_NAME, StoreOutput, is_own, stem_of
from ..errors import ConfigError, ObjectChanged, ObjectNotFound, ShardioError
from ..format import manifest
from ..stores import open_store
from ..stores.base import ObjectInfo, Store
from ..stores.url import Url, as_url
from ..system.local_path import local_path

YOUNG_SECONDS = 24 * 3600.0
"""Age up to which what no manifest names may belong to a conversion that is running."""

_TRIES = 5
_BATCH = 1000  # objects in one request


@final
@dataclass(frozen=True, slots=True)
class Cleaned:
    """The objects that `clean` has removed, or would remove.

    Attributes:
        removed: the objects that no manifest names, by their names from the dataset's place on, with `/` between parts.
        kept: those that stay because they may belong to a conversion that is running.
    """

    removed: tuple[ObjectInfo, ...]
    kept: tuple[ObjectInfo, ...]

    @property
    def bytes(self) -> int:
        """The size of the removed objects."""
        return sum(info.size for info in self.removed)


def clean(
    url: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    everything: bool = False,
    store_options: Mapping[str, str] | None = None,
) -> Cleaned:
    """Remove what shardio wrote at a dataset's place in a store and its manifest does not name.

    That is: shards of unfinished and of replaced conversions, and the records of unfinished ones, known by the names
    that shardio alone gives. Nothing else is removed, and nothing below: a split is a dataset of its own.

    Args:
        url: the dataset's place, such as `s3://bucket/photos`; there need be no dataset yet.
        dry_run: remove nothing.
        everything: remove also what is younger than a day, or belongs to a conversion that wrote something within a
            day. It ends conversions that are running, and loaders that read a dataset replaced within that day.
        store_options: options of the store, see `shardio.open`.

    Raises:
        ConfigError: `url` is a local path.
        ManifestError: the manifest cannot be trusted, so nobody knows what it names.
        ObjectChanged: the manifest changes all the time.
        StoreError: the store cannot be read or written.
    """
    place = as_url(url)
    if place is None:
        raise ConfigError(
            "url must be that of a store, got the local path {}: {overwrite} cleans there", local_path(url)
        )
    return clean_store(place, open_store(place, store_options or {}), dry_run=dry_run, everything=everything)


def clean_store(
    url: Url, store: Store, *, dry_run: bool = False, everything: bool = False, now: float | None = None
) -> Cleaned:
    """Clean a place in a store that is open already, see `clean`; `now` is the time, in seconds since 1970."""
    out = StoreOutput(url, store)
    limit = (time.time() if now is None else now) - YOUNG_SECONDS
    for _ in range(_TRIES):
        # What a conversion has recorded is read before the manifest: when the records go, the manifest is there.
        listed = _listed(out)
        try:
            recorded = _active(out, listed, limit)
        except ObjectNotFound:  # a conversion has finished meanwhile
            continue
        before = out.manifest_info()
        named = _named(out)
        if _state(out.manifest_info()) != _state(before):
            continue
        unnamed = {name: info for name, info in listed.items() if stem_of(name) not in named and name not in named}
        kept = {} if everything else _kept(unnamed, recorded, limit)
        removed = {name: info for name, info in unnamed.items() if name not in kept}
        if not dry_run:
            # The records first: what has lost them cannot be resumed, and so be named by a manifest later.
            _remove(out, [name for name in removed if _run_of(name)])
            if _state(out.manifest_info()) != _state(before):
                continue
            _remove(out, [name for name in removed if not _run_of(name)])
        return Cleaned(tuple(removed.values()), tuple(kept.values()))
    raise ObjectChanged(f"{url / manifest.FILE_NAME}: changes all the time; try again when no conversion ends")


def _listed(out: StoreOutput) -> dict[str, ObjectInfo]:
    """Return the objects whose names shardio alone gives, by their names from the dataset's place on."""
    prefix = f"{out.url.path}/" if out.url.path else ""
    found = {}
    for info in out.store.list(out.url.path):
        name = info.name.removeprefix(prefix)
        if is_own(name):
            found[name] = ObjectInfo(name, info.size, info.etag, info.modified)
    return found


def _named(out: StoreOutput) -> set[str]:
    """Return the names that the manifest needs: of shards up to the first dot, and of their table."""
    try:
        data = bytes(out.store.read(out.name(manifest.FILE_NAME)).data)
    except ObjectNotFound:
        return set()
    described = out.manifest()
    shards = () if described is None else described.shards.names
    table = manifest.table_named_in(data)
    return {name.partition(".")[0] for name in shards} | ({table} if table else set())


def _is_young(info: ObjectInfo, limit: float) -> bool:
    return info.modified is None or info.modified > limit


def _run_of(name: str) -> str | None:
    parts = name.split("/")
    return parts[1] if parts[0] == JOURNAL else None


def _active(out: StoreOutput, listed: Mapping[str, ObjectInfo], limit: float) -> set[str]:
    """Return the runs that have written something of late, and the shards that they have recorded, by their stems."""
    runs = {run for name, info in listed.items() if (run := _run_of(name)) and _is_young(info, limit)}
    stems: set[str] = set()
    for name in listed:
        if _run_of(name) in runs and RECORD_NAME.fullmatch(name.rpartition("/")[2]):
            data = bytes(out.store.read(out.name(name)).data)
            try:
                record = decode_record(data, f"{out.url / name}")
            except ShardioError:  # damaged: resuming refuses it
                continue
            stems.update(stem for state in record.objects if (stem := stem_of(state[0])))
    return runs | stems


def _kept(unnamed: Mapping[str, ObjectInfo], active: set[str], limit: float) -> dict[str, ObjectInfo]:
    return {
        name: info
        for name, info in unnamed.items()
        if _is_young(info, limit) or _run_of(name) in active or _is_active(stem_of(name), active)
    }


def _is_active(stem: str | None, active: set[str]) -> bool:
    """Return whether a shard is recorded by an active run, or was written by the process that began one."""
    return stem is not None and (stem in active or f"run-{stem.rpartition('-')[2]}" in active)


def _state(info: ObjectInfo | None) -> tuple[int, str | None] | None:
    return None if info is None else (info.size, info.etag)


def _remove(out: StoreOutput, names: Sequence[str]) -> None:
    for start in range(0, len(names), _BATCH):
        out.store.delete([out.name(name) for name in names[start : start + _BATCH]])
