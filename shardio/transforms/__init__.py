"""Transforms and their random choices, as data: an engine only carries out what stands here.

Names and meaning follow torchvision.transforms.v2. Each transform turns the images' sizes and a source of random
numbers into steps, arrays with a row per image. The numbers come from (seed, epoch, sample index, place of the
transform in the list) by a counter-based generator, so every engine and every number of threads chooses the same.
"""

from typing import TypeAlias

from .choice import RandomApply as RandomApply
from .choice import RandomChoice as RandomChoice
from .choice import Simple as Simple
from .choice import TrivialAugmentWide as TrivialAugmentWide
from .colour import ColorJitter as ColorJitter
from .colour import GaussianBlur as GaussianBlur
from .colour import RandomErasing as RandomErasing
from .colour import RandomGrayscale as RandomGrayscale
from .draws import Draws as Draws
from .geometry import CenterCrop as CenterCrop
from .geometry import RandomCrop as RandomCrop
from .geometry import RandomHorizontalFlip as RandomHorizontalFlip
from .geometry import RandomResizedCrop as RandomResizedCrop
from .geometry import RandomRotation as RandomRotation
from .geometry import Resize as Resize
from .mixing import CutMix as CutMix
from .mixing import Mixer as Mixer
from .mixing import MixUp as MixUp
from .values import Normalize as Normalize
from .values import Precision as Precision
from .values import ToFloat as ToFloat
from .volumes import ArrayRecipe as ArrayRecipe
from .volumes import ArrayTransform as ArrayTransform
from .volumes import CenterSpatialCrop as CenterSpatialCrop
from .volumes import RandomAxisFlip as RandomAxisFlip
from .volumes import RandomRotate90 as RandomRotate90
from .volumes import RandomSpatialCrop as RandomSpatialCrop

Resizing: TypeAlias = RandomResizedCrop | RandomCrop | CenterCrop | Resize
"""What changes an image's size."""
KeepingSize: TypeAlias = Simple | RandomApply | RandomChoice | TrivialAugmentWide
"""What does not."""
ImageTransform: TypeAlias = Resizing | KeepingSize | ToFloat | Normalize
Transform: TypeAlias = ImageTransform | ArrayTransform
"""What a loader's `transforms` hold: for images, or for arrays."""
