"""Small objects that have no checksum of their own, read so that damage on the way is found."""

from ..errors import StoreUnavailable
from .base import Store

TRIES = 5


def read_unharmed(store: Store, name: str) -> bytes:
    """Read a whole object until two reads agree.

    Raises:
        StoreError: it cannot be had, or no two of `TRIES` reads agree.
    """
    seen: set[tuple[str | None, bytes]] = set()
    for _ in range(TRIES):
        content = store.read(name)
        found = content.info.etag, bytes(content.data)
        if found in seen:
            return found[1]
        seen.add(found)
    raise StoreUnavailable(f"{store.url}/{name}: {TRIES} reads gave {TRIES} contents: they are damaged on the way")
