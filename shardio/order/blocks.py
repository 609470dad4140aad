"""Block shuffle: runs of neighbours in permuted order, mixed within a window, for storage that wants long reads.

The stored order, turned by a random offset, is cut into blocks; the blocks are permuted; each `window` blocks that then
follow one another are one window, whose samples are permuted among themselves. What is left over by the last whole
block comes last, in the last window: the offset makes that another part of the dataset in every epoch.

Source: the shuffle buffer of sequential readers (tf.data, WebDataset), here as a pure function of the position.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .permutation import Permutation, derive

_OFFSET, _BLOCKS, _WINDOW = 1, 2, 3  # what a key is for


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """The order of 0..n-1 that belongs to `key`, of constant size.

    Args:
        n: samples.
        key: any whole number.
        block: neighbouring samples that stay together.
        window: blocks that are mixed with one another.
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
                raise ConfigError(f"{name} must be a whole number of at least 1, got {getattr(self, name)!r}")
        whole = self.n // self.block
        object.__setattr__(self, "_offset", derive(self.key, _OFFSET) % self.n)
        object.__setattr__(self, "_blocks", Permutation(whole, derive(self.key, _BLOCKS)) if whole else None)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number at each position; positions must be in [0, n)."""
        span = self.block * self.window
        windows = positions // span
        found = np.empty_like(positions)
        for number in np.unique(windows).tolist():
            here = windows == number
            mixed = Permutation(min(span, self.n - number * span), derive(self.key, _WINDOW, number))
            found[here] = mixed(positions[here] - number * span)
        return self._stored(windows * self.window + found // self.block, found % self.block)

    def runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The blocks of windows start..stop-1, as (first sample, samples) in stored order.

        A block that goes beyond the last sample goes on at the first: then it is two.
        """
        last = min(stop * self.window, -(-self.n // self.block))
        blocks = np.arange(start * self.window, last, dtype=np.int64)
        sizes = np.minimum(self.block, self.n - blocks * self.block)
        found: list[tuple[int, int]] = []
        for begin, size in zip(self._stored(blocks, np.zeros_like(blocks)).tolist(), sizes.tolist(), strict=True):
            head = min(size, self.n - begin)
            found += [(begin, head)] + ([(0, size - head)] if head < size else [])
        return found

    def _stored(self, blocks: NDArray[np.int64], within: NDArray[np.int64]) -> NDArray[np.int64]:
        """The samples at some places of the blocks that stand at these places of the order."""
        numbers = blocks.copy()
        whole = blocks < self.n // self.block
        if self._blocks is not None:
            numbers[whole] = self._blocks(blocks[whole])
        return (numbers * self.block + within + self._offset) % self.n
