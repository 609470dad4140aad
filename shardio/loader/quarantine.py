"""The bad samples that one rank has met, counted against `max_bad` and reported."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import final, get_args

from ..dataset.bad_budget import allowance, check_max_bad
from ..errors import ConfigError, TooManyBad
from ..system.os_errors import naming
from .batch.bad_samples import BadSampleRecord, OnBadSample


@final
class Quarantine:
    """The bad samples that one rank has met, counted as their batches are delivered.

    Args:
        action: the treatment of a bad sample.
        max_bad: the number of bad samples that an epoch may have: a count, or below 1 a share of the rank's samples,
            rounded up.
        file: the file that gets a line of JSON for each bad sample; None keeps the records in memory only.
        rank: the rank that the lines name.

    Attributes:
        all: the records of all epochs, in order.
    """

    def __init__(self, action: OnBadSample, max_bad: float, file: Path | None, rank: int) -> None:
        if action not in get_args(OnBadSample):
            raise ConfigError(f"on_bad_sample must be 'raise', 'replace' or 'mask', got {action!r}")
        check_max_bad(max_bad)
        self.all: list[BadSampleRecord] = []
        self._max_bad, self._rank, self._path = max_bad, rank, file
        self._allowed = self._count = 0

    def begin(self, samples: int) -> None:
        """Begin an epoch of `samples` samples for this rank."""
        self._count = 0
        self._allowed = allowance(self._max_bad, samples)

    def add(self, bad: Iterable[BadSampleRecord]) -> None:
        """Add the bad samples of a delivered batch; raise TooManyBad if the epoch has more than it may have."""
        for record in bad:
            self._count += 1
            self.all.append(record)
            self._write(record)
            if self._count > self._allowed:
                raise TooManyBad(
                    f"rank {self._rank}, epoch {record.epoch}: {self._count} bad samples, max_bad={self._max_bad:g} "
                    f"allows {self._allowed} in an epoch; the last one is {record}"
                )

    def _write(self, record: BadSampleRecord) -> None:
        if self._path is None:
            return
        flat = asdict(record)
        line = json.dumps({"rank": self._rank, **flat.pop("location"), **flat}, ensure_ascii=False)
        # Opened for each line, as lines are few: no file is left open, and no line is lost if the process dies.
        with naming(self._path), open(self._path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{line}\n")


def report_path(path: str | os.PathLike[str], name: str, rank: int, size: int) -> Path:
    """Return the report file of one rank: `path` itself in a job of one rank, else `bad-00003.jsonl` for `bad.jsonl`.

    Each rank has its own file because ranks on several nodes must not write to the same one. Raises ConfigError, with
    the argument's `name`, where no file can be written.
    """
    absolute = (
        Path(path).absolute() if isinstance(path, (str, os.PathLike)) else None
    )  # the working directory may change
    if absolute is None or not os.access(absolute.parent, os.W_OK | os.X_OK) or absolute.is_dir():
        raise ConfigError(f"{name} must be a file in a writable folder, got {path}")
    return absolute if size == 1 else absolute.with_name(f"{absolute.stem}-{rank:05d}{absolute.suffix}")
