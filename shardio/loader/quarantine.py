"""The bad samples that one rank has met: counted against the budget, and reported."""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import final, get_args

from ..errors import ConfigError, TooManyBad
from .batch.bad_samples import BadSampleRecord, OnBadSample


@final
class Quarantine:
    """The bad samples that one rank has met, counted as their batches are delivered.

    Args:
        action: what becomes of a bad sample.
        most: how many an epoch may have: a count, or below 1 a share of the rank's samples, rounded up.
        file: a file to add a line of JSON to for each of them; None keeps them in memory only.
        rank: the rank that the lines name.
    """

    def __init__(self, action: OnBadSample, most: float, file: Path | None, rank: int) -> None:
        if action not in get_args(OnBadSample):
            raise ConfigError(f"on_bad_sample must be 'raise', 'replace' or 'mask', got {action!r}")
        check_most(most)
        self.all: list[BadSampleRecord] = []
        self._most, self._rank, self._path = most, rank, file
        self._allowed = self._met = 0

    def begin(self, samples: int) -> None:
        """Begin an epoch of `samples` samples for this rank."""
        self._met = 0
        self._allowed = allowance(self._most, samples)

    def add(self, bad: Iterable[BadSampleRecord]) -> None:
        """Add the bad samples of a delivered batch; TooManyBad if there are more than allowed."""
        for one in bad:
            self._met += 1
            self.all.append(one)
            self._write(one)
            if self._met > self._allowed:
                raise TooManyBad(
                    f"rank {self._rank}, epoch {one.epoch}: {self._met} bad samples, max_bad={self._most:g} allows "
                    f"{self._allowed} in an epoch; the last one is {one}"
                )

    def _write(self, bad: BadSampleRecord) -> None:
        if self._path is None:
            return
        flat = asdict(bad)
        line = json.dumps({"rank": self._rank, **flat.pop("location"), **flat}, ensure_ascii=False)
        # Opened for each line, as lines are few: nothing to close, and every line is out when the process dies.
        with open(self._path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{line}\n")


def check_most(most: float) -> None:
    """Raise ConfigError unless `most` is a count, or below 1 a share."""
    if isinstance(most, bool) or not isinstance(most, (int, float)) or not 0 <= most < math.inf:
        raise ConfigError(f"max_bad must be a count, or a share of at least 0 and below 1, got {most!r}")
    if most >= 1 and most != int(most):
        raise ConfigError(f"max_bad must be a whole number, or below 1 for a share, got {most!r}")


def allowance(most: float, samples: int) -> int:
    """How many of `samples` may be bad: `most` is a count, or below 1 a share, rounded up."""
    return int(most) if most >= 1 else math.ceil(most * samples)


def report_path(path: str | os.PathLike[str] | None, rank: int, size: int) -> Path | None:
    """The file of one rank: `path` itself in a job of one rank, else one such as `bad-00003.jsonl` for `bad.jsonl`.

    Ranks of several nodes must not write to one file.
    """
    if path is None:
        return None
    whole = Path(path).absolute()  # the working directory may change
    if not os.access(whole.parent, os.W_OK | os.X_OK) or whole.is_dir():
        raise ConfigError(f"quarantine_file must be a file in a folder that can be written to, got {path}")
    return whole if size == 1 else whole.with_name(f"{whole.stem}-{rank:05d}{whole.suffix}")
