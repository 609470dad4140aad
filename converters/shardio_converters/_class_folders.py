"""Folders of files, one folder per class: which files there are, found as torchvision's ImageFolder finds them."""

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

from shardio.errors import Message, SourceError
from shardio.foreign.files import unreadable
from shardio.foreign.names import printable

from ._files import source_errors

_MANIFEST = "shardio.json"
_APPLE_DOUBLE = "._"
"""How the names of the files begin that macOS writes beside others on foreign disks, of what these cannot keep."""
_OF_SYSTEMS = frozenset(("__MACOSX", "@eaDir"))  # what macOS and a NAS add
_SHOWN = 5  # the most folders that a remark names

_Id: TypeAlias = tuple[int, int]


@final
@dataclass(frozen=True, slots=True)
class ClassFolders:
    """The files in a folder of class folders.

    Attributes:
        classes: the names of the class folders, in order; empty if there are none.
        files: yields for each class the path below the folder and the bytes of each of its files, in order.
        beside: the same of the files beside the class folders.
        left_out: how many files of other kinds there are, by suffix; those below class folders once they are yielded.
        hidden: the hidden folders with such files that are left out; those below class folders once they are yielded.
    """

    classes: list[str]
    files: Iterator[list[tuple[str, int]]]
    beside: list[tuple[str, int]]
    left_out: Counter[str]
    hidden: list[str]


def find_class_folders(
    root: Path, suffixes: tuple[str, ...], key: Callable[[str], Any], files: str, *, hidden: bool
) -> ClassFolders:
    """Find the files in a folder; all that lie below a folder in it belong to that folder's class.

    Symbolic links are followed, except back to a folder that contains them.

    Args:
        root: the folder.
        suffixes: the suffixes of the files to take, in lower case; the empty one takes all. Files that macOS has
            written beside others, `._NAME`, are of another kind whatever their suffix.
        key: by which names are sorted.
        files: what the files are called, for messages.
        hidden: whether to take hidden folders, and those that systems add.

    Raises SourceError if a folder cannot be read, or is a dataset of shardio.
    """
    tops = sorted(_scan(root), key=lambda entry: key(entry.name))
    for folder in (root, *(root / entry.name for entry in tops)):
        if os.path.isfile(folder / _MANIFEST):
            raise SourceError(f"{printable(folder)} is a dataset of shardio already, no folder of {files}")
    real = Path(os.path.realpath(root))
    above = frozenset(map(_identity, (real, *real.parents)))
    passed = None if hidden else list[str]()
    folders = [
        entry for entry in tops if _is_dir(entry, suffixes) and _enters(root, entry.name, suffixes, above, passed)
    ]
    classes = [one.name for one in folders if not (one.is_symlink() and _identity(Path(one.path)) in above)]
    others = [(entry, _size(entry, suffixes)) for entry in tops if not _is_dir(entry, suffixes)]
    beside = [(entry.name, size) for entry, size in others if size is not None]
    left_out = Counter(_kind(entry) for entry, size in others if size is None)
    walks = (_walk(root, name, suffixes, above, left_out, passed) for name in classes)
    found = (sorted(walk, key=lambda one: key(one[0])) for walk in walks)
    return ClassFolders(classes, found, beside, left_out, [] if passed is None else passed)


def hidden_remarks(folders: Sequence[str]) -> tuple[str, ...]:
    """Return a remark on hidden folders that are left out, if there are some."""
    if not folders:
        return ()
    named = ", ".join(map(printable, folders[:_SHOWN])) + (", ..." if len(folders) > _SHOWN else "")
    return (Message("left out {}, hidden or added by a system, as no classes; {hidden:True} takes them", named),)


def _enters(root: Path, path: str, suffixes: tuple[str, ...], above: frozenset[_Id], passed: list[str] | None) -> bool:
    """Whether to look into a folder; a hidden one that holds files is added to `passed`, None takes all."""
    name = path.rpartition("/")[2]
    if passed is None or not (name.startswith(".") or name in _OF_SYSTEMS):
        return True
    if any(True for _ in _walk(root, path, suffixes, above, Counter(), None)):
        passed.append(path)
    return False


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.name.startswith(_APPLE_DOUBLE):
        return "._* of macOS"
    return printable(os.path.splitext(entry.name)[1].lower()) or "without a suffix"


def _walk(
    root: Path,
    top: str,
    suffixes: tuple[str, ...],
    above: frozenset[_Id],
    left_out: Counter[str],
    passed: list[str] | None,
) -> Iterator[tuple[str, int]]:
    """Yield the path below `root` and the size of every image below the folder `top`, in no particular order.

    Files of other kinds are counted in `left_out`, hidden folders added to `passed`, see `_enters`.
    """
    # Each folder is kept with the folders that contain it, so that a link to one of them is not followed in a cycle.
    waiting = [(top, above)]
    while waiting:
        folder, above = waiting.pop()
        identity = _identity(root / folder)
        if identity in above:
            continue
        for entry in _scan(root / folder):
            path = f"{folder}/{entry.name}"
            if _is_dir(entry, suffixes):
                if _enters(root, path, suffixes, above | {identity}, passed):
                    waiting.append((path, above | {identity}))
            elif (size := _size(entry, suffixes)) is not None:
                yield path, size
            else:
                left_out[_kind(entry)] += 1


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    with source_errors(folder), os.scandir(folder) as entries:
        return list(entries)


def _identity(folder: Path) -> _Id:
    with source_errors(folder):
        status = folder.stat()
    return status.st_dev, status.st_ino


def _is_dir(entry: os.DirEntry[str], suffixes: tuple[str, ...]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        # A link that cannot be followed. With an image's suffix it becomes a bad sample; else it may hide a whole
        # folder.
        if error.errno == errno.ELOOP or entry.name.lower().endswith(suffixes):
            return False
        raise unreadable(Path(entry.path), error) from error


def _size(entry: os.DirEntry[str], suffixes: tuple[str, ...]) -> int | None:
    """The bytes of an image file, 0 if that cannot be told; None for anything else."""
    if not entry.name.lower().endswith(suffixes) or entry.name.startswith(_APPLE_DOUBLE):
        return None
    try:
        status = entry.stat()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else None  # opening a named pipe would block
