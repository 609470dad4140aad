"""A dataset's place in a store: what is written there, under which names, and how its manifest is replaced.

    photos/shardio.json                     the manifest, written last and on a condition: it alone makes a dataset
    photos/shard-000012-1a2b3c4d.tar        a shard, and its other files beside it; 1a2b3c4d is the writer's own name
    photos/shardio.shards-<checksum>.npy    only with more than 10,000 shards: their columns
    photos/.converting/run-1a2b3c4d/        an unfinished conversion, see `conversion.store_journal`, or the sign of a
                                            writer at work

A store has neither locks nor renames. So nobody writes where somebody else does, nothing is written twice, and of two
writers the one whose manifest comes first has written the dataset.
"""

import re
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, final

from .. import containers
from ..containers import piece_sums
from ..errors import ConfigError, NotADataset, ObjectChanged, ObjectNotFound, StoreError
from ..format import manifest
from ..format.manifest import Manifest
from ..stores.base import Condition, ObjectInfo, Store
from ..stores.url import Url
from ..system.directory import Directory
from ..system.temporary_folder import remove_abandoned_folders, temporary_folder
from .output_directory import JOURNAL, PLAN
from .remote_manifest import load_remote, save_remote
from .shard_writer import WrittenShard

STAGING = "shardio-shard-"
"""The prefix of the temporary folders in which shards are built before they are uploaded."""

RUN_NAME = re.compile(r"run-[0-9a-f]{8}")
WRITING = "writing"
"""The object by which a writer says that it is at work; it is written anew with each shard."""

RECORD_NAME = re.compile(r"([0-9]{6,18})\.done")
RANK_NAME = re.compile(r"rank-[0-9]{5,9}(\.over|\.failed)?")
_INDEX_NAME = re.compile(r"[0-9]{6,18}(\.sums)?\.idx\.npy")
"""The index of an adopted object, and its table of checksums, which are kept beside its record until the end."""

_OF_A_RUN = (RECORD_NAME, RANK_NAME, _INDEX_NAME)
_SHARD_OBJECT = re.compile(r"(shard-[0-9]{6,}-[0-9a-f]{8})(\.[a-z0-9]+)+")
_READ_ONLY = ("http", "https")

NamedState: TypeAlias = tuple[str, int, str | None]
"""An object as it was written: its name beside the manifest, its size in bytes, and its ETag."""


def stem_of(name: str) -> str | None:
    """Return the name, up to the first dot, of the shard that an object is a file of; None unless shardio named it."""
    found = _SHARD_OBJECT.fullmatch(name)
    return None if found is None else found[1]


def is_own(name: str) -> bool:
    """Return whether shardio gives an object beside a manifest this name, and no other program does; not the manifest.

    Args:
        name: the object's name, from the dataset's place on.
    """
    if _SHARD_OBJECT.fullmatch(name) or (name != manifest.TABLE_NAME and manifest.TABLE_PATTERN.fullmatch(name)):
        return True
    parts = name.split("/")
    return (
        len(parts) == 3
        and parts[0] == JOURNAL
        and RUN_NAME.fullmatch(parts[1]) is not None
        and (parts[2] in (PLAN, WRITING) or any(one.fullmatch(parts[2]) for one in _OF_A_RUN))
    )


@dataclass(frozen=True, slots=True)
class StoreOutput:
    """Where a dataset is written in a store.

    Attributes:
        url: the dataset's place.
        store: the store that it is in.
        writer: the name of this process and those that work for it, which nobody else has: 8 hexadecimal digits. It is
            part of the names of all shards that they write.

    Raises ConfigError for a store that cannot be written to.
    """

    url: Url
    store: Store
    writer: str = field(default_factory=lambda: secrets.token_hex(4))

    def __post_init__(self) -> None:
        if (scheme := self.url.root.partition(":")[0]) in _READ_ONLY:
            raise ConfigError(f"{self.url}: an output must be a path or a URL of a bucket, got {scheme}://")

    @property
    def path(self) -> Url:
        """The dataset's place."""
        return self.url

    def name(self, *parts: str) -> str:
        """Return the name, in the store, of an object at this place."""
        return (self.url / "/".join(parts)).path

    def upload_shard(self, folder: Path, shard: WrittenShard) -> tuple[WrittenShard, list[NamedState]]:
        """Upload the files of a finished shard, which are all that `folder` holds, and remove them there.

        Returns:
            The shard under the name that it has in the store, and its objects.
        """
        stem = shard.name.partition(".")[0]
        states = []
        for path in sorted(folder.iterdir()):
            name = f"{stem}-{self.writer}{path.name.removeprefix(stem)}"
            written = self.store.upload(self.name(name), path)
            states.append((name, written.size, written.etag))
            path.unlink()
        return replace(shard, name=f"{stem}-{self.writer}{shard.name.removeprefix(stem)}"), states

    def are_there(self, states: Sequence[NamedState]) -> bool:
        """Return whether objects are as they were when they were written, by size and ETag."""
        try:
            found = [self.store.info(self.name(name)) for name, _, _ in states]
        except ObjectNotFound:
            return False
        return all(
            info.size == size and (etag is None or info.etag is None or info.etag == etag)
            for info, (_, size, etag) in zip(found, states, strict=True)
        )

    def manifest_info(self) -> ObjectInfo | None:
        """Return the size and ETag of the manifest that is there; None if there is none."""
        try:
            return self.store.info(self.name(manifest.FILE_NAME))
        except ObjectNotFound:
            return None

    def manifest(self) -> Manifest | None:
        """Return the manifest that is there; None if there is none. Raises ManifestError if it cannot be trusted."""
        with tempfile.TemporaryDirectory() as folder:  # of a table of shards, which stays mapped
            try:
                return load_remote(self.store, self.url, Path(folder))
            except NotADataset:
                return None

    def condition(self, *, overwrite: bool) -> Condition:
        """Return the state that the manifest has now, which it is to have when it is written.

        Raises ConfigError if there is a manifest, and it may not be overwritten.
        """
        now = self.manifest_info()
        if now is None:
            return "new"
        if not overwrite:
            raise ConfigError("{}: there is a dataset already; {overwrite} replaces it", self.url)
        if now.etag is None:
            raise StoreError(f"{self.url}: the store gives no ETags, so no manifest can be replaced safely: remove it")
        return now.etag

    def publish(self, completed: Manifest, condition: Condition) -> None:
        """Write the manifest of shards that are all there, if the one before is still in its state.

        Raises ObjectNotFound if a file of a shard was removed meanwhile, ObjectChanged if one was replaced, or another
        writer has made a dataset.
        """
        self._check_there(completed)
        try:
            save_remote(self.store, self.url, completed, condition)
        except (ObjectChanged, ObjectNotFound) as error:
            if self.holds(completed):  # two processes have resumed one conversion
                return
            raise ObjectChanged(
                f"{self.url / manifest.FILE_NAME}: another writer has changed it since this one began, and its "
                "dataset stays; shardio clean removes, after a day, what this one wrote"
            ) from error

    def _check_there(self, completed: Manifest) -> None:
        """Look up what a manifest names: other programs may have removed it, such as a bucket's lifecycle rule."""
        listed = {found.name: found.size for found in self.store.list(self.url.path)}
        kind, shards = containers.get(completed.container), completed.shards
        for shard, expected in zip(shards.names, shards.bytes, strict=True):
            files = (shard, *kind.companions(shard, adopted=completed.adopted))
            sums = () if completed.piece_bytes is None else (f"{shard}{piece_sums.SUFFIX}",)
            sizes = []
            for name in (*files, *sums):
                place = self.name(name)
                try:
                    sizes.append(listed[place] if place in listed else self.store.info(place).size)
                except ObjectNotFound as error:
                    raise ObjectNotFound(
                        f"{self.url / name}: was removed since it was written, so the dataset has no manifest: resume "
                        "the conversion, or write it anew"
                    ) from error
            if (size := sum(sizes[: len(files)])) != expected:
                raise ObjectChanged(
                    f"{self.url / shard}: was replaced since it was written, so the dataset has no manifest: the files "
                    f"have {size} bytes, not {expected}; resume the conversion, or write it anew"
                )

    def holds(self, completed: Manifest) -> bool:
        """Return whether this manifest is there."""
        try:
            return bytes(self.store.read(self.name(manifest.FILE_NAME)).data) == manifest.in_store(completed)[0]
        except ObjectNotFound:
            return False


@final
class StorePlace:
    """Where a writer builds a dataset for a store, in place of `OutputDirectory`.

    Args:
        out: the dataset's place.
        overwrite: whether it may replace a dataset there, which stays until the new one is complete.

    Attributes:
        directory: the temporary folder that shards are written to.
        path: the dataset's place.

    Raises ConfigError if there is a dataset, and it may not be overwritten.
    """

    def __init__(self, out: StoreOutput, *, overwrite: bool) -> None:
        self._out, self.path = out, out.url
        self._condition = out.condition(overwrite=overwrite)
        self._uploaded: list[str] = []
        self._resources = ExitStack()
        remove_abandoned_folders(STAGING)
        self.directory = Directory(self._resources.enter_context(temporary_folder(STAGING)))
        self._sign = out.name(JOURNAL, f"run-{out.writer}", WRITING)
        out.store.write(self._sign, b"")

    def keep(self, shard: WrittenShard) -> WrittenShard:
        """Upload a shard that is finished; return it under its name in the store."""
        uploaded, objects = self._out.upload_shard(self.directory.path, shard)
        self._out.store.write(self._sign, b"")
        self._uploaded += [name for name, _, _ in objects]
        return uploaded

    def finish(self, completed: Manifest) -> None:
        """Write the manifest of the shards, all of which are uploaded."""
        uploaded, self._uploaded = self._uploaded, []  # from here on, they may be a dataset's
        try:
            self._out.publish(completed, self._condition)
        except ObjectNotFound:  # there is no manifest
            self._uploaded = uploaded
            raise

    def discard(self) -> None:
        """Remove the temporary folder, and what was uploaded if no manifest can name it, as far as that is possible."""
        self._resources.close()
        uploaded, self._uploaded = self._uploaded, []
        with suppress(StoreError):
            self._out.store.delete([*(self._out.name(name) for name in uploaded), self._sign])
