"""What the smaller benchmarks share: options, turns, and a result that says what it was measured on."""

import argparse
import json
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from shardio.bench.machine import describe


def options(description: str | None, rounds: int = 5) -> argparse.ArgumentParser:
    """A parser with the options that all have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def in_turns(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of what each run gives; they take turns, and each round another one begins."""
    figures: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            figures[name].append(runs[name]())
    return {name: median(values) for name, values in figures.items()}


def finish(result: dict[str, Any], file: Path | None) -> None:
    """Prints the result, with the date and the machine, and writes it."""
    text = json.dumps({"date": date.today().isoformat(), **result, "machine": describe()}, indent=1)
    if file is not None:
        file.write_text(text + "\n")
    print(text)
