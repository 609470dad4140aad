"""The checksums of the pieces of a shard in a store, by which they are compared before anyone sees them."""

import os
from functools import partial
from typing import final

import xxhash

from ..cache.cached_object import CachedObject
from ..cache.fetcher import RemoteFile
from ..cache.node_cache import Hold
from ..containers import piece_sums
from ..stores.base import Store


@final
class RemoteSums:
    """The table of checksums of one shard. It is fetched into the cache, and held there, before any piece is compared.

    Args:
        store: the store.
        name: the table's name in it.
        cached: its place in the cache.
        checksum: the shard's checksum in the manifest.

    Attributes:
        file: the table.
        hold: keeps it in the cache; None until it is there.
        missing: whether the store has no such table; nothing is compared then, as in datasets without tables.
    """

    def __init__(self, store: Store, name: str, cached: CachedObject, checksum: str) -> None:
        self.file = RemoteFile(store, name, cached, partial(piece_sums.is_block_whole, checksum))
        self.hold: Hold | None = None
        self.missing = False

    @property
    def ready(self) -> bool:
        """Whether pieces can be compared, or need not be."""
        return self.missing or self.hold is not None

    def is_whole(self, first: int, number: int, data: memoryview) -> bool | None:
        """Return whether a piece is what was written; None if the table is missing.

        Args:
            first: the number of pieces of the shard's files before this one.
            number: the number of the piece in its file.
            data: the piece.
        """
        if self.missing:
            return None
        expected = os.pread(self.file.cached.file, 8, piece_sums.offset_of(first + number))
        return xxhash.xxh3_64_intdigest(data) == int.from_bytes(expected, "little")
