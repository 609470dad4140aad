"""The reference trainer: trains an image classifier, data-parallel on torch.distributed."""

from .config import TrainConfig as TrainConfig
from .config import TrainResult as TrainResult
from .trainer import run as run

__all__ = ["TrainConfig", "TrainResult", "run"]
