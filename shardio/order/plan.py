"""The plan: which sample stands at which position of an epoch, and which positions a rank takes at a step.

The order of an epoch depends on (n, seed, epoch, shuffle) alone: not on container, world, batch size, threads or
engine. Rank r takes at step s the positions `[start + s*G + r*B, start + s*G + (r+1)*B)`, where B is its batch size,
G the global batch `world.size * B`, and `start` the position that the epoch is begun or resumed at.
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..system.types import Indices
from .blocks import BlockOrder
from .permutation import Permutation, derive
from .world import World

Shuffle: TypeAlias = Literal["global", "block"] | None
Tail: TypeAlias = Literal["drop", "pad"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The order of one epoch: a pure function from position to sample index, in constant memory.

    Args:
        n: samples in the dataset.
        seed: any whole number.
        epoch: 0, 1, ...
        shuffle: `"global"` for a permutation of all samples, `"block"` for one of blocks, mixed within windows (see
            `blocks`), None for the stored order.
        block: samples in a block, for `"block"`.
        window: blocks that are mixed with one another, for `"block"`.
    """

    n: int
    seed: int = 0
    epoch: int = 0
    shuffle: Shuffle = "global"
    block: int = 64
    window: int = 16
    _order: Permutation | BlockOrder | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"a plan needs at least one sample, got n = {self.n}")
        if self.epoch < 0:
            raise ConfigError(f"epoch must be 0 or more, got {self.epoch}")
        object.__setattr__(self, "_order", self._make_order())

    def _make_order(self) -> Permutation | BlockOrder | None:
        match self.shuffle:
            case "global":
                return Permutation(self.n, derive(self.seed, self.epoch))
            case "block":
                return BlockOrder(self.n, derive(self.seed, self.epoch), self.block, self.window)
            case None:
                return None
        raise ConfigError(f"shuffle must be 'global', 'block' or None, got {self.shuffle!r}")

    @property
    def order(self) -> str:
        """What the order depends on besides n, seed and epoch: `global`, `stored`, or `block of 64, window of 16`."""
        blocks = f"block of {self.block}, window of {self.window}"
        return blocks if self.shuffle == "block" else (self.shuffle or "stored")

    def indices(self, start: int, stop: int) -> Indices:
        """The sample indices, int64 [stop - start], at positions start..stop-1; ConfigError outside [0, n]."""
        if not 0 <= start <= stop <= self.n:
            raise ConfigError(f"positions must be in [0, {self.n}], got {start} to {stop}")
        return self.drawn(np.arange(start, stop, dtype=np.int64))[0]

    def drawn(self, positions: NDArray[np.int64]) -> tuple[Indices, NDArray[np.int64]]:
        """The sample index at each position in [0, n), and what its random choices are keyed by: the index again."""
        indices = positions if self._order is None else self._order(positions)
        return indices, indices

    def replacement(self, index: int, draw: int, attempt: int) -> tuple[int, int]:
        """The sample, and its draw, that comes in the place of a bad one at the first, second, ... attempt."""
        other = derive(self.seed, self.epoch, draw, attempt, 0xBAD) % self.n
        return other, other

    def windows(self, start: int, stop: int) -> tuple[int, int]:
        """The windows, first to last, that positions start..stop-1 are in; (0, -1) unless shuffled by blocks."""
        span = self.block * self.window
        return (start // span, (stop - 1) // span) if isinstance(self._order, BlockOrder) else (0, -1)

    def runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """What windows start..stop-1 hold: runs of neighbouring samples, (first, count)."""
        return self._order.runs(start, stop) if isinstance(self._order, BlockOrder) else []


class Order(Protocol):
    """The order of one epoch: what `Plan` and `interleave.MixedPlan` have in common."""

    @property
    def n(self) -> int:
        """Positions of an epoch."""

    def drawn(self, positions: NDArray[np.int64]) -> tuple[Indices, NDArray[np.int64]]:
        """See `Plan.drawn`."""


@dataclass(frozen=True, slots=True)
class PlanSlice:
    """One rank's share of one step, [B] each.

    Attributes:
        indices: the samples' numbers, int64.
        draws: what their random choices are keyed by, besides seed and epoch, int64.
        valid: which count: all but a pad tail's repeats.
    """

    indices: Indices
    rng_keys: NDArray[np.int64]
    valid: NDArray[np.bool_]

    def __getitem__(self, rows: slice) -> "PlanSlice":
        return PlanSlice(self.indices[rows], self.rng_keys[rows], self.valid[rows])


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps that cut what is left of an epoch into global batches, the same number of them on every rank.

    Args:
        n: samples in an epoch.
        world: the ranks.
        batch_size: samples per rank and step.
        tail: `"drop"` leaves out the last `(n - start) % G` positions of the epoch; `"pad"` fills the last global batch
            with positions from the epoch's beginning, marked as not valid.
        start: the position to go on from, in [0, n].
    """

    n: int
    world: World
    batch_size: int
    tail: Tail = "drop"
    start: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.tail not in get_args(Tail):
            raise ConfigError(f"tail must be 'drop' or 'pad', got {self.tail!r}")
        if not 0 <= self.start <= self.n:
            raise ConfigError(f"position must be in [0, {self.n}], got {self.start}")

    @property
    def global_batch(self) -> int:
        """Samples that all ranks together take at a step."""
        return self.world.size * self.batch_size

    def __len__(self) -> int:
        """Steps from `start` to the epoch's end."""
        left = self.n - self.start
        return left // self.global_batch if self.tail == "drop" else -(-left // self.global_batch)

    def part(self, plan: Order, step: int, steps: int = 1) -> PlanSlice:
        """What this rank takes at `step`, or at the `steps` that begin with it, one after the other."""
        firsts = self._first(step) + self.global_batch * np.arange(steps, dtype=np.int64)
        positions = (firsts[:, None] + np.arange(self.batch_size, dtype=np.int64)).reshape(-1)
        if self.tail == "drop":
            return PlanSlice(*plan.drawn(positions), np.ones(len(positions), np.bool_))
        return PlanSlice(*plan.drawn(positions % self.n), positions < self.n)

    def positions(self, step: int, steps: int = 1) -> tuple[int, int]:
        """The positions, first to one behind the last, that this rank takes in `steps` from `step` on; at most n."""
        first, last = self._first(step), self._first(step + steps - 1) + self.batch_size
        return min(self.n - 1, first), min(self.n, last)

    def _first(self, step: int) -> int:
        return self.start + step * self.global_batch + self.world.rank * self.batch_size

    def position_after(self, step: int) -> int:
        """The position that is next once `step` has been delivered on all ranks; at most n."""
        return min(self.n, self.start + (step + 1) * self.global_batch)
