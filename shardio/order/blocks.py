"""Block shuffle: permuted blocks of neighbours, shuffled within windows, for storage that needs long reads.

A random offset rotates the stored order, which is then cut into blocks. The blocks are permuted; each `window`
consecutive blocks form a window, whose samples are permuted among themselves. The samples after the last whole block
come last, in the last window: the offset makes them another part of the dataset in every epoch.

Source: the shuffle buffer of sequential readers (tf.data, WebDataset), here as a pure function of the position.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, Option
from .permutation import Permutation, derive

_OFFSET, _BLOCKS, _WINDOW = 1, 2, 3  # the purposes for which keys are derived


@dataclass(frozen=True, slots=True)
class BlockPermutation:
    """The block permutation of 0..n-1 that belongs to `key`, in constant memory.

    Args:
        n: the number of samples.
        key: any integer.
        block: samples per block: neighbours that stay in one window.
        window: blocks per window, whose samples are permuted among themselves.

    Raises ConfigError unless block and window are integers of at least 1.
    """

    n: int
    key: int
    block: int
    window: int
    _offset: int = field(init=False, repr=False)
    _blocks: Permutation | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("block", "window"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError("{} must be an integer of at least 1, got {!r}", Option(name), getattr(self, name))
        whole = self.n // self.block
        object.__setattr__(self, "_offset", derive(self.key, _OFFSET) % self.n)
        object.__setattr__(self, "_blocks", Permutation(whole, derive(self.key, _BLOCKS)) if whole else None)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number at each position; positions must be in [0, n)."""
        span = self.block * self.window
        windows = positions // span
        within = np.empty_like(positions)
        for number in np.unique(windows).tolist():
            members = windows == number
            permutation = Permutation(min(span, self.n - number * span), derive(self.key, _WINDOW, number))
            within[members] = permutation(positions[members] - number * span)
        return self._numbers(windows * self.window + within // self.block, within % self.block)

    def runs(self, start: int, stop: int) -> list[range]:
        """Return the blocks of windows start..stop-1 as runs of stored samples.

        A block that passes the last sample continues at the first: it gives two runs.
        """
        last = min(stop * self.window, -(-self.n // self.block))
        blocks = np.arange(start * self.window, last, dtype=np.int64)
        sizes = np.minimum(self.block, self.n - blocks * self.block)
        runs: list[range] = []
        for begin, size in zip(self._numbers(blocks, np.zeros_like(blocks)).tolist(), sizes.tolist(), strict=True):
            head = min(size, self.n - begin)
            runs += [range(begin, begin + head)] + ([range(size - head)] if head < size else [])
        return runs

    def _numbers(self, blocks: NDArray[np.int64], within: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the stored number of sample `within[i]` of the block that the permutation puts at `blocks[i]`."""
        numbers = blocks.copy()
        whole = blocks < self.n // self.block
        if self._blocks is not None:
            numbers[whole] = self._blocks(blocks[whole])
        return (numbers * self.block + within + self._offset) % self.n
