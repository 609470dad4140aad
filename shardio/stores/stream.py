"""Whole objects: in parts of bounded size, or until two reads agree, if they are small and have no checksum."""

from collections.abc import Iterator
from pathlib import Path

import xxhash

from ..errors import StoreError, StoreUnavailable
from ..system.types import Buffer
from .base import ObjectInfo, Store

PART = 16 << 20
"""Bytes of one request."""

TRIES = 5
"""Reads of an object that has no checksum of its own."""


def parts_of(store: Store, found: ObjectInfo) -> Iterator[Buffer]:
    """Yield the bytes of an object in order, at most `PART` at a time.

    Args:
        store: the store.
        found: the object as `Store.info` or `Store.list` found it.

    Raises ObjectChanged if it is replaced meanwhile, and what `Store.read` raises.
    """
    for start in range(0, found.size, PART):
        stop = min(start + PART, found.size)
        data = store.read(found.name, start, stop, etag=found.etag).data
        if len(data) != stop - start:
            raise StoreError(
                f"{store.url}/{found.name}: bytes {start} to {stop - 1} were asked for, {len(data)} bytes came"
            )
        yield data


def download(store: Store, found: ObjectInfo, path: Path) -> None:
    """Write an object to a new file at `path`; raises what `parts_of` raises, and OSError."""
    with open(path, "xb", buffering=0) as file:
        for data in parts_of(store, found):
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]


def checksum_of(store: Store, names: list[str]) -> tuple[list[int], str]:
    """Return the size of each object in bytes, and XXH3-128 over their content end to end, as 32 hex digits.

    Raises what `Store.info` and `parts_of` raise.
    """
    state, sizes = xxhash.xxh3_128(), []
    for name in names:
        found = store.info(name)
        sizes.append(found.size)
        for data in parts_of(store, found):
            state.update(data)
    return sizes, state.hexdigest()


def read_unharmed(store: Store, name: str) -> bytes:
    """Read a whole object until two reads agree, as it has no checksum that would show damage on the way.

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
