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
from ..format.file_table import Table, parts, read_by
from ..native import rows
from ..system.types import Indices

_BLOCK = 64  # bytes, whose bits are counted together
BLOCK_OF_BITS = np.dtype((np.uint8, (_BLOCK,)))
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
        bits: a bit per sample of the dataset, the first one highest; uint8 [blocks, 64].
        counts: the number of set bits before each block, and of all; int64 [blocks + 1].
    """

    bits: Table
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.counts[-1])

    def __call__(self, indices: Indices) -> Indices:
        if native.library() is not None:
            numbers = np.array(indices, np.int64)
            read_by(lambda address: rows.set_bits(numbers, address, self.counts), self.bits)
            return numbers
        blocks = np.searchsorted(self.counts, indices, "right") - 1
        rest = indices - self.counts[blocks]
        # The byte of the block that holds the bit, and then the bit of the byte.
        block_bytes = self.bits.take(blocks, axis=0)
        ends = np.cumsum(_POPULATION[block_bytes], axis=1, dtype=np.int64)
        byte = (ends <= rest[:, None]).sum(axis=1)
        each = np.arange(len(indices))
        chosen = block_bytes[each, byte]
        rest -= ends[each, byte] - _POPULATION[chosen]
        bit = (np.cumsum(np.unpackbits(chosen[:, None], axis=1), axis=1) <= rest[:, None]).sum(axis=1)
        return np.asarray((blocks * _BLOCK + byte) * 8 + bit, np.int64)

    def leading(self, samples: int) -> int | None:
        return int(self.before(np.array([min(samples, 8 * _BLOCK * len(self.bits))]))[0])

    def has(self, numbers: Indices) -> NDArray[np.bool_]:
        """Return whether the bits of some numbers of samples are set, bool [n]."""
        blocks = self.bits.take(numbers >> 9, axis=0).reshape(-1)
        bits = blocks[np.arange(0, len(blocks), _BLOCK) + (numbers >> 3 & 63)] << (numbers & 7).astype(np.uint8)
        found: NDArray[np.bool_] = bits & 128 != 0
        return found

    def before(self, numbers: Indices) -> NDArray[np.int64]:
        """Return how many bits are set before each of some numbers of samples, int64 [n]."""
        blocks, rest = np.divmod(numbers, 8 * _BLOCK)
        bits = np.unpackbits(self.bits.take(np.minimum(blocks, len(self.bits) - 1), axis=0), axis=1)
        found: NDArray[np.int64] = self.counts[blocks] + (bits * (np.arange(8 * _BLOCK) < rest[:, None])).sum(axis=1)
        return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class NumberMap:
    """Samples by their numbers, in any order; int64 [n]."""

    numbers: Table

    def __len__(self) -> int:
        return len(self.numbers)

    def __call__(self, indices: Indices) -> Indices:
        return self.numbers.take(indices)

    def leading(self, samples: int) -> int | None:
        count = seen = 0
        for part in parts(self.numbers):
            inside = part < samples
            first = int(np.count_nonzero(inside)) if count == seen else 0
            if not inside[:first].all() or inside[first:].any():
                return None
            count, seen = count + first, seen + len(part)
        return count


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
    return with_counts(np.concatenate(packed).reshape(-1, _BLOCK))


def with_counts(bits: Table) -> BitMap:
    """Return bits, uint8 [blocks, 64], with their counts."""
    counts, place = np.zeros(len(bits) + 1, np.int64), 1
    for part in parts(bits):
        counts[place : place + len(part)] = _POPULATION[part].sum(axis=1)
        place += len(part)
    return BitMap(bits, np.cumsum(counts, out=counts))


def _smallest(chosen: BitMap) -> IndexMap:
    """Return the map in the form that takes the least memory, or in the fastest one if that takes little."""
    count = len(chosen)
    if not count:
        return RangeMap(range(0))
    first, last = chosen(np.array([0, count - 1])).tolist()
    if last - first == count - 1:
        return RangeMap(range(first, last + 1))
    if 8 * count > max(_FEW_BYTES, _BLOCK * len(chosen.bits) + chosen.counts.nbytes):
        return chosen
    numbers = np.empty(count, np.int64)
    for start in range(0, count, _AT_ONCE):
        numbers[start : start + _AT_ONCE] = chosen(np.arange(start, min(start + _AT_ONCE, count)))
    return NumberMap(numbers)
