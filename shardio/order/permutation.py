"""A keyed permutation of 0..n-1 in constant memory, with random access to every position.

A Feistel network permutes the numbers below the smallest power of two that is at least n (and 4). A result of n or more
passes through it again until it falls below n (cycle walking), which makes the whole a permutation of 0..n-1.

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
    """Return SplitMix64's finalizer of each value: a bijection in which every input bit affects every output bit."""
    z = values ^ (values >> np.uint64(30))
    z *= _M1
    z ^= z >> np.uint64(27)
    z *= _M2
    z ^= z >> np.uint64(31)
    return z


@lru_cache(maxsize=256)
def derive(*parts: int) -> int:
    """Return a 64-bit key that depends on all of `parts`, any integers, and on their order."""
    key = np.zeros(1, np.uint64)
    for part in parts:
        key = splitmix64(key ^ np.array([part & 0xFFFFFFFFFFFFFFFF], np.uint64)) + np.uint64(_GAMMA)
    return int(splitmix64(key)[0])


@dataclass(frozen=True, slots=True)
class Permutation:
    """The permutation of 0..n-1 that belongs to `key`, in constant memory.

    Args:
        n: the number of elements, 1 to 2^62.
        key: any integer; another key gives another permutation.

    Raises ValueError if n is out of range.
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
        """Return the number at each position, int64 [k]; positions must be in [0, n)."""
        numbers = positions.astype(np.uint64)
        if native.library() is not None:
            rows.permute(numbers, self.n, self._widths, np.array(self._keys, np.uint64))
            return numbers.view(np.int64)
        numbers = self._network(numbers)
        limit = np.uint64(self.n)
        outside = np.flatnonzero(numbers >= limit)
        while outside.size:
            numbers[outside] = self._network(numbers[outside])
            outside = outside[numbers[outside] >= limit]
        return numbers.astype(np.int64)

    def _network(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        high, low = self._widths
        left, right = values >> np.uint64(low), values & np.uint64((1 << low) - 1)
        for key in self._keys:
            # The halves may differ by one bit, so their widths also swap. ROUNDS is even: they end as they began.
            left, right = right, left ^ (splitmix64(right + key) & np.uint64((1 << high) - 1))
            high, low = low, high
        return (left << np.uint64(low)) | right
