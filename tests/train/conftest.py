"""Put this folder on the module search path, so that the tiny models are importable like a user's module."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
