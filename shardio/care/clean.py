"""`shardio.clean`: what killed and replaced writers left at a dataset's place, and no manifest names."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from ..errors import ConfigError, NotADataset, ObjectChanged
from ..format import manifest
from ..output import Output, open_output
from ..stores.base import ObjectInfo

DEFAULT_AGE = "24h"
"""Age up to which files that no manifest names may belong to a writer that is at work."""

_TRIES = 5
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}


@final
@dataclass(frozen=True, slots=True)
class Cleaned:
    """The files or objects that `clean` has removed, or would remove.

    Attributes:
        removed: files, hidden folders and objects that no manifest names, by their names from the dataset's place on,
            with `/` between parts.
        kept: those that stay because they may belong to a writer that is at work.
    """

    removed: tuple[ObjectInfo, ...]
    kept: tuple[ObjectInfo, ...]

    @property
    def bytes(self) -> int:
        """The size of what was removed."""
        return sum(info.size for info in self.removed)


def clean(
    path: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    older_than: str = DEFAULT_AGE,
    everything: bool = False,
    store_options: Mapping[str, str] | None = None,
) -> Cleaned:
    """Remove what shardio wrote at a dataset's place and its manifest does not name.

    These are the leftovers of killed writers: in a folder their hidden folders and temporary files, in a
    store their shards and records; and in a store the shards of datasets that were replaced. They are known by the
    names that shardio alone gives. Nothing else is removed, and nothing below: a split is a dataset of its own.

    In a folder, nothing is removed while a process holds a lock on it.

    Args:
        path: the dataset's directory, or its URL, such as `s3://bucket/photos`; there need be no dataset yet.
        dry_run: remove nothing; list what would go.
        older_than: remove only what is older than this, such as `"30m"`, `"24h"` or `"7d"`. A conversion that wrote
            something later keeps all that it wrote.
        everything: also what is younger. In a store, which has no locks, this ends conversions that are running,
            and loaders that read a dataset replaced of late.
        store_options: for a URL: options of the store, see `shardio.open`.

    Raises:
        ConfigError: an argument breaks a rule.
        NotADataset: there is no such directory.
        ManifestError: the manifest cannot be trusted, so nobody knows what it names.
        ObjectChanged: the manifest changes all the time.
        StoreError: the store cannot be read or written.
        OSError: the directory cannot be read or written.
    """
    out = open_output(path, store_options)
    return clean_output(out, dry_run=dry_run, since=None if everything else time.time() - parse_age(older_than))


def clean_output(out: Output, *, dry_run: bool = False, since: float | None) -> Cleaned:
    """Clean a place, see `clean`; what was written after `since`, in seconds since 1970, stays, unless it is None."""
    for _ in range(_TRIES):
        try:
            found = out.leftovers(since)
        except FileNotFoundError as error:
            raise NotADataset(f"{out.path}: no such directory") from error
        if found is not None and (dry_run or out.remove(found)):
            return Cleaned(found.removable, found.kept)
    raise ObjectChanged(f"{out.path}/{manifest.FILE_NAME}: changes all the time; try again when no conversion ends")


def parse_age(text: str) -> float:
    """Return an age such as `30m`, `24h` or `7d` in seconds; ConfigError if it is none."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([smhd])", text.strip())
    if match is None:
        raise ConfigError("{older_than} must be an age such as 30m, 24h or 7d, got {!r}", text)
    return float(match[1]) * _SECONDS[match[2]]
