"""Values of different sizes end to end in one array, whose memory the next read reuses."""

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray


class Scratch:
    """Memory for the values of one read, which the next read reuses. Not thread-safe."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def take(self, size: int) -> NDArray[np.uint8]:
        """Return uint8 [size], uninitialized. Every view of the result keeps it, so that its end is theirs."""
        if size > len(self._memory):
            self._memory = np.empty(size + size // 4, np.uint8)
        # NumPy makes a view of a view refer to the array that owns the memory; a memoryview in between prevents that.
        return np.frombuffer(self._memory.data, np.uint8, size)


@final
class PackedValues(Sequence[memoryview]):
    """Values of different sizes end to end in one array: a sequence of memoryviews.

    Attributes:
        data: all values, uint8.
        offsets: the offset of each value in `data`, int64 [n].
        sizes: the size of each value in bytes, int64 [n].
    """

    def __init__(self, data: NDArray[np.uint8], offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        self.data, self.offsets, self.sizes = data, offsets, sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[memoryview]:
        starts, ends = self.offsets.tolist(), (self.offsets + self.sizes).tolist()
        return map(self.data.data.__getitem__, map(slice, starts, ends))

    def __getitem__(self, number: Any) -> Any:
        start = int(self.offsets[number])
        return self.data[start : start + int(self.sizes[number])].data
