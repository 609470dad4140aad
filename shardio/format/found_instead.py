"""What lies at a path that is no dataset, and the command that makes a dataset of it, for error messages."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

_MOST_ENTRIES = 200
_MOST_NAMED = 5
_INDEX = "shardio index {} -o OUT"
_MAGIC = re.compile(r"[*?\[]|\{\d+\.\.\d+\}")  # what `find_files` takes as a pattern


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of file that shardio makes datasets of.

    Attributes:
        one: what one of them is called.
        many: what several are called.
        suffixes: how their names end.
        signatures: where in such a file which bytes stand; one of them is enough.
        command: makes a dataset of the path in place of `{}`.
    """

    one: str
    many: str
    suffixes: tuple[str, ...]
    signatures: tuple[tuple[int, bytes], ...] = ()
    command: str = _INDEX

    def starts(self, head: bytes) -> bool:
        return any(head.startswith(signature, at) for at, signature in self.signatures)

    def ends(self, name: str) -> bool:
        return name.lower().endswith(self.suffixes)


_IMAGES = _Kind(
    "an image",
    "images",
    (".jpg", ".jpeg", ".png", ".webp", ".bmp"),
    ((0, b"\xff\xd8\xff"), (0, b"\x89PNG\r\n"), (8, b"WEBP")),
    "shardio convert imagefolder {} OUT",
)
_LMDB = _Kind("an LMDB", "an LMDB", (".mdb",), ((16, b"\xde\xc0\xef\xbe"),))
_KINDS = (
    _IMAGES,
    _Kind("a tar file", "tar files", (".tar",), ((257, b"ustar"),)),
    _Kind(
        "a compressed tar file",
        "compressed tar files",
        (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst"),
        command="shardio convert webdataset {} OUT",
    ),
    _Kind("a TFRecord file", "TFRecord files", (".tfrecord", ".tfrecords")),
    _Kind("an HDF5 file", "HDF5 files", (".h5", ".hdf5"), ((0, b"\x89HDF\r\n\x1a\n"),)),
    _LMDB,
    _Kind("a Parquet file", "Parquet files", (".parquet",), ((0, b"PAR1"),), "shardio convert parquet {} OUT"),
    _Kind("a NumPy file", "NumPy files", (".npy", ".npz"), ((0, b"\x93NUMPY"),), "shardio convert numpy {} OUT"),
)
_COMPRESSIONS = {"gzip": b"\x1f\x8b", "bzip2": b"BZh", "xz": b"\xfd7zXZ\0", "Zstandard": b"\x28\xb5\x2f\xfd"}
_HEAD = 265  # the bytes up to the end of the last signature


def in_folder(folder: Path, manifest_name: str) -> str:
    """Return what a directory without a manifest holds instead, and what to do, in at most a sentence."""
    names = list(_entries(folder))
    if inside := sorted(name for name in names if (folder / name / manifest_name).is_file()):
        return f"it holds the datasets {_listed(inside)}: give one of them, such as {folder / inside[0]}"
    if ".converting" in names:
        return "a conversion was cut off in it: run the same command with --resume"
    if linked := sorted(name for name in names if name.startswith("shard-") and (folder / name).is_symlink()):
        return of_links(folder, linked[0])
    if any(name.startswith("shard-") for name in names):
        return f"a conversion may have been cut off; `shardio repair {_quoted(folder)}` saves what its shards hold"
    if kind := _kind_of(names):
        return f"it holds {kind.many}: `{kind.command.format(_quoted(folder))}` makes a dataset of them"
    folders = sorted(name for name in names if not name.startswith(".") and (folder / name).is_dir())
    if found := _in_subfolders(folder, folders):
        return found
    if folders:
        return f"it holds no shards, but folders: {_listed(folders)}"
    empty = all(name.startswith(".") for name in names)
    return "it is empty: a conversion may have been cut off" if empty else "it holds no shards"


def of_links(folder: Path, name: str) -> str:
    """Return what to do with a directory without a manifest whose shards, such as `name`, are links to files."""
    files = f"its shards are links to files of other programs, such as {os.path.realpath(folder / name)}"
    return f"{files}: `shardio index FILES -o {_quoted(folder)} --overwrite` makes a dataset of these anew"


def in_file(path: Path, manifest_name: str) -> str | None:
    """Return what a file is if it can be no manifest, and what to do; None if it may be one."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.lstrip().startswith(b"{"):
        return None
    if path.name != manifest_name and (path.parent / manifest_name).is_file():
        return f"it lies in one: give {path.parent}"
    kind = next((kind for kind in _KINDS if kind.starts(head)), None)
    if kind is None:
        for name, signature in _COMPRESSIONS.items():
            if head.startswith(signature):
                command = f"shardio convert webdataset {_quoted(path)} OUT"
                return f"it is compressed by {name}: unpack it; if it is a tar, `{command}` makes a dataset of it"
        if head.startswith(b"PK\x03\x04") and not path.name.endswith(".npz"):
            return "it is a zip file"
        if path.name == manifest_name:
            return None
        kind = _kind_of([path.name])
    if kind is None:
        return "this file is of another kind"
    command = kind.command.format(_quoted(path.parent if kind is _IMAGES else path))
    return f"it is {kind.one}: `{command}` makes a dataset of {'its folder' if kind is _IMAGES else 'it'}"


def of_pattern(path: Path) -> str:
    """Return what to do with a path that does not exist, but looks like a pattern; "" if it does not."""
    if not _MAGIC.search(str(path)):
        return ""
    kind = _kind_of([path.name])
    if kind is _IMAGES:
        above = next(folder for folder in path.parents if not _MAGIC.search(str(folder)))
        return f"patterns name no dataset; `{kind.command.format(_quoted(above))}` makes one of a folder of images"
    command = (_INDEX if kind is None else kind.command).format(_quoted(path))
    return f"patterns name no dataset; `{command}` makes one of the files that fit"


def in_list(paths: Sequence[str | os.PathLike[str]], manifest_name: str) -> str | None:
    """Return what to do with a list of files or patterns; None if none of `paths` is a file that can be no manifest."""
    given = [Path(path) for path in paths]
    if not any(path.name != manifest_name and (path.is_file() or _MAGIC.search(str(path))) for path in given):
        return None
    kind = _kind_of([given[0].name])
    if kind is not None and kind.command != _INDEX:
        return f"`{kind.command.format('SRC')}` makes a dataset of {kind.many}"
    named = [*map(_quoted, given[:_MOST_NAMED]), *["..."][: len(given) - _MOST_NAMED]]
    return f"`{_INDEX.format(' '.join(named))}` makes one dataset of such files"


def _in_subfolders(folder: Path, names: Sequence[str]) -> str | None:
    """Return what the folders in `folder` hold, and the command that takes it; None if they hold nothing of use."""
    inside = {name: list(_entries(folder / name)) for name in names[:_MOST_ENTRIES]}
    kind = _kind_of([name for entries in inside.values() for name in entries])
    if kind is None:
        return None
    if kind is _IMAGES:  # a folder for each class
        return f"it holds images: `{kind.command.format(_quoted(folder))}` makes a dataset of them"
    holders = [name for name, entries in inside.items() if any(map(kind.ends, entries))]
    if len(holders) == 1:
        command = kind.command.format(_quoted(folder / holders[0]))
        return f"its folder {holders[0]} holds {kind.many}: `{command}` makes a dataset of them"
    if kind.command == _INDEX and kind is not _LMDB:
        first = next(entry for entry in inside[holders[0]] if kind.ends(entry))
        path, made = folder / "*" / f"*{Path(first).suffix}", "one dataset of them"
    else:
        path, made = folder / holders[0], "a dataset of the first"
    command = kind.command.format(_quoted(path))
    return f"its folders {_listed(holders)} hold {kind.many}: `{command}` makes {made}"


def _kind_of(names: Sequence[str]) -> _Kind | None:
    """Return the kind of the first file that is of a known one, by its name."""
    return next((kind for name in names for kind in _KINDS if kind.ends(name)), None)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")


def to_convert(paths: Iterable[Path]) -> str | None:
    """Return the command that converts files that can only be converted, told by their names; None if there is none."""
    for path in paths:
        kind = _kind_of(list(_entries(path)) if path.is_dir() else [path.name])
        if kind is not None and kind.command != _INDEX and (kind is not _IMAGES or path.is_dir()):  # it takes folders
            return f"`{kind.command.format(_quoted(path))}` takes {kind.many}"
    return None


def _entries(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in islice(entries, _MOST_ENTRIES))
    except OSError:  # a folder that may not be read tells nothing
        return


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
