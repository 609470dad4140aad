"""A dataset's output directory: shards are built in a hidden folder, and moved into place once all are complete.

The directory that the user names may be a link. Nothing below it is: see `system.directory`.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .. import containers
from ..containers import hdf5_index, side_index, tar_layout
from ..errors import ConfigError, DatasetError
from ..format import manifest
from ..system.directory import Directory, Kind
from ..system.local_path import local_path
from .shard_writer import WORKPLACE, WrittenShard

JOURNAL = ".converting"
"""The hidden folder of an unfinished conversion."""

PLAN = "plan.json"
"""The file in it that describes the conversion."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where a dataset is written.

    Attributes:
        root: the directory that the user names, which may be a link.
        split: the folder of a split in it, which may not be one; "" if the dataset's directory is `root` itself.
    """

    root: Path
    split: str = ""

    @property
    def path(self) -> Path:
        """The dataset's directory."""
        return self.root / self.split

    def open(self) -> Directory:
        """Open the dataset's directory, which must exist."""
        root = Directory(self.root)
        return root.directory(self.split) if self.split else root

    def make(self) -> Directory:
        """Open the dataset's directory, and create it if needed; ConfigError if it is anything but a directory."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            root = Directory(self.root)
            return root.make(self.split, exist_ok=True) if self.split else root
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(f"{self.path}: not a directory") from error


@dataclass(frozen=True, slots=True)
class OutputDirectory:
    """The folder in which a dataset is built, and its final directory.

    A dataset that the new one replaces stays intact until `publish`.

    Attributes:
        directory: the folder that shards are written to, in `final` or below; or `final` itself.
        final: the dataset's final directory.
        beside: whether `final` holds files of other programs, which become the dataset's shards in place.
    """

    directory: Directory
    final: Directory
    beside: bool = False

    @property
    def path(self) -> Path:
        """The dataset's final directory."""
        return self.final.path

    def keep(self, shard: WrittenShard) -> WrittenShard:
        """Take a shard that is finished: it stays in `directory` until `publish`."""
        return shard

    def publish(self, names: Iterable[str]) -> None:
        """Move the new dataset into place. The old manifest goes first, and the new one comes last.

        Args:
            names: the dataset's files. An interrupted earlier publication has moved those that `directory` lacks.
        """
        if self.directory is self.final:
            return
        dataset = {*names}
        # Killed processes leave unfinished shards and temporary files, which go with the folder.
        built = [name for name in self.directory.names() if name in dataset or name in _MANIFEST_FILES]
        already_moved = dataset - {*built}
        ours = [] if self.beside else _ours(self.final)  # asked before the manifest goes, which says what is ours
        self.final.unlink(manifest.FILE_NAME)
        for name in ours:
            if name not in already_moved and name not in self.directory.path.relative_to(self.final.path).parts:
                self.final.remove(name)
        for name in sorted(built, key=lambda name: name == manifest.FILE_NAME):
            self.directory.rename(name, self.final, name)
        self.final.sync()

    def discard(self) -> None:
        """Remove the hidden folder that `prepare` made, as far as that is possible."""
        with contextlib.suppress(OSError):
            self.final.remove(self.directory.path.name)


def prepare(path: str | os.PathLike[str], *, overwrite: bool) -> OutputDirectory:
    """Prepare to write a dataset to `path`, which must be empty; with `overwrite` it may hold a dataset or its remains.

    Raises ConfigError if `path` holds anything else.
    """
    final = Output(local_path(path)).make()
    existing = _existing(final)
    if existing and not overwrite:
        kind = "the dataset" if manifest.FILE_NAME in existing else "the unfinished dataset"
        raise ConfigError("{}: the output directory must be empty; {overwrite} replaces {} in it", final.path, kind)
    return OutputDirectory(final.make(f"{WORKPLACE}{secrets.token_hex(4)}-new"), final)


def claim(out: Output, *, overwrite: bool, resume: bool, beside: bool = False) -> tuple[Directory, Directory]:
    """Prepare to convert to `out`; return its directory and the journal's folder in it, where shards are built.

    Args:
        out: the output.
        overwrite: whether to replace a dataset in it, or the remains of one.
        resume: whether to continue an unfinished conversion.
        beside: whether files of other programs in it become the dataset's shards.

    Raises ConfigError if the output holds anything that shardio did not write, a dataset that may not be overwritten,
    or an unfinished conversion that may be neither resumed nor overwritten.
    """
    final = out.make()
    if beside:
        existing: Collection[str] = {name for name in (JOURNAL, manifest.FILE_NAME) if final.kind(name)}
    else:
        existing = _existing(final)
    if existing and not overwrite and not (resume and JOURNAL in existing):
        if manifest.FILE_NAME in existing:
            ways = "{overwrite} replaces the dataset in it"
        elif JOURNAL in existing:
            ways = "{resume} continues the unfinished conversion in it, {overwrite} starts over"
        else:
            ways = "{overwrite} replaces the unfinished dataset in it"
        raise ConfigError("{}: the output directory must be empty; " + ways, final.path)
    journal = final.make(JOURNAL, exist_ok=True)
    check_made(journal)
    return final, journal


def check_made(hidden: Directory) -> None:
    """Raise ConfigError if a hidden folder holds anything at its top that shardio does not make there."""
    if strangers := _strangers(hidden):
        raise ConfigError(f"{hidden.path} holds {strangers[0]}, which shardio did not make: remove it yourself")


def _existing(final: Directory) -> list[str]:
    """Return the names in a directory, which must all be of files that shardio has written; ConfigError if not."""
    existing, ours = final.names(), {*_ours(final)}
    for name in existing:
        if name not in ours:
            if _HIDDEN.fullmatch(name) and final.kind(name) in ("directory", "link"):
                check_made(final.directory(name))  # says what is wrong with it
            raise ConfigError(f"{final.path}: the output directory must be empty; it holds {name}")
    return existing


SHARD = r"shard-[0-9]{6,}(?:-[0-9a-f]{8})?"
"""A pattern of the names of shards, without what follows the first dot; in stores they end in a run's name."""

_SHARD_FILE = re.compile(rf"{SHARD}(\.[a-z0-9]+)*")
_INDEX_FILE = re.compile(rf"{SHARD}(\.[a-z0-9]+)?(\.sums)?\.idx\.[a-z0-9]+")
_OWN_TAR = re.compile(rf"{SHARD}\.tar")
_OWN_MEMBER = re.compile(rb"[0-9]{%d}\." % tar_layout.KEY_DIGITS)
_OTHERS_INDEX = re.compile(rf"{SHARD}(\.idx\.h5|\.[a-z0-9]+\.idx\.npy)")
_MANIFEST_FILES = (manifest.FILE_NAME, manifest.TABLE_NAME)
_MANIFEST = "|".join(map(re.escape, _MANIFEST_FILES))
_HIDDEN = re.compile(rf"{re.escape(JOURNAL)}|{re.escape(WORKPLACE)}[0-9a-f]+-([0-9]+|new)")
_TEMPORARY = re.compile(rf"\.({_MANIFEST}|{re.escape(PLAN)}|{SHARD}[a-z0-9.]*)\.[0-9a-f]+\.tmp")
_MADE_FILE = re.compile(rf"lock|rank-[0-9]{{5,}}|{re.escape(PLAN)}|{_MANIFEST}|{_SHARD_FILE.pattern}")
_MADE_FOLDER = re.compile(r"run-[0-9a-f]{8}|" + _HIDDEN.pattern)


def _ours(directory: Directory) -> list[str]:
    """Return the names in a directory that shardio itself has written, the manifest first: it makes them a dataset.

    Files named like shards count only beside a manifest or a hidden folder of shardio. Adopted files never do; links to
    them do, and their indexes, also where nothing else is left of their dataset.
    """
    kinds = {name: directory.kind(name) for name in directory.names()}
    signs = {name for name, kind in kinds.items() if _is_sign(directory, name, kind)}
    if not signs and not any(_is_indexed_link(name, kinds) for name in kinds):
        return []
    adopts = not signs or _adopts(directory) or _shows_adoption(directory, kinds)
    shard = _INDEX_FILE if adopts else _own_file()
    files = {
        name
        for name, kind in kinds.items()
        if (kind == "file" and shard.fullmatch(name))
        or (kind == "link" and _SHARD_FILE.fullmatch(name) and not directory.place(name).is_dir())
    }
    return sorted(signs | files, key=lambda name: name != manifest.FILE_NAME)


def _own_file() -> re.Pattern[str]:
    """Return the names of the files of shards that shardio's containers write."""
    suffixes = "|".join(re.escape(containers.get(name).suffix) for name in containers.names())
    return re.compile(rf"{SHARD}({suffixes}|\.idx\.npy)(\.[a-z0-9]+)*")


def _is_sign(directory: Directory, name: str, kind: Kind | None) -> bool:
    if kind == "directory":
        return _HIDDEN.fullmatch(name) is not None and not _strangers(directory.directory(name))
    known = name in _MANIFEST_FILES or manifest.TABLE_PATTERN.fullmatch(name) or _TEMPORARY.fullmatch(name)
    return kind == "file" and bool(known)


def _is_indexed_link(name: str, kinds: Mapping[str, Kind | None]) -> bool:
    """Return whether a file is a link to an adopted file, with its index beside it."""
    if kinds[name] != "link" or not _SHARD_FILE.fullmatch(name):
        return False
    return any(kinds.get(path_of(Path(name)).name) == "file" for path_of in (side_index.path_of, hdf5_index.path_of))


def _strangers(hidden: Directory) -> list[str]:
    """Return the names in a hidden folder that are not those of what shardio makes there."""
    made = {"file": (_MADE_FILE, _TEMPORARY), "directory": (_MADE_FOLDER,)}
    return [
        name
        for name in hidden.names()
        if not any(pattern.fullmatch(name) for pattern in made.get(hidden.kind(name) or "", ()))
    ]


def _shows_adoption(directory: Directory, kinds: Mapping[str, Kind | None]) -> bool:
    """Return whether the files show what a manifest may leave out: that other programs wrote the shards.

    Only adopted files have certain indexes, and shardio's tars begin with a member that a number of 12 digits names.
    """
    if any(_OTHERS_INDEX.fullmatch(name) for name in kinds):
        return True
    for name, kind in kinds.items():
        if kind == "file" and _OWN_TAR.fullmatch(name):
            with os.fdopen(directory.open(name, os.O_RDONLY), "rb", buffering=0) as file:
                head = file.read(tar_layout.BLOCK)
            if len(head) == tar_layout.BLOCK and any(head):  # else it is damaged, and shows nothing
                return not _OWN_MEMBER.match(head)
    return False


def _adopts(directory: Directory) -> bool:
    """Return whether the dataset in `directory`, or an unfinished conversion in it, adopts files of other programs.

    True if damage leaves that unknown: files of other programs must not be removed.
    """
    try:
        if directory.kind(JOURNAL) == "directory" and directory.directory(JOURNAL).kind(PLAN):
            plan = msgspec.json.decode(directory.directory(JOURNAL).read(PLAN), type=dict)
            if plan.get("adopted"):
                return True
        return directory.kind(manifest.FILE_NAME) is not None and manifest.load(directory.place()).adopted
    except (DatasetError, ConfigError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return True
