"""Writing results as JSON."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..system.os_errors import naming


def write_text(path: Path, text: str) -> None:
    """Write a file; an OSError names it."""
    with naming(path):
        path.write_text(text)


def write_json(file: str | None, result: Mapping[str, Any]) -> bool:
    """Write a result to a file, or to standard output for `-`; return whether it went to standard output."""
    if file is None:
        return False
    text = json.dumps(result, indent=1, allow_nan=False)
    if file == "-":
        print(text)
        return True
    write_text(Path(file), f"{text}\n")
    return False
