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
from .values import Normalize as Normalize
from .values import Precision as Precision
from .values import ToFloat as ToFloat

Resizing: TypeAlias = RandomResizedCrop | RandomCrop | CenterCrop | Resize
"""What changes an image's size."""
KeepingSize: TypeAlias = Simple | RandomApply | RandomChoice | TrivialAugmentWide
"""What does not."""
ImageTransform: TypeAlias = Resizing | KeepingSize | ToFloat | Normalize
Transform: TypeAlias = ImageTransform
