"""Results as JSON, fields in words."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..fields import Field


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


def describe(field: Field) -> str:
    """A field in words."""
    match field.kind:
        case "image":
            color = "RGB" if field.channels == 3 else "grey"
            return f"image, {color}, " + (" x ".join(map(str, field.shape)) if field.shape else "sizes differ")
        case "array":
            return f"array, {field.dtype}, {list(field.shape) if field.shape is not None else 'shapes differ'}"
        case "scalar":
            return f"scalar, {field.dtype}"
    return field.kind
