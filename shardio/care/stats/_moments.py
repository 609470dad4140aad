"""Mean and deviation of numbers that are many and come in parts.

Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .figures import Values


@dataclass(frozen=True, slots=True)
class Moments:
    """Of finite numbers their count, mean, sum of squared distances from it, and ends; of others how many there are."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    nan: int = 0
    inf: int = 0

    @classmethod
    def of(cls, array: NDArray[Any]) -> "Moments":
        """Of an array of any shape and dtype; of complex numbers the absolute values."""
        flat = np.abs(array.reshape(-1)) if array.dtype.kind == "c" else array.reshape(-1)
        nan = inf = 0
        if flat.dtype.kind == "f" and not (finite := np.isfinite(flat)).all():
            nan = int(np.isnan(flat).sum())
            inf = len(flat) - nan - int(finite.sum())
            flat = flat[finite]
        if not len(flat):
            return cls(nan=nan, inf=inf)
        numbers = flat.astype(np.float64)
        with np.errstate(over="ignore"):
            mean = float(numbers.mean())
            squares = float(np.square(numbers - mean).sum())
        return cls(len(flat), mean, squares, flat.min().item(), flat.max().item(), nan, inf)

    def __add__(self, other: "Moments") -> "Moments":
        """Of both together."""
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * other.count / count if count else 0.0
        squares = self.squares + other.squares + (apart**2 * self.count * other.count / count if count else 0.0)
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Moments(count, mean, squares, low, high, self.nan + other.nan, self.inf + other.inf)

    def values(self) -> Values:
        """As figures; None for what is not finite itself."""
        if not self.count:
            return Values(0, None, None, None, None, self.nan, self.inf)
        mean, std = (x if math.isfinite(x) else None for x in (self.mean, math.sqrt(self.squares / self.count)))
        return Values(self.count, self.low, self.high, mean, std, self.nan, self.inf)
