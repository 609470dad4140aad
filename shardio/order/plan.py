"""The sample at each position of an epoch, and the positions that a rank takes at each step.

The order of an epoch depends on (n, seed, epoch, shuffle) alone: not on the container, the world, the batch size, the
threads or the engine. At step s, rank r takes the positions `[start + s*G + r*B, start + s*G + (r+1)*B)`, where B is
its batch size, G the global batch `world.size * B`, and `start` the position at which the epoch begins or resumes.
With `assign="node"` the ranks share the same G samples out differently, see `Schedule`. A position is a sample. In the
order of `buckets.Buckets` it is a whole batch, and each rank takes one at a step (B = 1).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple, Self, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..system.types import Indices
from ..system.units import counted, shown
from .blocks import BlockPermutation
from .permutation import Permutation, derive
from .world import World

Shuffle: TypeAlias = Literal["global", "block"] | None
Tail: TypeAlias = Literal["drop", "pad"]
Assign: TypeAlias = Literal["rank", "node"]


class Shuffling(NamedTuple):
    """The shuffling of an order. A loader's state resumes only with an equal one; the string is for messages.

    Attributes:
        shuffle: `global` or `block`; "" for the stored order.
        block: samples per block; 0 for other orders.
        window: blocks per window; 0 for other orders.
    """

    shuffle: str
    block: int
    window: int

    def __str__(self) -> str:
        blocks = f" of {shown(self.block)}, window of {shown(self.window)}" if self.block or self.window else ""
        return f"{self.shuffle or 'stored'}{blocks}"


@dataclass(frozen=True, slots=True)
class Order(ABC):
    """The order of one epoch: all that a loader needs to know of it.

    `Plan` is the order of a dataset, `mixed_plan.MixedPlan` that of a weighted mixture, `buckets.Buckets` one whose
    positions are batches. Orders are frozen dataclasses. They keep no state: a method returns the same for the same
    arguments in every process.

    Attributes:
        ends: the number of samples at all positions up to each one, int64 [n]; None if each position is one sample.
    """

    ends: ClassVar[NDArray[np.int64] | None] = None

    @property
    @abstractmethod
    def n(self) -> int:
        """The number of positions in the epoch."""

    @property
    @abstractmethod
    def seed(self) -> int:
        """The seed of the order, and of the samples' random transforms."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The number of the epoch: 0, 1, ..."""

    @property
    @abstractmethod
    def shuffling(self) -> Shuffling:
        """The shuffling of the samples."""

    @abstractmethod
    def lookup(self, positions: NDArray[np.int64]) -> tuple[Indices, NDArray[np.int64]]:
        """Return the sample index and the random key, int64 [k] each, of the k samples at some positions in [0, n).

        The random key, together with the seed and the epoch, determines the sample's random transforms.
        """

    @abstractmethod
    def replacement_index(self, index: int, rng_key: int, attempt: int) -> int:
        """Return the index of the sample that replaces a bad one at attempt 1, 2, ..."""

    def replacement(self, index: int, rng_key: int, attempt: int) -> tuple[int, int]:
        """Return the index and the random key of the sample that replaces a bad one at attempt 1, 2, ...

        The key depends on the bad sample's key and the attempt alone. It is negative, and those that number samples are
        not, so the sample is transformed otherwise than where the epoch has it.
        """
        key = derive(rng_key, attempt, 0xBAD) | 1 << 63
        return self.replacement_index(index, rng_key, attempt), key - (1 << 64)

    def indices(self, start: int, stop: int) -> Indices:
        """Return the sample indices, int64 [stop - start], at positions start..stop-1 of single samples.

        Raises ConfigError unless 0 <= start <= stop <= n.
        """
        if not 0 <= start <= stop <= self.n:
            raise ConfigError(f"positions must be in [0, {self.n}], got {start} to {stop}")
        return self.lookup(np.arange(start, stop, dtype=np.int64))[0]

    def windows(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first and the last shuffling window that hold positions start..stop-1.

        That is (0, -1), for none, where an order has no windows to read ahead.
        """
        return 0, -1

    def runs(self, start: int, stop: int) -> list[range]:
        """Return the samples in windows start..stop-1, to read them ahead, as runs of neighbours."""
        return []

    def at_epoch(self, epoch: int) -> Self:
        """Return the order of another epoch; ConfigError if `epoch` is negative or too large."""
        return replace(self, epoch=epoch)  # type: ignore[call-arg]  # a field of all orders but those of orders


@dataclass(frozen=True, slots=True)
class Plan(Order):
    """The order of one epoch of a dataset: a pure function from position to sample index, in constant memory.

    Args:
        n: the number of samples in the dataset.
        seed: any integer.
        epoch: 0, 1, ...
        shuffle: `"global"` permutes all samples; `"block"` permutes blocks of neighbours and then the samples within
            windows of blocks (see `blocks`); None keeps the stored order.
        block: samples per block, for `"block"`.
        window: blocks per window, for `"block"`.

    Raises ConfigError unless n, block and window are at least 1, epoch is in [0, 2^63) and shuffle is one of the above.
    """

    n: int = field()  # otherwise the property of `Order` would be its default
    seed: int = 0
    epoch: int = 0
    shuffle: Shuffle = "global"
    block: int = 64
    window: int = 16
    _permutation: Permutation | BlockPermutation | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"a plan needs at least one sample, got n = {self.n}")
        if not 0 <= self.epoch < 1 << 63:
            raise ConfigError("{epoch} must be in [0, 2^63), got {}", shown(self.epoch))
        object.__setattr__(self, "_permutation", self._make_permutation())

    def _make_permutation(self) -> Permutation | BlockPermutation | None:
        match self.shuffle:
            case "global":
                return Permutation(self.n, derive(self.seed, self.epoch))
            case "block":
                return BlockPermutation(self.n, derive(self.seed, self.epoch), self.block, self.window)
            case None:
                return None
        habit = "; 'global' stands for True, None for False" if isinstance(self.shuffle, bool) else ""
        raise ConfigError("{shuffle} must be 'global', 'block' or None, got {!r}{}", self.shuffle, habit)

    @property
    def shuffling(self) -> Shuffling:
        """The shuffling of the samples."""
        blocks = (self.block, self.window) if self.shuffle == "block" else (0, 0)
        return Shuffling(self.shuffle or "", *blocks)

    def lookup(self, positions: NDArray[np.int64]) -> tuple[Indices, NDArray[np.int64]]:
        """Return the sample index at each position in [0, n), and as its random key the index again."""
        indices = positions if self._permutation is None else self._permutation(positions)
        return indices, indices

    def replacement_index(self, index: int, rng_key: int, attempt: int) -> int:
        """Return the index of the sample that replaces a bad one at attempt 1, 2, ..."""
        return derive(self.seed, self.epoch, rng_key, attempt, 0xBAD) % self.n

    def windows(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first and the last window that hold positions start..stop-1; (0, -1) without block shuffle."""
        span = self.block * self.window
        return (start // span, (stop - 1) // span) if isinstance(self._permutation, BlockPermutation) else (0, -1)

    def runs(self, start: int, stop: int) -> list[range]:
        """Return the samples that windows start..stop-1 hold, as runs of neighbours."""
        return self._permutation.runs(start, stop) if isinstance(self._permutation, BlockPermutation) else []


@dataclass(frozen=True, slots=True)
class OrderOfSamples(Order):
    """An order that another one shuffles, at the same epoch: what its positions stand for differs.

    Attributes:
        samples: the order that shuffles the samples.
    """

    samples: Order

    @property
    def n(self) -> int:
        """The number of positions in the epoch."""
        return self.samples.n

    @property
    def seed(self) -> int:
        """The seed of the samples' order."""
        return self.samples.seed

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self.samples.epoch

    @property
    def shuffling(self) -> Shuffling:
        """The shuffling of the samples."""
        return self.samples.shuffling

    def at_epoch(self, epoch: int) -> Self:
        """Return the order of another epoch; ConfigError if `epoch` is negative or too large."""
        return replace(self, samples=self.samples.at_epoch(epoch))


@dataclass(frozen=True, slots=True)
class PlanSlice:
    """The samples that one rank takes, with their random keys; slicing gives those of some rows.

    Attributes:
        indices: the samples' indices in the dataset, int64 [B].
        rng_keys: with the seed and the epoch, these determine their random transforms, int64 [B].
        valid: False where a sample repeats one of the epoch to fill a padded tail, bool [B].
        begins: the position in the epoch at which the sample's global batch begins, int64 [B].
        ends: the number of samples in all batches up to each one, int64 [batches]; None where no batches are cut.
    """

    indices: Indices
    rng_keys: NDArray[np.int64]
    valid: NDArray[np.bool_]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64] | None = None

    def __getitem__(self, rows: slice) -> PlanSlice:
        return PlanSlice(self.indices[rows], self.rng_keys[rows], self.valid[rows], self.begins[rows])


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps that cut the rest of an epoch into global batches, the same number of them on every rank.

    Args:
        n: the number of positions in the epoch.
        world: this process and the ranks around it.
        batch_size: positions per rank and step: samples, or 1 where a position is a batch.
        tail: `"drop"` leaves out the last `(n - start) % G` positions of the epoch; `"pad"` fills the last global batch
            with positions from the beginning of the epoch, marked as not valid.
        start: the position in [0, n] at which the first step begins.
        assign: `"rank"` gives each rank its positions of the global batch. `"node"` gives the first rank the samples of
            the global batch that are stored first, and so on, in the order of their positions: ranks that follow each
            other, as those of a node do, then read neighbours, and other nodes need not read them.
        unit: what a position is, for messages.

    Raises ConfigError if `batch_size`, `tail`, `start` or `assign` is out of range.
    """

    n: int
    world: World
    batch_size: int
    tail: Tail = "drop"
    start: int = 0
    assign: Assign = "rank"
    unit: Literal["sample", "batch"] = "sample"

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError("{batch_size} must be at least 1, got {}", self.batch_size)
        if self.tail not in get_args(Tail):
            raise ConfigError("{tail} must be 'drop' or 'pad', got {!r}", self.tail)
        if self.assign not in get_args(Assign):
            raise ConfigError("{assign} must be 'rank' or 'node', got {!r}", self.assign)
        if not 0 <= self.start <= self.n:
            raise ConfigError(f"position must be in [0, {self.n}], got {self.start}")

    @property
    def global_batch(self) -> int:
        """The number of positions that all ranks together take at a step."""
        return self.world.size * self.batch_size

    def __len__(self) -> int:
        """Return the number of steps from `start` to the end of the epoch."""
        left = self.n - self.start
        return left // self.global_batch if self.tail == "drop" else -(-left // self.global_batch)

    def check_steps(self) -> None:
        """Raise ConfigError if the samples fill no global batch, so that there is no step."""
        if len(self) == 0:
            ranks = counted(self.world.size, "rank")
            if self.unit == "batch":
                raise ConfigError(
                    "the epoch's {} batches are fewer than {}; take a smaller max_tokens or {batch_size}, or "
                    "{tail:pad}",
                    self.n,
                    ranks,
                )
            raise ConfigError(
                "{} samples fill no global batch of {} ({} x {}); take a smaller {batch_size}, or {tail:pad}",
                self.n,
                self.global_batch,
                ranks,
                self.batch_size,
            )

    def part(self, plan: Order, step: int, steps: int = 1) -> PlanSlice:
        """Return the samples that this rank takes at `step` and the `steps - 1` steps after it, in order."""
        if self.assign == "node":
            return self._neighbors(plan, step, steps)
        return self._slice(plan, self._own(step, steps), step, steps)

    def samples(self, plan: Order) -> int:
        """Return the number of samples that this rank takes in all steps, with those that pad the tail."""
        steps = len(self)
        return steps * self.batch_size if plan.ends is None else int(_sizes(plan, self._own(0, steps)).sum())

    def _own(self, step: int, steps: int) -> NDArray[np.int64]:
        """Return the positions that this rank takes in some steps; those from n on pad the tail."""
        firsts = self._first(step) + self.global_batch * np.arange(steps, dtype=np.int64)
        return (firsts[:, None] + np.arange(self.batch_size, dtype=np.int64)).reshape(-1)

    def _slice(self, plan: Order, positions: NDArray[np.int64], step: int, steps: int) -> PlanSlice:
        """Return the samples at positions; each step has equally many positions."""
        sizes = _sizes(plan, positions)
        in_steps = sizes.reshape(steps, -1).sum(axis=1)
        valid = (positions < self.n).repeat(sizes)
        begins = (self.start + self.global_batch * np.arange(step, step + steps)).repeat(in_steps)
        looked_up = plan.lookup(positions if self.tail == "drop" else positions % self.n)
        return PlanSlice(*looked_up, valid, begins, np.cumsum(in_steps))

    def _neighbors(self, plan: Order, step: int, steps: int) -> PlanSlice:
        """Return this rank's share of each global batch in the order of storage, sorted by position."""
        first, count = self.start + step * self.global_batch, steps * self.global_batch
        every = self._slice(plan, np.arange(first, first + count), step, steps)
        stored = np.argsort(every.indices.reshape(steps, -1), axis=1, kind="stable")
        begin = self.world.rank * self.batch_size
        own = np.sort(stored[:, begin : begin + self.batch_size], axis=1)
        rows = (own + self.global_batch * np.arange(steps)[:, None]).reshape(-1)
        ends = self.batch_size * np.arange(1, steps + 1)
        begins = every.begins[rows]
        return PlanSlice(every.indices[rows], every.rng_keys[rows], every.valid[rows], begins, ends)

    def positions(self, step: int, steps: int = 1) -> tuple[int, int]:
        """Return the range of positions, first and one past the last, that this rank takes in `steps` from `step` on.

        The range ends at n: a padded tail's repeated positions are not in it. With `assign="node"` these are the
        positions of all ranks, any of which may be this one's.
        """
        if self.assign == "node":
            begin = self.start + step * self.global_batch
            return min(self.n - 1, begin), min(self.n, begin + steps * self.global_batch)
        first, last = self._first(step), self._first(step + steps - 1) + self.batch_size
        return min(self.n - 1, first), min(self.n, last)

    def _first(self, step: int) -> int:
        return self.start + step * self.global_batch + self.world.rank * self.batch_size

    def position_after(self, step: int) -> int:
        """Return the position that follows `step` once all ranks have delivered it; at most n."""
        return min(self.n, self.start + (step + 1) * self.global_batch)


def _sizes(plan: Order, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many samples each position has, int64 [k]; those from n on repeat the first ones."""
    if plan.ends is None:
        return np.ones(len(positions), np.int64)
    places = positions % plan.n
    return plan.ends[places] - np.where(places > 0, plan.ends[places - 1], 0)
