"""Makes the tiny data and models importable, as a person's own module would be."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
