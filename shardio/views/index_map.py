"""Index maps: which sample of a dataset each sample of a view is, looked up in constant or logarithmic time.

A range takes no memory. A choice of many samples in stored order takes one bit per sample of the dataset and an eighth
of that for counts, or 8 bytes per chosen sample if that is less; or 16 bytes for each run of evenly spaced samples if
that is less than both. Any other choice takes 8 bytes per chosen sample.

Source of the counted bits: Jacobson 1989, "Space-efficient static trees and graphs" (rank and select).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..native import rows
from ..system.types import Indices

_BLOCK = 64  # bytes, whose bits are counted together
_BYTES = np.arange(_BLOCK)
_POPULATION = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)  # by byte
_AT_ONCE = 1 << 16
_BITS_TAKE = 9 / 8  # bits per sample of the dataset, with their counts
_FEW_BYTES = 1 << 25  # up to so many, numbers are looked up faster than bits


class IndexMap(Protocol):
    """A function from the numbers of a view's samples, 0 to len - 1, to those of the dataset's samples."""

    def __len__(self) -> int: ...

    def __call__(self, indices: Indices) -> Indices:
        """Return the numbers, int64 [n], in the dataset of the view's samples `indices`, int64 [n]."""

    def leading(self, samples: int) -> int | None:
        """Return how many samples of the view are among the first `samples` of the dataset.

        None unless these come first in the view.
        """


@final
@dataclass(frozen=True, slots=True)
class RangeMap:
    """The samples `numbers`, which are evenly spaced."""

    numbers: range

    def __len__(self) -> int:
        return len(self.numbers)

    def __call__(self, indices: Indices) -> Indices:
        return self.numbers.start + self.numbers.step * indices

    def leading(self, samples: int) -> int | None:
        first, step = self.numbers.start, self.numbers.step
        if step < 0:
            return len(self) if first < samples else None
        return len(range(first, min(self.numbers.stop, max(first, samples)), step))


@final
@dataclass(frozen=True, slots=True, eq=False)
class BitMap:
    """The samples whose bits are set, in stored order.

    Args:
        bits: a bit per sample of the dataset, the first one highest; uint8 [a multiple of 64].
        counts: the number of set bits before each 64 bytes, and of all; int64 [len(bits) / 64 + 1].
    """

    bits: NDArray[np.uint8]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.counts[-1])

    def __call__(self, indices: Indices) -> Indices:
        if native.library() is not None:
            numbers = np.array(indices, np.int64)
            rows.set_bits(numbers, self.bits, self.counts)
            return numbers
        blocks = np.searchsorted(self.counts, indices, "right") - 1
        rest = indices - self.counts[blocks]
        # The byte of the block that holds the bit, and then the bit of the byte.
        block_bytes = self.bits[blocks[:, None] * _BLOCK + _BYTES]
        ends = np.cumsum(_POPULATION[block_bytes], axis=1, dtype=np.int64)
        byte = (ends <= rest[:, None]).sum(axis=1)
        each = np.arange(len(indices))
        chosen = block_bytes[each, byte]
        rest -= ends[each, byte] - _POPULATION[chosen]
        bit = (np.cumsum(np.unpackbits(chosen[:, None], axis=1), axis=1) <= rest[:, None]).sum(axis=1)
        return np.asarray((blocks * _BLOCK + byte) * 8 + bit, np.int64)

    def leading(self, samples: int) -> int | None:
        return int(self.before(np.array([min(samples, 8 * len(self.bits))]))[0])

    def before(self, numbers: Indices) -> NDArray[np.int64]:
        """Return how many bits are set before each of some numbers of samples, int64 [n]."""
        blocks, rest = np.divmod(numbers, 8 * _BLOCK)
        places = np.minimum(blocks[:, None] * _BLOCK + _BYTES, len(self.bits) - 1)
        bits = np.unpackbits(self.bits[places], axis=1)
        found: NDArray[np.int64] = self.counts[blocks] + (bits * (np.arange(8 * _BLOCK) < rest[:, None])).sum(axis=1)
        return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class NumberMap:
    """Samples by their numbers, in any order; int64 [n]."""

    numbers: Indices

    def __len__(self) -> int:
        return len(self.numbers)

    def __call__(self, indices: Indices) -> Indices:
        return self.numbers[indices]

    def leading(self, samples: int) -> int | None:
        inside = self.numbers < samples
        count = int(np.count_nonzero(inside))
        return count if inside[:count].all() else None


@final
@dataclass(frozen=True, slots=True, eq=False)
class RunMap:
    """Runs of samples that are evenly spaced, in stored order.

    Args:
        firsts: the first sample of each run, int64 [runs].
        before: the number of samples before each run, and of all; int64 [runs + 1].
        step: the distance between the samples of a run.
    """

    firsts: Indices
    before: NDArray[np.int64]
    step: int

    def __len__(self) -> int:
        return int(self.before[-1])

    def __call__(self, indices: Indices) -> Indices:
        runs = np.searchsorted(self.before, indices, "right") - 1
        numbers: Indices = self.firsts[runs] + self.step * (indices - self.before[runs])
        return numbers

    def leading(self, samples: int) -> int:
        run = int(np.searchsorted(self.firsts, samples)) - 1
        if run < 0:
            return 0
        inside = -(-(samples - int(self.firsts[run])) // self.step)
        return min(int(self.before[run]) + inside, int(self.before[run + 1]))


def of_runs(firsts: Indices, counts: NDArray[np.int64], step: int) -> IndexMap:
    """Return the map to runs of samples in stored order.

    Args:
        firsts: the first sample of each run, int64 [runs].
        counts: the number of samples of each, which may be 0; int64 [runs].
        step: the distance between the samples of a run.
    """
    firsts, counts = firsts[counts > 0], counts[counts > 0]
    if len(firsts) <= 1:
        first, count = (int(firsts[0]), int(counts[0])) if len(firsts) else (0, 0)
        return RangeMap(range(first, first + count * step, step))
    runs = RunMap(firsts, np.concatenate(([0], np.cumsum(counts))), step)
    last = int(firsts[-1]) + step * int(counts[-1])
    if 2 * runs.firsts.nbytes <= min(8 * len(runs), last * _BITS_TAKE / 8):
        return runs

    def masks() -> Iterator[NDArray[np.bool_]]:
        for start in range(0, last, _AT_ONCE):
            stop = min(start + _AT_ONCE, last)
            mask = np.zeros(stop - start, np.bool_)
            mask[runs(np.arange(runs.leading(start), runs.leading(stop))) - start] = True
            yield mask

    return of_mask(masks())


def of_mask(parts: Iterable[NDArray[np.bool_]]) -> IndexMap:
    """Return the map to the samples for which a mask, given in consecutive parts, is True."""
    return _smallest(counted_bits(parts))


def counted_bits(parts: Iterable[NDArray[np.bool_]]) -> BitMap:
    """Return a mask, given in consecutive parts, as counted bits."""
    packed, left = [np.empty(0, np.uint8)], np.empty(0, np.bool_)
    for part in parts:
        left = np.concatenate([left, part])
        whole = len(left) - len(left) % (8 * _BLOCK)
        packed.append(np.packbits(left[:whole]))
        left = left[whole:]
    packed.append(np.packbits(np.concatenate([left, np.zeros(-len(left) % (8 * _BLOCK), np.bool_)])))
    return with_counts(np.concatenate(packed))


def with_counts(bits: NDArray[np.uint8]) -> BitMap:
    """Return bits, uint8 [a multiple of 64], with their counts."""
    counts = np.zeros(len(bits) // _BLOCK + 1, np.int64)
    np.cumsum(_POPULATION[bits].reshape(-1, _BLOCK).sum(axis=1, dtype=np.int64), out=counts[1:])
    return BitMap(bits, counts)


def _smallest(chosen: BitMap) -> IndexMap:
    """Return the map in the form that takes the least memory, or in the fastest one if that takes little."""
    count = len(chosen)
    if not count:
        return RangeMap(range(0))
    first, last = chosen(np.array([0, count - 1])).tolist()
    if last - first == count - 1:
        return RangeMap(range(first, last + 1))
    if 8 * count > max(_FEW_BYTES, chosen.bits.nbytes + chosen.counts.nbytes):
        return chosen
    numbers = np.empty(count, np.int64)
    for start in range(0, count, _AT_ONCE):
        numbers[start : start + _AT_ONCE] = chosen(np.arange(start, min(start + _AT_ONCE, count)))
    return NumberMap(numbers)
