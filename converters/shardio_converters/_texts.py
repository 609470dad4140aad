"""Many texts in little memory: their bytes end to end, and where each ends."""

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ._common import check_index


@final
class Texts:
    """Texts by number, 8 bytes each and their UTF-8; a list of str takes 57 and more. It pickles as it lies in memory.

    Pickled for several processes, they share it: see `shardio.shared`. Then there is no more to be added.

    Lone surrogates, by which Python stands for bytes in file names that are not UTF-8, come back as they were.
    """

    __slots__ = ("_blob", "_offsets")

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._blob: bytearray | memoryview = bytearray()
        self._offsets: array[int] | memoryview = array("q", [0])
        for text in texts:
            self.append(text)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (np.frombuffer(self._blob, np.uint8), np.frombuffer(self._offsets, np.int64))

    def append(self, text: str) -> None:
        """Adds one text at the end."""
        if not (isinstance(self._blob, bytearray) and isinstance(self._offsets, array)):
            raise TypeError("texts that came from another process can't be added to")
        self._blob += text.encode("utf-8", "surrogatepass")
        self._offsets.append(len(self._blob))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> str:
        check_index(index, len(self))
        return str(self._blob[self._offsets[index] : self._offsets[index + 1]], "utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))


def _received(blob: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Texts:
    texts = Texts()
    texts._blob, texts._offsets = blob.data, offsets.data
    return texts
