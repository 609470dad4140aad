"""The bench: input throughput per rank, and what limits it."""

from .throughput import BenchConfig as BenchConfig
from .throughput import BenchResult as BenchResult
from .throughput import measure as measure
