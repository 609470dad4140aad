"""Many strings in little memory: their UTF-8 bytes end to end, and the offset where each ends."""

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, final

import numpy as np
from numpy.typing import NDArray


@final
class StringArray:
    """Strings by number, each in 8 bytes and its UTF-8; an element of a list of str takes at least 57 bytes.

    It pickles without a copy of each string. Several processes that receive it share its memory (see
    `shardio.system.shared_memory`) and can no longer append to it.

    Lone surrogates, Python's stand-ins for bytes in file names that are not UTF-8, come back unchanged.
    """

    __slots__ = ("_blob", "_offsets")

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self._blob: bytearray | memoryview = bytearray()
        self._offsets: array[int] | memoryview = array("q", [0])
        for text in strings:
            self.append(text)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (np.frombuffer(self._blob, np.uint8), np.frombuffer(self._offsets, np.int64))

    def append(self, text: str) -> None:
        """Append one string; TypeError if this array came from another process."""
        if not (isinstance(self._blob, bytearray) and isinstance(self._offsets, array)):
            raise TypeError("a StringArray that came from another process cannot be appended to")
        self._blob += text.encode("utf-8", "surrogatepass")
        self._offsets.append(len(self._blob))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"index must be in [0, {len(self)}), got {index}")
        return str(self._blob[self._offsets[index] : self._offsets[index + 1]], "utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))


def _unpickled(blob: NDArray[np.uint8], offsets: NDArray[np.int64]) -> StringArray:
    strings = StringArray()
    strings._blob, strings._offsets = blob.data, offsets.data
    return strings
