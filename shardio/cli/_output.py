"""Results written as JSON."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_json(file: str | None, result: Mapping[str, Any]) -> bool:
    """Writes a result to the file named, to standard output for `-`; whether that leaves no room there for text."""
    if file is None:
        return False
    text = json.dumps(result, indent=1, allow_nan=False)
    if file == "-":
        print(text)
        return True
    Path(file).write_text(f"{text}\n")
    return False
