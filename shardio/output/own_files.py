"""The files in a dataset's directory that shardio wrote itself, and the objects in a store that have its names.

Only these are ever replaced or removed. In a store they are the manifest and

photos/shard-000012-1a2b3c4d.tar        a shard, and its other files beside it; 1a2b3c4d is the writer's own name
photos/shardio.shards-<checksum>.npy    only with more than 10,000 shards: their columns
photos/.converting/run-1a2b3c4d/        an unfinished conversion, or the sign of a writer at work
  writing           written anew with each shard of a writer of `create`
  plan.json         describes the conversion; a conversion with another plan does not resume this one
  000012.done       the record of shard 12, written on the condition that there is none, after its objects
  000012.idx.npy    the index of object 12, where objects are adopted, until all have one; and 000012.sums.idx.npy
  rank-00003        written anew every few seconds as long as that rank works
  rank-00003.over   written when it has finished its part
  rank-00003.failed the error that ended it
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from .. import containers
from ..containers import array_index, side_index
from ..containers import tar as tar_layout
from ..containers.merged import shard_of_merged
from ..errors import ConfigError, DatasetError
from ..format import manifest
from ..system.directory import Directory, Kind
from .records import JOURNAL, PLAN, RECORD_NAME, RUN_NAME
from .shard_writer import WORKPLACE


def check_made(hidden: Directory) -> None:
    """Raise ConfigError if a hidden folder holds anything at its top that shardio does not make there."""
    if strangers := _strangers(hidden):
        raise ConfigError(f"{hidden.path} holds {strangers[0]}, which shardio did not make: remove it yourself")


def existing(final: Directory) -> list[str]:
    """Return the names in a directory, which must all be of files that shardio has written; ConfigError if not."""
    names, own = final.names(), {*ours(final)}
    for name in names:
        if name not in own:
            if HIDDEN.fullmatch(name) and final.kind(name) in ("directory", "link"):
                check_made(final.directory(name))  # says what is wrong with it
            raise ConfigError(f"{final.path}: the output directory must be empty; it holds {name}")
    return names


SHARD = r"shard-[0-9]{6,}(?:-[0-9a-f]{8})?"
"""A pattern of the names of shards, without what follows the first dot; in stores they end in a run's name."""

_NUMBER = re.compile(r"shard-([0-9]{6,18})[-.]")

_SHARD_FILE = re.compile(rf"{SHARD}(\.[a-z0-9]+)*")
_INDEX_FILE = re.compile(rf"{SHARD}(\.[a-z0-9]+)?(\.sums)?\.idx\.npy")
_OWN_TAR = re.compile(rf"{SHARD}\.tar")
_OWN_MEMBER = re.compile(rb"[0-9]{%d}\." % tar_layout.KEY_DIGITS)
_OTHERS_INDEX = re.compile(rf"{SHARD}\.[a-z0-9]+\.idx\.npy")
_KEPT = r"shardio\.[a-z]+-[0-9a-f]{32}\.bin"
_MANIFEST = rf"{re.escape(manifest.FILE_NAME)}|{manifest.TABLE_PATTERN.pattern}"
HIDDEN = re.compile(rf"{re.escape(JOURNAL)}|{re.escape(WORKPLACE)}[0-9a-f]+-([0-9]+|new)")
TEMPORARY = re.compile(rf"\.({_MANIFEST}|{_KEPT}|{re.escape(PLAN)}|{SHARD}[a-z0-9.]*)\.[0-9a-f]+\.tmp")
_MADE_FILE = re.compile(rf"lock|rank-[0-9]{{5,}}|{re.escape(PLAN)}|{_MANIFEST}|{_SHARD_FILE.pattern}")
_MADE_FOLDER = re.compile(r"run-[0-9a-f]{8}|" + HIDDEN.pattern)


def ours(directory: Directory) -> list[str]:
    """Return the names in a directory that shardio itself has written, the manifest first: it makes them a dataset.

    Files named like shards count only next to a manifest or a hidden folder of shardio. Adopted files never count;
    links to them and their indexes do, even if nothing else is left of their dataset.
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
        if (kind == "file" and (shard.fullmatch(name) or re.fullmatch(_KEPT, name)))
        or (
            kind == "link"
            and _SHARD_FILE.fullmatch(name)
            and (_is_indexed_link(name, kinds) or not directory.place(name).is_dir())
        )
    }
    return sorted(signs | files, key=lambda name: name != manifest.FILE_NAME)


def kept_name(kind: str, of: Mapping[str, Any]) -> str:
    """Return the name of a table made of a dataset (`views/kept_table.py`): its kind, and a hash of what it is of."""
    return f"shardio.{kind}-{xxhash.xxh3_128_hexdigest(json.dumps(of).encode())}.bin"


def index_of_keys(digest: str, on: str, samples: int) -> dict[str, Any]:
    """Return what the index of a dataset by a field of keys is of (`views/key_table.py`)."""
    return {"digest": digest, "field": on, "samples": samples}


def next_number(names: Iterable[str]) -> int:
    """Return the number of the shard that follows those of these names."""
    return max((int(found[1]) for name in names if (found := _NUMBER.match(name))), default=-1) + 1


def _own_file() -> re.Pattern[str]:
    """Return the names of the files of shards that shardio's containers write."""
    suffixes = "|".join(re.escape(containers.get(name).suffix) for name in containers.names())
    return re.compile(rf"{SHARD}({suffixes}|\.idx\.npy)(\.[a-z0-9]+)*")


def _is_sign(directory: Directory, name: str, kind: Kind | None) -> bool:
    if kind == "directory":
        return HIDDEN.fullmatch(name) is not None and not _strangers(directory.directory(name))
    return kind == "file" and (is_of_manifest(name) or TEMPORARY.fullmatch(name) is not None)


def is_of_manifest(name: str) -> bool:
    """Return whether this is the name of a manifest, or of a table of shards that one refers to."""
    return re.fullmatch(_MANIFEST, name) is not None


def _is_indexed_link(name: str, kinds: Mapping[str, Kind | None]) -> bool:
    """Return whether a file links to an adopted file, or to one that is merged with it, with its index beside it."""
    if kinds[name] != "link" or not _SHARD_FILE.fullmatch(name):
        return False
    indexes = (side_index.path_of, array_index.path_of)
    return any(kinds.get(path_of(Path(shard_of_merged(name))).name) == "file" for path_of in indexes)


def _strangers(hidden: Directory) -> list[str]:
    """Return the names in a hidden folder that shardio does not give there."""
    made = {"file": (_MADE_FILE, TEMPORARY), "directory": (_MADE_FOLDER,)}
    return [
        name
        for name in hidden.names()
        if not any(pattern.fullmatch(name) for pattern in made.get(hidden.kind(name) or "", ()))
    ]


def _shows_adoption(directory: Directory, kinds: Mapping[str, Kind | None]) -> bool:
    """Return whether the files show that other programs wrote the shards, as a manifest may not say so.

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


WRITING = "writing"
RANK_NAME = re.compile(r"rank-[0-9]{5,9}(\.over|\.failed)?")
_OF_A_RUN = (RECORD_NAME, RANK_NAME, re.compile(r"[0-9]{6,18}(\.sums)?\.idx\.npy"))
_SHARD_OBJECT = re.compile(r"(shard-[0-9]{6,}-[0-9a-f]{8})(\.[a-z0-9]+)+")


def stem_of(name: str) -> str | None:
    """Return the name, up to the first dot, of the shard that an object is a file of; None unless shardio named it."""
    found = _SHARD_OBJECT.fullmatch(name)
    return None if found is None else found[1]


def is_own(name: str) -> bool:
    """Return whether only shardio gives this name to an object next to a manifest; False for the manifest itself.

    Args:
        name: the object's name, from the dataset's place on.
    """
    if stem_of(name) or (name != manifest.TABLE_NAME and manifest.TABLE_PATTERN.fullmatch(name)):
        return True
    parts = name.split("/")
    return (
        len(parts) == 3
        and parts[0] == JOURNAL
        and RUN_NAME.fullmatch(parts[1]) is not None
        and (parts[2] in (PLAN, WRITING) or any(one.fullmatch(parts[2]) for one in _OF_A_RUN))
    )
