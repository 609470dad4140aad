"""Shared parts of the smaller benchmarks: options, rates, alternating runs, a result that describes the machine."""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from rich.console import Console

from shardio.bench.machine import describe

Result = TypeVar("Result")


def options(description: str | None, rounds: int | None = 5, *, photos: bool = False) -> argparse.ArgumentParser:
    """A parser with the common options: --json, --rounds unless it is None, and --photos."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds)
    if photos:
        parser.add_argument("--photos", type=Path, default=Path("/tmp/photos"), help="made by benchmarks/photos.py")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def rate(loader: Iterable[Mapping[str, Any]], seconds: float = 0.0) -> float:
    """Samples per second over whole epochs: one, or as many as take at least `seconds`."""
    begun, samples = time.perf_counter(), 0
    while not samples or time.perf_counter() < begun + seconds:
        samples += sum(len(batch["index"]) for batch in loader)
    return samples / (time.perf_counter() - begun)


def in_turns(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median result of each run; see `turns`."""
    return {name: median(values) for name, values in turns(runs, rounds).items()}


def turns(runs: Mapping[str, Callable[[], Result]], rounds: int) -> dict[str, list[Result]]:
    """The results of each run by round; the runs alternate, and each round begins with another one."""
    figures: dict[str, list[Result]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        for name in in_round(names, number):
            figures[name].append(runs[name]())
    return figures


def in_round(sides: list[Result], number: int) -> list[Result]:
    """The order of a round; each begins with another side, so that none always follows the same one."""
    first = number % len(sides) if sides else 0
    return sides[first:] + sides[:first]


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {key: round(median(one[key] for one in rounds), 4) for key in rounds[0]}


def ratio(ones: Iterable[float], others: Iterable[float]) -> float:
    """The median of the ratios within each round."""
    return median(one / other for one, other in zip(ones, others, strict=True))


def sayer() -> Callable[[str], None]:
    """A function that prints lines to stderr, with the time since the start."""
    console, begun = Console(stderr=True, highlight=False), time.monotonic()

    def say(text: str) -> None:
        console.print(f"[{time.monotonic() - begun:5.0f} s] {text}", markup=False, soft_wrap=True)

    return say


def finish(result: dict[str, Any], file: Path | None) -> None:
    """Print the result with the date and the machine, and write it to `file`."""
    text = json.dumps({"date": date.today().isoformat(), **result, "machine": describe()}, indent=1)
    if file is not None:
        file.write_text(text + "\n")
    print(text)
