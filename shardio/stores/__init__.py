"""Places where objects are stored under names: a bucket of S3, Google Cloud Storage or Azure, files behind HTTP, or a
folder on a slow file system."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from .folder import FolderStore
from .remote import RemoteStore
from .retrying import RetryingStore
from .url import Url

FOLDER_SECONDS = 60.0
"""The time after which a file of a folder is not read again: a kernel has waited for its server before it fails."""


def open_store(url: Url, options: Mapping[str, str] = MappingProxyType({})) -> RetryingStore:
    """Return the store that a URL is in. Requests that fail for a while are tried again."""
    return RetryingStore(RemoteStore(url.root, options))


def open_folder(folder: Path) -> RetryingStore:
    """Return the files of a folder as a read-only store that retries errors that may pass."""
    return RetryingStore(FolderStore(folder), seconds=FOLDER_SECONDS)
