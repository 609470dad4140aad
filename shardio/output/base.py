"""Values that folders and stores report: ranks at work, and leftovers of killed and replaced writers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ..stores.base import ObjectInfo

Beat: TypeAlias = Callable[[int], None]
"""States how many samples a rank has done so far."""


@dataclass(frozen=True, slots=True)
class RankState:
    """The last statement of a rank: the samples done, if it says so, whether it has finished, and its error if any.

    `lost` are words for its end, if it ended without a word.
    """

    samples: int = 0
    over: bool = False
    error: str = ""
    lost: str = ""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Files or objects that shardio alone writes and no manifest names, by names from the dataset's place on.

    Attributes:
        removable: what can be removed, in order.
        kept: what may belong to a writer that is at work.
        state: what the manifest was, so that removing sees whether it has changed.
    """

    removable: tuple[ObjectInfo, ...]
    kept: tuple[ObjectInfo, ...]
    state: object = None
