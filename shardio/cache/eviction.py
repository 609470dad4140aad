"""The choice of the pieces that a cache evicts to make room; `NodeCache` in `node_cache.py` evicts them."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .cached_object import SUSPECT, CachedObject, Parts, Pieces

MOST_LOOKED_AT = 512  # objects, unless these have too few pieces
_CHOICE = 4  # times what is to be evicted must be there to choose from


def choose(objects: Iterable[CachedObject], count: int, alive: NDArray[np.uint64], *, also_expected: bool) -> Parts:
    """Choose pieces that nobody needs.

    Pieces of objects that nobody has open go first, beginning with the oldest. Then the pieces that were used last: an
    epoch needs each once, so what was just read is needed last of all.

    Args:
        objects: objects of the cache; only as many are looked at as it takes.
        count: the number of pieces; there may be fewer.
        alive: the leases of the processes that use the cache, as bits.
        also_expected: whether pieces that are held ahead may go.
    """
    found: list[tuple[CachedObject, Pieces, NDArray[np.int64]]] = []
    enough = _CHOICE * count
    for looked_at, one in enumerate(objects):
        if looked_at >= MOST_LOOKED_AT and enough <= 0:
            break
        table = one.table
        if table.taken:
            free = np.flatnonzero(table.state >= SUSPECT)
            free = free[~table.held(free, alive, ahead=False)]
            if not also_expected:
                free = free[~table.held(free, alive, ahead=True)]
            idle = not (table.open_in & alive).any()
            used = table.used[free].astype(np.int64)
            found.append((one, free, used - (1 << 40) if idle else -used))
            enough -= len(free)
    ranks = np.concatenate([rank for _, _, rank in found]) if found else np.empty(0, np.int64)
    chosen = np.zeros(len(ranks), np.bool_)
    chosen[np.argsort(ranks, kind="stable")[:count]] = True
    split = np.split(chosen, np.cumsum([len(free) for _, free, _ in found], dtype=np.int64))
    return [(one, free[some]) for (one, free, _), some in zip(found, split, strict=False)]
