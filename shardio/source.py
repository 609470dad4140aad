"""Public names for converters: the protocols of a source, the values that it gives, and how a converter is found."""

from .conversion.source import Adoptable as Adoptable
from .conversion.source import Converter as Converter
from .conversion.source import HasBlocks as HasBlocks
from .conversion.source import HasColumns as HasColumns
from .conversion.source import HasNames as HasNames
from .conversion.source import HasPlaces as HasPlaces
from .conversion.source import HasRemarks as HasRemarks
from .conversion.source import Source as Source
from .conversion.source import find as find
from .conversion.source import names as names
from .format.fields import Field as Field
from .system.types import Sample as Sample
