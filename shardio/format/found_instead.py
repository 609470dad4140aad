"""What lies at a path that is no dataset, and the command that makes a dataset of it, for error messages."""

import os
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

_MOST_ENTRIES = 200
_KINDS = {
    "images": (".jpg", ".jpeg", ".png", ".webp", ".bmp"),
    "tar files": (".tar",),
    "TFRecord files": (".tfrecord", ".tfrecords"),
    "HDF5 files": (".h5", ".hdf5"),
    "an LMDB": (".mdb",),
    "Parquet files": (".parquet",),
    "NumPy files": (".npy", ".npz"),
}
_ADVICE = {
    "images": "shardio convert imagefolder {} OUT",
    "Parquet files": "shardio convert parquet {} OUT",
    "NumPy files": "shardio convert numpy {} OUT",
}
_INDEX = "shardio index {} -o OUT"
_TAR_AT = 257
_SIGNATURES = {
    "a tar file": (_TAR_AT, b"ustar"),
    "an HDF5 file": (0, b"\x89HDF\r\n\x1a\n"),
    "a zip file": (0, b"PK\x03\x04"),
}


def in_folder(folder: Path, manifest_name: str) -> str:
    """Return what a directory without a manifest holds instead, and what to do, in at most a sentence."""
    names = list(_entries(folder))
    if inside := sorted(name for name in names if (folder / name / manifest_name).is_file()):
        return f"it holds the datasets {', '.join(inside)}: give one of them, such as {folder / inside[0]}"
    if ".converting" in names:
        return "a conversion was cut off in it: run the same command with --resume"
    if linked := sorted(name for name in names if name.startswith("shard-") and (folder / name).is_symlink()):
        return of_links(folder, linked[0])
    if any(name.startswith("shard-") for name in names):
        return f"a conversion may have been cut off; 'shardio repair {_quoted(folder)}' saves what its shards hold"
    below = (name for one in names if (folder / one).is_dir() for name in _entries(folder / one))
    for name in (*names, *islice(below, _MOST_ENTRIES)):
        for kind, suffixes in _KINDS.items():
            if name.lower().endswith(suffixes):
                command = _ADVICE.get(kind, _INDEX).format(_quoted(folder))
                return f"it holds {kind}: '{command}' makes a dataset of them"
    empty = all(name.startswith(".") for name in names)
    return "it is empty: a conversion may have been cut off" if empty else "it holds no shards"


def of_links(folder: Path, name: str) -> str:
    """Return what to do with a directory without a manifest whose shards, such as `name`, are links to files."""
    files = f"its shards are links to files of other programs, such as {os.path.realpath(folder / name)}"
    return f"{files}: 'shardio index FILES -o {_quoted(folder)} --overwrite' makes a dataset of these anew"


def in_file(path: Path) -> str | None:
    """Return what a file is if it can be no manifest, and what to do; None if it may be one."""
    with path.open("rb") as file:
        head = file.read(_TAR_AT + 8)
    for kind, (at, signature) in _SIGNATURES.items():
        if head[at : at + len(signature)] == signature:
            advice = "" if kind == "a zip file" else f": '{_INDEX.format(_quoted(path))}' makes a dataset of it"
            return f"it is {kind}{advice}"
    return None


def _entries(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in islice(entries, _MOST_ENTRIES))
    except OSError:  # a folder that may not be read tells nothing
        return


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
