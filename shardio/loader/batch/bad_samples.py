"""Bad samples: the errors that mean a bad sample, and the record of a bad sample.

A sample is bad if its stored bytes cannot be read, have changed (with `verify=True`) or do not decode, or if the user's
`map` function for single samples fails on it.
"""

import errno
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ...dataset.location import Location
from ...errors import BadSample, DatasetError, MapError, ShardCorrupt

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


def is_damaged(error: BaseException) -> bool:
    """Return whether an error means that the stored bytes of a sample are not what they should be."""
    return isinstance(error, (BadSample, ShardCorrupt))


def is_bad_sample(error: BaseException) -> bool:
    """Return whether an error means that a sample is bad, rather than the process or the program in trouble."""
    if isinstance(error, OSError) and not isinstance(error, DatasetError):
        return error.errno not in _RESOURCE_ERRORS
    return isinstance(error, (DatasetError, MapError))
