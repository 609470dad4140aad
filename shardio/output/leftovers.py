"""Leftovers of killed and replaced writers at a dataset's place: shardio alone writes them, and no manifest names them.

In a folder these are the hidden folders that shards are built in, journals of unfinished conversions, temporary files,
and shards that no manifest names. In a store they are objects: shards, and the records of unfinished conversions.
`system/replacement.py` finds what was left of single files and folders that were being replaced.
"""

import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .. import containers
from ..containers import piece_sums
from ..errors import ConfigError, ObjectNotFound, ShardioError
from ..format import manifest
from ..format.keys import KEY
from ..format.manifest import Manifest
from ..stores.base import ObjectInfo, Store
from ..stores.url import Url
from ..system.directory import Directory
from .base import Leftovers
from .locks import LOCK, Lock, is_folder_held, is_held
from .own_files import HIDDEN, SHARD, TEMPORARY, index_of_keys, is_own, kept_name, ours, stem_of
from .records import JOURNAL, RECORD_NAME, RUN_NAME, decode_record
from .remote_manifest import find_object
from .shard_writer import WORKPLACE

_BATCH = 1000  # objects in one request


def in_folder(final: Directory, since: float | None) -> Leftovers:
    """Return what killed writers left in a dataset's directory, see `FolderOutput.leftovers`.

    Without a manifest, shards are leftovers only if a writer died while it put them in place: those of a dataset whose
    manifest was lost are left to `repair`.
    """
    own = ours(final)
    hidden = {name for name in own if HIDDEN.fullmatch(name)}
    held = {name for name in hidden if _is_at_work(final.directory(name))}
    state = identity(final)
    if state is not None:
        others = {*own} - hidden - _named(final)
    else:
        shards_too = any(_was_publishing(final.directory(name)) for name in hidden)
        others = {name for name in {*own} - hidden if shards_too or TEMPORARY.fullmatch(name)}
    found = {name: _entry(final, name) for name in hidden | others}
    kept = held | {name for name, info in found.items() if since is not None and _is_young(info, since)}
    if held or (state is None and kept & hidden):  # without what is hidden, nobody would know these for shardio's
        kept |= others
    # What is hidden last, for the same reason.
    order = sorted(found.keys() - kept, key=lambda name: (name in hidden, name))
    return Leftovers(tuple(found[name] for name in order), tuple(found[name] for name in sorted(kept)), state)


def unnamed_shards(final: Directory) -> list[str]:
    """Return the files of shards in a directory that its manifest does not name."""
    unnamed = {*ours(final)} - _named(final)
    return sorted(name for name in unnamed if re.match(SHARD, name))


def remove_from_folder(final: Directory, found: Leftovers) -> bool:
    """Remove the removable leftovers of a directory; False, with part of them there, if a writer came meanwhile."""
    for info in found.removable:
        if identity(final) != found.state or (final.kind(info.name) and _entry(final, info.name) != info):
            return False
        if info.name == JOURNAL:
            if not remove_journal(final):
                return False
        elif info.name in final.names():
            if HIDDEN.fullmatch(info.name) and _is_at_work(final.directory(info.name)):
                return False
            final.remove(info.name)
    return True


def remove_journal(final: Directory) -> bool:
    """Remove the journal of an unfinished conversion; False if a conversion holds it now, or has put it away."""
    try:
        lock = Lock(final.directory(JOURNAL), LOCK, "another conversion")
    except (ConfigError, FileNotFoundError):
        return False
    try:
        retired = f"{WORKPLACE}{secrets.token_hex(4)}-new"
        final.rename(JOURNAL, final, retired)  # in one step: half of it passes for no journal
    finally:
        lock.release()
    remove_retired(final, retired)
    return True


def remove_retired(final: Directory, name: str) -> None:
    """Remove a journal that was put away; its lock goes last, as the next conversion knows a journal by it."""
    folder = final.directory(name)
    for entry in folder.names():
        if entry != LOCK:
            folder.remove(entry)
    final.remove(name)


def _entry(final: Directory, name: str) -> ObjectInfo:
    """Return the size of a file or of all files in a folder, and when the last of them was written."""
    top = final.place(name)
    found = [top.lstat()]
    for folder, folders, files in os.walk(top) if not top.is_symlink() else ():
        found += [Path(folder, one).lstat() for one in (*folders, *files)]
    size = sum(status.st_size for status in found[0 if len(found) == 1 else 1 :])
    return ObjectInfo(name, size, None, max(status.st_mtime for status in found))


def identity(final: Directory) -> tuple[int, int] | None:
    """Return what identifies a directory's manifest; None without a manifest."""
    if final.kind(manifest.FILE_NAME) is None:
        return None
    status = final.place(manifest.FILE_NAME).lstat()
    return status.st_ino, status.st_mtime_ns


def _is_at_work(hidden: Directory) -> bool:
    """Return whether a process holds a hidden folder, or a journal, or is a rank that works in it."""
    names = [name for name in hidden.names() if name == LOCK or name.startswith("rank-")]
    return is_folder_held(hidden) or any(is_held(hidden, name) for name in names)


def _was_publishing(hidden: Directory) -> bool:
    """Return whether the shards in a hidden folder had begun to be put in place: their manifest is written by then."""
    runs = [hidden.directory(name) for name in hidden.names() if RUN_NAME.fullmatch(name)]
    shards = [run.directory("shards") for run in runs if run.kind("shards") == "directory"]
    return any(folder.kind(manifest.FILE_NAME) == "file" for folder in (hidden, *shards))


def _named(final: Directory) -> set[str]:
    """Return the files that a directory's manifest needs; ManifestError if it cannot be trusted."""
    described = manifest.load(final.place())
    kind = containers.get(described.container)
    named = {manifest.FILE_NAME, manifest.table_named_in(final.read(manifest.FILE_NAME)) or ""}
    named.add(kept_name("keys", index_of_keys(described.digest, KEY, described.samples)))
    for name in described.shards.names:
        path = final.place(name)
        files = *kind.files(path), *kind.links(path)
        named |= {name, piece_sums.path_of(Path(name)).name, *(file.name for file in files)}
    return named


def in_store(store: Store, url: Url, load: Callable[[], Manifest | None], since: float | None) -> Leftovers | None:
    """Return what unfinished and replaced conversions left in a store, see `FolderOutput.leftovers`.

    Args:
        store: the store.
        url: the dataset's place.
        load: returns the manifest that is there, None if there is none.
        since: keep what was written later, and the shards and records of conversions that wrote something later.
    """
    # What a conversion has recorded is read before the manifest: when the records go, the manifest is there.
    listed = _listed(store, url)
    try:
        active = set[str]() if since is None else _active(store, url, listed, since)
    except ObjectNotFound:  # a conversion has finished meanwhile
        return None
    before = find_object(store, (url / manifest.FILE_NAME).path)
    named = _named_in_store(load)
    if find_object(store, (url / manifest.FILE_NAME).path) != before:
        return None
    unnamed = {name: info for name, info in listed.items() if stem_of(name) not in named and name not in named}
    kept = {
        name: info
        for name, info in unnamed.items()
        if since is not None
        and (_is_young(info, since) or _run_of(name) in active or _is_active(stem_of(name), active))
    }
    removable = [info for name, info in unnamed.items() if name not in kept]
    # The records first: what has lost them cannot be resumed, and so be named by a manifest later.
    removable.sort(key=lambda info: _run_of(info.name) is None)
    return Leftovers(tuple(removable), tuple(kept.values()), before)


def remove_from_store(store: Store, url: Url, found: Leftovers) -> bool:
    """Remove the removable leftovers of a place; False, with part of them there, if the manifest changed meanwhile."""
    names = [info.name for info in found.removable]
    delete(store, [(url / name).path for name in names if _run_of(name)])
    if find_object(store, (url / manifest.FILE_NAME).path) != found.state:
        return False
    delete(store, [(url / name).path for name in names if not _run_of(name)])
    return True


def delete(store: Store, names: Sequence[str]) -> None:
    """Delete objects, many with one request."""
    for start in range(0, len(names), _BATCH):
        store.delete(names[start : start + _BATCH])


def _listed(store: Store, url: Url) -> dict[str, ObjectInfo]:
    """Return the objects whose names shardio alone gives, by their names from the dataset's place on."""
    prefix = f"{url.path}/" if url.path else ""
    found = {}
    for info in store.list(url.path):
        name = info.name.removeprefix(prefix)
        if is_own(name):
            found[name] = ObjectInfo(name, info.size, info.etag, info.modified)
    return found


def _named_in_store(load: Callable[[], Manifest | None]) -> set[str]:
    """Return the names that the manifest needs: of shards up to the first dot, and of their table."""
    if (described := load()) is None:
        return set()
    table = manifest.in_store(described)[1]
    return {name.partition(".")[0] for name in described.shards.names} | ({table[0]} if table else set())


def _is_young(info: ObjectInfo, since: float) -> bool:
    return info.modified is None or info.modified > since


def _run_of(name: str) -> str | None:
    parts = name.split("/")
    return parts[1] if parts[0] == JOURNAL else None


def _active(store: Store, url: Url, listed: Mapping[str, ObjectInfo], since: float) -> set[str]:
    """Return the runs that have written something of late, and the shards that they have recorded, by their stems."""
    runs = {run for name, info in listed.items() if (run := _run_of(name)) and _is_young(info, since)}
    stems: set[str] = set()
    for name in listed:
        if _run_of(name) in runs and RECORD_NAME.fullmatch(name.rpartition("/")[2]):
            data = bytes(store.read((url / name).path).data)
            try:
                record = decode_record(data, f"{url / name}")
            except ShardioError:  # damaged: resuming refuses it
                continue
            stems.update(stem for state in record.objects if (stem := stem_of(state[0])))
    return runs | stems


def _is_active(stem: str | None, active: set[str]) -> bool:
    """Return whether a shard is recorded by an active run, or was written by the process that began one."""
    return stem is not None and (stem in active or f"run-{stem.rpartition('-')[2]}" in active)
