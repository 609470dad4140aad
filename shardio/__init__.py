"""shardio: an input pipeline for data-parallel deep learning, on standard containers."""

from typing import TYPE_CHECKING, Any

from . import plan as plan
from .augment import CenterCrop as CenterCrop
from .augment import CenterSpatialCrop as CenterSpatialCrop
from .augment import ColorJitter as ColorJitter
from .augment import CutMix as CutMix
from .augment import GaussianBlur as GaussianBlur
from .augment import MixUp as MixUp
from .augment import Normalize as Normalize
from .augment import RandomApply as RandomApply
from .augment import RandomAxisFlip as RandomAxisFlip
from .augment import RandomChoice as RandomChoice
from .augment import RandomCrop as RandomCrop
from .augment import RandomErasing as RandomErasing
from .augment import RandomGrayscale as RandomGrayscale
from .augment import RandomHorizontalFlip as RandomHorizontalFlip
from .augment import RandomResizedCrop as RandomResizedCrop
from .augment import RandomRotate90 as RandomRotate90
from .augment import RandomRotation as RandomRotation
from .augment import RandomSpatialCrop as RandomSpatialCrop
from .augment import Resize as Resize
from .augment import ToFloat as ToFloat
from .augment import TrivialAugmentWide as TrivialAugmentWide
from .dataset import Dataset as Dataset
from .dataset import from_samples as from_samples
from .dataset import open as open
from .errors import BadSample as BadSample
from .errors import ConfigError as ConfigError
from .errors import MapError as MapError
from .errors import PipelineStalled as PipelineStalled
from .errors import ShardCorrupt as ShardCorrupt
from .errors import ShardioError as ShardioError
from .errors import StateMismatch as StateMismatch
from .errors import TooManyBad as TooManyBad
from .fields import Field as Field
from .manifest import Manifest as Manifest
from .mixture import Mixture as Mixture
from .mixture import mix as mix
from .plan import Plan as Plan
from .stats import LoaderStats as LoaderStats
from .world import World as World
from .writer import create as create

if TYPE_CHECKING:
    from .loader import Loader as Loader
    from .torch_dataset import TorchDataset as TorchDataset

__version__ = "0.1.0"

__all__ = [
    "BadSample",
    "CenterCrop",
    "CenterSpatialCrop",
    "ColorJitter",
    "ConfigError",
    "CutMix",
    "Dataset",
    "Field",
    "GaussianBlur",
    "Loader",
    "LoaderStats",
    "Manifest",
    "MapError",
    "MixUp",
    "Mixture",
    "Normalize",
    "PipelineStalled",
    "Plan",
    "RandomApply",
    "RandomAxisFlip",
    "RandomChoice",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomRotate90",
    "RandomRotation",
    "RandomSpatialCrop",
    "Resize",
    "ShardCorrupt",
    "ShardioError",
    "StateMismatch",
    "ToFloat",
    "TooManyBad",
    "TorchDataset",
    "TrivialAugmentWide",
    "World",
    "create",
    "from_samples",
    "mix",
    "open",
    "plan",
]


def __getattr__(name: str) -> Any:
    # These import torch, which takes a second or two; converting, looking and verifying need none of it.
    if name == "Loader":
        from .loader import Loader

        return Loader
    if name == "TorchDataset":
        from .torch_dataset import TorchDataset

        return TorchDataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
