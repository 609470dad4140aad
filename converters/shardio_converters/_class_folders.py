"""Folders of files, one folder per class: which files there are, found as torchvision's ImageFolder finds them."""

import errno
import os
import stat
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from shardio.errors import ConfigError, Message, SourceError
from shardio.foreign.files import PARTS, Sort, order_hints, order_key, unreadable
from shardio.foreign.names import printable, source_errors
from shardio.foreign.string_array import StringArray
from shardio.foreign.text_tables import Column
from shardio.source import Field, listed_names, local_path
from shardio.system import did_you_mean
from shardio.system.units import counted

_MANIFEST = "shardio.json"
_APPLE_DOUBLE = "._"
"""How the names of the files begin that macOS writes beside others on foreign disks, of what these cannot keep."""
_OF_SYSTEMS = frozenset(("__MACOSX", "@eaDir"))  # what macOS and a NAS add
_SHOWN = 5  # the most folders, or kinds of files, that a message names

_Id: TypeAlias = tuple[int, int]


@final
@dataclass(frozen=True, slots=True)
class ClassFolders:
    """The files in a folder of class folders.

    Attributes:
        classes: the names of the class folders, in order; empty if there are none.
        files: yields for each class the path below the folder and the bytes of each of its files, in order.
        beside: the same for the files next to the class folders.
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
    """Find the files in a folder; all files below a folder in it belong to that folder's class.

    Symbolic links are followed, except back to a folder that contains them.

    Args:
        root: the folder.
        suffixes: the suffixes of the files to take, in lower case; the empty one takes all. Files called `._NAME`,
            which macOS writes next to others, never count.
        key: the key that sorts names.
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
    walk = _Walk(root, suffixes, hidden)
    folders = [entry for entry in tops if walk.is_dir(entry) and walk.enters(entry.name, above)]
    classes = [one.name for one in folders if not (one.is_symlink() and _identity(Path(one.path)) in above)]
    others = [(entry, walk.size(entry)) for entry in tops if not walk.is_dir(entry)]
    beside = [(entry.name, size) for entry, size in others if size is not None]
    walk.left_out.update(_kind(entry) for entry, size in others if size is None)
    found = (sorted(walk.files(name, above), key=lambda one: key(one[0])) for name in classes)
    return ClassFolders(classes, found, beside, walk.left_out, walk.passed)


class ListedFolder(NamedTuple):
    """The files of class folders, or of a folder without any, as samples.

    Attributes:
        root: the folder.
        paths: the path of each file below it.
        columns: `label`, if there are class folders.
        classes: the names of the class folders.
        sizes: the bytes of each file, int64 `[n]`; 0 for one that is missing.
        remarks, hints: see `Source`.
    """

    root: Path
    paths: StringArray
    columns: Mapping[str, Column]
    classes: tuple[str, ...]
    sizes: NDArray[np.int64]
    remarks: tuple[str, ...]
    hints: tuple[str, ...]


def listed_folder(
    src: str | os.PathLike[str],
    extensions: str | Iterable[str],
    noun: str,
    *,
    allow_empty: bool,
    hidden: bool | None,
    nested: bool | None,
    sort: Sort,
) -> ListedFolder:
    """List the files of a folder of class folders, class by class; or without class folders, those in it.

    Args:
        src: the folder.
        extensions: the suffixes of the files to take, a list or text such as "jpg,png", in any case.
        noun: what a file is, for messages: `image`.
        allow_empty, hidden, nested, sort: as of the converter `imagefolder`.

    Raises SourceError and ConfigError as `imagefolder`.
    """
    named = {suffix.lower().lstrip(".") for suffix in listed_names(extensions)}
    suffixes, key = tuple(f".{suffix}" for suffix in sorted(named - {""})), order_key(sort)
    if not suffixes:
        raise ConfigError("{extensions} must name at least one suffix, got {!r}", extensions)
    root = local_path(src).absolute()
    folder = find_class_folders(root, suffixes, key, f"{noun} files", hidden=bool(hidden))
    classes, beside, left_out = folder.classes, folder.beside, folder.left_out
    if not classes and not beside:
        none = f"{printable(root)} holds no {noun}s and no class folders; suffixes: {', '.join(suffixes)}"
        raise SourceError(f"{none}{did_you_mean.to_convert([root]) or did_you_mean.for_media(left_out, noun)}")
    paths, sizes, counts, empty, holding = StringArray(), array("q"), list[int](), list[str](), list[str]()
    for name, found in zip(classes or ("",), folder.files if classes else [beside], strict=True):
        if classes and nested is False:
            found = [one for one in found if one[0].count("/") == 1]
        if classes and nested is None and all(path.count("/") > 1 for path, _ in found):
            holding += [printable(name)] if len({path.rpartition("/")[0] for path, _ in found}) > 1 else []
        empty += [] if found else [printable(root / name)]
        for path, size in found:
            paths.append(path)
            sizes.append(size)
        counts.append(len(found))
    if empty and not (allow_empty and len(paths)):
        told = ", ".join(empty[:_SHOWN]) + (f" and {len(empty) - _SHOWN} more" if len(empty) > _SHOWN else "")
        others = did_you_mean.for_media(left_out, noun)
        keep = (
            "" if others else Message(": remove them, or keep them as classes without samples with {allow_empty:True}")
        )
        none = "class folders need {}s, there are none in {}; suffixes: {}{}"
        raise SourceError(none, noun, told, ", ".join(suffixes), others or keep)
    remarks = _remarks(suffixes, noun, left_out, len(beside) if classes else 0)
    remarks += hidden_remarks(folder.hidden) if hidden is None else ()
    hints = order_hints(paths, f"{noun}s")
    if not classes:
        unlabelled = "without class folders no sample gets a label; for labels, name the folder of the class folders"
        hints = (unlabelled, *hints)
    else:
        hints = (*order_hints(classes, "classes"), *hints)[:1]
        if all(name.lower() in PARTS for name in classes):
            parts = ", ".join(classes)
            remarks += (f"the classes are {parts}; if these are parts of a data set, convert them one by one",)
        elif holding:
            told = "class folders hold folders instead of {}s: {}; {nested:True} takes all in them as one class"
            remarks += (Message(told, noun, ", ".join(holding[:_SHOWN]) + (", ..." if len(holding) > _SHOWN else "")),)
    labels = Column(Field("scalar", dtype="int64"), np.repeat(np.arange(len(counts)), counts))
    columns = {"label": labels} if classes else {}
    names, file_sizes = tuple(map(printable, classes)), np.frombuffer(sizes, np.int64)
    return ListedFolder(root, paths, columns, names, file_sizes, remarks, hints)


def _remarks(suffixes: tuple[str, ...], noun: str, left_out: Mapping[str, int], beside: int) -> tuple[str, ...]:
    """Remarks on files with other suffixes, and on files outside of class folders."""
    found = []
    if left_out:
        kinds = [f"{kind} {count}" for kind, count in Counter(left_out).most_common(_SHOWN)]
        more = ["..."] if len(left_out) > _SHOWN else []
        description = f"{counted(sum(left_out.values()), 'file')} of other kinds than {', '.join(suffixes)}"
        arrays = any(did_you_mean.are_arrays(kind) for kind in left_out)
        advice = "; `shardio convert arrayfolder` takes files of arrays" if arrays else ""
        found.append(f"left out {description}: {', '.join(kinds + more)}{advice}")
    if beside:
        found.append(f"left out {counted(beside, noun)} beside the class folders, of no class")
    return tuple(found)


def hidden_remarks(folders: Sequence[str]) -> tuple[str, ...]:
    """Return a remark on hidden folders that are left out, if there are any."""
    if not folders:
        return ()
    named = ", ".join(map(printable, folders[:_SHOWN])) + (", ..." if len(folders) > _SHOWN else "")
    return (Message("left out {}, hidden or added by a system, as no classes; {hidden:True} takes them", named),)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.name.startswith(_APPLE_DOUBLE):
        return "._* of macOS"
    return printable(os.path.splitext(entry.name)[1].lower()) or "without a suffix"


@final
class _Walk:
    """The files below folders, in no particular order.

    Attributes:
        left_out: how many files of other kinds were found, by suffix.
        passed: the hidden folders with files that were left out.
    """

    def __init__(self, root: Path, suffixes: tuple[str, ...], hidden: bool) -> None:
        self._root, self._suffixes, self._hidden = root, suffixes, hidden
        self.left_out, self.passed = Counter[str](), list[str]()

    def enters(self, path: str, above: frozenset[_Id]) -> bool:
        """Whether to look into a folder; a hidden one that holds files is added to `passed`, unless all are taken."""
        name = path.rpartition("/")[2]
        if self._hidden or not (name.startswith(".") or name in _OF_SYSTEMS):
            return True
        if any(True for _ in _Walk(self._root, self._suffixes, True).files(path, above)):
            self.passed.append(path)
        return False

    def files(self, top: str, above: frozenset[_Id]) -> Iterator[tuple[str, int]]:
        """Yield the path below the root and the size of every file below the folder `top`, which has some `above`."""
        # Each folder is kept with those that contain it, so that a link to one of them is not followed in a cycle.
        waiting = [(top, above)]
        while waiting:
            folder, above = waiting.pop()
            identity = _identity(self._root / folder)
            if identity in above:
                continue
            for entry in _scan(self._root / folder):
                path = f"{folder}/{entry.name}"
                if self.is_dir(entry):
                    if self.enters(path, above | {identity}):
                        waiting.append((path, above | {identity}))
                elif (size := self.size(entry)) is not None:
                    yield path, size
                else:
                    self.left_out[_kind(entry)] += 1

    def is_dir(self, entry: os.DirEntry[str]) -> bool:
        try:
            return entry.is_dir()
        except OSError as error:
            # A link that cannot be followed. With an image's suffix it becomes a bad sample; else it may hide a whole
            # folder.
            if error.errno == errno.ELOOP or entry.name.lower().endswith(self._suffixes):
                return False
            raise unreadable(Path(entry.path), error) from error

    def size(self, entry: os.DirEntry[str]) -> int | None:
        """Return the bytes of an image file, 0 if they are unknown; None for anything else."""
        if not entry.name.lower().endswith(self._suffixes) or entry.name.startswith(_APPLE_DOUBLE):
            return None
        try:
            status = entry.stat()
        except OSError:
            return 0
        return status.st_size if stat.S_ISREG(status.st_mode) else None  # opening a named pipe would block


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    with source_errors(folder), os.scandir(folder) as entries:
        return list(entries)


def _identity(folder: Path) -> _Id:
    with source_errors(folder):
        status = folder.stat()
    return status.st_dev, status.st_ino
