"""The protocol of a store: objects of bytes under names, which are read in ranges and written whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from ..system.types import Buffer

Condition: TypeAlias = str | Literal["new"] | None
"""The state that an object must have to be written: the ETag that it has now, `"new"` if there must be none, or None
for any."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object.

    Attributes:
        name: its name in the store, with `/` between parts.
        size: bytes.
        etag: text that changes when the object is replaced; None if the store gives none.
        modified: when it was written, in seconds since 1970, by the store's clock; None if the store did not say.
    """

    name: str
    size: int
    etag: str | None
    modified: float | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes of an object.

    Attributes:
        data: the bytes.
        start: the offset of the first one in the object.
        info: the object at the time of reading.
    """

    data: Buffer
    start: int
    info: ObjectInfo


class Store(Protocol):
    """Objects of bytes under names. Threads may share a store; a forked or unpickled one opens its connections anew.

    All methods raise ObjectNotFound, AccessDenied, ObjectChanged where a condition does not hold, StoreUnavailable
    where the same request may succeed later, and StoreError for anything else.
    """

    @property
    def url(self) -> str:
        """The store, for messages."""

    def read(self, name: str, start: int = 0, stop: int | None = None, *, etag: str | None = None) -> Content:
        """Read bytes `start` to `stop - 1` of an object, or fewer if it ends before.

        Args:
            name: the object.
            start, stop: offsets in bytes; None reads to the end.
            etag: the ETag that the object must have.
        """

    def info(self, name: str) -> ObjectInfo:
        """Return the size and ETag of an object."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects whose names begin with `prefix/`, in the order of their names."""

    def write(self, name: str, data: Buffer, *, condition: Condition = None) -> ObjectInfo:
        """Write a whole object: readers see the old one or the new one."""

    def upload(self, name: str, path: Path) -> ObjectInfo:
        """Write the content of a file, in parts if it is large. Nothing is visible before all of it is there."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are gone already are no error."""

    def renew(self) -> None:
        """Have the next request read credentials anew."""
