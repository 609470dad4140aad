"""The bench: measures how fast each rank is fed, names what limits it, and which setting to change."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .accelerators import ACCELERATORS as ACCELERATORS
from .config import BenchConfig as BenchConfig

if TYPE_CHECKING:
    from .decoder import tune_decoder as tune_decoder
    from .measurement import measure as measure
    from .rank_processes import Progress as Progress
    from .result import BenchResult as BenchResult
    from .result import Spread as Spread

_LAZY = {
    "tune_decoder": "decoder",
    "measure": "measurement",
    "Progress": "rank_processes",
    "BenchResult": "result",
    "Spread": "result",
}
"""Names whose modules load torch, which the options of `shardio bench` need not: they load when they are first used."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
