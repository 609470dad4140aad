"""The reference trainer: trains an image classifier, data-parallel on torch.distributed."""

from typing import TYPE_CHECKING, Any

from .config import TrainConfig as TrainConfig
from .config import TrainResult as TrainResult

if TYPE_CHECKING:
    from .trainer import run as run

__all__ = ["TrainConfig", "TrainResult", "run"]


def __getattr__(name: str) -> Any:
    """Import `run` when it is first used: it loads torch, which the options of `shardio train` need not."""
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .trainer import run

    return run
