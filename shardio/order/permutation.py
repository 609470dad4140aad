"""A keyed permutation of 0..n-1 that needs no memory: any position can be looked up at any time.

A Feistel network over the smallest power of two that holds n permutes the numbers below that power; a result of n or
more is fed back in until it lands below n (cycle walking), which keeps it a permutation of 0..n-1.

Sources: Luby and Rackoff 1988 (Feistel networks as permutations); Black and Rogaway 2002, "Ciphers with arbitrary
finite domains" (cycle walking); the mixing function is the finalizer of SplitMix64 (Steele, Lea and Flood 2014).
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..native import rows

ROUNDS = 8
_M1, _M2, _GAMMA = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), 0x9E3779B97F4A7C15


def splitmix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finalizer: a bijection of 64-bit numbers in which every input bit moves every output bit."""
    z = values ^ (values >> np.uint64(30))
    z *= _M1
    z ^= z >> np.uint64(27)
    z *= _M2
    z ^= z >> np.uint64(31)
    return z


@lru_cache(maxsize=256)
def derive(*parts: int) -> int:
    """One 64-bit key of any whole numbers: each is mixed into what the ones before it left."""
    key = np.zeros(1, np.uint64)
    for part in parts:
        key = splitmix64(key ^ np.array([part & 0xFFFFFFFFFFFFFFFF], np.uint64)) + np.uint64(_GAMMA)
    return int(splitmix64(key)[0])


@dataclass(frozen=True, slots=True)
class Permutation:
    """The permutation of 0..n-1 that belongs to `key`. Frozen, of constant size, and free of any state.

    Args:
        n: how many numbers, 1 to 2^62.
        key: any whole number; another key gives another order.
    """

    n: int
    key: int
    _widths: tuple[int, int] = field(init=False, repr=False)
    _keys: tuple[np.uint64, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.n <= 1 << 62:
            raise ValueError(f"n must be in [1, 2^62], got {self.n}")
        bits = max(2, (self.n - 1).bit_length())
        object.__setattr__(self, "_widths", (bits // 2, bits - bits // 2))
        object.__setattr__(self, "_keys", tuple(np.uint64(derive(self.key, r)) for r in range(ROUNDS)))

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number at each position; positions must be in [0, n)."""
        found = positions.astype(np.uint64)
        if native.library() is not None:
            rows.permute(found, self.n, self._widths, np.array(self._keys, np.uint64))
            return found.view(np.int64)
        found = self._network(found)
        limit = np.uint64(self.n)
        outside = np.flatnonzero(found >= limit)
        while outside.size:
            found[outside] = self._network(found[outside])
            outside = outside[found[outside] >= limit]
        return found.astype(np.int64)

    def _network(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        high, low = self._widths
        left, right = values >> np.uint64(low), values & np.uint64((1 << low) - 1)
        for key in self._keys:
            # The halves may differ by a bit, so their widths change places too. ROUNDS is even: they end as begun.
            left, right = right, left ^ (splitmix64(right + key) & np.uint64((1 << high) - 1))
            high, low = low, high
        return (left << np.uint64(low)) | right
