"""Comparing two files that `shardio bench --json` wrote at different times."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError
from ..system.strict_json import parse
from .result import SCHEMA, Spread
from .significance import Comparison, compare_spreads

_IGNORED = ("dataset",)


@dataclass(frozen=True, slots=True)
class _Figures:
    """The part of a result that is compared."""

    config: dict[str, Any]
    machine: dict[str, Any]
    samples_per_second: Spread


def compare_files(a: Path, b: Path) -> tuple[Comparison, list[str]]:
    """Compare the rates of the slowest rank in two files, and note what else differs between them.

    Raises ConfigError if a file holds no result of this version, OSError if it cannot be read.
    """
    first, second = _read(a), _read(b)
    notes = [
        f"{name} was {first.config.get(name)!r} in A and is {second.config.get(name)!r} in B"
        for name in sorted({*first.config, *second.config} - set(_IGNORED))
        if first.config.get(name) != second.config.get(name)
    ]
    for name in ("processor", "cores", "python", "compiled", "packages"):
        if first.machine.get(name) != second.machine.get(name):
            notes.append(f"{name} differs: {first.machine.get(name)} in A, {second.machine.get(name)} in B")
    notes.append(
        "the two were measured at different times: only ranges that do not overlap count as a difference, and what "
        "else the machine did is in no file; --versus measures in turns"
    )
    return compare_spreads(first.samples_per_second, second.samples_per_second), notes


def _read(path: Path) -> _Figures:
    try:
        found = parse(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON of shardio bench: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        has = found.get("schema") if isinstance(found, dict) else None
        raise ConfigError(f"{path} must be written by `shardio bench --json` ({SCHEMA}), its schema is {has!r}")
    try:
        figures = msgspec.convert(found, _Figures)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path} is damaged: {error}") from error
    rate = figures.samples_per_second
    if not 0 < rate.smallest <= rate.median <= rate.largest:
        raise ConfigError(
            f"{path} is damaged: samples_per_second must be numbers above 0 with the median between the smallest and "
            f"the largest, got {rate.median:g}, {rate.smallest:g} and {rate.largest:g}"
        )
    return figures
