"""shardio: an input pipeline for data-parallel deep learning, on standard containers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import plan as plan
from . import source as source
from .dataset.dataset import Dataset as Dataset
from .dataset.dataset import from_samples as from_samples
from .dataset.opening import as_other
from .dataset.opening import concat as concat
from .dataset.opening import mix as mix
from .dataset.opening import open as open
from .dataset.writer import create as create
from .errors import AccessDenied as AccessDenied
from .errors import BadSample as BadSample
from .errors import CacheError as CacheError
from .errors import CacheWarning as CacheWarning
from .errors import ConfigError as ConfigError
from .errors import DatasetError as DatasetError
from .errors import EngineWarning as EngineWarning
from .errors import ManifestError as ManifestError
from .errors import MapError as MapError
from .errors import MaskWarning as MaskWarning
from .errors import MissingDependency as MissingDependency
from .errors import NativeWarning as NativeWarning
from .errors import NotADataset as NotADataset
from .errors import ObjectChanged as ObjectChanged
from .errors import ObjectNotFound as ObjectNotFound
from .errors import PairingWarning as PairingWarning
from .errors import PipelineClosed as PipelineClosed
from .errors import PipelineStalled as PipelineStalled
from .errors import Preempted as Preempted
from .errors import ShardCorrupt as ShardCorrupt
from .errors import ShardioError as ShardioError
from .errors import SourceError as SourceError
from .errors import SourceWarning as SourceWarning
from .errors import SplitWarning as SplitWarning
from .errors import StateMismatch as StateMismatch
from .errors import StateWarning as StateWarning
from .errors import StoreError as StoreError
from .errors import StoreUnavailable as StoreUnavailable
from .errors import TooManyBad as TooManyBad
from .errors import WorkerDied as WorkerDied
from .format.fields import Field as Field
from .format.manifest import Manifest as Manifest
from .loader.stats import LoaderStats as LoaderStats
from .order.plan import Plan as Plan
from .order.world import World as World
from .system.did_you_mean import did_you_mean
from .transforms import CenterClip as CenterClip
from .transforms import CenterCrop as CenterCrop
from .transforms import CenterSpatialCrop as CenterSpatialCrop
from .transforms import ColorJitter as ColorJitter
from .transforms import CutMix as CutMix
from .transforms import FillMissing as FillMissing
from .transforms import FramesAt as FramesAt
from .transforms import GaussianBlur as GaussianBlur
from .transforms import MixUp as MixUp
from .transforms import MultiHot as MultiHot
from .transforms import Normalize as Normalize
from .transforms import PadImages as PadImages
from .transforms import PadTo as PadTo
from .transforms import Ragged as Ragged
from .transforms import RandAugment as RandAugment
from .transforms import RandomApply as RandomApply
from .transforms import RandomAxisFlip as RandomAxisFlip
from .transforms import RandomChoice as RandomChoice
from .transforms import RandomClip as RandomClip
from .transforms import RandomCrop as RandomCrop
from .transforms import RandomErasing as RandomErasing
from .transforms import RandomGrayscale as RandomGrayscale
from .transforms import RandomHorizontalFlip as RandomHorizontalFlip
from .transforms import RandomIoUCrop as RandomIoUCrop
from .transforms import RandomItem as RandomItem
from .transforms import RandomResizedCrop as RandomResizedCrop
from .transforms import RandomRotate90 as RandomRotate90
from .transforms import RandomRotation as RandomRotation
from .transforms import RandomRow as RandomRow
from .transforms import RandomShortestSize as RandomShortestSize
from .transforms import RandomSpatialCrop as RandomSpatialCrop
from .transforms import RandomVerticalFlip as RandomVerticalFlip
from .transforms import RandomWindow as RandomWindow
from .transforms import RandomZoomOut as RandomZoomOut
from .transforms import Resize as Resize
from .transforms import SanitizeBoundingBoxes as SanitizeBoundingBoxes
from .transforms import ScaleJitter as ScaleJitter
from .transforms import ToFloat as ToFloat
from .transforms import ToInt64 as ToInt64
from .transforms import Tokenize as Tokenize
from .transforms import TrivialAugmentWide as TrivialAugmentWide
from .transforms import UniformFrames as UniformFrames
from .views.concat import Concat as Concat
from .views.mixture import Mixture as Mixture
from .views.view import BaseDataset
from .views.view import Clips as Clips
from .views.view import Joined as Joined
from .views.view import SequenceRows as SequenceRows
from .views.view import View as View
from .views.view import Weighted as Weighted
from .views.view import Windows as Windows

if TYPE_CHECKING:
    from .care.clean import clean as clean
    from .care.repair import repair as repair
    from .care.show import show as show
    from .care.stage import stage as stage
    from .care.stats import stats as stats
    from .care.verify import verify as verify
    from .conversion.api import convert as convert
    from .conversion.indexing import index as index
    from .derivation.api import derive as derive
    from .loader.loader import Loader as Loader
    from .loader.targets import to_torchvision as to_torchvision
    from .loader.torch_dataset import TorchDataset as TorchDataset
    from .monitoring.monitor import monitor as monitor

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "BadSample",
    "CacheError",
    "CacheWarning",
    "CenterClip",
    "CenterCrop",
    "CenterSpatialCrop",
    "Clips",
    "ColorJitter",
    "Concat",
    "ConfigError",
    "CutMix",
    "Dataset",
    "DatasetError",
    "EngineWarning",
    "Field",
    "FillMissing",
    "FramesAt",
    "GaussianBlur",
    "Joined",
    "Loader",
    "LoaderStats",
    "Manifest",
    "ManifestError",
    "MapError",
    "MaskWarning",
    "MissingDependency",
    "MixUp",
    "Mixture",
    "MultiHot",
    "NativeWarning",
    "Normalize",
    "NotADataset",
    "ObjectChanged",
    "ObjectNotFound",
    "PadImages",
    "PadTo",
    "PairingWarning",
    "PipelineClosed",
    "PipelineStalled",
    "Plan",
    "Preempted",
    "Ragged",
    "RandAugment",
    "RandomApply",
    "RandomAxisFlip",
    "RandomChoice",
    "RandomClip",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomIoUCrop",
    "RandomItem",
    "RandomResizedCrop",
    "RandomRotate90",
    "RandomRotation",
    "RandomRow",
    "RandomShortestSize",
    "RandomSpatialCrop",
    "RandomVerticalFlip",
    "RandomWindow",
    "RandomZoomOut",
    "Resize",
    "SanitizeBoundingBoxes",
    "ScaleJitter",
    "SequenceRows",
    "ShardCorrupt",
    "ShardioError",
    "SourceError",
    "SourceWarning",
    "SplitWarning",
    "StateMismatch",
    "StateWarning",
    "StoreError",
    "StoreUnavailable",
    "ToFloat",
    "ToInt64",
    "Tokenize",
    "TooManyBad",
    "TorchDataset",
    "TrivialAugmentWide",
    "UniformFrames",
    "View",
    "Weighted",
    "Windows",
    "WorkerDied",
    "World",
    "clean",
    "concat",
    "convert",
    "create",
    "derive",
    "from_samples",
    "index",
    "mix",
    "monitor",
    "open",
    "plan",
    "repair",
    "show",
    "source",
    "stage",
    "stats",
    "to_torchvision",
    "verify",
]

_LAZY = {
    "Loader": "loader.loader",
    "TorchDataset": "loader.torch_dataset",
    "clean": "care.clean",
    "convert": "conversion.api",
    "derive": "derivation.api",
    "index": "conversion.indexing",
    "monitor": "monitoring.monitor",
    "repair": "care.repair",
    "show": "care.show",
    "stage": "care.stage",
    "stats": "care.stats",
    "to_torchvision": "loader.targets",
    "verify": "care.verify",
}
"""Names whose modules load torch or h5py, by module: they load when they are first used."""


def _as_html(dataset: BaseDataset) -> str:
    from .care.notebook import to_html  # loads Pillow

    return to_html(dataset)


BaseDataset._as_html, BaseDataset._as_other = _as_html, staticmethod(as_other)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        hint = did_you_mean(name, "transform")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint and f': {hint}'}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
