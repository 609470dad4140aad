"""Places where objects are stored under names: a bucket of S3, Google Cloud Storage or Azure, or files behind HTTP."""

from collections.abc import Mapping
from types import MappingProxyType

from .remote import RemoteStore
from .retrying import RetryingStore
from .url import Url


def open_store(url: Url, options: Mapping[str, str] = MappingProxyType({})) -> RetryingStore:
    """Return the store that a URL is in. Requests that fail for a while are tried again."""
    return RetryingStore(RemoteStore(url.root, options))
