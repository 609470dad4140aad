"""Writing results to files, and whether that is possible."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from ..errors import ConfigError
from ..system.os_errors import naming

JsonFile: TypeAlias = Annotated[
    str | None,
    typer.Option("--json", help="Write the result as JSON to this file; - is standard output.", metavar="FILE"),
]


def check_place(file: str | Path | None, option: str) -> None:
    """Raise ConfigError if nothing can be written to `file`, so that it is known before the work; `-` is no file."""
    if file is None or file == "-":
        return
    path = Path(file)
    place = path if path.exists() else path.absolute().parent
    if not os.access(place, os.W_OK) or path.is_dir() or not (path.exists() or place.is_dir()):
        raise ConfigError(f"{option} must be a file in a writable folder, got {path}")


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
