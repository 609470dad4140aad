"""The bad samples that one rank has met: what counts as one, counted against `max_bad` and reported."""

import errno
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias, final, get_args

from ...dataset.bad_budget import allowance, check_max_bad
from ...errors import ConfigError, DatasetError, MapError, Option, TooManyBad
from ...order.world import World
from ...system.os_errors import naming
from ...views.readable import Location

OnBadSample: TypeAlias = Literal["raise", "replace", "mask"]

_RESOURCE_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


@dataclass(frozen=True, slots=True)
class BadSampleRecord:
    """One sample that could not be delivered.

    Attributes:
        epoch: the epoch that it belongs to.
        location: the sample's shard, row, index and key.
        reason: the message of the error.
        replaced_by: the index of the sample that was delivered instead; None if the sample was masked.
    """

    epoch: int
    location: Location
    reason: str
    replaced_by: int | None

    def __str__(self) -> str:
        place = str(self.location)
        return self.reason if place in self.reason else f"{place}: {self.reason}"


def is_bad_sample(error: BaseException) -> bool:
    """Return whether an error means that a sample is bad, rather than the process or the program in trouble."""
    if isinstance(error, OSError) and not isinstance(error, DatasetError):
        return error.errno not in _RESOURCE_ERRORS
    return isinstance(error, (DatasetError, MapError))


@final
class Quarantine:
    """The bad samples that one rank has met, counted as their batches are delivered.

    Args:
        action: the treatment of a bad sample.
        max_bad: the number of bad samples that an epoch may have: a count, or below 1 a share of the rank's samples,
            rounded up.
        file: the file that gets a line of JSON for each bad sample, see `report_path`; None keeps the records in memory
            only.
        world: the rank that the lines name, and the number of ranks.

    Attributes:
        all: the records of all epochs, in order.
    """

    def __init__(self, action: OnBadSample, max_bad: float, file: str | os.PathLike[str] | None, world: World) -> None:
        if action not in get_args(OnBadSample):
            raise ConfigError("{on_bad_sample} must be 'raise', 'replace' or 'mask', got {!r}", action)
        check_max_bad(max_bad)
        self.all: list[BadSampleRecord] = []
        self._max_bad, self._rank = max_bad, world.rank
        self._path = None if file is None else report_path(file, "quarantine_file", world.rank, world.size)
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
                    "rank {}, epoch {}: {} bad samples, {} allows {} in an epoch; the last one is {}",
                    self._rank,
                    record.epoch,
                    self._count,
                    Option("max_bad", self._max_bad),
                    self._allowed,
                    record,
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
    # Absolute, as the working directory may change.
    absolute = Path(path).absolute() if isinstance(path, (str, os.PathLike)) else None
    if absolute is None or not os.access(absolute.parent, os.W_OK | os.X_OK) or absolute.is_dir():
        raise ConfigError("{} must be a file in a writable folder, got {}", Option(name), path)
    return absolute if size == 1 else absolute.with_name(f"{absolute.stem}-{rank:05d}{absolute.suffix}")
