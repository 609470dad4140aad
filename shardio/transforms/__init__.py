"""Transforms as data: they make the random decisions, and engines only carry out the steps that they return.

Names and meaning follow torchvision.transforms.v2. A transform turns the images' sizes and a random generator into
steps: arrays with a row per image. The generator's numbers are a pure function of seed, epoch, sample index and the
transform's position in the list, so every engine and any number of threads make the same choices.
"""

from typing import TypeAlias

from .array_recipe import ArrayRecipe as ArrayRecipe
from .arrays import ArrayTransform as ArrayTransform
from .arrays import CenterSpatialCrop as CenterSpatialCrop
from .arrays import MultiHot as MultiHot
from .arrays import RandomAxisFlip as RandomAxisFlip
from .arrays import RandomRotate90 as RandomRotate90
from .arrays import RandomRow as RandomRow
from .arrays import RandomSpatialCrop as RandomSpatialCrop
from .arrays import RandomWindow as RandomWindow
from .auto_augment import RandAugment as RandAugment
from .auto_augment import TrivialAugmentWide as TrivialAugmentWide
from .blur import GaussianBlur as GaussianBlur
from .clips import CenterClip as CenterClip
from .clips import Clip as Clip
from .clips import FramesAt as FramesAt
from .clips import RandomClip as RandomClip
from .clips import UniformFrames as UniformFrames
from .color import ColorJitter as ColorJitter
from .color import RandomGrayscale as RandomGrayscale
from .composition import ChildTransform as ChildTransform
from .composition import RandomApply as RandomApply
from .composition import RandomChoice as RandomChoice
from .detection import PadImages as PadImages
from .detection import RandomIoUCrop as RandomIoUCrop
from .detection import RandomShortestSize as RandomShortestSize
from .detection import RandomZoomOut as RandomZoomOut
from .detection import SanitizeBoundingBoxes as SanitizeBoundingBoxes
from .detection import ScaleJitter as ScaleJitter
from .erasing import RandomErasing as RandomErasing
from .geometry import CenterCrop as CenterCrop
from .geometry import RandomCrop as RandomCrop
from .geometry import RandomHorizontalFlip as RandomHorizontalFlip
from .geometry import RandomResizedCrop as RandomResizedCrop
from .geometry import RandomRotation as RandomRotation
from .geometry import RandomVerticalFlip as RandomVerticalFlip
from .geometry import Resize as Resize
from .mixing import CutMix as CutMix
from .mixing import Mixer as Mixer
from .mixing import MixUp as MixUp
from .normalization import FillMissing as FillMissing
from .normalization import Normalize as Normalize
from .normalization import Precision as Precision
from .normalization import ToFloat as ToFloat
from .normalization import ToInt64 as ToInt64
from .ragged import Collation as Collation
from .ragged import PadTo as PadTo
from .ragged import Ragged as Ragged
from .ragged import RandomItem as RandomItem
from .ragged import Tokenize as Tokenize
from .random_generator import RandomGenerator as RandomGenerator

SizeChangingTransform: TypeAlias = (
    RandomResizedCrop
    | RandomCrop
    | CenterCrop
    | Resize
    | ScaleJitter
    | RandomShortestSize
    | RandomZoomOut
    | RandomIoUCrop
    | PadImages
)
SizePreservingTransform: TypeAlias = ChildTransform | RandomApply | RandomChoice | RandAugment | TrivialAugmentWide
ImageTransform: TypeAlias = SizeChangingTransform | SizePreservingTransform | ToFloat | Normalize
Transform: TypeAlias = (
    ImageTransform
    | ArrayTransform
    | FillMissing
    | ToInt64
    | Collation
    | RandomItem
    | Tokenize
    | SanitizeBoundingBoxes
    | Clip
)
"""A transform of images, arrays or strings, as a loader's `transforms` accept it."""

FIXED = (
    CenterClip, CenterCrop, CenterSpatialCrop, FillMissing, FramesAt, MultiHot, Normalize, PadImages, PadTo, Ragged,
    Resize, SanitizeBoundingBoxes, ToFloat, ToInt64, Tokenize, UniformFrames,
)  # fmt: skip
"""The transforms that draw no random numbers."""
