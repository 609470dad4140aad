"""One output, a folder or a store: shards are written one by one, and a manifest makes them a dataset.

    Output              a place for one dataset, known to all processes that write there
      create            -> Writing: shards go there, without a journal, from one process
      begin             -> Lead: a conversion begins or resumes, and this process leads it
      plans, run        -> Run: other ranks, and processes that carry out tasks, take part in it
      leftovers         what killed and replaced writers left there

A folder and a store have the same members, which `folder` documents. An unfinished place never passes for a dataset
before `publish`, however its writers end.
"""

import os
from collections.abc import Mapping
from typing import TypeAlias

from ..errors import ConfigError
from ..stores import open_store
from ..stores.url import as_url
from ..system.local_path import local_path
from .folder import FolderOutput, FolderRun, FolderWriting
from .store import StoreOutput, StoreRun, StoreWriting

Output: TypeAlias = FolderOutput | StoreOutput
Writing: TypeAlias = FolderWriting | StoreWriting
Run: TypeAlias = FolderRun | StoreRun


def open_output(
    path: str | os.PathLike[str], store_options: Mapping[str, str] | None, *, also_read: bool = False
) -> Output:
    """Return the place that a path or a URL names; ConfigError for one that cannot be written to.

    Args:
        path: the dataset's directory, which need not exist, or its URL.
        store_options: options of the store, see `shardio.open`.
        also_read: whether they may be for data that is read, so that the place itself may be a directory.
    """
    if (url := as_url(path)) is not None:
        return StoreOutput(url, open_store(url, store_options or {}))
    if store_options is not None and not also_read:
        raise ConfigError("{store_options} are for URLs, and {!r} is a local path", os.fspath(path))
    return FolderOutput(local_path(path))
