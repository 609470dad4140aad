"""The bench: measures the input throughput per rank, and names what limits it."""

from .decoder import tune_decoder as tune_decoder
from .throughput import BenchConfig as BenchConfig
from .throughput import BenchResult as BenchResult
from .throughput import measure as measure
