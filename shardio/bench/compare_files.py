"""Comparing two files that `shardio bench --json` wrote at different times."""

from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..system.strict_json import parse
from .result import SCHEMA, Spread
from .significance import Comparison, compare_spreads

_IGNORED = ("dataset",)


def compare_files(a: Path, b: Path) -> tuple[Comparison, list[str]]:
    """Compare the rates of the slowest rank in two files, and note what else differs between them.

    Raises ConfigError if a file holds no result of this version, OSError if it cannot be read.
    """
    first, second = _read(a), _read(b)
    notes = [
        f"{name} was {first['config'].get(name)!r} in A and is {second['config'].get(name)!r} in B"
        for name in sorted({*first["config"], *second["config"]} - set(_IGNORED))
        if first["config"].get(name) != second["config"].get(name)
    ]
    for name in ("processor", "cores", "python", "compiled", "packages"):
        if first["machine"].get(name) != second["machine"].get(name):
            notes.append(f"{name} differs: {first['machine'].get(name)} in A, {second['machine'].get(name)} in B")
    notes.append(
        "the two were measured at different times: only ranges that do not overlap count as a difference, and what "
        "else the machine did is in no file; --versus measures in turns"
    )
    return compare_spreads(_rate(first), _rate(second)), notes


def _read(path: Path) -> dict[str, Any]:
    try:
        found = parse(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON of shardio bench: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        has = found.get("schema") if isinstance(found, dict) else None
        raise ConfigError(f"{path} must be written by `shardio bench --json` ({SCHEMA}), its schema is {has!r}")
    return found


def _rate(figures: dict[str, Any]) -> Spread:
    return Spread(**figures["samples_per_second"])
