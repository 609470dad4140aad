"""Small objects that have no checksum of their own, read so that damage on the way is found."""

import hashlib
import re

from ..errors import StoreUnavailable
from .base import Store

TRIES = 5
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


def read_unharmed(store: Store, name: str) -> bytes:
    """Read a whole object until its MD5 is its ETag, as it mostly is in S3, or until two reads agree.

    Raises:
        StoreError: it cannot be had, or no two of `TRIES` reads agree.
    """
    seen: set[tuple[str | None, bytes]] = set()
    for _ in range(TRIES):
        content = store.read(name)
        data, etag = bytes(content.data), content.info.etag
        digest = _MD5.fullmatch(etag or "")
        if digest is not None and hashlib.md5(data, usedforsecurity=False).hexdigest() == digest[1]:
            return data
        if (etag, data) in seen:
            return data
        seen.add((etag, data))
    raise StoreUnavailable(f"{store.url}/{name}: {TRIES} reads gave {TRIES} contents: they are damaged on the way")
