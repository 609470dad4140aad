"""Test suites for the contracts of containers and converters, to run on your own; they need pytest."""

from .containers import ContainerContract as ContainerContract
from .containers import ReaderContract as ReaderContract
from .sources import check_source as check_source
