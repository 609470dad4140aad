"""A dataset's output directory: shards are built in a hidden folder, and moved into place once all are complete."""

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError, ManifestError
from ..format import manifest
from ..system import durable
from .shard_writer import WORKPLACE

JOURNAL = ".converting"
"""The hidden folder of an unfinished conversion."""


@dataclass(frozen=True, slots=True)
class OutputDirectory:
    """The folder in which a dataset is built, and its final directory.

    A dataset that the new one replaces stays intact until `publish`.

    Attributes:
        directory: the folder that shards are written to.
        final: the dataset's final directory.
        beside: whether `final` holds files of other programs, which become the dataset's shards in place.
    """

    directory: Path
    final: Path
    beside: bool = False

    def publish(self, names: Iterable[str]) -> None:
        """Move the new dataset into place. The old manifest goes first, and the new one comes last.

        Args:
            names: the dataset's files. An interrupted earlier publication has moved those that `directory` lacks.
        """
        if self.directory == self.final:
            return
        # Killed processes leave unfinished shards in hidden folders.
        built = {path.name for path in self.directory.iterdir() if not path.name.startswith(WORKPLACE)}
        already_moved = set(names) - built
        ours = (
            () if self.beside else _ours(self.final)
        )  # asked before the manifest goes, which says which files are ours
        (self.final / manifest.FILE_NAME).unlink(missing_ok=True)
        for path in ours:
            if path == self.directory or path in self.directory.parents or path.name in already_moved:
                continue
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        for name in sorted(built, key=lambda name: name == manifest.FILE_NAME):
            os.replace(self.directory / name, self.final / name)
        durable.sync_directory(self.final)
        shutil.rmtree(self.directory)

    def discard(self) -> None:
        """Remove the unfinished files."""
        shutil.rmtree(self.directory, ignore_errors=True)


def prepare(path: str | os.PathLike[str], *, overwrite: bool) -> OutputDirectory:
    """Prepare to write a dataset to `path`, which must be empty; with `overwrite` it may hold a dataset or its remains.

    Raises ConfigError if `path` holds anything else.
    """
    final = Path(path)
    existing = _existing_files(final)
    if existing and not overwrite:
        kind = "the dataset" if (final / manifest.FILE_NAME) in existing else "the unfinished dataset"
        raise ConfigError(f"{final}: the output directory must be empty; overwrite replaces {kind} in it")
    building = final / f"{WORKPLACE}{secrets.token_hex(4)}-new"
    building.mkdir()
    return OutputDirectory(building, final)


def claim(path: str | os.PathLike[str], *, overwrite: bool, resume: bool, beside: bool = False) -> OutputDirectory:
    """Prepare to convert to `path`; the shards are built in the journal's folder.

    Args:
        path: the dataset's directory.
        overwrite: whether to replace a dataset in `path`, or the remains of one.
        resume: whether to continue an unfinished conversion.
        beside: whether files of other programs in `path` become the dataset's shards.

    Raises ConfigError if `path` holds anything that shardio did not write, a dataset that may not be overwritten, or
    an unfinished conversion that may be neither resumed nor overwritten.
    """
    final = Path(path)
    journal = final / JOURNAL
    if beside:
        existing = {path for path in (journal, final / manifest.FILE_NAME) if path.exists()}
    else:
        existing = _existing_files(final)
    if existing and not overwrite and not (resume and journal in existing):
        if (final / manifest.FILE_NAME) in existing:
            ways = "overwrite replaces the dataset in it"
        elif journal in existing:
            ways = "resume continues the unfinished conversion in it, overwrite starts over"
        else:
            ways = "overwrite replaces the unfinished dataset in it"
        raise ConfigError(f"{final}: the output directory must be empty; {ways}")
    journal.mkdir(exist_ok=True)
    return OutputDirectory(journal, final, beside)


def _existing_files(final: Path) -> set[Path]:
    """Return shardio's files in a directory, which is created if needed; ConfigError if it holds anything else."""
    if final.exists() and not final.is_dir():
        raise ConfigError(f"{final}: not a directory")
    final.mkdir(parents=True, exist_ok=True)
    existing, ours = set(final.iterdir()), set(_ours(final))
    if other := sorted(existing - ours):
        raise ConfigError(f"{final}: the output directory must be empty; it holds {other[0].name}")
    return existing


_SHARD_FILE = re.compile(r"shard-\d{6,}(\.[a-z0-9]+)*")
_INDEX_FILE = re.compile(r"shard-\d{6,}(\.[a-z0-9]+)?\.idx\.[a-z0-9]+")
_MANIFEST_FILES = (manifest.FILE_NAME, manifest.TABLE_NAME)
_HIDDEN = re.compile(
    rf"{re.escape(JOURNAL)}|{re.escape(WORKPLACE)}[0-9a-f]+-(\d+|new)"
    rf"|\.({'|'.join(map(re.escape, _MANIFEST_FILES))})\.\d+\.tmp"
)


def _ours(directory: Path) -> list[Path]:
    """Return the files in a directory that shardio itself has written, the manifest first: it makes them a dataset.

    Files named like shards count only beside a manifest or a hidden folder of shardio. Adopted files never do.
    """
    paths = [path for path in directory.iterdir() if not path.is_dir() or not path.is_symlink()]
    signs = {path for path in paths if _is_sign(path)}
    if not signs:
        return []
    shard = _INDEX_FILE if _adopts(directory) else _SHARD_FILE
    files = {
        path
        for path in paths
        if (path.is_symlink() and _SHARD_FILE.fullmatch(path.name))
        or (not path.is_symlink() and path.is_file() and shard.fullmatch(path.name))
    }
    return sorted(signs | files, key=lambda path: path.name != manifest.FILE_NAME)


def _is_sign(path: Path) -> bool:
    if path.is_symlink():
        return False
    return (path.name in _MANIFEST_FILES and path.is_file()) or _HIDDEN.fullmatch(path.name) is not None


def _adopts(directory: Path) -> bool:
    """Return whether the dataset at `directory`, or an unfinished conversion in it, adopts files of other programs.

    True if damage leaves that unknown: files of other programs must not be removed.
    """
    try:
        begun = directory / JOURNAL / "plan.json"
        if begun.exists() and json.loads(begun.read_bytes()).get("adopted"):
            return True
        return (directory / manifest.FILE_NAME).exists() and manifest.load(directory).adopted
    except (ManifestError, ValueError, AttributeError):
        return True
