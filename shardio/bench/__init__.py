"""The bench: measures how fast each rank is fed, names what limits it, and which setting to change."""

from .accelerators import ACCELERATORS as ACCELERATORS
from .config import BenchConfig as BenchConfig
from .decoder import tune_decoder as tune_decoder
from .measurement import measure as measure
from .rank_processes import Progress as Progress
from .result import BenchResult as BenchResult
from .result import Spread as Spread
