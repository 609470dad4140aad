"""The files that hold the chunks of a Zarr array: those of a folder, or one file with all of them."""

import errno
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple, final

from ..system import strict_json
from .chunk_codecs import Damaged
from .files import RawFile, RawFolder

_NO_LINK = (errno.ELOOP, errno.EMLINK, errno.ENOTDIR)


class Found(NamedTuple):
    """The bytes of a named chunk: in an open file, from an offset on.

    Attributes:
        descriptor, begin, size: the file, the offset and the number of bytes.
        owned: whether whoever reads them closes the file.
        deflated: whether a zip file has compressed them.
        crc: the CRC-32 that a zip file states of the content; None if nobody knows one.
    """

    descriptor: int
    begin: int
    size: int
    owned: bool = False
    deflated: bool = False
    crc: int | None = None

    def check(self, crc: int) -> None:
        """Raise Damaged if the content has another CRC-32 than the zip file states."""
        if self.crc is not None and crc != self.crc:
            raise Damaged(f"is damaged: its CRC-32 {crc:08x} is not {self.crc:08x}")


class ChunkFiles(ABC):
    """Where the named chunks of one array are.

    Attributes:
        place: the store, for messages.
        owner: kept as long as the chunks may be read; the cache of chunks forgets them when it is gone.
        folder: the descriptor of the folder below which each chunk is a file of its name; -1 if all are in one file.
    """

    place: str
    owner: object
    folder = -1

    @abstractmethod
    def find(self, key: str, entry: Any) -> Found | None:
        """Return the bytes of a chunk; None if there is none of this name.

        `entry` is what the index knows of it, None without an index. Raises Damaged if it is another one than that.
        """


@final
class FolderChunks(ChunkFiles):
    """Chunks that are files of a folder."""

    owner: RawFolder

    def __init__(self, root: Path, path: str) -> None:
        self.place, self.owner = str(root), RawFolder(root, path)
        self.folder = self.owner.fd

    def metadata(self, name: str) -> Any:
        """Return the JSON value of a file of metadata; None if there is none."""
        if (opened := self.owner.opened(name)) is None:
            return None
        descriptor, status = opened
        with os.fdopen(descriptor, "rb") as file:
            strict_json.check_size(status.st_size)
            try:
                return strict_json.parse(file.read(), foreign=True, nan=True)
            except ValueError:
                return None

    def find(self, key: str, entry: Any) -> Found | None:
        try:
            opened = self.owner.opened(key)
        except OSError as error:
            told = (
                "is behind a link, which could lead anywhere" if error.errno in _NO_LINK else f"cannot be read: {error}"
            )
            raise Damaged(told) from error
        if opened is None:
            return None
        descriptor, status = opened
        if entry is not None and (status.st_size, status.st_mtime_ns) != (entry["size"], entry["state"]):
            os.close(descriptor)
            raise Damaged(
                f"was written anew since it was indexed: it has {status.st_size} bytes, and had {entry['size']}"
            )
        return Found(descriptor, 0, status.st_size, owned=True)


@final
class PackedChunks(ChunkFiles):
    """Chunks in one file: members of a zip, or objects that a cache keeps as one.

    What is known of a chunk says where it is; its `state` is an offset.
    """

    owner: RawFile

    def __init__(self, file: RawFile) -> None:
        self.place, self.owner = str(file.path), file

    def find(self, key: str, entry: Any) -> Found | None:
        if entry is None:
            return None
        deflated, size = bool(entry["size"] < 0), int(entry["size"])
        size = -1 - size if deflated else size
        if not 0 <= int(entry["state"]) <= self.owner.size - size:
            raise Damaged(f"is not within the {self.owner.size} bytes of the file")
        crc = int(entry["crc"]) if "crc" in entry.dtype.names else None
        return Found(self.owner.fd, int(entry["state"]), size, deflated=deflated, crc=crc)
