"""Contract suites that this project's own parts pass, for others to run on theirs; needs pytest."""

from .containers import ContainerContract as ContainerContract
from .sources import check_source as check_source
